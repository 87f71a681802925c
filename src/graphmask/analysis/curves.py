"""Sparsity curves: how the output moves as messages are kept, or dropped, in the order of their scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.analysis.fidelity import BASELINE, DROPPED, KEPT, ZERO
from graphmask.analysis.scoring import run_each, studied
from graphmask.analysis.tables import table
from graphmask.devices import double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars

LEVELS = tuple(number / 10 for number in range(11))


def sparsity_curve(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None = None,
    *,
    side: str = KEPT,
    levels: Sequence[float] = LEVELS,
    replaced_by: str = BASELINE,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """How far the output moves when a fraction of each graph's messages is kept, or dropped, highest scores first.

    It can show whether a method's *order* of messages is good, at every size, without a threshold. It cannot tell two
    messages apart whose scores tie: these are taken as the edges are listed.

    Args:
        method, loader, explanations, allow_infeasible: as in `sufficiency`.
        side: "kept", where a low curve is good, or "dropped", where a high one is.
        levels: fractions from 0 to 1; so many of each graph's messages, over all layers, rounded up.
        replaced_by: "baseline", the method's own, or "zero".

    Columns:
        level.
        divergence, flips: means over graphs.
    """
    if side not in (KEPT, DROPPED):
        raise GraphMaskError(f"Expected side to be 'kept' or 'dropped', got {side!r}.")
    if replaced_by not in (BASELINE, ZERO):
        raise GraphMaskError(f"Expected replaced_by to be 'baseline' or 'zero', got {replaced_by!r}.")
    if not levels or any(not 0 <= level <= 1 for level in levels):
        raise GraphMaskError(f"Expected levels from 0 to 1, got {list(levels)}.")
    sums, graphs = torch.zeros(len(levels), 2, dtype=torch.double), 0
    with studied(method, loader, allow_infeasible, explanations) as cases:
        for case, choice in cases:
            graphs += case.split.count
            baselines = case.zeros() if replaced_by == ZERO else choice.baselines
            for row, output in enumerate(run_each(case, _cuts(case, choice, side, levels), baselines)):
                moved = case.distance(output).clamp_min(0), case.flips(output)
                sums[row] += torch.stack([double(value).sum() for value in moved]).cpu()
    rows = [(level, *row) for level, row in zip(levels, (sums / max(graphs, 1)).tolist(), strict=True)]
    return table({"level": float, "divergence": float, "flips": float}, rows)


def area_under(curve: polars.DataFrame, measure: str = "divergence") -> float:
    """Under a curve of `sparsity_curve`, by the trapezoidal rule.

    One number for the whole curve. It hides where two curves cross, and a divergence without an upper bound lets the
    sparsest levels outweigh all others; the area under "flips" has no such trouble, and says nothing of a regression.
    """
    return float(torch.trapezoid(torch.tensor(curve[measure].to_list()), torch.tensor(curve["level"].to_list())))


def _cuts(case: Case, choice: Choice, side: str, levels: Sequence[float]) -> Iterator[Tensor]:
    for first in case.best(choice.scores, levels):
        yield first if side == KEPT else case.trace.carried & ~first
