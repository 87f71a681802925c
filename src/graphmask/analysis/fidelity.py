"""Is what was kept enough, and is it needed? Measured with per-layer masks and baselines, for any kind of output.

PyG's own metrics put one mask on all layers and zeros in place of messages, know classes only, and fail on some
layers; here every site has its mask, dropped messages become the baseline (or zero), and what counts as a change is
said by the method's own divergence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphmask.analysis.scoring import run_each, studied
from graphmask.analysis.tables import table
from graphmask.devices import double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars

BASELINE, ZERO = "baseline", "zero"
KEPT, DROPPED = "kept", "dropped"
#: (kept or dropped alone, replaced by, layer or None for all) -> measure -> value
_Values = dict[tuple[str, str, int | None], dict[str, float]]


def sufficiency(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None = None,
    *,
    replaced_by: Sequence[str] = (BASELINE, ZERO),
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """How far the output moves with only the kept messages: 0 is best (PyG's fidelity-).

    Args:
        method: provides the model, how to run it, and what counts as a change.
        loader: batches of graphs.
        explanations: of these graphs, in the same order, for instance a store; made by ``method`` if left out.
        replaced_by: what stands for a message that is left out: "baseline", "zero".
        allow_infeasible: explain although `fit` found no state within tolerance.

    Columns:
        layer: the only one that is masked; null if all are.
        site: its name.
        replaced_by.
        measure: "divergence"; "flips", the share of output rows whose prediction changed (not of a regression);
            "beyond", the share of rows whose divergence is above the tolerance.
        value: mean over output rows.
    """
    return _one_side(method, loader, explanations, KEPT, replaced_by, allow_infeasible)


def complement(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None = None,
    *,
    replaced_by: Sequence[str] = (BASELINE, ZERO),
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """How far the output moves with only the dropped messages: high if what was kept is needed (PyG's fidelity+).

    Arguments and columns as in `sufficiency`.
    """
    return _one_side(method, loader, explanations, DROPPED, replaced_by, allow_infeasible)


def characterisation(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None = None,
    *,
    weight: float = 0.5,
    replaced_by: Sequence[str] = (BASELINE, ZERO),
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    r"""Both in one number from 0 to 1, the weighted harmonic mean of GraphFramEx (Amara et al. 2022):

    .. math:: \Big( \frac{w}{\textrm{complement}} + \frac{1 - w}{1 - \textrm{sufficiency}} \Big)^{-1}

    of shares of rows: whose prediction changed ("flips", as PyG has it), or whose divergence is above the tolerance
    ("beyond", which a regression has too). 0 where one of the two fails altogether.

    Args:
        weight: of the complement.
        method, loader, explanations, replaced_by, allow_infeasible: as in `sufficiency`.

    Columns:
        layer, site, replaced_by, measure.
        complement, sufficiency: the shares.
        value: their characterisation.
    """
    if not 0 <= weight <= 1:
        raise GraphMaskError(f"Expected a weight from 0 to 1, got {weight!r}.")
    values, sites = _measure(method, loader, explanations, (KEPT, DROPPED), replaced_by, allow_infeasible)
    rows = []
    for (side, instead, layer), shares in values.items():
        for measure in ("flips", "beyond"):
            if side == KEPT and measure in shares:
                enough, needed = shares[measure], values[DROPPED, instead, layer][measure]
                score = harmonic(needed, 1 - enough, weight)
                rows.append((layer, _name(sites, layer), instead, measure, needed, enough, score))
    columns = {"layer": int, "site": str, "replaced_by": str, "measure": str}
    return table(columns | {"complement": float, "sufficiency": float, "value": float}, rows)


def harmonic(first: float, second: float, weight: float) -> float:
    """Weighted harmonic mean; its limit 0 where one with a weight is 0."""
    pairs = [(share, value) for share, value in ((weight, first), (1 - weight, second)) if share]
    return 0.0 if any(value <= 0 for _, value in pairs) else 1 / sum(share / value for share, value in pairs)


def _one_side(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None,
    side: str,
    replaced_by: Sequence[str],
    allow_infeasible: bool,
) -> polars.DataFrame:
    values, sites = _measure(method, loader, explanations, (side,), replaced_by, allow_infeasible)
    rows = [
        (layer, _name(sites, layer), instead, measure, value)
        for (_, instead, layer), by_measure in values.items()
        for measure, value in by_measure.items()
    ]
    return table({"layer": int, "site": str, "replaced_by": str, "measure": str, "value": float}, rows)


def _measure(
    method: Method,
    loader: Iterable[Any],
    explanations: Iterable[Explanation] | None,
    sides: Sequence[str],
    replaced_by: Sequence[str],
    allow_infeasible: bool,
) -> tuple[_Values, tuple[str, ...]]:
    wrong = [name for name in replaced_by if name not in (BASELINE, ZERO)]
    if isinstance(replaced_by, str) or not replaced_by or wrong:
        raise GraphMaskError(f"Expected replaced_by to be some of 'baseline' and 'zero', got {replaced_by!r}.")
    sums: _Values = {}
    sites: tuple[str, ...] = ()
    row_count = 0
    with studied(method, loader, allow_infeasible, explanations) as cases:
        for case, choice in cases:
            sites = tuple(site.name for site in case.trace.sites)
            row_count += case.trace.output.shape[0]
            for side in sides:
                for instead in replaced_by:
                    baselines = case.zeros() if instead == ZERO else choice.baselines
                    outputs = run_each(case, _gates(case, choice, side), baselines)
                    for layer, output in zip([None, *range(len(sites))], outputs, strict=True):
                        total = sums.setdefault((side, instead, layer), {})
                        for measure, value in _rows(case, output).items():
                            total[measure] = total.get(measure, 0.0) + float(double(value).sum())
    for totals in sums.values():
        totals.update({measure: value / max(row_count, 1) for measure, value in totals.items()})
    return sums, sites


def _gates(case: Case, choice: Choice, side: str) -> Iterator[Tensor]:
    """Gates with all layers masked at once, then with one layer masked after the other."""
    carried = case.trace.carried
    alone = choice.kept if side == KEPT else carried & ~choice.kept
    yield alone
    for layer in range(len(carried)):
        gates = carried.clone()
        gates[layer] = alone[layer]
        yield gates


def _rows(case: Case, output: Tensor) -> dict[str, Tensor]:
    distance = case.divergence(case.trace.output, output).clamp_min(0)
    values = {"divergence": distance, "beyond": distance > case.tolerance}
    if case.divergence.has_classes:
        values["flips"] = case.divergence.flips(case.trace.output, output)
    return values


def _name(sites: tuple[str, ...], layer: int | None) -> str | None:
    return None if layer is None else sites[layer]
