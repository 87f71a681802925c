"""Do retained edges touch, and retained paths connect, the nodes one would expect? (section 5)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.paths import edges_on_paths_of
from graphmask.analysis.side_by_side import Nodes, side_by_side
from graphmask.analysis.tables import table
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars


def connections(
    explanations: Iterable[Explanation], sources: Nodes, targets: Nodes, *, persist: bool = True
) -> polars.DataFrame:
    """Share of graphs in which what is retained involves given nodes, such as mentions of the query and of the answer.

    Args:
        sources, targets: node numbers, a key of ``explanation.info`` that holds them, or a function.
        persist: a node may hold its state over a layer.

    Columns:
        layer: null for any layer.
        leaving: share of graphs with a retained edge between a source and a node that is none.
        arriving: share of graphs with a retained edge into a target.
        connected: share of graphs with a retained path from a source to a target; null where layer is not.
        graphs: how many.
    """
    sums: Tensor | None = None  # [3, L + 1]
    graphs = 0
    for block in side_by_side(explanations):
        start, end = block.nodes(sources), block.nodes(targets)
        leaving = block.kept & (start[block.source] != start[block.target])
        arriving = block.kept & end[block.target]
        on = edges_on_paths_of(block, sources, targets, persist)
        count = block.graphs
        block_sums = torch.stack([_graphs(gates, block.graph, count) for gates in (leaving, arriving, on)])
        sums = block_sums if sums is None else sums + block_sums
        graphs += count
    assert sums is not None
    layers = sums.shape[1] - 1
    shares = (sums.double() / graphs).t().tolist()
    rows = [
        (layer if layer < layers else None, leaving, arriving, None if layer < layers else connected, graphs)
        for layer, (leaving, arriving, connected) in enumerate(shares)
    ]
    return table({"layer": int, "leaving": float, "arriving": float, "connected": float, "graphs": int}, rows)


def _graphs(gates: Tensor, graph: Tensor, count: int) -> Tensor:
    """[L + 1] number of graphs that have any of these gates at each layer; the last is for any layer."""
    there = torch.zeros(len(gates), count, dtype=torch.long).index_add(1, graph, gates.long()) > 0
    return torch.cat([there.sum(1), there.any(0).sum()[None]])
