"""Law 2: after any call, success or exception, the user's model and the random states are what they were."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, SAGEConv

import graphmask
from graphmask import GraphMask, GraphMaskError

from .cases import BY_NAME, CASES, Case, Net, random_graph
from .support import QUICK, fitted, run
from .untouched import assert_same, snapshot, unsettle

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
SOME = ["GCN", "RGCN", "SuperGAT", "norm and dropout", "adj_t SAGE csr", "MessageTap", "AdjacencyTap sparse"]
some_cases = pytest.mark.parametrize("case", [BY_NAME[name] for name in SOME], ids=lambda case: case.name)


@every_case
def test_after_fit(case: Case) -> None:
    known = fitted(case.name)
    assert_same(known.before, known.after)
    batch = case.loader()[0]
    assert torch.equal(run(known.model, batch), run(case.model(), batch))


@every_case
def test_after_explaining_and_between_explanations(case: Case) -> None:
    known = fitted(case.name)
    before = snapshot(known.model)
    graphs = case.graphs()
    known.explain(case.one(graphs[0]))
    assert_same(before, snapshot(known.model))
    known.explainer.explain(case.one(graphs[0]), allow_infeasible=True, repair=True)
    assert_same(before, snapshot(known.model))
    count = 0
    for explanation in known.explainer.explain_all(case.loader(2), allow_infeasible=True):
        assert_same(before, snapshot(known.model))
        assert explanation.kept.dtype == torch.bool
        count += 1
    assert count == (6 if case.batchable else 2)


@every_case
def test_after_masked(case: Case) -> None:
    known = fitted(case.name)
    before = snapshot(known.model)
    data = case.one(case.graphs()[0])
    explanation = known.explain(data)
    with graphmask.masked(known.model, explanation) as model:
        run(model, data)
        torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002
    assert_same(before, snapshot(known.model))
    with pytest.raises(ZeroDivisionError), graphmask.masked(known.model, explanation):
        raise ZeroDivisionError
    assert_same(before, snapshot(known.model))


@some_cases
def test_a_model_in_use(case: Case, tmp_path: Path) -> None:
    """Mixed modes, frozen parts, gradients, the owner's hooks."""
    model = case.model()
    unsettle(model)
    before = snapshot(model)
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit(case.loader(), validation=case.loader(1, start=50), progress=False, checkpoint=tmp_path / "state")
    assert_same(before, snapshot(model))
    data = case.one(case.graphs()[0])
    explanation = explainer.explain(data, allow_infeasible=True)
    assert_same(before, snapshot(model))
    explainer.save(tmp_path / "x.graphmask")
    graphmask.load(tmp_path / "x.graphmask", model)
    explanation.save(tmp_path / "explanation")
    with graphmask.masked(model, explanation):
        assert not any(module.training for module in model.modules())
    assert_same(before, snapshot(model))


class Stops:
    """A list of batches that raises in the middle of its n-th pass."""

    def __init__(self, batches: list[Any], passes: int, error: BaseException) -> None:
        self.batches, self.passes, self.error = batches, passes, error

    def __iter__(self) -> Iterator[Any]:
        self.passes -= 1
        yield self.batches[0]
        if self.passes < 0:
            raise self.error
        yield from self.batches[1:]


@some_cases
@pytest.mark.parametrize("passes", range(5))
def test_interrupted_in_the_loader(case: Case, passes: int) -> None:
    model = case.model()
    unsettle(model)
    before = snapshot(model)
    loader = Stops(case.loader(), passes, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        GraphMask(model, recipe=QUICK).fit(loader, progress=False)
    assert_same(before, snapshot(model))


@some_cases
@pytest.mark.parametrize("calls", [0, 1, 4, 25])
def test_exception_in_forward(case: Case, calls: int) -> None:
    model = case.model()
    unsettle(model)
    before = snapshot(model)
    left = [calls]

    def forward(model: nn.Module, batch: Any) -> Tensor:
        left[0] -= 1
        output = graphmask.graphs.batches.default_forward(model, batch)
        if left[0] < 0:
            raise ZeroDivisionError
        return output

    with pytest.raises(ZeroDivisionError):
        GraphMask(model, forward, recipe=QUICK).fit(case.loader(), progress=False)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("name", ["GAT", "RGCN", "MessageTap", "AdjacencyTap dense"])
def test_exception_inside_a_layer_while_explaining(name: str) -> None:
    """Raised between two layers, when hooks are in place and half of the sites are visited."""
    known = fitted(name)
    model = known.model
    data = known.case.one(known.case.graphs()[0])
    readout = model.get_submodule("head")
    handle = readout.register_forward_pre_hook(_raise)
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError):
        known.explain(data)
    assert_same(before, snapshot(model))
    with pytest.raises(ZeroDivisionError):
        next(known.explainer.explain_all([data], allow_infeasible=True))
    assert_same(before, snapshot(model))
    handle.remove()


