"""Many graphs of a store at once, straight from its columns, without building `Explanation` objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphmask import files

if TYPE_CHECKING:
    from graphmask.explanation import Explanation
    from graphmask.store.reading import Store


@dataclass
class Piece:
    """``G`` graphs of one shard, one after the other, ``E`` edges in all, ``L`` sites."""

    store: Store
    where: tuple[int, int, int]  #: number of the shard, its first graph here, and the one after the last
    num_nodes: Tensor  #: [G]
    num_edges: Tensor  #: [G]
    edge_index: Tensor  #: [2, E] nodes are numbered within their graph
    edge_type: Tensor | None  #: [E]
    scores: Tensor  #: [L, E]
    kept: Tensor  #: bool [L, E]
    carried: Tensor  #: bool [L, E]

    def explanations(self) -> Iterator[Explanation]:
        """The `Explanation` objects of this piece, for what is not in its columns."""
        return self.store.read(*self.where)


def pieces(store: Store, edges: int, graphs: int) -> Iterator[list[Piece]]:
    """The whole store in pieces of at most so many graphs and about so many edges (the last graph is not divided)."""
    waiting: list[Piece] = []
    room_for_edges, room_for_graphs = edges, graphs
    for at, start, end, _ in store.spans:
        ends = store.rows_of(at) // len(store.structure)  # [graphs + 1] edges before each graph
        while start < end:
            enough = int(np.searchsorted(ends, ends[start] + room_for_edges))  # graphs with which there are
            stop = min(enough, start + room_for_graphs, end)
            waiting.append(_piece(store, at, start, stop))
            room_for_edges -= int(ends[stop] - ends[start])
            room_for_graphs -= stop - start
            start = stop
            if room_for_edges <= 0 or room_for_graphs <= 0:
                yield waiting
                waiting, room_for_edges, room_for_graphs = [], edges, graphs
    if waiting:
        yield waiting


def _piece(store: Store, at: int, start: int, stop: int) -> Piece:
    shard, sites = store.shards[at], len(store.structure)
    rows = torch.from_numpy(store.rows_of(at)[start : stop + 1])
    column = store.edge_columns(at, start, stop)
    nodes = store.rows(at, "graphs", start, stop, ["num_nodes"])["num_nodes"]
    counts = rows.diff() // sites
    # Rows are by graph, then layer, then edge; here layers come first.
    graph = torch.arange(len(counts)).repeat_interleave(counts)
    within = torch.arange(len(graph)) - (counts.cumsum(0) - counts)[graph]
    row = (rows[:-1] - rows[0])[graph] + within + torch.arange(sites)[:, None] * counts[graph]
    with files.understood(shard.edges, "store"):
        return Piece(
            store,
            (at, start, stop),
            torch.from_numpy(nodes.to_numpy().copy()),
            counts,
            torch.stack([column["source"], column["target"]])[:, row[0]].long(),
            column["type"][row[0]].long() if "type" in column else None,
            column["score"][row],
            column["kept"][row],
            column["carried"][row],
        )
