"""One method with one seed: fitted, its threshold chosen on validation data, and the judged graphs explained."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.analysis.audits import frontiers
from graphmask.analysis.ground_truth import Agreement
from graphmask.analysis.robust_fidelity import fine_tuned
from graphmask.analysis.scoring import studied
from graphmask.errors import GraphMaskError
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.graphs import batches

#: Thresholds that are tried: as in the paper where true edges are known, and finer where faithfulness decides.
THRESHOLDS = tuple(number / 10 for number in range(1, 10))
FINE = (0.0, 0.01, 0.02, 0.05, *THRESHOLDS, 0.95)
#: Shares of each graph's messages that are tried beside thresholds; scores of some methods have no common scale.
FRACTIONS = (0.01, 0.02, 0.05, *THRESHOLDS, 1.0)

#: The name of an attribute of batches, a function of a batch (bool [E] or [E, L] over all its edges), or one tensor,
#: or None, per explained graph.
Gold = str | Callable[[Any], Tensor | None] | Sequence[Tensor | None]


@dataclass
class Parts:
    """The data of a comparison, divided by what it is used for."""

    fit: Iterable[Any]  #: methods learn from these batches
    validation: Iterable[Any] | None  #: and see these while they do
    thresholds: Iterable[Any]  #: thresholds of soft methods are chosen on these
    test: list[Any]  #: every figure is measured on these
    index: list[int] | None = None  #: rows of the one graph of ``test`` that are explained one by one
    gold: list[Tensor | None] | None = None  #: of each explained graph of ``test``
    thresholds_gold: list[Tensor | None] | None = None  #: of each graph of ``thresholds``
    _tuned: dict[tuple[tuple[str, Any], ...], nn.Module] = field(default_factory=dict)

    @property
    def judged(self) -> list[Any]:
        """One batch per group of explanations, as `graphmask.analysis` takes them."""
        return self.test if self.index is None else self.test * len(self.index)

    def tuned(self, method: Method, **options: Any) -> nn.Module:
        """The model of `fine_tuned`, made once for all methods and seeds."""
        key = tuple(sorted(options.items()))
        if key not in self._tuned:
            self._tuned[key] = fine_tuned(method, self.fit, **options)
        return self._tuned[key]


@dataclass
class Run:
    """What a method found with one seed, and what that took."""

    name: str
    seed: int
    method: Method
    parts: Parts
    explanations: list[Explanation]
    fit_seconds: float  #: of CPU
    explain_seconds: float  #: of CPU, for all explanations together
    threshold: float | None = None  #: of a soft method
    fraction: float | None = None  #: or else, of a soft method, the share of each graph's messages that is kept
    notes: list[str] = field(default_factory=list)


def run(name: str, method: Method, parts: Parts, *, epochs: int | None = None, repair: bool = False) -> Run:
    """Fit, choose a threshold if the method has one, and explain the judged graphs; CPU seconds of both are taken."""
    options = {"epochs": epochs} if epochs and "epochs" in inspect.signature(method.fit).parameters else {}
    started = time.process_time()
    history = method.fit(parts.fit, parts.validation, progress=False, **options)
    fitted = time.process_time() - started
    threshold = fraction = None
    if method.soft:
        threshold, fraction = choose_cut(method, parts)
        if threshold is None:
            method.fraction = fraction
        else:
            method.threshold = threshold
    started = time.process_time()
    explanations = explain(method, parts, repair)
    explained = time.process_time() - started
    notes = []
    if getattr(history, "feasible", True) is False:
        notes.append(f"{name}, seed {method.seed}: fitting found no state within tolerance; measured nevertheless.")
    return Run(name, method.seed, method, parts, explanations, fitted, explained, threshold, fraction, notes)


def explain(method: Method, parts: Parts, repair: bool = False) -> list[Explanation]:
    """Every judged graph, or every row that was asked about."""
    if parts.index is None:
        return list(method.explain_all(parts.test, repair=repair, allow_infeasible=True))
    (graph,) = parts.test
    return [method.explain(graph, index=row, repair=repair, allow_infeasible=True) for row in parts.index]


def choose_cut(method: Method, parts: Parts) -> tuple[float | None, float | None]:
    """Of a soft method, on the data for thresholds alone: a threshold, or a share of each graph's messages.

    Where true edges of these are known, the threshold with the best F1, as in the paper. Otherwise the sparsest of
    all thresholds and shares whose mean divergence is within tolerance; if none is, the one with the lowest divergence.
    """
    if parts.thresholds_gold is not None:
        explanations = list(method.explain_all(parts.thresholds, repair=False, allow_infeasible=True))
        return best_threshold(explanations, parts.thresholds_gold), None
    swept = frontiers(method, parts.thresholds, {"threshold": FINE, "fraction": FRACTIONS}, allow_infeasible=True)
    rows = [{**row, "by": by} for by, frame in swept.items() for row in frame.to_dicts()]
    within = [row for row in rows if row["divergence"] <= method.tolerance]
    measure = "retained" if within else "divergence"
    best = min(within or rows, key=lambda row: (row[measure], row["by"] == "fraction", -row["level"]))
    return (None, best["level"]) if best["by"] == "fraction" else (best["level"], None)


def best_threshold(explanations: Sequence[Explanation], gold: Sequence[Tensor | None]) -> float:
    """The threshold among .1, ..., .9 with the highest F1 over the edges of all graphs whose true edges are known."""
    known = [(e.scores, truth) for e, truth in zip(explanations, gold, strict=True) if truth is not None]
    scores = torch.cat([(s if truth.dim() > 1 else s.amax(0)[None]) for s, truth in known], 1)
    wanted = torch.cat([truth.t() if truth.dim() > 1 else truth[None] for _, truth in known], 1)
    return max(THRESHOLDS, key=lambda threshold: Agreement.of(scores > threshold, wanted).f1)


# True edges ------------------------------------------------------------------------------------------------


def check(
    probe: Method, loader: Iterable[Any], gold: str | Callable[[Any], Tensor | None] | None, *, needed: bool = True
) -> list[Tensor | None] | None:
    """Run the model once over all batches, so that what is wrong with them is said before any work starts.

    Returns the true edges of every graph: bool [E] or [E, L]; None where none are known.
    """
    truths: list[Tensor | None] = []
    with studied(probe, loader) as cases:
        for case, _ in cases:
            value = None if gold is None else _told(gold, case.batch)
            owner = case.split.edge_graph
            if value is None:
                truths += [None] * case.split.count
                continue
            if value.dtype != torch.bool or value.shape[:1] != owner.shape or value.dim() > 2:
                raise GraphMaskError(
                    f"Expected gold of a batch to be bool [{len(owner)}] or [{len(owner)}, layers], one row per edge, "
                    f"got {value.dtype} of shape {list(value.shape)}."
                )
            order = owner.argsort(stable=True)
            sizes = torch.bincount(owner, minlength=case.split.count).tolist()
            truths += value[order].split(sizes)
    if isinstance(gold, str) and needed and all(value is None for value in truths):
        raise GraphMaskError(f"Expected batches with an attribute {gold!r} that marks true edges, found none.")
    return truths if any(value is not None for value in truths) else None


def _told(gold: str | Callable[[Any], Tensor | None], batch: Any) -> Tensor | None:
    if callable(gold):
        return gold(batch)
    if batches.adapter(batch).by_type:
        parts = [batch[kind].get(gold) for kind in batches.edge_map_of(batch).all_types]
        return torch.cat(parts) if all(isinstance(part, Tensor) for part in parts) else None
    value = batch.get(gold) if isinstance(batch, Mapping) else getattr(batch, gold, None)
    return value if isinstance(value, Tensor) else None
