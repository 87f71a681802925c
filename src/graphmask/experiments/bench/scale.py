"""How cost grows from 10^5 edges upwards, as ratios on one thread, beside PyG's own explainers; stores; processes.

`SECTIONS` says what is measured; each is a function of the largest number of edges and the seed that returns a part
of the figures.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer, PGExplainer

from graphmask.bars import steps
from graphmask.experiments import runner
from graphmask.experiments.bench.core import Subject, build, graph, medians, power, step_means
from graphmask.experiments.bench.memory import peak_bytes
from graphmask.experiments.bench.processes import process_figures
from graphmask.experiments.bench.store import store_figures

#: Sizes that are measured, as far as they are asked for.
SIZES = (100_000, 1_000_000, 10_000_000)
#: Gates are amortised: fitted to a small graph, they explain a large one.
FIT_EDGES = 10_000
#: Beyond, PyG's explainers take minutes per epoch.
PEER_EDGES = 1_000_000
#: Epochs of PyG's explainers that are timed; those they need by default are so many times as long.
EPOCHS = 3


def cost_figures(edges: int, seed: int, models: Sequence[str] = ("GCN",)) -> dict[str, Any]:
    """Per size: explain / forward and fit step / training step, time and peak memory. Keys are GCN's."""
    costs = {name: {power(size): _cost(name, size, seed) for size in SIZES if size <= edges} for name in models}
    first = costs[models[0]]
    keys = next(iter(first.values())).keys()
    return {**{key: {size: cost[key] for size, cost in first.items()} for key in keys}, "models": costs}


def _cost(name: str, size: int, seed: int) -> dict[str, float]:
    subject = Subject(name, size, seed, fit_edges=FIT_EDGES)
    repeats = max(1, min(15, int(3e6 / size)))
    explain, forward = medians(subject.explain, subject.forward, repeats)
    costs = {
        "explain_ratio": explain / forward,
        "explain_memory_ratio": subject.memory(),
        "explain_seconds_per_edge": explain / size,
        "forward_seconds_per_edge": forward / size,
        "forward_bytes_per_edge": peak_bytes(subject.forward) / size,
    }
    with subject.steps() as (fit, train):
        step, training = step_means(fit, train, repeats)
        costs |= {
            "fit_step_ratio": step / training,
            "fit_memory_ratio": peak_bytes(fit) / peak_bytes(train),
            "fit_step_seconds_per_edge": step / size,
        }
    return costs


class _Pooled(nn.Module):
    """One answer per graph: PGExplainer says nothing of all nodes at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.model(x, edge_index).mean(0, keepdim=True)


def peer_figures(edges: int, seed: int) -> dict[str, Any]:
    """PyG's GNNExplainer and PGExplainer on the same GCN, in forwards of the model."""
    sizes = [size for size in SIZES if size <= min(edges, PEER_EDGES)]
    return {"peers": {name: {power(size): peer(size, seed) for size in sizes} for name, peer in PEERS.items()}}


def _gnn_explainer(size: int, seed: int) -> dict[str, Any]:
    """Optimises a mask per graph: an explanation is its default number of epochs, timed over a few."""
    default = GNNExplainer().epochs
    few = _Peer(size, seed, GNNExplainer(epochs=EPOCHS), "model")
    seconds, forward = medians(few.explain, few.forward, 1)
    return {
        "explain_ratio": seconds / EPOCHS * default / forward,
        "explain_memory_ratio": peak_bytes(few.explain) / peak_bytes(few.forward),
        "epochs": default,
        "epochs_timed": EPOCHS,
    }


def _pg_explainer(size: int, seed: int) -> dict[str, Any]:
    """Amortised as GraphMask is, one mask for all layers, not verified by a masked run."""
    peer = _Peer(size, seed, PGExplainer(epochs=1), "phenomenon")

    def train() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it takes the value of its loss in a way that PyTorch discourages
            peer.explainer.algorithm.train(0, peer.model, peer.data.x, peer.data.edge_index, target=peer.target)

    train()
    seconds, forward = medians(peer.explain, peer.forward, 3)
    step, _ = medians(train, peer.forward, 1)
    return {
        "explain_ratio": seconds / forward,
        "explain_memory_ratio": peak_bytes(peer.explain) / peak_bytes(peer.forward),
        "fit_step_forwards": step / forward,
    }


class _Peer:
    def __init__(self, size: int, seed: int, algorithm: Any, kind: str) -> None:
        self.data, self.model = graph(size, seed), _Pooled(build("GCN", seed))
        self.explainer = Explainer(
            copy.deepcopy(self.model),
            algorithm,
            explanation_type=kind,
            edge_mask_type="object",
            model_config={"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"},
        )
        self.target = self.forward().argmax(-1)

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.model(self.data.x, self.data.edge_index)

    def explain(self) -> Any:
        target = self.target if self.explainer.explanation_type.value == "phenomenon" else None
        return self.explainer(self.data.x, self.data.edge_index, target=target)


PEERS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "GNNExplainer": _gnn_explainer,
    "PGExplainer": _pg_explainer,
}


def store(edges: int, seed: int) -> dict[str, Any]:
    """Ten rows for every edge asked for, and 200,000 small graphs explained in one go."""
    return {"store": store_figures(10 * edges, max(2000, min(200_000, edges)), seed)}


def processes(edges: int, seed: int) -> dict[str, Any]:
    """The same work by one and by two processes."""
    return {"processes": process_figures()}


SECTIONS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "cost": cost_figures,
    "peers": peer_figures,
    "processes": processes,
    "store": store,
}


def measure(
    edges: int, seed: int = 0, sections: Sequence[str] = tuple(SECTIONS), *, progress: bool = True
) -> dict[str, Any]:
    figures: dict[str, Any] = {"edges": edges, "seed": seed}
    with runner.one_thread(), steps(len(sections), enabled=progress) as step:
        for name in sections:
            step(name)
            figures |= SECTIONS[name](edges, seed)
    return figures


def rows(figures: dict[str, Any]) -> list[list[Any]]:
    """Model and size, then four ratios: explain and its memory, fit step and its memory."""
    keys = ("explain_ratio", "explain_memory_ratio", "fit_step_ratio", "fit_memory_ratio")
    return [
        [f"{name}, {size}", *(cost[key] for key in keys)]
        for name, by_size in figures.get("models", {}).items()
        for size, cost in by_size.items()
    ]


def peer_rows(figures: dict[str, Any]) -> list[list[Any]]:
    return [
        [f"{name}, {size}", cost["explain_ratio"], cost["explain_memory_ratio"]]
        for name, by_size in figures.get("peers", {}).items()
        for size, cost in by_size.items()
    ]


def process_rows(figures: dict[str, Any]) -> list[list[Any]]:
    """Processes, then seconds of a fit step and of an explained graph, each with its speed-up."""
    keys = ("processes", "fit_step_seconds", "fit_speedup", "explain_graph_seconds", "explain_speedup")
    return [[run[key] for key in keys] for run in figures.get("processes", {}).get("runs", [])]
