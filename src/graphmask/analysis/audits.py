"""Audits of a fitted method: how much depends on the threshold, the tolerance and the baseline?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.analysis.scoring import run_each, studied
from graphmask.analysis.tables import table
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.graphs import batches
from graphmask.tapping.restore import restored
from graphmask.tapping.stand_ins import observe, see

if TYPE_CHECKING:
    import polars

LEVELS = tuple(number / 20 for number in range(21))
TOLERANCES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def frontier(
    method: Method,
    loader: Iterable[Any],
    *,
    by: str = "threshold",
    levels: Sequence[float] = LEVELS,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """Sparsity against divergence: scores are cut at several thresholds, each measured with hard gates.

    Args:
        by: "threshold" keeps scores above the level; "fraction" keeps this fraction of each graph's messages, highest
            scores first, rounded up.
        levels: thresholds or fractions.

    Columns:
        level.
        retained: share of all gates that are open.
        divergence, flips: means over graphs, as in `Explanation`.
        faithful: share of graphs within the method's tolerance.
    """
    return frontiers(method, loader, {by: levels}, allow_infeasible=allow_infeasible)[by]


def frontiers(
    method: Method, loader: Iterable[Any], levels: Mapping[str, Sequence[float]], *, allow_infeasible: bool = False
) -> dict[str, polars.DataFrame]:
    """As `frontier`, by several ways to cut the same scores, each with its levels; the method explains once."""
    asked = {by: _checked(by, some) for by, some in levels.items()}
    sums = {by: torch.zeros(4, len(some), dtype=torch.double) for by, some in asked.items()}
    gates = graphs = 0
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            gates, graphs = gates + int(case.trace.carried.sum()), graphs + case.split.count
            for by, some in asked.items():
                sizes, distances, changed = _sweep(case, choice, by, some)
                faithful = (distances <= method.tolerance).double()
                sums[by] += torch.stack([part.sum(1) for part in (sizes, distances, changed, faithful)])
    columns = {"level": float, "retained": float, "divergence": float, "flips": float, "faithful": float}
    over = torch.tensor([max(gates, 1), graphs, graphs, graphs], dtype=torch.double)
    return {
        by: table(columns, [(level, *row) for level, row in zip(some, (sums[by].t() / over).tolist(), strict=True)])
        for by, some in asked.items()
    }


def tolerance_curve(
    method: Method,
    loader: Iterable[Any],
    tolerances: Sequence[float] = TOLERANCES,
    *,
    by: str = "threshold",
    levels: Sequence[float] = LEVELS,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """How many predictions change, and how little is retained, if more divergence is tolerated.

    For every graph the sparsest cut of the sweep (see `frontier`) whose divergence is within tolerance; where none is,
    everything is kept.

    Columns:
        tolerance.
        retained: share of all gates that are open.
        divergence, flips: means over graphs.
    """
    levels = _checked(by, levels)
    limits = torch.tensor([float(tolerance) for tolerance in tolerances], dtype=torch.double)
    if not len(limits) or not bool((limits > 0).all()):
        raise GraphMaskError(f"Expected tolerances above 0, got {list(tolerances)}.")
    sums = torch.zeros(3, len(limits), dtype=torch.double)
    gates = graphs = 0
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            everything = case.gates_per_graph(case.trace.carried).cpu().double()[None]
            nothing = torch.zeros_like(everything)
            swept = _sweep(case, choice, by, levels)
            sizes, distances, changed = (
                torch.cat([whole, part]) for whole, part in zip((everything, nothing, nothing), swept, strict=True)
            )
            allowed = distances <= limits[:, None, None]  # [tolerances, 1 + levels, G]
            best = sizes.masked_fill(~allowed, torch.inf).argmin(1)
            sums += torch.stack([values.gather(0, best).sum(1) for values in (sizes, distances, changed)])
            gates, graphs = gates + int(everything.sum()), graphs + case.split.count
    retained, divergence, flips = sums[0] / max(gates, 1), sums[1] / graphs, sums[2] / graphs
    rows = torch.stack([limits, retained, divergence, flips], 1).tolist()
    return table({"tolerance": float, "retained": float, "divergence": float, "flips": float}, rows)


def _checked(by: str, levels: Sequence[float]) -> list[float]:
    if by not in {"threshold", "fraction"}:
        raise GraphMaskError(f"Expected by to be 'threshold' or 'fraction', got {by!r}.")
    numbers = [float(level) for level in levels]
    if not numbers or (by == "fraction" and any(not 0 <= level <= 1 for level in numbers)):
        raise GraphMaskError(f"Expected levels, and fractions from 0 to 1, got {numbers}.")
    return numbers


def _sweep(case: Case, choice: Choice, by: str, levels: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """[levels, G] each: gates kept, divergence, share of rows that changed."""
    sizes: list[Tensor] = []

    def cuts() -> Iterator[Tensor]:
        above = (case.trace.carried & (choice.scores > level) for level in levels)
        for gates in case.best(choice.scores, levels) if by == "fraction" else above:
            sizes.append(case.gates_per_graph(gates))
            yield gates

    outputs = run_each(case, cuts(), choice.baselines)
    measured = [(case.distance(output).clamp_min(0), case.flips(output)) for output in outputs]
    parts = sizes, [distance for distance, _ in measured], [flips for _, flips in measured]
    kept, distances, changed = (torch.stack(part).cpu().double() for part in parts)
    return kept, distances, changed


def baseline_swap(method: Method, loader: Iterable[Any], *, allow_infeasible: bool = False) -> polars.DataFrame:
    """The same edges kept, the others replaced by other baselines: how much does the divergence depend on them?

    Args:
        loader: is passed over twice, first for the mean messages.

    Columns:
        baseline: "own", the method's (learned, in GraphMask's case); "mean" message of each site over the loader;
            "zero".
        divergence, flips: means over graphs.
        faithful: share of graphs within the method's tolerance.
    """
    method.check_ready(allow_infeasible)
    with restored(method.model):
        batches.scan(loader, "the loader")
    means = mean_messages(method, loader)
    names = ("own", "mean", "zero")
    sums = torch.zeros(len(names), 3, dtype=torch.double)
    graphs = 0
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            graphs += case.split.count
            for number, baselines in enumerate((choice.baselines, means, case.zeros())):
                with torch.no_grad():
                    output = case.run(choice.kept, baselines)
                distance, flips = case.distance(output).clamp_min(0), case.flips(output)
                faithful = distance <= method.tolerance
                sums[number] += torch.stack([distance.sum(), flips.sum(), faithful.sum()]).cpu().double()
    rows = [(name, *row) for name, row in zip(names, (sums / graphs).tolist(), strict=True)]
    return table({"baseline": str, "divergence": float, "flips": float, "faithful": float}, rows)


@torch.no_grad()
def mean_messages(method: Method, loader: Iterable[Any]) -> list[Tensor]:
    """Per site the mean over a loader of all that a baseline takes the place of: messages, and what edges are compared
    by; see `sites.StandIn`."""
    subject = method.subject
    with subject.frozen():
        loader = subject.take_all(loader)  # inside: asking a shuffling loader for an iterator draws a random number
        if subject.sites is None:
            (first,), _ = batches.first_few(loader, 1)
            subject = subject.at(observe(subject, first)[0])
        seen = see(subject, loader)
    return [of_site.mean() for of_site in seen]
