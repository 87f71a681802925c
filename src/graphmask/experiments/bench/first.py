"""How long it takes until the first explanation of a small graph, what has to be fitted included, and each one after.

GraphMask beside PyTorch Geometric's GNNExplainer, PGExplainer and Captum's integrated gradients, all as shipped, on one
model: three layers and a mean over nodes, one answer per graph. Its weights are random, for only time is measured.
GraphMask is fitted to all graphs by its default recipe, and explains as everybody gets it, with repair.
"""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer, PGExplainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_mean_pool

from graphmask.experiments.bench.core import build, graph
from graphmask.explainer import GraphMask
from graphmask.fitting.recipe import Recipe

#: Graphs that GraphMask is fitted to, how many of them are a batch, and how.
GRAPHS, BATCH = 200, 50
RECIPE = Recipe()
#: Epochs of PGExplainer, as in its documentation, and the graphs that it learns from.
PG_EPOCHS, PG_GRAPHS = 30, 20
#: Graphs that are explained, one by one.
EXPLAINED = 20

#: Explains one graph.
Explain = Callable[[Data], Any]


class Pooled(nn.Module):
    """One answer per graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        return global_mean_pool(self.model(x, edge_index), batch)


def _graphmask(model: nn.Module, graphs: list[Data], seed: int) -> Explain:
    explainer = GraphMask(model, seed=seed, recipe=RECIPE)
    explainer.fit(list(DataLoader(graphs, BATCH)), progress=False)
    return lambda data: explainer.explain(data, allow_infeasible=True)


def _shipped(model: nn.Module, algorithm: Any, kind: str = "model") -> Explain:
    config = {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"}
    explainer = Explainer(model, algorithm, kind, config, edge_mask_type="object")
    return lambda data: explainer(data.x, data.edge_index, target=_target(model, data) if kind != "model" else None)


@torch.no_grad()
def _target(model: nn.Module, data: Data) -> Tensor:
    return model(data.x, data.edge_index).argmax(-1)


def _gnn_explainer(model: nn.Module, graphs: list[Data], seed: int) -> Explain:
    return _shipped(model, GNNExplainer())


def _pg_explainer(model: nn.Module, graphs: list[Data], seed: int) -> Explain:
    algorithm = PGExplainer(epochs=PG_EPOCHS)
    explain = _shipped(model, algorithm, "phenomenon")
    for epoch in range(PG_EPOCHS):
        for data in graphs[:PG_GRAPHS]:
            algorithm.train(epoch, model, data.x, data.edge_index, target=_target(model, data))
    return explain


def _integrated_gradients(model: nn.Module, graphs: list[Data], seed: int) -> Explain:
    return _shipped(model, CaptumExplainer("IntegratedGradients"))


METHODS: dict[str, Callable[[nn.Module, list[Data], int], Explain]] = {
    "GraphMask": _graphmask,
    "PGExplainer": _pg_explainer,
    "GNNExplainer": _gnn_explainer,
    "Captum, integrated gradients": _integrated_gradients,
}


def measure(name: str, nodes: int, edges: int, layers: int, seed: int = 0) -> dict[str, Any]:
    """By method, CPU seconds until the first explanation and milliseconds of each one after, the median of some."""
    graphs = [graph(edges, seed + number, edges // nodes) for number in range(GRAPHS)]
    model = Pooled(build(name, seed, layers)).eval()
    figures: dict[str, Any] = {"model": name, "graphs": GRAPHS, "explained": EXPLAINED}
    for method, start in METHODS.items():
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is found on random weights
            torch.manual_seed(seed)
            figures[method] = _times(partial(start, copy.deepcopy(model), graphs, seed), graphs[:EXPLAINED])
    return figures


def _times(start: Callable[[], Explain], graphs: list[Data]) -> dict[str, float]:
    started = time.thread_time()
    explain = start()
    explain(graphs[0])
    first, each = time.thread_time() - started, []
    for data in graphs:
        started = time.thread_time()
        explain(data)
        each.append(time.thread_time() - started)
    return {"first_seconds": first, "each_ms": 1000 * statistics.median(each)}


def rows(figures: dict[str, Any]) -> list[list[Any]]:
    return [[name, *figures[name].values()] for name in METHODS]
