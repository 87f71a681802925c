"""Models of which it is known, number by number, what of the input they use.

Of the features of a node only two of five columns are read, and of these only what is above zero: a number of another
column, or below zero, can be replaced by anything below zero and nothing changes. What is above zero is at least one,
and counts by at least one in the output: replacing it moves the output by more than any tolerance used here.
"""

from typing import Optional

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing

COLUMNS, READ = 5, 2


class Sum(MessagePassing):
    """Adds up what neighbours send: their states, or those times the positive part of the edge's first number."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.propagate(edge_index, h=h, edge_attr=edge_attr)

    def message(self, h_j: Tensor, edge_attr: Optional[Tensor]) -> Tensor:  # noqa: UP045 - PyG reads it
        return h_j if edge_attr is None else edge_attr[:, :1].relu() * h_j


class Rectified(nn.Module):
    """Two numbers per graph: sums over nodes of the positive part of two columns, their own and their neighbours'."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = Sum(), nn.Parameter(torch.ones(READ))
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = x[:, :READ].relu() * self.scale
        return pooled(h + self.layer(h, edge_index), batch)


class EdgeRectified(nn.Module):
    """One number per graph: over edges, the positive part of the first of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = Sum(), nn.Parameter(torch.ones(1))
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        return pooled(self.layer(torch.ones_like(x[:, :1]) * self.scale, edge_index, edge_attr), batch)


def pooled(h: Tensor, batch: Tensor) -> Tensor:
    return h.new_zeros(int(batch.max()) + 1, h.shape[1]).index_add(0, batch, h)


def signed(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers from 1 to 3, six in ten of them with a minus."""
    size = 1 + 2 * torch.rand(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.6, -size, size)


def graph(seed: int, nodes: int = 7, edges: int = 12) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=signed((nodes, COLUMNS), generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=signed((edges, 3), generator),
    )


def used(kind: str, data: Data) -> Tensor:
    """What is above zero in a column that is read."""
    if kind == "edges":
        return data.edge_attr[:, 0] > 0
    numbers = (data.x > 0) & (torch.arange(COLUMNS) < READ)
    return numbers if kind == "each" else numbers.any(1)


def loader(batches: int = 6, size: int = 16, seed: int = 0) -> list[Batch]:
    return [
        Batch.from_data_list([graph(10_000 * seed + size * b + i, nodes=5 + i % 4) for i in range(size)])
        for b in range(batches)
    ]
