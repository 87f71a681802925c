"""Everything that can be wrong with the input: a `GraphMaskError` that says so, and a model that was not touched."""

import copy
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from graphmask import Explanation, GraphMask, GraphMaskError, MessageTap, load, masked
from graphmask.fitting.calibration import Verdict
from reference import toy

GOOD = toy.loader(2, 4)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All of a model that a user could notice a change in."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    pyg = ("_propagate_forward_pre_hooks", "_propagate_forward_hooks", "_message_forward_hooks", "fuse", "explain")
    return {
        "numbers": {name: value.clone() for name, value in model.state_dict().items()},
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grad": [p.grad for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [len(getattr(m, name)) for m in model.modules() for name in hooks],
        "pyg": [copy.copy(getattr(m, name, None)) for m in model.modules() for name in pyg],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "handlers": [m.handler for m in model.modules() if isinstance(m, MessageTap)],
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),  # noqa: NPY002
    }


@contextmanager
def refused(model: nn.Module, message: str) -> Iterator[None]:
    """Inside, a GraphMaskError with this message is raised, and the model stays as it is."""
    before = snapshot(model)
    with pytest.raises(GraphMaskError, match=message) as caught:
        yield
    assert re.search(r"Expected|found no state", str(caught.value))
    after = snapshot(model)
    numbers, again = before.pop("numbers"), after.pop("numbers")
    assert after == before
    assert numbers.keys() == again.keys()
    assert all(torch.equal(numbers[name], again[name]) for name in numbers)


@pytest.fixture
def model() -> toy.Toy:
    return toy.Toy()


@pytest.fixture(scope="module")
def fitted() -> GraphMask:
    explainer = GraphMask(toy.Toy(), divergence="kl")
    explainer.fit(GOOD, epochs=2, progress=False)
    return explainer


# Constructing ------------------------------------------------------------------------------------------------


def test_no_model() -> None:
    for value in (None, lambda x: x, toy.Toy, "model.pt"):
        with pytest.raises(GraphMaskError, match=r"Expected a torch\.nn\.Module, got \w+"):
            GraphMask(value)  # type: ignore[arg-type]


def test_a_model_without_sites() -> None:
    mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with refused(mlp, r"model with message passing.*found none in Sequential.*Place `self.tap = MessageTap\(\)`"):
        GraphMask(mlp)


def test_sites_that_are_never_called() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tap, self.linear = MessageTap(), nn.Linear(toy.COLOURS, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.linear(x)

    idle = Idle()
    with refused(idle, "Expected the model to pass messages when it runs.*bypass"):
        GraphMask(idle).fit(GOOD, epochs=1, progress=False)


@pytest.mark.parametrize("tolerance", [0, 0.0, -0.03, float("nan"), -float("inf")])
def test_tolerances(model: toy.Toy, tolerance: float) -> None:
    with refused(model, "Expected a finite tolerance above 0, got"):
        GraphMask(model, tolerance=tolerance)


@pytest.mark.parametrize("tolerance", [float("inf"), "0.03", None])
def test_tolerances_that_are_no_finite_number(model: toy.Toy, tolerance: Any) -> None:
    with refused(model, "Expected a .*tolerance above 0, got"):
        GraphMask(model, tolerance=tolerance)


@pytest.mark.parametrize("recipe", ["papr", "", "Paper"])
def test_recipes(model: toy.Toy, recipe: str) -> None:
    with refused(model, rf"Expected a recipe among noisy, .*paper or a Recipe, got '{recipe}'"):
        GraphMask(model, recipe=recipe)


@pytest.mark.parametrize("divergence", ["KL", "kullback", 3])
def test_divergences(model: toy.Toy, divergence: Any) -> None:
    with refused(model, rf"Expected a divergence among auto, kl, js.* or a callable, got {divergence!r}"):
        GraphMask(model, divergence=divergence)


# Loaders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda: [], "at least one batch, found none"),
        (lambda: iter([]), "found none. Is it a spent iterator"),
        (lambda: iter(GOOD), "again and again, got an iterator that is spent.*Pass a DataLoader or a list"),
        (lambda: (batch for batch in GOOD), "again and again, got an iterator"),
        (lambda: toy.graph(0), r"iterable of batches .*got Data\. For one graph pass \[data\]"),
        (lambda: GOOD[0], r"iterable of batches .*got \w*Batch\. For one graph"),
        (lambda: GOOD[0].to_dict(), r"iterable of batches .*got dict\. For one graph"),
        (lambda: 5, "iterable of batches .*got int"),
        (lambda: None, "iterable of batches .*got NoneType"),
        (lambda: "graphs.pt", "iterable of batches .*got str"),
        (lambda: [toy.graph(0, edges=0)], "at least one batch with edges in the loader, found none"),
    ],
)
def test_loaders(model: toy.Toy, loader: Callable[[], Any], message: str) -> None:
    explainer = GraphMask(model, divergence="kl")
    with refused(model, message):
        explainer.fit(loader(), epochs=1, progress=False)
    assert explainer.probe is None
    if "edges" not in message and "NoneType" not in message:
        with refused(model, message.replace("the loader", "the validation loader")):
            explainer.fit(GOOD, loader(), epochs=1, progress=False)


