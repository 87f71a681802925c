"""Which edges, nodes and output rows of a batch belong to which graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError


@dataclass
class Split:
    """For each edge, node and output row of a batch, the graph that it belongs to."""

    edge_graph: Tensor  #: [E]
    row_graph: Tensor  #: [rows]
    first_node: Tensor  #: [B] subtracted from node numbers
    count: int
    #: [N] a node's number within its graph, where those of a graph do not lie together.
    node_number: Tensor | None = None
    sizes: Tensor | None = None  #: [B, T] nodes by node type
    row_each: bool = False  #: one output row per graph, in their order

    @cached_property
    def rows_of_each(self) -> Tensor:
        """[B] how many output rows there are of every graph, 1 where there are none: what sums are divided by."""
        return torch.bincount(self.row_graph, minlength=self.count).clamp_min_(1)

    def within(self, edge_index: Tensor) -> Tensor:
        """Edges of the batch, with nodes numbered within their graphs."""
        if self.count == 1:
            return edge_index
        if self.node_number is None:
            return (edge_index - self.first_node[self.edge_graph]).to(edge_index.dtype)
        return self.node_number[edge_index].to(edge_index.dtype)


def unsplit(edge_index: Tensor, rows: int, sizes: Tensor | None = None) -> Split:
    """All of a batch as one graph."""
    zeros = torch.zeros(edge_index.shape[1], dtype=torch.long, device=edge_index.device)
    return Split(zeros, zeros.new_zeros(rows), zeros.new_zeros(1), 1, sizes=sizes)


def unclear(rows: int, count: int) -> GraphMaskError:
    return GraphMaskError(
        f"Expected output rows to be the batch's graphs ({count}), nodes, edges or candidate edges, got {rows} rows: "
        "cannot tell which row belongs to which graph. Use batches of one graph."
    )
