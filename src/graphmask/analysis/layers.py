"""Which layers matter to the model, and which do explanations say matter? (appendix K)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.analysis.scoring import Score, Tally, run_each, studied
from graphmask.analysis.side_by_side import Block, side_by_side
from graphmask.analysis.tables import share, table
from graphmask.errors import GraphMaskError
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars

LEVELS = tuple(number / 10 for number in range(1, 10))


def layers_dropped(
    method: Method,
    loader: Iterable[Any],
    score: Score | None = None,
    *,
    replaced_by: str = "zero",
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """Score of the model with all messages of one layer dropped (the paper's table 5).

    Args:
        method: provides the model and how to run it.
        loader, score, allow_infeasible: as in `erosion`.
        replaced_by: "zero", as if the layer had no edges, or "baseline", the method's own.

    Columns:
        layer: the one that is dropped; null for the full model.
        site: its name.
        measure: "score", or "agreement", "accuracy", "divergence".
        value: mean over output rows.
        change: from the full model's.
    """
    if replaced_by not in {"zero", "baseline"}:
        raise GraphMaskError(f"Expected replaced_by to be 'zero' or 'baseline', got {replaced_by!r}.")
    tallies: list[Tally] = []
    names: list[str | None] = []
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            names = [None, *(site.name for site in case.trace.sites)]
            tallies = tallies or [Tally() for _ in names]
            baselines = case.zeros() if replaced_by == "zero" else choice.baselines
            outputs = run_each(case, _without_each(case.trace.carried), baselines)
            for tally, output in zip(tallies, outputs, strict=True):
                tally.add(case, output, score)
    full = tallies[0].means()
    rows = [
        (None if number == 0 else number - 1, names[number], measure, value, value - full[measure])
        for number, tally in enumerate(tallies)
        for measure, value in tally.means().items()
    ]
    return table({"layer": int, "site": str, "measure": str, "value": float, "change": float}, rows)


def _without_each(carried: Tensor) -> Iterator[Tensor]:
    """All gates open; then without the first layer, without the second, ..."""
    yield carried
    for layer in range(len(carried)):
        gates = carried.clone()
        gates[layer] = False
        yield gates


def attribution_by_layer(methods: Mapping[str, Iterable[Explanation]]) -> polars.DataFrame:
    """Share of the attribution that each method gives to each layer (the paper's table 6).

    Args:
        methods: name -> explanations.

    Columns:
        method, layer.
        kept: retained edges at this layer.
        kept_share: of all retained edges.
        score_share: of the sum of all scores (their absolute values).
        mean_kept_share, mean_score_share: the same computed graph by graph, then the mean over the graphs where there
            is something to share.
    """
    rows: list[tuple[Any, ...]] = []
    for name, explanations in methods.items():
        sums: Tensor | None = None
        for block in side_by_side(explanations):
            kept = _per_graph(block, block.kept.double())
            mass = _per_graph(block, block.scores.double().abs() * block.carried)
            block_sums = torch.stack([kept.sum(1), mass.sum(1), *_shares(kept), *_shares(mass)])
            sums = block_sums if sums is None else sums + block_sums
        assert sums is not None
        kept, mass, kept_shares, with_kept, mass_shares, with_mass = sums.tolist()
        for layer in range(len(kept)):
            rows.append(
                (
                    name,
                    layer,
                    int(kept[layer]),
                    share(kept[layer], sum(kept)),
                    share(mass[layer], sum(mass)),
                    share(kept_shares[layer], with_kept[layer]),
                    share(mass_shares[layer], with_mass[layer]),
                )
            )
    shares = {"kept_share": float, "score_share": float, "mean_kept_share": float, "mean_score_share": float}
    return table({"method": str, "layer": int, "kept": int} | shares, rows)


def attribution_levels(
    methods: Mapping[str, Iterable[Explanation]], levels: Sequence[float] = LEVELS
) -> polars.DataFrame:
    """Share of messages whose score is above each level, per layer (the paper's figure 6).

    Columns:
        method, layer, level.
        above: messages with a score > level.
        messages: that the layer sends.
        share: above / messages.
        mean_share: the same graph by graph, then the mean over graphs with messages at this layer.
    """
    rows: list[tuple[Any, ...]] = []
    for name, explanations in methods.items():
        sums: Tensor | None = None  # [4, levels, L]
        for block in side_by_side(explanations):
            sent = _per_graph(block, block.carried.double())
            by_level = []
            for level in levels:
                above = _per_graph(block, (block.carried & (block.scores > level)).double())
                each = (above / sent.clamp_min(1)).sum(1)
                by_level.append(torch.stack([above.sum(1), sent.sum(1), each, (sent > 0).double().sum(1)]))
            sums = torch.stack(by_level, 1) if sums is None else sums + torch.stack(by_level, 1)
        assert sums is not None
        for layer in range(sums.shape[2]):
            for number, level in enumerate(levels):
                above, messages, each, graphs = sums[:, number, layer].tolist()
                figures = int(above), int(messages), share(above, messages), share(each, graphs)
                rows.append((name, layer, float(level), *figures))
    columns = {"method": str, "layer": int, "level": float, "above": int, "messages": int}
    return table(columns | {"share": float, "mean_share": float}, rows)


def _per_graph(block: Block, per_gate: Tensor) -> Tensor:
    """[L, E] -> [L, G]"""
    return per_gate.new_zeros(len(per_gate), block.graphs).index_add(1, block.graph, per_gate)


def _shares(per_graph: Tensor) -> tuple[Tensor, Tensor]:
    """[L] sum over graphs of each layer's share, and [L] the number of graphs that have any."""
    total = per_graph.sum(0)
    some = total > 0
    shares = (per_graph[:, some] / total[some]).sum(1)
    return shares, some.double().sum().expand(len(per_graph))
