"""Training Entity-GCN, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphmask.experiments import learning
from graphmask.experiments.qa.examples import Examples, Loader
from graphmask.experiments.qa.model import EntityGCN, forward


@dataclass(frozen=True)
class Schedule(learning.Pace):
    """The pace of training, the questions of a batch, and how many messages are dropped (`EntityGCN.messages`)."""

    size: int = 32
    message_dropout: float = 0.0


def train(
    model: EntityGCN,
    examples: Examples,
    development: Examples,
    schedule: Schedule,
    *,
    seed: int,
    path: Path | None = None,
    progress: bool = True,
) -> tuple[list[dict[str, float]], float]:
    """See `tasks.learning.train`. Questions whose answer is nowhere mentioned teach nothing and are left out."""
    answerable = examples.answerable.nonzero().flatten()

    def loss(batch: Mapping[str, Any]) -> Tensor:
        return F.cross_entropy(forward(model, batch), batch["y"])

    model.message_dropout = schedule.message_dropout
    done = learning.train(
        model,
        lambda epoch: Loader(examples, schedule.size, seed=seed, epoch=epoch, only=answerable),
        loss,
        lambda judged: accuracy(predict(judged, development), development),
        schedule,
        measure="accuracy",
        settings={"examples": len(answerable)},
        seed=seed,
        path=path,
        progress=progress,
    )
    model.message_dropout = 0.0  # gates are not trained with it: what a layer sends is what they choose from
    return done


@torch.no_grad()
def predict(model: nn.Module, examples: Examples, *, form: str = "matrix", size: int = 128) -> Tensor:
    """``[n]``: the candidate that scores best, for every question."""
    model.eval()
    found = torch.empty(len(examples), dtype=torch.long)
    for batch in Loader(examples, size, form=form):
        found[batch["example"]] = forward(model, batch).argmax(1)
    return found


def accuracy(answers: Tensor, examples: Examples) -> float:
    """Per cent. An answer that is nowhere mentioned counts as wrong."""
    return 100 * float(((answers == examples.answer) & examples.answerable).double().mean())
