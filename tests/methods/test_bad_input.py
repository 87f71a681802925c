"""What cannot be done is said before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphmask import GraphMaskError, methods
from graphmask.methods import ErasureSearch, GateScores, IntegratedGradients, RandomChoice
from laws.cases import BY_NAME, Case

from .common import NAMES, quick

every_method = pytest.mark.parametrize("name", NAMES)
#: Rollout is of transformers: tests/attention/test_methods.py.
every_method_of_graphs = pytest.mark.parametrize("name", [name for name in NAMES if name != "attention_rollout"])
LEARNING = ["information_bottleneck", "pg_explainer", "gate_scores"]


class Counted:
    """A loader that counts what is taken from it."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.taken = items, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.taken += 1
            yield item


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(GraphMaskError, match="got 'x'") as error:
        methods.get("x")
    assert all(name in str(error.value) for name in methods.METHODS)
    assert len(methods.METHODS) == 17
    assert all(methods.get(name).name == name for name in methods.METHODS)


@pytest.mark.parametrize("name", ["GCN", "RGCN", "MessageTap", "AdjacencyTap dense"])
def test_gate_scores_without_attention_do_not_read_the_whole_loader(name: str) -> None:
    case = BY_NAME[name]
    loader = Counted(case.loader(4))
    with pytest.raises(GraphMaskError, match="Expected attention weights or message gates"):
        GateScores(case.model()).fit(loader, progress=False)
    assert loader.taken == 1


@pytest.mark.parametrize("name", LEARNING)
def test_fit_comes_first(name: str) -> None:
    case = BY_NAME["GAT"]
    method = quick(name, case.model())
    with pytest.raises(GraphMaskError, match=r"Expected .*fit\(loader\) first"):
        method.explain(case.graphs(1)[0])
    with pytest.raises(GraphMaskError, match=r"Expected .*fit\(loader\) first"):
        method.explain_all(case.loader())  # at once, not when the first explanation is asked for


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rates_are_shares(rate: float) -> None:
    with pytest.raises(GraphMaskError, match="Expected a rate from 0 to 1, got"):
        RandomChoice(BY_NAME["GCN"].model(), rate=rate)


@pytest.mark.parametrize("steps", [0, -3])
def test_an_integral_needs_a_point(steps: int) -> None:
    with pytest.raises(GraphMaskError, match=f"Expected at least one step, got {steps}"):
        IntegratedGradients(BY_NAME["GCN"].model(), steps=steps)


@pytest.mark.parametrize("budget", [0, -1])
def test_a_search_needs_a_run(budget: int) -> None:
    with pytest.raises(GraphMaskError, match=f"Expected a budget of at least one run, got {budget}"):
        ErasureSearch(BY_NAME["GCN"].model(), budget=budget)


@every_method
def test_what_all_methods_refuse(name: str) -> None:
    case = BY_NAME["GAT"]
    with pytest.raises(GraphMaskError, match=r"Expected a torch\.nn\.Module, got str"):
        quick(name, "model")  # type: ignore[arg-type]
    with pytest.raises(GraphMaskError, match="Expected a model with message passing"):
        quick(name, torch.nn.Linear(2, 2))
    with pytest.raises(GraphMaskError, match="Expected a finite tolerance above 0"):
        quick(name, case.model(), tolerance=0)
    with pytest.raises(GraphMaskError, match="Expected a divergence among"):
        quick(name, case.model(), divergence="far")


@every_method
@pytest.mark.parametrize(
    ("loader", "match"),
    [
        (lambda case: [], "at least one batch"),
        (lambda case: iter(case.loader()), "spent after one pass"),
        (lambda case: case.graph(0), "an iterable of batches"),
    ],
    ids=["empty", "iterator", "one graph"],
)
def test_loaders_that_cannot_be_fitted_on(name: str, loader: Callable[[Case], Any], match: str) -> None:
    case = BY_NAME["GAT"]
    with pytest.raises(GraphMaskError, match=match):
        quick(name, case.model()).fit(loader(case), progress=False)


def _wrong() -> dict[str, tuple[Data, str]]:
    nan, far, kind = (BY_NAME["GAT"].graph(0) for _ in range(3))
    nan.x[0, 0] = torch.nan
    far.edge_index[0, 0] = 99
    kind.edge_index = kind.edge_index.float()
    return {"NaN": (nan, "'x'"), "no such node": (far, "to name nodes"), "float edges": (kind, "to be int64")}


@every_method_of_graphs
@pytest.mark.parametrize(("wrong", "at"), [("NaN", 1), ("NaN", 0), ("no such node", 0), ("float edges", 0)])
def test_graphs_that_make_no_sense(name: str, wrong: str, at: int) -> None:
    """First or later: before the model runs on them."""
    case = BY_NAME["GAT"]
    data, match = _wrong()[wrong]
    good = case.graph(1)
    loader = [good, data] if at else [data, good]
    method = quick(name, case.model())
    with pytest.raises(GraphMaskError, match=f"{match}.*batch {at}|batch {at}.*{match}"):
        method.fit(loader, progress=False)
    method.fit([good], progress=False)
    with pytest.raises(GraphMaskError, match=match):
        method.explain(data)
    found = method.explain_all(loader)
    for _ in range(at):
        next(found)
    with pytest.raises(GraphMaskError, match=f"batch {at}"):
        next(found)


@every_method_of_graphs
def test_several_graphs_are_not_one(name: str) -> None:
    case = BY_NAME["GAT"]
    method = quick(name, case.model())
    method.fit(case.loader(1), progress=False)
    with pytest.raises(GraphMaskError, match="Expected one graph, got a batch of 2"):
        method.explain(Batch.from_data_list(case.graphs(2)))
    with pytest.raises(GraphMaskError, match="an iterable of batches"):
        method.explain_all(case.graph(0))


@every_method_of_graphs
def test_a_model_that_overflows(name: str) -> None:
    case = BY_NAME["GAT"]
    method = quick(name, case.model())
    method.fit(case.loader(1), progress=False)
    data = case.graph(0)
    data.x.fill_(3e38)
    with pytest.raises(GraphMaskError, match="Expected finite model outputs"):
        method.explain(data)


@pytest.mark.parametrize("name", ["information_bottleneck", "pg_explainer"])
def test_a_model_that_overflows_while_learning(name: str) -> None:
    case = BY_NAME["GAT"]
    loader = case.loader(2)
    loader[1].x.fill_(3e38)
    with pytest.raises(GraphMaskError, match="Expected finite model outputs, got NaN or infinity on a batch"):
        quick(name, case.model()).fit(loader, progress=False)
