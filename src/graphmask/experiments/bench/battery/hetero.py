"""A network of HeteroConv layers over authors and papers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from graphmask.experiments.bench.battery import learning
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.common import build

WRITES, WRITTEN, CITES = ("author", "writes", "paper"), ("paper", "rev_writes", "author"), ("paper", "cites", "paper")
RED, BLUE, GREY = range(3)


def papers(seed: int) -> HeteroData:
    """Has a paper more red authors than blue? All nodes have colours; those of cited papers mean nothing."""
    rng = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind, count in (("paper", 6), ("author", 12)):
        data[kind].x = torch.eye(3)[torch.randint(3, (count,), generator=rng)]
    writes = torch.stack([torch.randint(12, (20,), generator=rng), torch.randint(6, (20,), generator=rng)])
    writes = writes.unique(dim=1)
    data[WRITES].edge_index, data[WRITTEN].edge_index = writes, writes.flip(0)
    data[CITES].edge_index = torch.randint(6, (2, 14), generator=rng)
    colour = data["author"].x[writes[0]]
    surplus = torch.zeros(6).index_add(0, writes[1], colour[:, RED] - colour[:, BLUE])
    data["paper"].y = (surplus > 0).long()
    return data


class Hetero(nn.Module):
    """Two HeteroConvs of SAGEConv over authors and papers, and a linear layer on papers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        kinds = (WRITES, WRITTEN, CITES)
        self.first = HeteroConv({kind: SAGEConv((3, 3), width) for kind in kinds})
        self.second = HeteroConv({kind: SAGEConv((width, width), width) for kind in kinds})
        self.out = nn.Linear(width, 2)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        states = {kind: state.relu() for kind, state in self.first(x_dict, edge_index_dict).items()}
        return self.out(self.second(states, edge_index_dict)["paper"].relu())


def wrote(data: HeteroData) -> Tensor:
    """bool [E], types in the order of the data: written by a red or a blue author."""
    colour = data["author"].x.argmax(1)[data[WRITES].edge_index[0]]
    return torch.cat([colour != GREY, torch.zeros(data[WRITTEN].num_edges + data[CITES].num_edges, dtype=torch.bool)])


def make(seed: int) -> Prepared:
    graphs = [papers(100_000 * seed + number) for number in range(1_200)]
    parts = graphs[:900], graphs[900:1_000], graphs[1_000:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = build(Hetero, seed)

    @torch.no_grad()
    def accuracy(data: list[Any]) -> float:
        right = [model(batch.x_dict, batch.edge_index_dict).argmax(1) == batch["paper"].y for batch in data]
        return float(torch.cat(right).double().mean())

    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output, batch["paper"].y)

    gold = [wrote(graph) for graph in parts[-1]]
    return learning.prepared(model, parts, size=32, score=accuracy, seed=seed, loss=loss, gold=gold)
