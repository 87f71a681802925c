"""Training a role labeller, and what it predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch

from graphmask.experiments import buckets, learning
from graphmask.experiments.srl.conll09 import Sentence
from graphmask.experiments.srl.examples import NO_ROLE, Examples
from graphmask.experiments.srl.presets import Schedule
from graphmask.experiments.srl.scorer import Counts


def forward(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch.x, batch.edge_index, batch.edge_type, batch.batch, batch.predicate, batch.frame)


class Loader:
    """Batches of similar length, always the same ones or others at every pass; cut out when they are asked for."""

    def __init__(self, examples: Examples, tokens: int, *, seed: int = 0, only: Sequence[int] | None = None) -> None:
        self.examples = examples
        numbers = list(range(len(examples)) if only is None else only)
        lengths = examples.lengths()
        chosen = buckets.batches([lengths[number] for number in numbers], tokens=tokens, seed=seed)
        self.batches = [[numbers[at] for at in batch] for batch in chosen]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return (self.examples.batch(numbers) for numbers in self.batches)


def train(
    model: nn.Module,
    examples: Examples,
    development: Examples,
    schedule: Schedule,
    *,
    seed: int,
    **kept: Unpack[learning.Kept],
) -> learning.Trained:
    """See `experiments.learning.train`; the best state is that with the highest F1."""
    lengths = examples.lengths()

    def loss(numbers: Sequence[int]) -> Tensor:
        batch = examples.batch(numbers)
        return F.cross_entropy(forward(model, batch), batch.y)

    return learning.train(
        model,
        lambda epoch: buckets.batches(lengths, tokens=schedule.tokens, seed=seed, epoch=epoch),
        loss,
        lambda judged: arguments(judged, development).f1,
        schedule,
        measure="f1",
        settings={"examples": len(examples)},
        seed=seed,
        **kept,
    )


@torch.no_grad()
def predict(model: nn.Module, examples: Examples, *, tokens: int = 4000) -> list[Tensor]:
    """For every example the role of every token, ``[n]``, 0 for none."""
    predictions: list[Tensor] = [torch.empty(0)] * len(examples)
    model.eval()
    for batch in Loader(examples, tokens):
        roles = forward(model, batch).argmax(1)
        for example, part in zip(batch.example.tolist(), roles.split(batch.ptr.diff().tolist()), strict=True):
            predictions[example] = part
    return predictions


def arguments(model: nn.Module, examples: Examples) -> Counts:
    """Labelled arguments that the model gets right."""
    return count(predict(model, examples), examples)


def count(predictions: Sequence[Tensor], examples: Examples, only: Sequence[int] | None = None) -> Counts:
    """As `scorer.score` does on the arguments of these examples, in one go."""
    chosen = list(range(len(examples)) if only is None else only)
    if not chosen:
        return Counts()
    return count_batch(torch.cat([predictions[number] for number in chosen]), examples.batch(chosen))


def count_batch(roles: Tensor, batch: Batch) -> Counts:
    """Of the roles ``[N]`` given to the tokens of a batch."""
    named = roles != NO_ROLE
    return Counts(int(((roles == batch.y) & named).sum()), int(named.sum()), int(batch.arguments.sum()))


def labelled(predictions: Sequence[Tensor], examples: Examples) -> list[Sentence]:
    """The sentences with the predicted arguments in place of their own, for a file or the scorer."""
    words = examples.vocabularies.roles.words
    assigned: dict[tuple[int, int], tuple[tuple[int, str], ...]] = {}
    for example, roles in zip(examples.at, predictions, strict=True):
        assigned[example] = tuple((token, words[role]) for token, role in enumerate(roles.tolist()) if role != NO_ROLE)
    return [
        replace(
            sentence,
            predicates=tuple(
                replace(predicate, arguments=assigned.get((number, which), predicate.arguments))
                for which, predicate in enumerate(sentence.predicates)
            ),
        )
        for number, sentence in enumerate(examples.sentences)
    ]
