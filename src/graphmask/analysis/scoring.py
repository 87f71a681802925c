"""Scores of a model whose messages are replaced: what erosion, layers and audits measure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphmask.devices import double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import GATES_AT_ONCE, MOST_COPIES, Case, Choice
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.graphs import batches

#: ``score(output, batch)``: one value per output row, or one for the batch (weighed by its rows), or two sums, for
#: a ratio of sums over all batches such as F1.
Score = Callable[[Tensor, Any], Tensor | float | tuple[float, float]]


@contextmanager
def studied(
    method: Method,
    loader: Iterable[Any],
    allow_infeasible: bool = False,
    explanations: Iterable[Explanation] | None = None,
) -> Iterator[Iterator[tuple[Case, Choice]]]:
    """Inside the context, every batch with what the method keeps of it; the model is restored afterwards.

    What is kept is the method's own choice, without repair; or, where ``explanations`` of the same graphs are given in
    the same order, what these keep.
    """
    batches.check_loader(loader, "the loader")
    method.check_ready(allow_infeasible or explanations is not None)
    made = None if explanations is None else _Made(explanations)

    def cases() -> Iterator[tuple[Case, Choice]]:
        mine, number = copy.copy(method), -1  # what is found on the first batch holds for the others of this call
        for number, batch in enumerate(loader):
            case = mine.case(batch, f"batch {number}", index=None if made is None else made.index())
            if mine.sites is None and case.trace.edge_index.shape[1]:
                mine.subject = replace(mine.subject, sites=case.subject.sites, types=case.subject.types)
            yield case, mine.chosen(case) if made is None else made.choice(case, f"batch {number}")
        if number < 0:
            raise GraphMaskError("Expected the loader to hold at least one batch, found none. Is it a spent iterator?")
        if made is not None:
            made.check_spent()

    with method.subject.frozen():  # also around the loader: shuffling draws from the user's random state
        yield cases()


class _Made:
    """Explanations that were made before, handed out batch by batch in the order of the loader."""

    def __init__(self, explanations: Iterable[Explanation]) -> None:
        self.rest = iter(explanations)
        self.next = next(self.rest, None)

    def index(self) -> tuple[int, ...] | None:
        return None if self.next is None else self.next.index

    def choice(self, case: Case, where: str) -> Choice:
        edges, split = case.trace.edge_index, case.split
        explanations: list[Explanation] = []
        while self.next is not None and len(explanations) < split.count:
            explanations.append(self.next)
            self.next = next(self.rest, None)
        order = split.edge_graph.argsort(stable=True)
        local = split.within(edges)
        ends = torch.cat([e.edge_index for e in explanations], 1) if explanations else edges[:, :0]
        if len(explanations) < split.count or not torch.equal(ends, local[:, order]):
            raise GraphMaskError(
                f"Expected one explanation for each of the {split.count} graph(s) of {where}, with its edges, in the "
                f"order of the loader, got {len(explanations)} that do not fit. Pass the batches that were explained."
            )
        kept, scores = torch.empty_like(case.trace.carried), torch.empty_like(case.trace.values)
        kept[:, order] = torch.cat([e.kept for e in explanations], 1)
        scores[:, order] = torch.cat([e.scores for e in explanations], 1).to(scores.dtype)
        baselines = [torch.stack(some) for some in zip(*(e.baselines for e in explanations), strict=True)]
        same = [bool((some == some[0]).all()) for some in baselines]
        return Choice(scores, kept, [b[0] if s else b for b, s in zip(baselines, same, strict=True)])

    def check_spent(self) -> None:
        if self.next is not None:
            raise GraphMaskError("Expected as many explanations as graphs in the loader, got more.")


@torch.no_grad()
def run_each(case: Case, gates: Iterable[Tensor], baselines: Sequence[Tensor]) -> Iterator[Tensor]:
    """The model's output with each of the gates [L, E]; copies of a small graph go through the model at once."""
    if case.split.count > 1 or any(baseline.dim() > 1 for baseline in baselines):
        yield from (case.run(some, baselines) for some in gates)
        return
    most = max(1, min(MOST_COPIES, GATES_AT_ONCE // max(case.trace.values.numel(), 1)))
    waiting: list[Tensor] = []
    for some in gates:
        waiting.append(some)
        if len(waiting) == most:
            yield from case.run_many(torch.stack(waiting), baselines)
            waiting = []
    if waiting:
        yield from case.run_many(torch.stack(waiting), baselines)


class Tally:
    """Sums of scores over batches, by measure."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.rows: dict[str, float] = {}

    def add(self, case: Case, output: Tensor, score: Score | None) -> None:
        for measure, (total, rows) in measures(case, output, score).items():
            self.sums[measure] = self.sums.get(measure, 0.0) + total
            self.rows[measure] = self.rows.get(measure, 0.0) + rows

    def means(self) -> dict[str, float]:
        return {measure: total / max(self.rows[measure], 1.0) for measure, total in self.sums.items()}


def measures(case: Case, output: Tensor, score: Score | None) -> dict[str, tuple[float, float]]:
    """Measure -> (sum over output rows, how many rows).

    The user's ``score``; or agreement with the original's prediction, accuracy against ``batch.y`` if there is one
    label per row, and divergence from the original. A regression has a divergence only.
    """
    rows = output.shape[0]
    if score is not None:
        value = score(output, case.batch)
        if isinstance(value, tuple):
            return {"score": (float(value[0]), float(value[1]))}
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == rows and value.numel() == rows:
            return {"score": (float(double(value).sum()), rows)}
        if isinstance(value, Tensor) and value.numel() != 1:
            raise GraphMaskError(
                f"Expected the score to be one number or one per output row ({rows}), got shape {tuple(value.shape)}."
            )
        return {"score": (float(value) * rows, rows)}
    sums: dict[str, tuple[float, float]] = {}
    divergence = case.divergence
    if divergence.has_classes:
        sums["agreement"] = rows - float(divergence.flips(case.trace.output, output).sum()), rows
        right = _right(case, output)
        if right is not None:
            sums["accuracy"] = float(right.sum()), rows
    sums["divergence"] = float(double(divergence(case.trace.output, output)).sum()), rows
    return sums


def _right(case: Case, output: Tensor) -> Tensor | None:
    """bool [rows] against the labels; None if there are none, or not one per row."""
    labels, _ = batches.labels_of(case.batch, output.shape[0])
    if labels is None or not labels.dim():
        return None
    asked = case.subject.rows
    if asked is not None and len(labels) == asked.count:
        labels = labels[list(asked.rows)]
    elif batches.seeds_of(case.batch) == output.shape[0]:
        labels = labels[: output.shape[0]]
    yes_or_no = case.divergence.name == "bernoulli" or output.dim() < 2 or output.shape[-1] < 2
    if yes_or_no:
        if output.numel() != output.shape[0] or labels.numel() != output.shape[0]:
            return None
        return (case.divergence.logits(output) > 0).view(-1) == (labels.view(-1) > 0)
    if output.dim() != 2 or labels.numel() != output.shape[0] or labels.is_floating_point():
        return None
    return output.argmax(-1) == labels.view(-1)
