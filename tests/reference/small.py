"""A small float64 model whose forward pass is also written out message by message, with a gate on every message."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_mean_pool

from .toy import Add

WIDTH = 3
Gates = Sequence[Sequence[Any]]  #: [L][E] numbers or tensors without dimensions


class Small(nn.Module):
    """Per layer ``tanh(sum of W h_u + K h_v)``; the mean of the nodes is read out, without a bias."""

    def __init__(self, outputs: int = 3, layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, scale: float) -> Tensor:
            return scale * torch.randn(rows, WIDTH, generator=generator, dtype=torch.double)

        self.sends = nn.ModuleList([Add(weight(WIDTH, 1.0)) for _ in range(layers)])
        self.keeps = nn.ParameterList([nn.Parameter(weight(WIDTH, 0.3)) for _ in range(layers)])
        self.read = nn.Parameter(weight(outputs, 4.0))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        for send, keep in zip(self.sends, self.keeps, strict=True):
            x = torch.tanh(send(x, edge_index) + x @ keep.t())
        return global_mean_pool(x, batch) @ self.read.t()


def graph(seed: int, nodes: int = 4, edges: int = 5) -> Data:
    """Edges may repeat each other, and lead from a node to itself."""
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, WIDTH, generator=generator, dtype=torch.double),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
    )


def pairs(data: Data) -> list[tuple[int, int]]:
    """Sender and receiver of every edge."""
    return [(int(u), int(v)) for u, v in data.edge_index.t()]


def messages(model: Small, data: Data) -> list[list[Tensor]]:
    """[L][E] what is sent when nothing is gated."""
    h, sent = list(data.x), []
    for send, keep in zip(model.sends, model.keeps, strict=True):
        sent.append([send.weight @ h[u] for u, _ in pairs(data)])
        inbox = [torch.zeros(WIDTH, dtype=torch.double) for _ in h]
        for (_, v), message in zip(pairs(data), sent[-1], strict=True):
            inbox[v] = inbox[v] + message
        h = [torch.tanh(total + keep @ own) for total, own in zip(inbox, h, strict=True)]
    return sent


def answer(model: Small, data: Data, gates: Gates, baselines: Sequence[Tensor] | None = None) -> Tensor:
    """[outputs] with every message ``z m + (1 - z) b``; b is zero unless given."""
    h = list(data.x)
    for site, (send, keep) in enumerate(zip(model.sends, model.keeps, strict=True)):
        inbox = [torch.zeros(WIDTH, dtype=torch.double) for _ in h]
        for edge, (u, v) in enumerate(pairs(data)):
            z = gates[site][edge]
            inbox[v] = inbox[v] + z * (send.weight @ h[u])
            if baselines is not None:
                inbox[v] = inbox[v] + (1 - z) * baselines[site]
        h = [torch.tanh(total + keep @ own) for total, own in zip(inbox, h, strict=True)]
    return model.read @ (sum(h) / len(h))


def constant(data: Data, value: float, layers: int = 2) -> list[list[float]]:
    return [[value] * data.num_edges for _ in range(layers)]
