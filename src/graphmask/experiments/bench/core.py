"""What GraphMask costs, as ratios measured in one process on one thread.

The model is a two-layer GCN with 64 channels on random graphs with ten edges per node: a layer that does little
beside sending messages, so the ratios are not flattered by work that GraphMask does not repeat. Freed memory is kept
(`bench.memory.keep_freed_memory`): otherwise fetching it anew hits one side of a ratio or the other by chance.
"""

from __future__ import annotations

import copy
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import RGCNConv, TransformerConv
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from graphmask.bars import steps
from graphmask.experiments import runner
from graphmask.experiments.bench.memory import keep_freed_memory, peak_bytes
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.fitting.step import take_step
from graphmask.fitting.training import LOGITS_EVERY, Recipe, Training

CHANNELS, CLASSES, LAYERS, DEGREE = 64, 8, 2, 10
HEADS, RELATIONS = 4, 4


class Attentive(nn.Module):
    """Layers whose softmax lies inside their messages, with four heads."""

    def __init__(self, inputs: int, hidden: int, layers: int, out_channels: int) -> None:
        super().__init__()
        sizes = [inputs] + [hidden] * (layers - 1)
        self.convs = nn.ModuleList(TransformerConv(size, hidden // HEADS, heads=HEADS) for size in sizes[:-1])
        self.out = TransformerConv(sizes[-1], out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.out(x, edge_index)


class Relational(nn.Module):
    """Layers that send relation by relation; which of the four an edge has follows from its ends."""

    def __init__(self, inputs: int, hidden: int, layers: int, out_channels: int) -> None:
        super().__init__()
        sizes = [inputs] + [hidden] * (layers - 1) + [out_channels]
        self.convs = nn.ModuleList(RGCNConv(a, b, RELATIONS) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_type = edge_index.sum(0) % RELATIONS
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index, edge_type)
        return x


MODELS: dict[str, type[nn.Module]] = {
    "GCN": GCN,
    "GraphSAGE": GraphSAGE,
    "GIN": GIN,
    "GAT": GAT,
    "TransformerConv": Attentive,
    "RGCNConv": Relational,
}

#: The models whose growth with the number of edges is measured.
GROWING = ("GCN", "GraphSAGE", "GAT")


def graph(edges: int, seed: int, degree: int = DEGREE) -> Data:
    """A random graph with ``edges`` edges, ``degree`` for every node."""
    generator = torch.Generator().manual_seed(seed)
    nodes = max(edges // degree, 2)
    return Data(
        x=torch.randn(nodes, CHANNELS, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        y=torch.randint(CLASSES, (nodes,), generator=generator),
    )


def build(name: str, seed: int, layers: int = LAYERS) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](CHANNELS, CHANNELS, layers, out_channels=CLASSES).eval()


def times(job: Callable[[], Any], unit: Callable[[], Any], repeats: int) -> tuple[list[float], list[float]]:
    """CPU seconds of every run of ``job`` and of ``unit``, run in turns so that noise hits both alike.

    Of this thread alone: on one thread that is the time it takes, less what other processes take of the machine.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    job(), unit()
    gc.disable()
    try:
        for _ in range(repeats):
            for which, run in enumerate((job, unit)):
                started = time.thread_time()
                run()
                seconds[which].append(time.thread_time() - started)
    finally:
        gc.enable()
    return seconds


def medians(job: Callable[[], Any], unit: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Of `times`, where one run is like the other."""
    ours, theirs = times(job, unit, repeats)
    return statistics.median(ours), statistics.median(theirs)


def step_means(fit: Callable[[], Any], train: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Of `times`, where ``fit`` is a step of fitting.

    One step is not like the other: every so often stand-ins for logits learn too, and a median would not show what
    that costs. So it is the mean, over at least ``repeats`` steps and as many of each kind as in a fit.
    """
    ours, theirs = times(fit, train, -(-repeats // LOGITS_EVERY) * LOGITS_EVERY)
    return statistics.fmean(ours), statistics.fmean(theirs)


def ratio(job: Callable[[], Any], unit: Callable[[], Any], repeats: int) -> float:
    """Median time of ``job`` over median time of ``unit``."""
    seconds, unit_seconds = medians(job, unit, repeats)
    return seconds / unit_seconds


class Subject:
    """A model fitted, barely, to a random graph of one size (or of ``fit_edges``), and what is measured of it."""

    def __init__(
        self,
        name: str,
        edges: int,
        seed: int = 0,
        *,
        fit_edges: int | None = None,
        degree: int = DEGREE,
        layers: int = LAYERS,
    ) -> None:
        self.data, self.model = graph(edges, seed, degree), build(name, seed, layers)
        self.repeats = max(3, min(100, int(3e6 / edges)))
        self.explainer = GraphMask(self.model, seed=seed, recipe=Recipe(steps=1))
        data = self.data if fit_edges is None else graph(fit_edges, seed, degree)
        self.explainer.fit([data], progress=False)
        self._drop_half(data)

    @torch.no_grad()
    def _drop_half(self, data: Data) -> None:
        """Gates that have learnt next to nothing are all open; with thresholds in their middle, there is work to do."""
        assert self.explainer.probe is not None
        explanation = self.explainer.explain(data, repair=False, allow_infeasible=True)
        for site, scores in enumerate(explanation.scores):
            self.explainer.probe.gate(site).shift += torch.logit(scores.median())

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.model(self.data.x, self.data.edge_index)

    def explain(self) -> Explanation:
        """As where nothing needs repair, which costs nothing then; gates that have learnt nothing would all need it."""
        return self.explainer.explain(self.data, repair=False, allow_infeasible=True)

    def seconds(self) -> tuple[float, float]:
        """Of explaining, and of a plain forward."""
        return medians(self.explain, self.forward, self.repeats)

    def memory(self) -> float:
        return peak_bytes(self.explain) / peak_bytes(self.forward)

    def fit_step(self) -> float:
        """Mean time of a step of fitting over that of a training step."""
        with self.steps() as (fit, train):
            seconds, unit_seconds = step_means(fit, train, self.repeats)
            return seconds / unit_seconds

    @contextmanager
    def steps(self) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
        """A step of fitting in its costliest phase (gates and baselines learn), and one of training the model."""
        explainer, data = self.explainer, self.data
        learner = copy.deepcopy(self.model).train()  # the explained model is trained no more
        optimiser = torch.optim.Adam(learner.parameters())
        assert explainer.probe is not None

        def train() -> None:
            optimiser.zero_grad()
            nn.functional.cross_entropy(learner(data.x, data.edge_index), data.y).backward()
            optimiser.step()

        recipe = Recipe()
        training = Training(explainer.probe, explainer.subject, 0.03, recipe, 0, 10**6)
        with explainer.subject.frozen(training=True):
            take_step(training, [data])  # the first two steps on a graph also run the original model
            yield lambda: take_step(training, [data]), train


def cost(name: str, edges: int, seed: int = 0) -> dict[str, float]:
    """The three ratios at one size."""
    subject = Subject(name, edges, seed)
    explain, forward = subject.seconds()
    return {"explain": explain / forward, "explain_memory": subject.memory(), "fit_step": subject.fit_step()}


def growth(name: str, sizes: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """Seconds per edge by size, of explaining and of a plain forward, and how much they grow from size to size.

    A forward itself takes longer per edge once its messages no longer fit into caches: ``over_forward`` is what
    explaining grows beyond that; linear is 1.
    """
    seconds = {size: Subject(name, size, seed).seconds() for size in sizes}
    explain, forward = ({power(size): seconds[size][which] / size for size in sizes} for which in (0, 1))
    steps = [(power(before), power(after)) for before, after in itertools.pairwise(sizes)]
    grown = {
        f"{before} -> {after}": (explain[after] / explain[before], forward[after] / forward[before])
        for before, after in steps
    }
    return {
        "explain_seconds_per_edge": explain,
        "forward_seconds_per_edge": forward,
        "explain": {step: ours for step, (ours, _) in grown.items()},
        "forward": {step: theirs for step, (_, theirs) in grown.items()},
        "over_forward": {step: ours / theirs for step, (ours, theirs) in grown.items()},
    }


def power(size: int) -> str:
    return f"1e{len(str(size)) - 1}"


def measure(seed: int = 0, largest: int = 1_000_000, *, progress: bool = True) -> dict[str, Any]:
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= largest]
    figures: dict[str, Any] = {"explain_ratio": {}, "fit_step_ratio": {}, "explain_memory_ratio": {}, "models": {}}
    several = [(name, min(100_000, largest)) for name in MODELS]
    total = 1 + len(GROWING) + len(sizes) + len(several)
    with runner.one_thread(), steps(total, enabled=progress) as step:
        # First, as a user's fit is: not in a process that has just let go of gigabytes.
        step("a fit of star")
        figures["star_fit_cpu_seconds"] = runner.run("star", seed, progress=False).figures["fit_cpu_seconds"]
        keep_freed_memory()
        figures["explain_growth"] = {}
        for name in GROWING:
            step(f"growth, {name}")
            figures["explain_growth"][name] = growth(name, sizes, seed)
        for size in sizes:
            key = power(size)
            step(f"GCN, {key} edges")
            ratios = cost("GCN", size, seed)
            figures["explain_ratio"][key] = ratios["explain"]
            figures["fit_step_ratio"][key] = ratios["fit_step"]
            figures["explain_memory_ratio"][key] = ratios["explain_memory"]
        figures["models_at"] = power(min(100_000, largest))
        for name, size in several:
            step(f"{name}, {power(size)} edges")
            figures["models"][name] = cost(name, size, seed)
    return figures


def rows(figures: dict[str, Any]) -> list[list[Any]]:
    keys = ("explain_ratio", "fit_step_ratio", "explain_memory_ratio")
    sizes = [[f"GCN, {size}", *(figures[key][size] for key in keys)] for size in figures["explain_ratio"]]
    models = [
        [f"{name}, {figures['models_at']}", cost["explain"], cost["fit_step"], cost["explain_memory"]]
        for name, cost in figures["models"].items()
    ]
    return sizes + models


def growth_rows(figures: dict[str, Any]) -> list[list[Any]]:
    return [
        [
            f"{name}, {size}",
            1e6 * per_edge,
            1e6 * of_model["forward_seconds_per_edge"][size],
            per_edge / of_model["forward_seconds_per_edge"][size],
            *(next((v for step, v in of_model[key].items() if step.endswith(size)), "") for key in _GROWN),
        ]
        for name, of_model in figures["explain_growth"].items()
        for size, per_edge in of_model["explain_seconds_per_edge"].items()
    ]


_GROWN = ("explain", "forward", "over_forward")
