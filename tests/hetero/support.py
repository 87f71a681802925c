"""Heterogeneous graphs, and one table of models over them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, HeteroData

from graphmask import GraphMask
from graphmask.graphs import batches
from reference.hasty import HASTY, halve

WRITES, WRITTEN, CITES = ("author", "writes", "paper"), ("paper", "rev_writes", "author"), ("paper", "cites", "paper")
TYPES = (["author", "paper"], [WRITES, WRITTEN, CITES])
QUICK = replace(HASTY, steps=2)


def graph(seed: int, authors: int = 4, edges: tuple[int, int] = (8, 7)) -> HeteroData:
    """With an edge twice, a self-loop, and papers that nobody wrote."""
    generator = torch.Generator().manual_seed(seed)
    papers = 6 + seed % 3
    data = HeteroData()
    data["author"].x = torch.randn(authors, 5, generator=generator)
    data["paper"].x = torch.randn(papers, 7, generator=generator)
    written = torch.randint(authors, (edges[0],), generator=generator)
    writes = torch.stack([written, torch.randint(papers - 1, (edges[0],), generator=generator)])
    writes[:, 1:2] = writes[:, :1]
    data[WRITES].edge_index = writes
    data[WRITTEN].edge_index = writes.flip(0)
    cites = torch.randint(papers, (2, edges[1]), generator=generator)
    cites[:, 2:3] = seed % papers
    data[CITES].edge_index = cites
    for kind in TYPES[1]:
        data[kind].edge_attr = torch.randn(data[kind].edge_index.shape[1], 3, generator=generator)
    return data


def batch(*seeds: int) -> HeteroData:
    return Batch.from_data_list([graph(seed) for seed in seeds])


class Stack(nn.Module):
    """Two HeteroConvs; ``make(edge_type)`` makes a layer."""

    def __init__(self, make: Callable[[tuple[str, str, str]], nn.Module]) -> None:
        super().__init__()
        self.first = pyg.HeteroConv({kind: make(kind) for kind in TYPES[1]})
        self.second = pyg.HeteroConv({kind: make(kind) for kind in TYPES[1]})
        self.out = nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        states = self.first(x_dict, edge_index_dict)
        states = self.second({kind: state.relu() for kind, state in states.items()}, edge_index_dict)
        return self.out(states["paper"])


class WithAttributes(Stack):
    def forward(  # type: ignore[override]
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor], edge_attr_dict: dict[Any, Tensor]
    ) -> Tensor:
        states = self.first(x_dict, edge_index_dict, edge_attr_dict)
        states = self.second({kind: state.relu() for kind, state in states.items()}, edge_index_dict, edge_attr_dict)
        return self.out(states["paper"])


class AllTypes(nn.Module):
    """Two layers that are given all types at once."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.first = conv({"author": 5, "paper": 7}, 8, TYPES, heads=2)
        self.second = conv(8, 8, TYPES, heads=2)
        self.out = nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        states = self.second(self.first(x_dict, edge_index_dict), edge_index_dict)
        return self.out(states["paper"])


class Pooled(Stack):
    """One row per graph."""

    def forward(  # type: ignore[override]
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor], batch_dict: dict[str, Tensor]
    ) -> Tensor:
        return pyg.global_mean_pool(super().forward(x_dict, edge_index_dict), batch_dict["paper"])


class Inside(nn.Module):
    """Takes the batch itself, and makes one graph of it."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.author, self.paper, self.conv = nn.Linear(5, 8), nn.Linear(7, 8), conv

    def forward(self, data: HeteroData) -> Tensor:
        whole = data.clone()
        for kind in data.edge_types:
            del whole[kind].edge_attr
        whole["author"].x, whole["paper"].x = self.author(data["author"].x), self.paper(data["paper"].x)
        one = whole.to_homogeneous()
        given = (one.edge_type,) if isinstance(self.conv, pyg.RGCNConv) else ()
        return self.conv(one.x, one.edge_index, *given)[len(data["author"].x) :]


def papers(model: nn.Module, data: HeteroData) -> Tensor:
    return model(data.x_dict, data.edge_index_dict)["paper"]


def homogeneous(kind: tuple[str, str, str]) -> bool:
    return kind[0] == kind[2]


@dataclass
class Case:
    name: str
    make: Callable[[], nn.Module]
    forward: Any = None
    alone: bool = False  #: the model itself mixes the graphs of a batch

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self.make().eval()
        with torch.no_grad():  # lazy layers get their sizes
            (self.forward or batches.default_forward)(model, graph(0))
        return model

    def run(self, model: nn.Module, data: HeteroData) -> Tensor:
        with torch.no_grad():
            return (self.forward or batches.default_forward)(model, data)


CASES = [
    Case("sage", lambda: Stack(lambda _: pyg.SAGEConv((-1, -1), 8))),
    Case("gat", lambda: WithAttributes(lambda _: pyg.GATConv((-1, -1), 8, edge_dim=3, add_self_loops=False))),
    Case("gcn", lambda: Stack(lambda kind: pyg.GCNConv(-1, 8) if homogeneous(kind) else pyg.SAGEConv((-1, -1), 8))),
    Case("pooled", lambda: Pooled(lambda _: pyg.GraphConv((-1, -1), 8))),
    Case("to_hetero", lambda: pyg.to_hetero(pyg.GraphSAGE((-1, -1), 8, 2, 3), TYPES), papers),
    Case("hgt", lambda: AllTypes(pyg.HGTConv)),
    Case("han", lambda: AllTypes(pyg.HANConv), alone=True),
    Case("rgcn inside", lambda: Inside(pyg.RGCNConv(8, 3, 3))),
    Case("gcn inside", lambda: Inside(pyg.GCNConv(8, 3))),
]
BY_NAME = {case.name: case for case in CASES}


@cache
def fitted(name: str) -> tuple[nn.Module, GraphMask]:
    case = BY_NAME[name]
    model = case.model()
    explainer = GraphMask(model, case.forward, recipe=QUICK)
    explainer.fit([batch(0, 1, 2)], progress=False)
    halve(explainer, [batch(0, 1, 2)])
    return model, explainer
