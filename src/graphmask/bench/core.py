"""What GraphMask costs, as ratios measured in one process on one thread.

The model is a two-layer GCN with 64 channels on random graphs with ten edges per node: a layer that does little
beside sending messages, so the ratios are not flattered by work that GraphMask does not repeat.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from graphmask.bench.memory import peak_bytes
from graphmask.explainer import GraphMask
from graphmask.guest import freeze, guest
from graphmask.tasks import runner
from graphmask.training import Recipe, Training

CHANNELS, CLASSES, LAYERS, DEGREE = 64, 8, 2, 10
MODELS: dict[str, type[nn.Module]] = {"GCN": GCN, "GraphSAGE": GraphSAGE, "GIN": GIN, "GAT": GAT}


def graph(edges: int, seed: int) -> Data:
    """A random graph with ``edges`` edges and a tenth as many nodes."""
    generator = torch.Generator().manual_seed(seed)
    nodes = max(edges // DEGREE, 2)
    return Data(
        x=torch.randn(nodes, CHANNELS, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        y=torch.randint(CLASSES, (nodes,), generator=generator),
    )


def build(name: str, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](CHANNELS, CHANNELS, LAYERS, out_channels=CLASSES).eval()


def ratio(job: Callable[[], Any], unit: Callable[[], Any], repeats: int) -> float:
    """Median time of ``job`` over median time of ``unit``, run in turns so that noise hits both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    job(), unit()
    gc.disable()
    try:
        for _ in range(repeats):
            for which, run in enumerate((job, unit)):
                started = time.perf_counter()
                run()
                times[which].append(time.perf_counter() - started)
    finally:
        gc.enable()
    return statistics.median(times[0]) / statistics.median(times[1])


def cost(name: str, edges: int, seed: int = 0) -> dict[str, float]:
    """The three ratios at one size."""
    data, model = graph(edges, seed), build(name, seed)
    repeats = max(3, min(30, int(3e6 / edges)))
    explainer = GraphMask(model, seed=seed, recipe=Recipe(steps=1))
    explainer.fit([data], progress=False)

    def forward() -> Tensor:
        with torch.no_grad():
            return model(data.x, data.edge_index)

    def explain() -> Any:
        return explainer.explain(data, allow_infeasible=True)

    result = {
        "explain": ratio(explain, forward, repeats),
        "explain_memory": peak_bytes(explain) / peak_bytes(forward),
        "fit_step": _fit_step_ratio(model, explainer, data, repeats),
    }
    return result


def _fit_step_ratio(model: nn.Module, explainer: GraphMask, data: Data, repeats: int) -> float:
    learner = copy.deepcopy(model).train()  # the explained model is trained no more
    optimiser = torch.optim.Adam(learner.parameters())
    assert explainer.probe is not None
    with guest(model):

        def train() -> None:
            optimiser.zero_grad()
            nn.functional.cross_entropy(learner(data.x, data.edge_index), data.y).backward()
            optimiser.step()

        recipe = Recipe(frozen_baselines=0.0)  # the costliest phase: gates and baselines are trained
        training = Training(explainer.probe, model, explainer.forward, explainer.divergence, 0.03, recipe, 0, 10**6)

        freeze(model, training=True)
        return ratio(lambda: training.train_on(data), train, repeats)


def measure(seed: int = 0, largest: int = 1_000_000) -> dict[str, Any]:
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= largest]
    figures: dict[str, Any] = {"explain_ratio": {}, "fit_step_ratio": {}, "explain_memory_ratio": {}, "models": {}}
    with runner.one_thread():
        for size in sizes:
            key = f"1e{len(str(size)) - 1}"
            found = cost("GCN", size, seed)
            figures["explain_ratio"][key] = found["explain"]
            figures["fit_step_ratio"][key] = found["fit_step"]
            figures["explain_memory_ratio"][key] = found["explain_memory"]
        for name in MODELS:
            figures["models"][name] = cost(name, min(100_000, largest), seed)
        run = runner.run("star", seed, progress=False)
        figures["star_fit_cpu_seconds"] = run.figures["fit_cpu_seconds"]
    return figures


def rows(figures: dict[str, Any]) -> list[list[Any]]:
    keys = ("explain_ratio", "fit_step_ratio", "explain_memory_ratio")
    sizes = [[f"GCN, {size}", *(figures[key][size] for key in keys)] for size in figures["explain_ratio"]]
    models = [
        [f"{name}, 1e5", cost["explain"], cost["fit_step"], cost["explain_memory"]]
        for name, cost in figures["models"].items()
    ]
    return sizes + models