@pytest.mark.parametrize("loader", [toy.graph(0), GOOD[0], {"x": torch.ones(3, 4)}, "graphs.pt"])
def test_explain_all_of_what_is_no_loader(fitted: GraphMask, loader: Any) -> None:
    with refused(fitted.model, "iterable of batches"):
        list(fitted.explain_all(loader, allow_infeasible=True))


def test_explain_all_of_a_number(fitted: GraphMask) -> None:
    with refused(fitted.model, "Expected the loader to be an iterable of batches .*, got int"):
        list(fitted.explain_all(5))  # type: ignore[arg-type]


def test_explain_all_of_nothing_is_nothing(fitted: GraphMask) -> None:
    assert list(fitted.explain_all([], allow_infeasible=True)) == []


@pytest.mark.parametrize("epochs", [0, -1])
def test_epochs(model: toy.Toy, epochs: int) -> None:
    with refused(model, f"Expected at least one epoch, got {epochs}"):
        GraphMask(model, divergence="kl").fit(GOOD, epochs=epochs, progress=False)


# Graphs ------------------------------------------------------------------------------------------------------


def _with(**changes: Any) -> Data:
    data = toy.graph(1)
    for name, value in changes.items():
        data[name] = value
    return data


def _spoilt(value: float) -> Tensor:
    x = toy.graph(1).x.clone()
    x[2, 1] = value
    return x


BAD_GRAPHS: dict[str, tuple[Data, str]] = {
    "too high": (_with(edge_index=torch.tensor([[0], [7]])), "name nodes 0 to 6, got 0 to 7"),
    "negative": (_with(edge_index=torch.tensor([[0], [-1]])), "name nodes 0 to 6, got -1 to 0"),
    "float edges": (_with(edge_index=torch.zeros(2, 3)), r"int64 of shape \[2, E\], got torch.float32"),
    "transposed": (
        _with(edge_index=torch.zeros(5, 2, dtype=torch.long)),
        r"\[2, E\], got torch.int64 of shape \(5, 2\)",
    ),
    "flat": (_with(edge_index=torch.zeros(5, dtype=torch.long)), r"\[2, E\], got torch.int64 of shape \(5,\)"),
    "NaN": (_with(x=_spoilt(float("nan"))), "finite numbers in 'x'.*got 1 that are NaN or infinite"),
    "infinity": (_with(x=_spoilt(float("inf"))), "finite numbers in 'x'.*got 1 that are NaN or infinite"),
    "edge_attr": (_with(edge_attr=torch.full((12, 2), float("nan"))), "finite numbers in 'edge_attr'.*got 24"),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_graphs(fitted: GraphMask, model: toy.Toy, case: str) -> None:
    data, message = BAD_GRAPHS[case]
    with refused(model, f"(?=.*batch 2 of the loader).*{message}"):
        GraphMask(model, divergence="kl").fit([*GOOD, data], epochs=1, progress=False)
    with refused(fitted.model, message):
        fitted.explain(data, allow_infeasible=True)
    with refused(fitted.model, message):
        list(fitted.explain_all([data], allow_infeasible=True))


def test_what_the_model_asks_for_is_missing(fitted: GraphMask, model: toy.Toy) -> None:
    lacking = Data(edge_index=toy.graph(0).edge_index, colour=torch.ones(7, 4), num_nodes=7)
    message = "'x', which Toy.forward asks for, found Data with .*colour.*forward=lambda"
    with refused(model, message):
        GraphMask(model).fit([lacking], epochs=1, progress=False)
    with refused(fitted.model, message):
        fitted.explain(lacking, allow_infeasible=True)


def test_a_batch_is_not_one_graph(fitted: GraphMask) -> None:
    with refused(fitted.model, r"Expected one graph, got a batch of 4\. Use explain_all\(\[batch\]\)"):
        fitted.explain(GOOD[0], allow_infeasible=True)


def test_rows_that_belong_to_no_graph() -> None:
    class Odd(toy.Toy):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return super().forward(x, edge_index, batch).repeat(2, 1)[:-1]

    odd = Odd()
    explainer = GraphMask(odd, divergence="kl")
    explainer.fit(GOOD, epochs=1, progress=False)
    with refused(odd, r"output rows to be the batch's graphs \(4\).*got 7 rows.*Use batches of one graph"):
        list(explainer.explain_all(GOOD, allow_infeasible=True))


# Outputs -----------------------------------------------------------------------------------------------------


class Answering(toy.Toy):
    """A toy whose answer is turned into something else, from the n-th call on."""

    def __init__(self, turn: Callable[[Tensor], Any], after: int = 0) -> None:
        super().__init__()
        self.turn, self.left = turn, [after]  # a list: a counter of the test's, not the model's state

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        self.left[0] -= 1
        out = super().forward(x, edge_index, batch)
        return self.turn(out) if self.left[0] < 0 else out


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (lambda out: (out, out), r"one tensor, got tuple\. Pick the output to explain"),
        (lambda out: {"logits": out}, r"one tensor, got dict\. Pick"),
        (lambda out: None, r"one tensor, got NoneType\. Pick"),
        (lambda out: out.argmax(1), r"floating point output with one row per example, got torch.int64"),
        (lambda out: out.sum(), r"one row per example, got torch.float32 of shape \(\)"),
        (lambda out: out[:, :1], r"at least two columns .*got an output of shape \(4, 1\)\. Use"),
        (lambda out: out[:, 0], r"at least two columns .*got an output of shape \(4,\)\. Use"),
        (lambda out: out * float("nan"), r"finite model outputs, got NaN or infinity.*Check the model"),
        (lambda out: out / 0, r"finite model outputs, got NaN or infinity.*Check the model"),
    ],
)
def test_outputs(turn: Callable[[Tensor], Any], message: str) -> None:
    model = Answering(turn)
    with refused(model, message):
        GraphMask(model, divergence="kl").fit(GOOD, epochs=1, progress=False)


