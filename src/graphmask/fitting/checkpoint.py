"""Checkpoints: everything that changes from epoch to epoch, in a file from which a killed fit resumes."""

from __future__ import annotations

import operator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmask import files
from graphmask.errors import GraphMaskError
from graphmask.fitting.calibration import Candidate, Verdict
from graphmask.fitting.constraint import Constraint
from graphmask.fitting.history import Epoch, History
from graphmask.fitting.saved import describe
from graphmask.fitting.training import Training


def history_to_json(history: History) -> dict[str, Any]:
    return asdict(history)


def history_from_json(value: dict[str, Any]) -> History:
    """The history in a file. Types are checked here, where the file can be named, and not at their first use."""

    def number(found: Any) -> Any:
        if type(found) not in (int, float):
            raise TypeError(f"expected a number, found {found!r:.40}")
        return found

    def verdict(found: dict[str, Any]) -> Verdict:
        retained = tuple(map(number, found["retained"]))
        if not retained:
            raise ValueError("a verdict on no site")
        numbers: dict[str, Any] = {key: number(one) for key, one in found.items() if key != "retained"}
        return Verdict(retained=retained, **numbers)

    def candidate(found: dict[str, Any]) -> Candidate:
        thresholds = tuple(map(number, found["thresholds"]))
        return Candidate(thresholds, verdict(found["verdict"]), operator.index(found["rung"]))

    def epoch(found: dict[str, Any]) -> Epoch:
        numbers = {key: number(found[key]) for key in ("divergence", "multiplier")}
        gates = [number(gate) for gate in found["gates"]]
        at = operator.index(found["epoch"])
        return Epoch(**{**found, **numbers, "epoch": at, "gates": gates, "verdict": verdict(found["verdict"])})

    return History(
        [epoch(record) for record in value["epochs"]],
        bool(value["feasible"]),
        verdict(value["verdict"]) if value["verdict"] is not None else None,
        operator.index(value["steps"]),
        number(value["seconds"]),
        number(value["tolerance"]),
        tuple(map(str, value["sites"])),
        [candidate(record) for record in value["frontier"]],
        tuple(map(str, value.get("titles", ()))),
        tuple(map(str, value.get("unseen", ()))),
    )


def rungs_to_tensors(rungs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Snapshots of a probe, by names that begin with ``rung.`` and their number."""
    return {f"rung.{number}.{key}": value for number, state in enumerate(rungs) for key, value in state.items()}


def rungs_from_tensors(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    of_rungs = part(tensors, "rung.")
    numbers = sorted({int(key.split(".", 1)[0]) for key in of_rungs})
    return [part(of_rungs, f"{number}.") for number in numbers]


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with ``prefix``, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def optimiser_to_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What Adam remembers, by names that begin with ``adam.``."""
    state = optimiser.state_dict()["state"]
    return {f"adam.{at}.{key}": torch.as_tensor(value) for at, entry in state.items() for key, value in entry.items()}


def optimiser_from_tensors(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    adam: dict[int, dict[str, Tensor]] = {}
    for key, value in part(tensors, "adam.").items():
        at, name = key.split(".", 1)
        adam.setdefault(int(at), {})[name] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": adam})


def _settings(training: Training) -> dict[str, Any]:
    """The settings that must agree for a checkpoint to belong to this fit."""
    described = describe(training.subject, training.probe, training.tolerance, training.recipe, training.seed)
    per_step = training.team.size * training.accumulate  # in however many processes
    return {**described, "steps": training.steps, "batches per step": per_step}


def save(training: Training, path: str | Path) -> None:
    """Write the file whole or not at all, so that a kill leaves the previous epoch's file."""
    tensors: dict[str, Tensor] = {f"probe.{key}": value for key, value in training.probe.state_dict().items()}
    tensors |= optimiser_to_tensors(training.optimiser)
    tensors["generator"] = training.generator.get_state()
    tensors["sums"] = training.sums
    tensors |= rungs_to_tensors(training.rungs)
    description = {
        "settings": _settings(training),
        "step": training.step,
        "epoch": training.epoch,
        "drawn_out": training.drawn_out,
        "judged": training.judged,
        "caution": training.caution,
        "constraint": training.constraint.state(),
        "history": history_to_json(training.history),
    }
    files.write(path, "checkpoint", tensors, description)


def resume(training: Training, path: str | Path) -> None:
    """Continue where the file left off, if there is one, in all processes."""
    there = Path(path).exists()
    training.team.agree({"checkpoint": str(path) if there else None}, "Put it where all processes see the same files.")
    if there:
        load(training, path)


def load(training: Training, path: str | Path) -> None:
    """Continue where `save` left off; refuses a checkpoint of another fit."""
    tensors, description = files.read(path, "checkpoint")
    with files.understood(path, "checkpoint"):
        _check(description, path, _settings(training))
        _restore(training, tensors, description)


def _check(description: dict[str, Any], path: str | Path, settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        # JSON has no tuples: compare in its terms.
        if files.as_json(description["settings"].get(key)) != files.as_json(value):
            raise GraphMaskError(
                f"Expected a checkpoint of this fit at {path}, found one with another {key}. "
                "Delete it to start anew, or fit with the settings it was made with."
            )


def _check_progress(training: Training) -> None:
    """Raise for numbers that no fit can reach: later steps would divide by zero, or never end."""
    step, epoch, caution = training.step, training.epoch, training.caution
    past = training.drawn_out, training.judged
    if not (0 <= step < 1 << 31 and 0 <= epoch < 1 << 31 and 0 <= min(past) <= max(past) <= step):
        raise ValueError(f"step {step} of epoch {epoch}, drawn out by and judged at {past}")
    if not 1e-6 < caution < 1e6:
        raise ValueError(f"a caution of {caution}")


def _check_constraint(constraint: Constraint) -> None:
    """Raise for numbers that no fit can reach and that overflow in later steps."""
    if not all(abs(value) <= 1e150 for value in constraint.state().values()) or not 1e-9 < constraint.multiplier < 1e20:
        raise ValueError(f"a constraint at {constraint.state()}")


def _restore(training: Training, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    training.probe.load_state_dict(part(tensors, "probe."))
    optimiser_from_tensors(training.optimiser, tensors)
    training.generator.set_state(tensors["generator"])
    training.sums.copy_(tensors["sums"])
    # Anything but numbers is refused here, where the file can be named.
    training.step, training.epoch, training.drawn_out, training.judged = (
        operator.index(description[key]) for key in ("step", "epoch", "drawn_out", "judged")
    )
    training.caution = 1.0 * description["caution"]
    _check_progress(training)
    training.rungs = rungs_from_tensors(tensors)
    training.constraint.load_state(description["constraint"])
    _check_constraint(training.constraint)
    training.history = history_from_json(description["history"])
