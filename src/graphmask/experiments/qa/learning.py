"""Training Entity-GCN and its gates, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphmask.experiments import learning
from graphmask.experiments.qa.corpus import Corpus
from graphmask.experiments.qa.examples import Examples, Loader
from graphmask.experiments.qa.model import EntityGCN, forward
from graphmask.experiments.qa.presets import Preset, Schedule
from graphmask.explainer import GraphMask

#: Of a question: whether the model still gives the same answer, and how sure it is of it.
DIVERGENCE = "kl"


def train(
    model: EntityGCN,
    examples: Examples,
    development: Examples,
    schedule: Schedule,
    *,
    seed: int,
    **kept: Unpack[learning.Kept],
) -> learning.Trained:
    """See `experiments.learning.train`. Questions whose answer is nowhere mentioned teach nothing and are left out."""
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
        **kept,
    )
    model.message_dropout = 0.0  # gates are not trained with it: what a layer sends is what they choose from
    return done


def fit(
    model: nn.Module,
    corpus: Corpus,
    preset: Preset,
    *,
    seed: int,
    form: str = "matrix",
    path: Path | None = None,
    progress: bool = True,
) -> GraphMask:
    """Train gates on the training part; thresholds are chosen on the development part."""
    tolerance = preset.aim * preset.tolerance
    explainer = GraphMask(model, forward, DIVERGENCE, tolerance, seed, recipe=preset.recipe, hidden=preset.hidden)
    dev = corpus.parts["dev"]
    some = torch.randperm(len(dev), generator=torch.Generator().manual_seed(0))[: preset.calibrate]
    explainer.fit(
        Loader(corpus.parts["train"], preset.gate_size, form=form, seed=seed),
        Loader(dev, 64, form=form, only=some),
        epochs=preset.gate_epochs,
        checkpoint=path,
        progress=progress,
    )
    explainer.calibrate(Loader(dev, 64, form=form), tolerance=preset.tolerance)
    return explainer


@torch.no_grad()
def predict(model: nn.Module, examples: Examples, *, size: int = 128) -> Tensor:
    """``[n]``: the candidate that scores best, for every question."""
    model.eval()
    predicted = torch.empty(len(examples), dtype=torch.long)
    for batch in Loader(examples, size):
        predicted[batch["example"]] = forward(model, batch).argmax(1)
    return predicted


def accuracy(answers: Tensor, examples: Examples) -> float:
    """Per cent. An answer that is nowhere mentioned counts as wrong."""
    return 100 * float(((answers == examples.answer) & examples.answerable).double().mean())
