"""What else people do with an explainer, on a device: every call, method and analysis."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import Explainer

import graphmask
from attention.models import BY_NAME as TOKENS
from attention.models import batch as tokens
from graphmask import GraphMask, devices, masked
from graphmask.analysis import everything
from graphmask.fitting import training
from graphmask.graphs.batches import default_forward
from graphmask.tapping.restore import restored
from laws.cases import BY_NAME
from methods.common import QUICK as METHODS
from methods.common import quick

from .standin import MODULE, Generators
from .support import DEVICE, QUICK, assert_same, moved, on_both

CASE = BY_NAME["GCN"]
ATTENTIVE = BY_NAME["GAT"]


def fitted(device: torch.device, **options: Any) -> tuple[GraphMask, list[Any]]:
    """An explainer of one's own."""
    explainer = GraphMask(moved(CASE.model(), device), **({"recipe": QUICK} | options))
    loader = moved(CASE.loader(2, 3), device)
    explainer.fit(loader, loader, progress=False)
    return explainer, loader


@cache
def known(device: torch.device) -> tuple[GraphMask, list[Any]]:
    """The explainer of all tests that only ask it."""
    return fitted(device)


def test_the_paper_s_recipe() -> None:
    def run(device: torch.device) -> list[Any]:
        explainer, loader = fitted(device, recipe="paper")
        return list(explainer.explain_all(loader, allow_infeasible=True))

    short = training.PAPER.__class__(**{**vars(training.PAPER), "steps": 20})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training.RECIPES, "paper", short)
        assert_same(*on_both(run))


class Pair(NamedTuple):
    x: torch.Tensor
    edge_index: torch.Tensor


class Attributes:
    def __init__(self, graph: Data) -> None:
        self.x, self.edge_index, self.name = graph.x, graph.edge_index, "a graph"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    edge_index: torch.Tensor