def test_outputs_that_turn_bad_while_fitting() -> None:
    model = Answering(lambda out: out * float("nan"), after=30)
    with refused(model, "finite model outputs, got NaN or infinity"):
        GraphMask(model, divergence="kl").fit(GOOD, epochs=30, progress=False)


class Fragile(toy.Toy):
    """Finite inputs, infinite answer: on graphs where the first node has colour 9."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x, edge_index, batch) + (0 / (9 - x[0, 0]))


def test_outputs_that_are_bad_on_one_graph() -> None:
    model = Fragile()
    explainer = GraphMask(model, divergence="kl")
    explainer.fit(GOOD, epochs=1, progress=False)
    data = toy.graph(1)
    data.x[0, 0] = 9.0
    with refused(model, "finite model outputs, got NaN or infinity on the data"):
        explainer.explain(data, allow_infeasible=True)
    with refused(model, "finite model outputs, got NaN or infinity on batch 1"):
        list(explainer.explain_all([toy.graph(2), data], allow_infeasible=True))


def test_outputs_that_are_bad_on_validation_data_only() -> None:
    model = Fragile()
    data = toy.graph(1)
    data.x[0, 0] = 9.0
    with refused(model, "finite model outputs on validation data, got NaN or infinity"):
        GraphMask(model, divergence="kl").fit(GOOD, [data], epochs=1, progress=False)


@pytest.mark.parametrize(
    "divergence", [lambda a, b: (a - b) ** 2, lambda a, b: ((a - b) ** 2).mean(), lambda a, b: 0.0]
)
def test_divergences_that_do_not_fit(model: toy.Toy, divergence: Any) -> None:
    with refused(model, r"divergence to return one value per output row, shape \(4,\), got"):
        GraphMask(model, divergence=divergence).fit(GOOD, epochs=1, progress=False)


def test_message_passing_that_depends_on_the_input() -> None:
    class Moody(toy.Toy):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            if x[0, 0] == 9:
                return super().forward(self.first(x, edge_index).repeat(1, 2)[:, :4], edge_index, batch)
            return super().forward(x, edge_index, batch)

    model = Moody()
    explainer = GraphMask(model, divergence="kl")
    explainer.fit(GOOD, epochs=1, progress=False)
    data = toy.graph(1)
    data.x[0, 0] = 9.0
    with refused(model, r"Expected 1 message passing call\(s\) of module 'first'.*got 2"):
        explainer.explain(data, allow_infeasible=True)


# Order of things ---------------------------------------------------------------------------------------------


def test_before_fit(model: toy.Toy, tmp_path: Path) -> None:
    explainer = GraphMask(model)
    with refused(model, r"Expected a fitted GraphMask\. Call fit\(loader\) first, or load\(path, model\)"):
        explainer.explain(toy.graph(0))
    with refused(model, r"Expected a fitted GraphMask\. Call fit\(loader\) first"):
        list(explainer.explain_all(GOOD))
    with refused(model, r"Expected a fitted GraphMask to save\. Call fit"):
        explainer.save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_infeasible_fits_do_not_explain_unless_told_to(fitted: GraphMask) -> None:
    assert fitted.history is not None
    infeasible = copy.copy(fitted)
    infeasible.history = replace(fitted.history, feasible=False, verdict=Verdict(0.5, 0.125, (0.5, 0.5)))
    message = r"no state within tolerance 0\.03: hard gates diverge by 0\.5 and change 12\.5%.*allow_infeasible=True"
    with refused(fitted.model, message):
        infeasible.explain(toy.graph(0))
    with refused(fitted.model, message):
        list(infeasible.explain_all(GOOD))
    allowed = infeasible.explain(toy.graph(0), allow_infeasible=True)
    assert torch.equal(allowed.kept, fitted.explain(toy.graph(0), allow_infeasible=True).kept)
    assert len(list(infeasible.explain_all(GOOD, allow_infeasible=True))) == 8


def test_a_failed_fit_leaves_the_earlier_one(fitted: GraphMask) -> None:
    explainer = copy.copy(fitted)
    before = explainer.explain(toy.graph(0), allow_infeasible=True)
    with refused(explainer.model, "found none"):
        explainer.fit([], progress=False)
    after = explainer.explain(toy.graph(0), allow_infeasible=True)
    assert torch.equal(before.scores, after.scores)


# Other models ------------------------------------------------------------------------------------------------


def test_masked_with_another_model(fitted: GraphMask) -> None:
    explanation = fitted.explain(toy.graph(0), allow_infeasible=True)

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = GCNConv(4, 2)

    other = Other()
    with (
        refused(other, "the model that was explained, with a module 'first', got a Other without it"),
        masked(other, explanation),
    ):
        pass
    mlp = nn.Sequential(nn.Linear(4, 2))
    with refused(mlp, "model with message passing"), masked(mlp, explanation):
        pass


def test_masked_on_another_graph(fitted: GraphMask) -> None:
    explanation = fitted.explain(toy.graph(0), allow_infeasible=True)
    other = toy.graph(55, nodes=9, edges=20)
    with (
        refused(fitted.model, "Expected module 'first' to send along edges of the graph"),
        masked(fitted.model, explanation) as model,
    ):
        model(other.x, other.edge_index, torch.zeros(9, dtype=torch.long))


def test_files_for_another_model(fitted: GraphMask, tmp_path: Path) -> None:
    fitted.save(tmp_path / "x")
    other = toy.Toy()
    with torch.no_grad():
        other.second.weight += 1
    with refused(other, "Expected the model that .*x was made for, got one with other parameters.*fit again"):
        load(tmp_path / "x", other)
    mlp = nn.Sequential(nn.Linear(4, 2))
    with refused(mlp, "model with message passing"):
        load(tmp_path / "x", mlp)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-100])
    with refused(fitted.model, "truncated or foreign file.*Make it anew"):
        load(tmp_path / "x", fitted.model)
    with pytest.raises(GraphMaskError, match="found no such file"):
        Explanation.load(tmp_path / "nowhere")


def test_files_that_need_functions(tmp_path: Path) -> None:
    model = toy.Toy()

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).abs().mean(1)

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.x, batch.edge_index, batch.batch)

    explainer = GraphMask(model, forward, distance)
    explainer.fit(GOOD, epochs=1, progress=False)
    explainer.save(tmp_path / "x")
    with refused(model, "Expected the divergence function that .* was fitted with; pass divergence="):
        load(tmp_path / "x", model, forward=forward)
    with refused(model, "Expected the forward function that .* was fitted with; pass forward="):
        load(tmp_path / "x", model, divergence=distance)
    again = load(tmp_path / "x", model, forward=forward, divergence=distance)
    for a, b in zip(*(e.explain_all(GOOD, allow_infeasible=True) for e in (again, explainer)), strict=True):
        assert torch.equal(a.kept, b.kept)
        assert a.divergence == b.divergence
