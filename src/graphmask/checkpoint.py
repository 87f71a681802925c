"""A fit that can be killed at any moment: everything that changes from epoch to epoch, to a file and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmask import storage
from graphmask.calibration import Verdict
from graphmask.errors import GraphMaskError
from graphmask.training import Epoch, History, Training


def history_to_json(history: History) -> dict[str, Any]:
    return asdict(history)


def history_from_json(value: dict[str, Any]) -> History:
    def verdict(found: dict[str, Any]) -> Verdict:
        return Verdict(found["divergence"], found["flips"], tuple(found["retained"]))

    epochs = [Epoch(**{**epoch, "verdict": verdict(epoch["verdict"])}) for epoch in value["epochs"]]
    final = verdict(value["verdict"]) if value["verdict"] is not None else None
    return History(epochs, value["feasible"], final, value["steps"], value["seconds"])


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


def save(training: Training, path: str | Path, settings: dict[str, Any]) -> None:
    """Written whole or not at all, so that a kill leaves the previous epoch's file."""
    tensors: dict[str, Tensor] = {f"probe.{key}": value for key, value in training.probe.state_dict().items()}
    tensors |= optimiser_to_tensors(training.optimiser)
    tensors["generator"] = training.generator.get_state()
    tensors["sums"] = training.sums
    best = None
    if training.best is not None:
        state, thresholds, verdict = training.best
        tensors |= {f"best.{key}": value for key, value in state.items()}
        best = {"thresholds": thresholds, "verdict": asdict(verdict)}
    description = {
        "settings": settings,
        "step": training.step,
        "open_from": training.open_from,
        "epoch": training.epoch,
        "judged": training.judged,
        "stale": training.stale,
        "tightness": training.tightness,
        "bare": training.bare,
        "constraint": training.constraint.state(),
        "thresholds": training.thresholds,
        "best": best,
        "history": history_to_json(training.history),
    }
    storage.write(path, "checkpoint", tensors, description)


def load(training: Training, path: str | Path, settings: dict[str, Any]) -> None:
    """Continue where `save` left off; refuses a checkpoint of another fit."""
    tensors, description = storage.read(path, "checkpoint")
    with storage.understood(path, "checkpoint"):
        _check(description, path, settings)
        _restore(training, tensors, description)


def _check(description: dict[str, Any], path: str | Path, settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        # JSON has no tuples: compare in its terms.
        if storage.as_json(description["settings"].get(key)) != storage.as_json(value):
            raise GraphMaskError(
                f"Expected a checkpoint of this fit at {path}, found one with another {key}. "
                "Delete it to start anew, or fit with the settings it was made with."
            )


def _restore(training: Training, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    training.probe.load_state_dict(part(tensors, "probe."))
    optimiser_from_tensors(training.optimiser, tensors)
    training.generator.set_state(tensors["generator"])
    training.sums.copy_(tensors["sums"])
    training.step, training.open_from = description["step"], description["open_from"]
    training.epoch = description["epoch"]
    training.judged = description["judged"]
    training.stale = description["stale"]
    training.tightness, training.bare = description["tightness"], description["bare"]
    training.constraint.load_state(description["constraint"])
    training.thresholds = description["thresholds"]
    training.history = history_from_json(description["history"])
    if description["best"] is not None:
        found = description["best"]["verdict"]
        verdict = Verdict(found["divergence"], found["flips"], tuple(found["retained"]))
        training.best = (part(tensors, "best."), description["best"]["thresholds"], verdict)