def _raise(*_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("calls", [0, 3, 12])
def test_exception_in_the_divergence(calls: int) -> None:
    case = BY_NAME["GAT"]
    model = case.model()
    before = snapshot(model)
    left = [calls]

    def divergence(original: Tensor, masked: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError
        return graphmask.divergence.kl(original, masked)

    with pytest.raises(ZeroDivisionError):
        GraphMask(model, divergence=divergence, recipe=QUICK).fit(case.loader(), progress=False)
    assert_same(before, snapshot(model))


@some_cases
def test_nan_in_a_batch(case: Case) -> None:
    model = case.model()
    before = snapshot(model)
    loader = case.loader()
    batch = loader[-1]
    x = batch["x"] if isinstance(batch, dict) else batch.x
    x[0, 0] = torch.nan
    with pytest.raises(GraphMaskError, match="'x' of batch 2"):
        GraphMask(model, recipe=QUICK).fit(loader, progress=False)
    assert_same(before, snapshot(model))
    known = fitted(case.name)
    before = snapshot(known.model)
    with pytest.raises(GraphMaskError, match="NaN"):
        list(known.explainer.explain_all([batch], allow_infeasible=True))
    assert_same(before, snapshot(known.model))


def test_nan_made_by_the_model() -> None:
    """The inputs are fine; the third batch overflows inside."""
    model = BY_NAME["SAGE"].model()
    before = snapshot(model)
    loader = BY_NAME["SAGE"].loader()
    loader[2].x.fill_(3e38)

    def forward(model: nn.Module, batch: Any) -> Tensor:
        return model(batch.x * 10, batch.edge_index, batch=batch.batch)

    with pytest.raises(GraphMaskError, match="finite model outputs"):
        GraphMask(model, forward, recipe=QUICK).fit(loader, progress=False)
    assert_same(before, snapshot(model))


class Diary(nn.Module):
    """A layer that keeps notes, as research code does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(8, 3)
        self.notes: list[Tensor] = []
        self.seen = {"batches": 0}
        self.last: Tensor | None = None
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += 1
        self.seen["batches"] += 1
        self.last = self.conv(x, edge_index)
        self.notes.append(self.last)
        return self.last + 0 * torch.rand(()) + 0 * random.random() + 0 * float(np.random.rand())  # noqa: NPY002


def test_a_model_that_writes_to_itself() -> None:
    model = Diary().eval()
    before = snapshot(model)
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit([random_graph(0), random_graph(1)], progress=False)
    assert_same(before, snapshot(model))
    explanation = explainer.explain(random_graph(2), allow_infeasible=True)
    assert_same(before, snapshot(model))
    with graphmask.masked(model, explanation):
        run(model, random_graph(2))
    assert_same(before, snapshot(model))


def test_a_cached_normalisation_survives() -> None:
    graph = random_graph(3)
    model = Net([GCNConv(8, 8, cached=True), GCNConv(8, 8)], pooled=False).eval()
    run(model, graph)
    before = snapshot(model)
    GraphMask(model, recipe=QUICK).fit([graph], progress=False)
    assert_same(before, snapshot(model))
    empty = Net([GCNConv(8, 8, cached=True), GCNConv(8, 8)], pooled=False).eval()
    GraphMask(empty, recipe=QUICK).fit([graph], progress=False)
    assert empty.convs[0]._cached_edge_index is None


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_that_draws_random_numbers(shuffle: bool) -> None:
    """A DataLoader takes a seed from the global generator in every pass, shuffling or not."""
    loader: DataLoader = DataLoader([random_graph(seed) for seed in range(6)], batch_size=2, shuffle=shuffle)
    model = BY_NAME["SAGE"].model()
    before = snapshot(model)
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit(loader, validation=loader, progress=False)
    assert_same(before, snapshot(model))


def _mistakes() -> list[tuple[str, Callable[[GraphMask, Data], Any]]]:
    graph = random_graph(0)
    return [
        ("explain before fit", lambda e, d: e.explain(d)),
        ("save before fit", lambda e, d: e.save("nowhere")),
        ("no batches", lambda e, d: e.fit([])),
        ("spent", lambda e, d: e.fit(iter([graph]))),
        ("one graph", lambda e, d: e.fit(graph)),
        ("no edges", lambda e, d: e.fit([Data(x=graph.x, edge_index=torch.empty(2, 0, dtype=torch.long))])),
    ]


@pytest.mark.parametrize("mistake", [call for _, call in _mistakes()], ids=[name for name, _ in _mistakes()])
def test_after_mistakes(mistake: Callable[[GraphMask, Data], Any]) -> None:
    model = BY_NAME["GAT"].model()
    before = snapshot(model)
    with pytest.raises(GraphMaskError, match="Expected"):
        mistake(GraphMask(model, recipe=QUICK), random_graph(0))
    assert_same(before, snapshot(model))
