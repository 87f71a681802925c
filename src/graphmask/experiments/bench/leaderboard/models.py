"""The models that are explained: ordinary networks, trained from a fixed seed in a minute or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, GIN, GraphSAGE, global_add_pool, global_mean_pool
from torch_geometric.utils import dropout_edge

from graphmask.experiments.common import build

LAYERS = {"gin": GIN, "gcn": GCN, "sage": GraphSAGE}
POOLS = {"mean": global_mean_pool, "add": global_add_pool}


@dataclass(frozen=True)
class Recipe:
    """What a model is made of, and how it is trained."""

    layer: str = "gin"
    layers: int = 3
    width: int = 32
    pool: str | None = "mean"  #: None classifies nodes
    options: tuple[tuple[str, Any], ...] = ()  #: of the layers
    epochs: int = 30
    rate: float = 3e-3
    drop_edges: float = 0.0  #: share of edges left out at every step of training
    decay: float = 0.0


class Network(nn.Module):
    """Message passing layers with batch normalisation; for graphs, a pool; one linear layer."""

    def __init__(self, inputs: int, classes: int, recipe: Recipe) -> None:
        super().__init__()
        make = LAYERS[recipe.layer]
        self.gnn = make(inputs, recipe.width, recipe.layers, norm="batch_norm", **dict(recipe.options))
        self.pool = None if recipe.pool is None else POOLS[recipe.pool]
        self.out = nn.Linear(recipe.width, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        state = self.gnn(x, edge_index).relu()
        return self.out(state if self.pool is None else self.pool(state, batch))


def train(recipe: Recipe, data: Sequence[Data], classes: int, *, seed: int, rows: Tensor | None = None) -> Network:
    """Train on graphs, or on the ``rows`` (nodes) of one graph."""
    model = build(lambda: Network(data[0].x.shape[1], classes, recipe), seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, total_iters=recipe.epochs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loader = DataLoader(list(data), 64, shuffle=True)
        for _ in range(recipe.epochs):
            for batch in loader:
                edges = dropout_edge(batch.edge_index, recipe.drop_edges)[0] if recipe.drop_edges else batch.edge_index
                logits, wanted = model(batch.x, edges, batch.batch), batch.y
                if rows is not None:
                    logits, wanted = logits[rows], wanted[rows]
                optimiser.zero_grad()
                F.cross_entropy(logits, wanted).backward()
                optimiser.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: Sequence[Data], rows: Tensor | None = None) -> float:
    """In per cent, on graphs or on the ``rows`` of one."""
    right, count = 0, 0
    with torch.random.fork_rng(devices=[]):  # a loader draws even if it does not shuffle
        for batch in DataLoader(list(data), 256):
            correct = model(batch.x, batch.edge_index, batch.batch).argmax(1) == batch.y
            correct = correct if rows is None else correct[rows]
            right, count = right + int(correct.sum()), count + len(correct)
    return 100 * right / count
