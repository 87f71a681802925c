"""Are an edge and its inverse retained together? (section 5)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.side_by_side import NO_TYPE, Block, side_by_side
from graphmask.analysis.tables import share, table
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars


def inverses(explanations: Iterable[Explanation], inverse_types: Mapping[int, int] | None = None) -> polars.DataFrame:
    """Share of retained edges (u, v) for which an edge (v, u) is retained at the same layer.

    A self-loop has no inverse other than itself and is not counted.

    Args:
        inverse_types: type -> type of its inverse; an edge of a type that is not among them has no inverse. Without it
            any edge back will do.

    Columns:
        layer: null for all layers together.
        kept: retained edges.
        both: those whose inverse is retained too.
        share: both / kept.
        edges: messages the layer sends.
        base_rate: share of them whose inverse is sent too, that is, ``share`` if everything were kept.
    """
    counts: Tensor | None = None
    for block in side_by_side(explanations):
        block_counts = torch.tensor([_counts(block, layer, inverse_types) for layer in range(block.sites)]).view(-1, 4)
        counts = block_counts if counts is None else counts + block_counts
    assert counts is not None
    rows = []
    for layer, (kept, both, edges, back) in enumerate([*counts.tolist(), counts.sum(0).tolist()]):
        name = layer if layer < len(counts) else None
        rows.append((name, kept, both, share(both, kept), edges, share(back, edges)))
    columns = {"layer": int, "kept": int, "both": int, "share": float, "edges": int, "base_rate": float}
    return table(columns, rows)


def _counts(block: Block, layer: int, inverse_types: Mapping[int, int] | None) -> list[int]:
    """Numbers of kept edges, kept edges whose inverse is kept, all edges, and all edges that have an inverse."""
    source, target = block.source[layer], block.target[layer]
    edges = (block.carried[layer] & (source != target)).nonzero().view(-1)
    source, target, is_kept = source[edges], target[edges], block.kept[layer, edges]
    there, back = source * block.num_nodes + target, target * block.num_nodes + source
    if inverse_types is not None:
        there, back = _typed(there, back, block.edge_type[edges], inverse_types)
    both = is_kept & torch.isin(back, there[is_kept])
    return [int(is_kept.sum()), int(both.sum()), len(edges), int(torch.isin(back, there).sum())]


def _typed(there: Tensor, back: Tensor, kind: Tensor, inverse_types: Mapping[int, int]) -> tuple[Tensor, Tensor]:
    """Keys of edges and of their inverses that include the type; -1 where the type has no inverse."""
    if bool((kind == NO_TYPE).any()):
        raise GraphMaskError("Expected edges with types for inverse_types, got a graph without edge_type.")
    names = sorted({*kind.unique().tolist(), *inverse_types, *inverse_types.values()})
    number = {name: position for position, name in enumerate(names)}
    opposite = torch.tensor([number[inverse_types[name]] if name in inverse_types else -1 for name in names]).long()
    mine = torch.searchsorted(torch.tensor(names, dtype=torch.long), kind)
    there, back = torch.stack([there, back]).unique(return_inverse=True)[1]
    wanted = opposite[mine]
    return there * len(names) + mine, torch.where(wanted < 0, -1, back * len(names) + wanted)
