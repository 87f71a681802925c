"""Models of which it is known, number by number, what of the input they use.

Of the features of a node two of five columns are read, and every number in these counts in the output as it is. Where
such a number is zero, nothing is lost by replacing it with zero; where it is not, it is at least one, and replacing it
with zero moves the output by more than any tolerance used here. The other columns are never read. Likewise of edges,
where the first of three columns is read.
"""

from typing import Optional

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing

COLUMNS, READ = 5, 2


class Sum(MessagePassing):
    """Adds up what neighbours send: their states, or those times the edge's first number."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        return self.propagate(edge_index, h=h, edge_attr=edge_attr)

    def message(self, h_j: Tensor, edge_attr: Optional[Tensor]) -> Tensor:  # noqa: UP045 - PyG reads it
        return h_j if edge_attr is None else edge_attr[:, :1] * h_j


class NodeColumns(nn.Module):
    """Two numbers per graph: sums over nodes of two columns, their own and their neighbours'."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = Sum(), nn.Parameter(torch.ones(READ))
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = x[:, :READ] * self.scale
        return pooled(h + self.layer(h, edge_index), batch)


class EdgeColumns(nn.Module):
    """One number per graph: the sum of the first of three numbers of every edge."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = Sum(), nn.Parameter(torch.ones(1))
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        return pooled(self.layer(torch.ones_like(x[:, :1]) * self.scale, edge_index, edge_attr), batch)


def model_of(kind: str) -> nn.Module:
    return EdgeColumns() if kind == "edges" else NodeColumns()


def pooled(h: Tensor, batch: Tensor) -> Tensor:
    return h.new_zeros(int(batch.max()) + 1, h.shape[1]).index_add(0, batch, h)


def numbers(rows: int, columns: int, read: int, generator: torch.Generator) -> Tensor:
    """From 1 to 3; of half of the rows, zero in the columns that are read."""
    found = 1 + 2 * torch.rand(rows, columns, generator=generator)
    found[torch.rand(rows, generator=generator) < 0.5, :read] = 0.0
    return found


def graph(seed: int, nodes: int = 7, edges: int = 12) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=numbers(nodes, COLUMNS, READ, generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=numbers(edges, 3, 1, generator),
    )


def used(kind: str, data: Data) -> Tensor:
    """What is not zero in a column that is read."""
    if kind == "edges":
        return data.edge_attr[:, 0] != 0
    found = (data.x != 0) & (torch.arange(COLUMNS) < READ)
    return found if kind == "each" else found.any(1)


def loader(batches: int = 6, size: int = 16, seed: int = 0) -> list[Batch]:
    return [
        Batch.from_data_list([graph(10_000 * seed + size * b + i, nodes=5 + i % 4) for i in range(size)])
        for b in range(batches)
    ]
