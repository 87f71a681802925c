"""Which types of edges are retained, at which layer (the paper's table 2, section 5 and appendix I)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.side_by_side import NO_TYPE, Block, Key, look_up, side_by_side, tally
from graphmask.analysis.tables import load_polars, share, table
from graphmask.explanation import Explanation
from graphmask.store import Store

if TYPE_CHECKING:
    import polars


def edge_types(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """Share of retained edges by layer and type beside the type's base rate (table 2).

    Columns:
        layer, type: type is null where edges have none.
        edges: messages of this type that the layer sends.
        kept: those that are retained.
        share: of all retained edges, over all layers and types: the table's cells, which sum to 1.
        base_rate: the type's share of all edges at this layer.
        probability: kept / edges.
    """
    if isinstance(explanations, Store):
        return edge_types_of_store(explanations.edges)  # ten times as fast as block by block
    edges: Counter[tuple[int, ...]] = Counter()
    kept: Counter[tuple[int, ...]] = Counter()
    for block in side_by_side(explanations):
        edges.update(dict(tally(*_layer_and_type(block, block.carried))))
        kept.update(dict(tally(*_layer_and_type(block, block.kept))))
    rows = [(layer, _name(kind), count, kept[layer, kind]) for (layer, kind), count in edges.items()]
    return _with_shares(table({"layer": int, "type": int, "edges": int, "kept": int}, rows))


def edge_types_of_store(edges: polars.LazyFrame) -> polars.DataFrame:
    """The same table as `edge_types`, from a frame with a row per graph, layer and edge that need not fit in memory.

    Of its columns ``layer``, ``type`` and ``kept`` are used, and ``carried`` if there is one.
    """
    pl = load_polars()
    if "carried" in edges.collect_schema().names():
        edges = edges.filter(pl.col("carried"))
    counts = (
        edges.group_by(pl.col("layer").cast(pl.Int64), pl.col("type").cast(pl.Int64))
        .agg(pl.len().cast(pl.Int64).alias("edges"), pl.col("kept").sum().cast(pl.Int64))
        .collect(engine="streaming")
    )
    return _with_shares(counts)


def _with_shares(counts: polars.DataFrame) -> polars.DataFrame:
    pl = load_polars()
    total = pl.col("kept").sum()
    frame: polars.DataFrame = counts.sort("layer", "type").with_columns(
        pl.when(total > 0).then(pl.col("kept") / total).alias("share"),
        (pl.col("edges") / pl.col("edges").sum().over("layer")).alias("base_rate"),
        (pl.col("kept") / pl.col("edges")).alias("probability"),
    )
    return frame


def kept_by_type(explanations: Iterable[Explanation], group: Key | None = None) -> polars.DataFrame:
    """Probability that an edge of a type is kept, and the distribution of the kept over types (appendix I).

    Args:
        group: splits the graphs, for instance by verbal and nominal predicates: a key of ``explanation.info`` or a
            function of the explanation.

    Columns:
        group: as text; null without a grouping.
        layer: null for all layers together.
        type, edges, kept, probability: as in `edge_types`, within the group.
        share: of the edges kept in this group and layer.
        graphs: graphs of the group with an edge of this type.
        occurrence: their share of the group's graphs (the paper leaves out types below 10 %).
    """
    edges: Counter[tuple[int, ...]] = Counter()
    kept: Counter[tuple[int, ...]] = Counter()
    occurs: Counter[tuple[int, ...]] = Counter()
    graphs: Counter[int] = Counter()
    names: dict[str | None, int] = {}
    layers = 0
    for block in side_by_side(explanations):
        layers = block.sites
        texts: list[str | None] = [None] * block.graphs
        if group is not None:  # only then are explanations of a store made
            texts = [str(look_up(explanation, group)) for explanation in block.explanations]
        numbers = torch.tensor([names.setdefault(text, len(names)) for text in texts])
        graphs.update(numbers.tolist())
        for counter, gates in ((edges, block.carried), (kept, block.kept)):
            layer, edge = gates.nonzero().t()
            counter.update(dict(tally(numbers[block.graph[edge]], layer, block.edge_type[edge])))
        edge = block.carried.any(0).nonzero().view(-1)
        once = tally(numbers[block.graph[edge]], block.graph[edge], block.edge_type[edge])
        occurs.update(Counter((number, kind) for (number, _, kind), _ in once))
    for counter in (edges, kept):
        for (number, _, kind), count in list(counter.items()):
            counter[number, layers, kind] += count  # the layer above the last stands for all
    total: Counter[tuple[int, ...]] = Counter()
    for (number, layer, _), count in kept.items():
        total[number, layer] += count
    texts = list(names)
    rows = [
        (
            texts[number],
            layer if layer < layers else None,
            _name(kind),
            count,
            kept[number, layer, kind],
            kept[number, layer, kind] / count,
            share(kept[number, layer, kind], total[number, layer]),
            occurs[number, kind],
            occurs[number, kind] / graphs[number],
        )
        for (number, layer, kind), count in edges.items()
    ]
    columns = {"group": str, "layer": int, "type": int, "edges": int, "kept": int}
    shares = {"probability": float, "share": float, "graphs": int, "occurrence": float}
    return table(columns | shares, rows).sort("group", "layer", "type")


def type_overlap(explanations: Iterable[Explanation], *, directed: bool = False) -> polars.DataFrame:
    """For every two types: how often an edge of one joins the same two nodes as an edge of the other (section 5).

    The paper: of the retained COREF edges 2.3 % overlap with MATCH edges, of all COREF edges 32.4 %.

    Args:
        directed: also the direction must be the same.

    Columns:
        layer, type, other: type != other.
        kept: retained edges of ``type``.
        overlap: share of them that a retained edge of ``other`` at the same layer runs beside.
        overlap_any: share of them that any edge of ``other`` runs beside, kept or not.
        edges: edges of ``type`` at this layer.
        base_rate: share of them that any edge of ``other`` runs beside.
    """
    sizes: Counter[tuple[int, int, bool]] = Counter()  # layer, type, kept only
    beside: Counter[tuple[int, int, int, bool, bool]] = Counter()  # layer, type, other, kept only, other kept only
    layers = 0
    for block in side_by_side(explanations):
        layers = block.sites
        for layer in range(layers):
            _overlaps(block, layer, directed, sizes, beside)
    types = sorted({kind for _, kind, _ in sizes})
    rows = []
    for layer in range(layers):
        for kind in types:
            kept, edges = sizes[layer, kind, True], sizes[layer, kind, False]
            for other in types:
                if other == kind:
                    continue
                row = (layer, _name(kind), _name(other), kept, share(beside[layer, kind, other, True, True], kept))
                rest = share(beside[layer, kind, other, True, False], kept), edges
                rows.append((*row, *rest, share(beside[layer, kind, other, False, False], edges)))
    columns = {"layer": int, "type": int, "other": int, "kept": int}
    return table(columns | {"overlap": float, "overlap_any": float, "edges": int, "base_rate": float}, rows)


def _overlaps(
    block: Block,
    layer: int,
    directed: bool,
    sizes: Counter[tuple[int, int, bool]],
    beside: Counter[tuple[int, int, int, bool, bool]],
) -> None:
    """Two edges of different types overlap if they join the same pair of nodes; count them by layer and types.

    A join is a pair of nodes together with a type of which an edge joins it.
    """
    edges = block.carried[layer].nonzero().view(-1)
    source, target, is_kept = block.source[layer, edges], block.target[layer, edges], block.kept[layer, edges]
    if not directed:
        source, target = torch.minimum(source, target), torch.maximum(source, target)
    pair = (source * block.num_nodes + target).unique(return_inverse=True)[1]
    types, kind = block.edge_type[edges].unique(return_inverse=True)
    joins, join = (pair * len(types) + kind).unique(return_inverse=True)
    every = torch.bincount(join, minlength=len(joins))
    retained = torch.bincount(join[is_kept], minlength=len(joins))
    first, second = _same_pair(joins // max(len(types), 1))
    kinds = joins % max(len(types), 1)
    codes = kinds[first] * len(types) + kinds[second]
    names = types.tolist()

    def add(kept_only: bool, other_kept_only: bool) -> None:
        weight = (retained if kept_only else every)[first]
        weight = weight * (retained[second] > 0) if other_kept_only else weight
        sums = torch.zeros(len(types) ** 2, dtype=torch.long).index_add(0, codes, weight)
        for code in sums.nonzero().view(-1).tolist():
            key = layer, names[code // len(types)], names[code % len(types)], kept_only, other_kept_only
            beside[key] += int(sums[code])

    add(True, True)
    add(True, False)
    add(False, False)
    for (number,), count in tally(kind):
        sizes[layer, names[number], False] += count
    for (number,), count in tally(kind[is_kept]):
        sizes[layer, names[number], True] += count


def _same_pair(pair: Tensor) -> tuple[Tensor, Tensor]:
    """All ordered combinations of two different positions with the same value; ``pair`` is sorted."""
    size = torch.bincount(pair)[pair] if len(pair) else pair
    first = torch.arange(len(pair)).repeat_interleave(size)
    start = torch.searchsorted(pair, pair)
    within = torch.arange(len(first)) - (size.cumsum(0) - size).repeat_interleave(size)
    second = start.repeat_interleave(size) + within
    different = first != second
    return first[different], second[different]


def _layer_and_type(block: Block, gates: Tensor) -> tuple[Tensor, Tensor]:
    layer, edge = gates.nonzero().t()
    return layer, block.edge_type[edge]


def _name(kind: int) -> int | None:
    return None if kind == NO_TYPE else kind
