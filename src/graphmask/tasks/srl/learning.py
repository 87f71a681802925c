"""Training a role labeller, and what it predicts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch

from graphmask import checkpoint, storage
from graphmask.errors import GraphMaskError
from graphmask.progress import steps
from graphmask.tasks.srl import buckets
from graphmask.tasks.srl.conll09 import Sentence
from graphmask.tasks.srl.examples import NO_ROLE, Examples
from graphmask.tasks.srl.scorer import Counts


@dataclass(frozen=True)
class Schedule:
    """How long and in what steps. The learning rate falls linearly to a fiftieth."""

    epochs: int = 8
    learning_rate: float = 2e-3
    tokens: int = 1500  #: per batch
    clip: float = 5.0


def forward(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch.x, batch.edge_index, batch.edge_type, batch.batch, batch.predicate, batch.frame)


class Loader:
    """Batches of similar length, always the same ones or others at every pass; cut out when they are asked for."""

    def __init__(self, examples: Examples, tokens: int, *, seed: int = 0, only: Sequence[int] | None = None) -> None:
        self.examples = examples
        numbers = list(range(len(examples)) if only is None else only)
        lengths = examples.lengths()
        chosen = buckets.batches([lengths[number] for number in numbers], tokens=tokens, seed=seed)
        self.batches = [[numbers[place] for place in batch] for batch in chosen]

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
    path: Path | None = None,
    progress: bool = True,
) -> tuple[list[dict[str, float]], float]:
    """Train in place, keep the state that is best on development data; returns a line per epoch, and CPU seconds.

    ``path`` is written after every epoch; if it exists, training goes on from it with the same result.
    """
    started, seconds = time.process_time(), 0.0
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=schedule.learning_rate)
    history: list[dict[str, float]] = []
    best = {key: value.clone() for key, value in model.state_dict().items()}
    settings = storage.as_json({"schedule": schedule.__dict__, "seed": seed, "examples": len(examples)})
    if path is not None and path.exists():
        tensors, description = storage.read(path, "training")
        if description.get("settings") != settings:
            raise GraphMaskError(
                f"Expected a training with the same settings at {path}, found another. Delete it to start anew."
            )
        with storage.understood(path, "training"):
            model.load_state_dict(checkpoint.part(tensors, "model."))
            checkpoint.optimiser_from_tensors(optimiser, tensors)
            best, history = checkpoint.part(tensors, "best."), description["history"]
            seconds = description["cpu_seconds"]
    with torch.random.fork_rng(devices=[]), steps(schedule.epochs - len(history), enabled=progress) as step:
        for epoch in range(len(history), schedule.epochs):
            score = f", development F1 {history[-1]['f1']:.1f}" if history else ""
            step(f"training, epoch {epoch + 1}{score}")
            # What an epoch draws depends on nothing before it: a resumed training goes on alike.
            torch.manual_seed(seed * 1_000_003 + epoch)
            loss = _epoch(model, examples, optimiser, schedule, seed, epoch)
            counts = arguments(model, development)
            if not history or counts.f1 > max(line["f1"] for line in history):
                best = {key: value.clone() for key, value in model.state_dict().items()}
            history.append({"epoch": epoch + 1, "loss": loss, "f1": counts.f1})
            if path is not None:
                tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
                tensors |= {f"best.{key}": value for key, value in best.items()}
                tensors |= checkpoint.optimiser_to_tensors(optimiser)
                spent = seconds + time.process_time() - started
                about = {"settings": settings, "history": history, "cpu_seconds": spent}
                storage.write(path, "training", tensors, about)
    model.load_state_dict(best)
    model.eval()
    return history, seconds + time.process_time() - started


def _epoch(
    model: nn.Module,
    examples: Examples,
    optimiser: torch.optim.Optimizer,
    schedule: Schedule,
    seed: int,
    epoch: int,
) -> float:
    batches = buckets.batches(examples.lengths(), tokens=schedule.tokens, seed=seed, epoch=epoch)
    model.train()
    total = 0.0
    for number, chosen in enumerate(batches):
        done = (epoch + number / len(batches)) / schedule.epochs
        for group in optimiser.param_groups:
            group["lr"] = schedule.learning_rate * (1 - 0.98 * done)
        batch = examples.batch(chosen)
        loss = F.cross_entropy(forward(model, batch), batch.y)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimiser.step()
        total += float(loss.detach())
    return total / len(batches)


@torch.no_grad()
def predict(model: nn.Module, examples: Examples, *, tokens: int = 4000) -> list[Tensor]:
    """For every example the role of every token, ``[n]``, 0 for none."""
    found: list[Tensor] = [torch.empty(0)] * len(examples)
    model.eval()
    for batch in Loader(examples, tokens):
        roles = forward(model, batch).argmax(1)
        for example, part in zip(batch.example.tolist(), roles.split(batch.ptr.diff().tolist()), strict=True):
            found[example] = part
    return found


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
    found: dict[tuple[int, int], tuple[tuple[int, str], ...]] = {}
    for place, roles in zip(examples.at, predictions, strict=True):
        found[place] = tuple((token, words[role]) for token, role in enumerate(roles.tolist()) if role != NO_ROLE)
    return [
        replace(
            sentence,
            predicates=tuple(
                replace(predicate, arguments=found.get((number, which), predicate.arguments))
                for which, predicate in enumerate(sentence.predicates)
            ),
        )
        for number, sentence in enumerate(examples.sentences)
    ]
