"""Training the models of the tasks on text: Adam, a falling learning rate, the best epoch on development data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from graphmask import files
from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.fitting import checkpoint


@dataclass(frozen=True)
class Pace:
    """How long, and in what steps. The learning rate falls linearly to a fiftieth."""

    epochs: int = 8
    learning_rate: float = 2e-3
    clip: float = 5.0
    average: float = 0.0  #: weights are averaged over steps, each time this share of the average stays; 0: the last


class Batches(Protocol):
    """Those of an epoch: a list, a loader."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class Kept(TypedDict, total=False):
    """Where a training is kept, and whether it shows a bar."""

    path: Path | None
    progress: bool


#: A line per epoch, and CPU seconds.
Trained = tuple[list[dict[str, float]], float]


def train(
    model: nn.Module,
    batches: Callable[[int], Batches],
    loss: Callable[[Any], Tensor],
    score: Callable[[nn.Module], float],
    pace: Pace,
    *,
    measure: str,
    settings: dict[str, Any],
    seed: int,
    path: Path | None = None,
    progress: bool = True,
) -> Trained:
    """Train in place, keep the state that scores best; returns a line per epoch, and CPU seconds.

    Args:
        batches: those of an epoch.
        loss: of a batch.
        score: of the model (or one with averaged weights) on development data, under the name ``measure``.
        settings: what else must agree for a training to be gone on with.
        path: written after every epoch; if it exists, training goes on from it with the same result.
    """
    started, seconds = time.process_time(), 0.0
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=pace.learning_rate)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(pace.average)) if pace.average else None
    judged = model if average is None else average.module
    history: list[dict[str, float]] = []
    best = _state(model)
    same = files.as_json({"schedule": pace.__dict__, "seed": seed, **settings})
    if path is not None and path.exists():
        tensors, description = files.read(path, "training")
        if description.get("settings") != same:
            raise GraphMaskError(
                f"Expected a training with the same settings at {path}, found another. Delete it to start anew."
            )
        with files.understood(path, "training"):
            model.load_state_dict(checkpoint.part(tensors, "model."))
            checkpoint.optimiser_from_tensors(optimiser, tensors)
            if average is not None:
                average.load_state_dict(checkpoint.part(tensors, "average."))
            best, history = checkpoint.part(tensors, "best."), description["history"]
            seconds = description["cpu_seconds"]
    with torch.random.fork_rng(devices=[]), steps(pace.epochs - len(history), enabled=progress) as step:
        for epoch in range(len(history), pace.epochs):
            so_far = f", development {measure} {history[-1][measure]:.1f}" if history else ""
            step(f"training, epoch {epoch + 1}{so_far}")
            # What an epoch draws depends on nothing before it: a resumed training goes on alike.
            torch.manual_seed(seed * 1_000_003 + epoch)
            mean = _epoch(model, batches(epoch), loss, optimiser, pace, epoch, average)
            reached = score(judged)
            if not history or reached > max(line[measure] for line in history):
                best = _state(judged)
            history.append({"epoch": epoch + 1, "loss": mean, measure: reached})
            if path is not None:
                spent = seconds + time.process_time() - started
                about = {"settings": same, "history": history, "cpu_seconds": spent}
                files.write(path, "training", _tensors(model, best, optimiser, average), about)
    model.load_state_dict(best)
    model.eval()
    return history, seconds + time.process_time() - started


def _tensors(
    model: nn.Module, best: dict[str, Tensor], optimiser: torch.optim.Adam, average: AveragedModel | None
) -> dict[str, Tensor]:
    """All that a training must have to go on."""
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    tensors |= {f"best.{key}": value for key, value in best.items()}
    tensors |= checkpoint.optimiser_to_tensors(optimiser)
    if average is not None:
        tensors |= {f"average.{key}": value for key, value in average.state_dict().items()}
    return tensors


def _epoch(
    model: nn.Module,
    batches: Batches,
    loss: Callable[[Any], Tensor],
    optimiser: torch.optim.Optimizer,
    pace: Pace,
    epoch: int,
    average: AveragedModel | None,
) -> float:
    model.train()
    total = 0.0
    for number, batch in enumerate(batches):
        done = (epoch + number / len(batches)) / pace.epochs
        for group in optimiser.param_groups:
            group["lr"] = pace.learning_rate * (1 - 0.98 * done)
        batch_loss = loss(batch)
        optimiser.zero_grad()
        batch_loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), pace.clip)
        optimiser.step()
        if average is not None:
            average.update_parameters(model)
        total += float(batch_loss.detach())
    return total / len(batches)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}