class Named(OrderedDict[str, Any]):
    """A dictionary whose entries are attributes too, as outputs of transformers are."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Wrapped(UserDict[str, Any]):
    """Moves itself, in place, as the batches of transformers do."""

    def to(self, device: torch.device) -> Wrapped:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


def test_batches_of_every_kind_are_moved_and_the_user_s_stay() -> None:
    graph = CASE.graphs(1)[0]
    hetero = HeteroData()
    hetero["a"].x, hetero["a", "to", "a"].edge_index = graph.x, graph.edge_index
    both = {"x": graph.x, "edge_index": graph.edge_index}
    kinds: list[tuple[Any, Callable[[Any], Any]]] = [
        (graph, lambda batch: batch.x),
        (Batch.from_data_list([graph, graph]), lambda batch: batch.x),
        (hetero, lambda batch: batch["a"].x),
        (both, lambda batch: batch["x"]),
        (Wrapped(both), lambda batch: batch["x"]),
        ({"inner": [both], "names": ["a", "b"]}, lambda batch: batch["inner"][0]["x"]),
        ((graph.x, graph.edge_index), lambda batch: batch[0]),
        (Pair(graph.x, graph.edge_index), lambda batch: batch.x),
        (Attributes(graph), lambda batch: batch.x),
        (graph.x, lambda batch: batch),
        # Tensors that lie deeper, or behind a name or a number.
        ({"graph": graph}, lambda batch: batch["graph"].x),
        ([graph, graph], lambda batch: batch[1].x),
        ({"inner": Attributes(graph)}, lambda batch: batch["inner"].x),
        (("a graph", graph.x), lambda batch: batch[1]),
        ((3, graph), lambda batch: batch[1].x),
        (Frozen(graph.x, graph.edge_index), lambda batch: batch.x),
        (Named(both), lambda batch: batch.x),
    ]
    for batch, read in kinds:
        before = read(batch)
        found = devices.placed(batch, DEVICE)
        assert isinstance(found, type(batch))
        assert read(found).device == DEVICE
        assert torch.equal(read(found).cpu(), before)
        assert read(batch) is before
        assert before.device.type == "cpu"
        assert devices.placed(found, DEVICE) is found
        assert devices.placed(batch, None) is batch


def test_objects_that_know_each_other_are_moved_and_models_beside_the_data_stay() -> None:
    parent, child = Attributes(CASE.graphs(1)[0]), Attributes(CASE.graphs(1)[0])
    parent.child, child.parent, parent.model = child, parent, torch.nn.Linear(1, 1)  # type: ignore[attr-defined]
    found: Any = devices.placed(parent, DEVICE)
    assert found.x.device == found.child.x.device == DEVICE
    assert found.child.parent is found
    assert found.model.weight.device.type == parent.x.device.type == child.x.device.type == "cpu"


def test_random_states_of_the_device_are_restored() -> None:
    def draw() -> list[float]:
        return torch.rand(3, device=DEVICE).cpu().tolist()

    model = moved(BY_NAME["norm and dropout"].model(), DEVICE)
    state = MODULE.get_rng_state()
    expected = draw()
    MODULE.set_rng_state(state)
    with restored(model):
        torch.manual_seed(3)
        assert draw() != expected
    assert draw() == expected
    states = devices.random_states(DEVICE)
    first = draw()
    devices.set_random_states(states, DEVICE)
    assert draw() == first


def test_float64_where_there_is_none() -> None:
    with pytest.raises(TypeError, match="float64"):
        torch.ones(2, device=DEVICE).double()
    made = devices.double(torch.tensor([1.0, 2.0], device=DEVICE)) / 3
    assert made.dtype == torch.double
    assert devices.back(made, DEVICE).cpu().tolist() == (torch.tensor([1.0, 2.0]) / 3).tolist()
    assert devices.back(made, made.device) is made


@pytest.mark.parametrize("recipe", ["noisy", "paper"])
def test_a_generator_of_the_cpu_would_be_noticed(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generators, "__new__", lambda *_: type(torch.default_generator)())
    with pytest.raises(RuntimeError, match="for generator"):
        fitted(DEVICE, recipe=recipe)


#: Faults that this device showed when it was new: what stood in which module, by what stands there now.
FAULTS = {
    "gates.hard_concrete": ("generator=generator, device=location.device", "generator=torch.Generator()"),
    "methods.information_bottleneck": (", device=deviation.device)", ")"),
    "methods.pg_explainer": ("torch.Generator(probe.scales.device)", "torch.Generator()"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_put_back_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"graphmask.{name}")
    source, (now, then) = inspect.getsource(module), FAULTS[name]
    assert now in source
    broken = {"__name__": module.__name__}
    exec(compile(source.replace(now, then), module.__file__ or "", "exec"), broken)
    if name.startswith("methods."):
        for made in [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]:
            for key in ("prepare", "loss"):
                monkeypatch.setattr(made, key, vars(broken[made.__name__])[key])

        def run() -> None:
            quick(name.split(".")[1], moved(CASE.model(), DEVICE)).fit(CASE.loader(1, 2), progress=False)
    else:
        monkeypatch.setattr(module, "noisy", broken["noisy"])
        monkeypatch.setattr(module, "sample", broken["sample"])

        def run() -> None:
            fitted(DEVICE, recipe="paper")

    with pytest.raises(RuntimeError, match=r"same device|for generator"):
        run()


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
        explainer, loader = known(device)
        explainer.save(tmp_path / "x.graphmask")
        again = graphmask.load(tmp_path / "x.graphmask", explainer.model)
        found = list(again.explain_all(loader, allow_infeasible=True))
        assert_same_here(list(explainer.explain_all(loader, allow_infeasible=True)), found)
        found[0].save(tmp_path / "one.explanation")
        assert torch.equal(graphmask.Explanation.load(tmp_path / "one.explanation").kept, found[0].kept.cpu())
        return found

    assert_same(*on_both(run))


def test_saved_on_one_device_and_loaded_on_the_other(tmp_path: Path) -> None:
    explainer, _ = known(DEVICE)
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
    explainer, _ = known(DEVICE)
    graph = CASE.graphs(1)[0].to(DEVICE)
    explanation = explainer.explain(graph, allow_infeasible=True, repair=False)
    with masked(explainer.model, explanation), torch.no_grad():
        torch.testing.assert_close(default_forward(explainer.model, graph).cpu(), explanation.masked.cpu())


def test_the_user_s_own_check_of_what_was_read_from_a_file(tmp_path: Path) -> None:
    """It is on the CPU, and the model is not."""
    for options in ({}, {"features": "nodes"}, {"features": "each"}):
        explainer, loader = fitted(DEVICE, **options) if options else known(DEVICE)
        graph = CASE.graphs(1)[0].to(DEVICE)
        found = explainer.explain(graph, allow_infeasible=True, repair=False)
        found.save(tmp_path / "x")
        read = graphmask.Explanation.load(tmp_path / "x")
        checked = [(read, graph)]
        if not options:  # stores do not keep features
            store = explainer.explain_all(loader, out=tmp_path / "store", allow_infeasible=True, progress=False)
            checked.append((store[0], loader[0].get_example(0)))
        for explanation, batch in checked:
            with masked(explainer.model, explanation), torch.no_grad():
                output = default_forward(explainer.model, batch).cpu()
            torch.testing.assert_close(output, explanation.masked, rtol=1e-5, atol=1e-6)
            assert explanation.kept.device.type == "cpu"
        if read.features is not None:
            assert read.features.masked(graph).x.device == DEVICE


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
    explainer, _ = known(DEVICE)
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
        explainer, _ = known(device)
        loader = CASE.loader(2, 6)
        store = explainer.explain_all(loader, out=tmp_path / device.type, allow_infeasible=True, progress=False)
        first = next(iter(store))
        assert {tensor.device.type for tensor in (first.kept, first.scores, first.original, first.masked)} == {"cpu"}
        tables = {plan.name: plan.work() for plan in everything.of_store(store)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return tables | {plan.name: plan.work() for plan in everything.of_model(explainer, loader)}

    here, there = on_both(run)
    assert here.keys() == there.keys()
    for name in here:
        assert here[name].columns == there[name].columns
        for one, other in zip(here[name].rows(), there[name].rows(), strict=True):
            for cell, found in zip(one, other, strict=True):
                close = pytest.approx(cell, rel=1e-4, abs=1e-5, nan_ok=True) if isinstance(cell, float) else cell
                assert found == close, name


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
        method.fit(case.loader(2, 2), progress=False)
        return list(method.explain_all(case.loader(1, 2, 50), repair=False))

    assert_same(*on_both(run))


def test_pyg_s_explainer() -> None:
    from graphmask.integrations.pyg import GraphMaskAlgorithm

    def run(device: torch.device) -> torch.Tensor:
        explainer, loader = known(device)
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
