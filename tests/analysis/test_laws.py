"""The model leaves every analysis as it came, also when the user's own score fails; polars is asked for when needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import DataLoader

import graphmask
from graphmask import GraphMask, GraphMaskError, analysis
from graphmask.analysis.tables import load_polars
from graphmask.experiments import relay
from laws.untouched import assert_same, snapshot, unsettle
from reference.hasty import HASTY, halve
from reference.small import Small, graph

from .support import Fixed, explanation_of

GRAPHS = [graph(seed) for seed in range(12)]
ANALYSES: dict[str, Callable[..., Any]] = {
    "erosion": lambda method, loader: analysis.erosion(method, loader, draws=2),
    "layers_dropped": analysis.layers_dropped,
    "frontier": lambda method, loader: analysis.frontier(method, loader, levels=[0.2, 0.6]),
    "tolerance_curve": lambda method, loader: analysis.tolerance_curve(method, loader, levels=[0.2, 0.6]),
    "baseline_swap": analysis.baseline_swap,
    "mean_messages": analysis.mean_messages,
    "baseline_leakage": lambda method, loader: analysis.baseline_leakage(method, loader, shuffles=1),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_untouched(name: str) -> None:
    model = Small()
    unsettle(model)
    method = Fixed(model, divergence="kl")
    loader = DataLoader(GRAPHS, batch_size=5, shuffle=True)  # draws from the user's random state
    before = snapshot(model)
    ANALYSES[name](method, loader)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("name", ["erosion", "layers_dropped"])
def test_untouched_when_the_score_raises(name: str) -> None:
    model = Small()
    unsettle(model)
    calls = []

    def score(output: Tensor, batch: Any) -> float:
        calls.append(torch.rand(()))
        if len(calls) == 3:
            raise RuntimeError("the user's own mistake")
        return 0.0

    before = snapshot(model)
    with pytest.raises(RuntimeError, match="the user's own mistake"):
        getattr(analysis, name)(Fixed(model, divergence="kl"), DataLoader(GRAPHS, batch_size=5, shuffle=True), score)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("name", ANALYSES)
def test_untouched_when_the_model_raises(name: str) -> None:
    class Fails(Small):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            output = super().forward(x, edge_index, batch)
            if len(x) == 8:  # the third batch
                raise RuntimeError("no")
            return output

    model = Fails()
    unsettle(model)
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="no"):
        ANALYSES[name](Fixed(model, divergence="kl"), DataLoader(GRAPHS, batch_size=5))
    assert_same(before, snapshot(model))


def test_graphmask_itself_on_relay() -> None:
    """A barely trained model and a hasty fit: every analysis runs, and says what explanations say."""
    model = relay.make(seed=0).eval()
    data = relay.generate(96, seed=1, batch_size=32)
    explainer = GraphMask(model, recipe=HASTY)
    explainer.fit(data, progress=False)
    halve(explainer, data)
    options: dict[str, Any] = {"allow_infeasible": True}
    with pytest.raises(GraphMaskError, match="Expected a fitted GraphMask"):
        analysis.erosion(GraphMask(model), data)
    found = list(explainer.explain_all(data, **options, repair=False))
    kept, carried = (sum(int(getattr(e, name).sum()) for e in found) for name in ("kept", "carried"))
    assert 0 < kept < carried
    eroded = analysis.erosion(explainer, data, fractions=[0, 1], **options).filter(measure="divergence")
    assert eroded["open"].to_list() == pytest.approx([1, kept / carried, kept / carried, 0])
    mean = sum(e.divergence for e in found) / len(found)
    assert eroded["mean"][1] == pytest.approx(mean, abs=1e-6)
    swapped = analysis.baseline_swap(explainer, data, **options)
    assert swapped["divergence"][0] == pytest.approx(mean, abs=1e-6)
    swept = analysis.frontier(explainer, data, levels=[0.5], **options)
    assert swept["divergence"].to_list() == pytest.approx([mean], abs=1e-6)
    assert swept["retained"].to_list() == pytest.approx([kept / carried])
    accuracy = analysis.layers_dropped(explainer, data, **options).filter(measure="accuracy")
    assert accuracy["value"][0] == pytest.approx(relay.accuracy(model, data))
    types = analysis.edge_types(found)
    assert types["kept"].sum() == kept
    assert analysis.mask_leakage(found, shuffles=1)["examples"].to_list() == [96] * 3
    assert analysis.baseline_leakage(explainer, data, shuffles=1, **options)["examples"].to_list() == [96] * 3


def test_polars_is_asked_for_only_where_a_table_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphmask, "analysis", analysis)  # put back afterwards
    for name in [name for name in sys.modules if name.startswith("graphmask.analysis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "polars", None)
    fresh = importlib.import_module("graphmask.analysis")
    example = explanation_of([(0, 1)], [[0]])
    assert fresh.count_paths(example, targets=[1]) == 1
    with pytest.raises(GraphMaskError, match=r"Expected polars .* Try: pip install graphmask\[store\]"):
        fresh.edge_types([example])
    with pytest.raises(GraphMaskError, match="Expected polars"):
        load_polars()
