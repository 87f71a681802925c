"""A model whose answer is known without training, and graphs for it.

Nodes have one of four colours. Two layers add up messages; only colours 0 and 1 have any weight, so a message of
colour 2 or 3 is exactly zero and so is everything that follows from it.
"""

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing

COLOURS = 4


class Add(MessagePassing):
    """Messages ``W h_u``, summed."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(aggr="add")
        self.weight = nn.Parameter(weight)

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, h=h)

    def message(self, h_j: Tensor) -> Tensor:
        return h_j @ self.weight.t()


class Toy(nn.Module):
    """Two-hop walks from colour 0 against those from colour 1; two logits per graph."""

    def __init__(self) -> None:
        super().__init__()
        first = torch.zeros(3, COLOURS)
        first[0, 0] = first[1, 1] = 1.0
        self.first, self.second = Add(first), Add(0.5 * torch.eye(3))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.second(self.first(x, edge_index), edge_index)
        graphs = int(batch.max()) + 1
        total = h.new_zeros(graphs, h.shape[1]).index_add(0, batch, h)
        return total[:, :2] + 0.0 * self.dropout(total[:, :2])


def graph(seed: int, nodes: int = 7, edges: int = 12) -> Data:
    generator = torch.Generator().manual_seed(seed)
    colour = torch.randint(COLOURS, (nodes,), generator=generator)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    return Data(x=nn.functional.one_hot(colour, COLOURS).float(), edge_index=edge_index)


def loader(batches: int = 6, size: int = 16, seed: int = 0) -> list[Batch]:
    return [
        Batch.from_data_list([graph(seed * 10_000 + b * size + i, nodes=5 + i % 4) for i in range(size)])
        for b in range(batches)
    ]
