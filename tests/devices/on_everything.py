"""What else people do with an explainer, on a device: every call, method and analysis."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.explain import Explainer

import graphmask
from attention.models import BY_NAME as TOKENS
from attention.models import batch as tokens
from graphmask import GraphMask, masked
from graphmask.analysis import everything
from graphmask.fitting import training
from graphmask.graphs.batches import default_forward
from laws.cases import BY_NAME
from methods.common import QUICK as METHODS
from methods.common import quick

from .standin import Generators
from .support import DEVICE, QUICK, assert_same, moved, on_both

CASE = BY_NAME["GCN"]
ATTENTIVE = BY_NAME["GAT"]


def fitted(device: torch.device, **options: Any) -> tuple[GraphMask, list[Any]]:
    explainer = GraphMask(moved(CASE.model(), device), **({"recipe": QUICK} | options))
    loader = moved(CASE.loader(2, 3), device)
    explainer.fit(loader, loader, progress=False)
    return explainer, loader


def test_the_paper_s_recipe() -> None:
    def run(device: torch.device) -> list[Any]:
        explainer, loader = fitted(device, recipe="paper")
        return list(explainer.explain_all(loader, allow_infeasible=True))

    short = training.PAPER.__class__(**{**vars(training.PAPER), "steps": 20})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training.RECIPES, "paper", short)
        assert_same(*on_both(run))


@pytest.mark.parametrize("recipe", ["noisy", "paper"])
def test_a_generator_of_the_cpu_would_be_noticed(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generators, "__new__", lambda *_: type(torch.default_generator)())
    with pytest.raises(RuntimeError, match="for generator"):
        fitted(DEVICE, recipe=recipe)


def test_thresholds_for_another_tolerance() -> None:
    def run(device: torch.device) -> list[Any]:
        explainer, loader = fitted(device)
        explainer.calibrate(loader, tolerance=5.0)
        some = explainer.frontier[-1].tolerance if hasattr(explainer.frontier[-1], "tolerance") else 5.0
        return [
            *explainer.explain_all(loader, allow_infeasible=True),
            *explainer.at(max(some, 5.0)).explain_all(loader, allow_infeasible=True),
        ]

    assert_same(*on_both(run))


def test_saved_and_loaded(tmp_path: Path) -> None:
    def run(device: torch.device) -> list[Any]:
        explainer, loader = fitted(device)
        explainer.save(tmp_path / "x.graphmask")
        again = graphmask.load(tmp_path / "x.graphmask", explainer.model)
        found = list(again.explain_all(loader, allow_infeasible=True))
        assert_same_here(list(explainer.explain_all(loader, allow_infeasible=True)), found)
        found[0].save(tmp_path / "one.explanation")
        assert torch.equal(graphmask.Explanation.load(tmp_path / "one.explanation").kept, found[0].kept.cpu())
        return found

    assert_same(*on_both(run))


def test_saved_on_one_device_and_loaded_on_the_other(tmp_path: Path) -> None:
    explainer, _ = fitted(DEVICE)
    explainer.save(tmp_path / "x.graphmask")
    other = graphmask.load(tmp_path / "x.graphmask", CASE.model())
    loader = CASE.loader(2, 3)
    here = list(other.explain_all(loader, allow_infeasible=True))
    assert_same(here, list(explainer.explain_all(moved(loader, DEVICE), allow_infeasible=True)))


def test_resumed(tmp_path: Path) -> None:
    """After an interruption, on the device, the result is that of an undisturbed fit."""
    model, loader = moved(CASE.model(), DEVICE), moved(CASE.loader(2, 3), DEVICE)
    undisturbed, disturbed = (GraphMask(model, recipe=QUICK) for _ in range(2))
    undisturbed.fit(loader, progress=False)

    class Stops(list[Any]):
        left = 4

        def __iter__(self) -> Any:
            type(self).left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().__iter__()

    with pytest.raises(KeyboardInterrupt):
        disturbed.fit(Stops(loader), checkpoint=tmp_path / "c", progress=False)
    disturbed = GraphMask(model, recipe=QUICK)
    disturbed.fit(loader, checkpoint=tmp_path / "c", progress=False)
    assert_same_here(
        list(undisturbed.explain_all(loader, allow_infeasible=True)),
        list(disturbed.explain_all(loader, allow_infeasible=True)),
    )


def test_the_user_s_own_check() -> None:
    explainer, _ = fitted(DEVICE)
    graph = CASE.graphs(1)[0].to(DEVICE)
    explanation = explainer.explain(graph, allow_infeasible=True, repair=False)
    with masked(explainer.model, explanation), torch.no_grad():
        torch.testing.assert_close(default_forward(explainer.model, graph).cpu(), explanation.masked.cpu())


def test_one_row_and_what_changes_it() -> None:
    case = BY_NAME["GraphConv"]  # its rows are nodes

    def run(device: torch.device) -> list[Any]:
        explainer = GraphMask(moved(case.model(), device), recipe=QUICK)
        explainer.fit(moved(case.loader(2, 2), device), progress=False)
        graph = case.graphs(1)[0].to(device)
        found = explainer.explain(graph, index=2, counterfactual=True, allow_infeasible=True)
        assert found.to_pandas().shape[0]
        assert found.to_pyg() is not None
        assert found.to_networkx() is not None
        return [found]

    assert_same(*on_both(run))


def test_pages_pictures_and_paths(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    explainer, _ = fitted(DEVICE)
    explanation = explainer.explain(CASE.graphs(1)[0].to(DEVICE), allow_infeasible=True)
    explanation.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert "<" in explanation._repr_html_()
    explanation.plot()
    list(explanation.paths(0))
    assert str(explainer.frontier)
    assert explanation.to_polars().height


def test_a_store_and_its_analyses(tmp_path: Path) -> None:
    def run(device: torch.device) -> Any:
        explainer, _ = fitted(device)
        loader = moved(CASE.loader(2, 6), device)
        store = explainer.explain_all(loader, out=tmp_path / device.type, allow_infeasible=True, progress=False)
        tables = {plan.name: plan.work() for plan in everything.of_store(store)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return tables | {plan.name: plan.work() for plan in everything.of_model(explainer, loader)}

    here, there = on_both(run)
    assert here.keys() == there.keys()
    for name in here:
        assert here[name].columns == there[name].columns
        assert len(here[name]) == len(there[name]), name


def test_attention_rollout() -> None:
    def run(device: torch.device) -> list[Any]:
        method = quick("attention_rollout", moved(TOKENS["handwritten"].model(), device))
        return list(method.explain_all(moved([tokens()], device), repair=False))

    assert_same(*on_both(run))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"attention_rollout"}))
def test_methods(name: str) -> None:
    case = ATTENTIVE if "gate_scores" in name or "attention" in name else CASE

    def run(device: torch.device) -> list[Any]:
        method = quick(name, moved(case.model(), device))
        method.fit(moved(case.loader(2, 2), device), progress=False)
        return list(method.explain_all(moved(case.loader(1, 2, 50), device), repair=False))

    assert_same(*on_both(run))


def test_pyg_s_explainer() -> None:
    from graphmask.integrations.pyg import GraphMaskAlgorithm

    def run(device: torch.device) -> torch.Tensor:
        explainer, loader = fitted(device)
        config = {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"}
        asked = Explainer(explainer.model, GraphMaskAlgorithm(explainer), "model", config, edge_mask_type="object")
        graph = loader[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = asked(graph.x, graph.edge_index, edge_weight=graph.edge_weight, batch=graph.batch)
        return found.edge_mask

    here, there = on_both(run)
    torch.testing.assert_close(here, there.cpu(), rtol=0, atol=1e-5)


def assert_same_here(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.kept.cpu(), other.kept.cpu())
        torch.testing.assert_close(one.scores.cpu(), other.scores.cpu(), rtol=0, atol=1e-6)
