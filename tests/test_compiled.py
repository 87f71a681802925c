"""Compiled models run as they are written while they are explained, and are compiled as before afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from graphmask import GraphMask, GraphMaskError, compare, load, masked, methods
from laws.untouched import assert_same, snapshot
from reference import toy
from reference.hasty import HASTY

pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="PyTorch 2.6 has set_stance")
LOADER = toy.loader(2, 6)
DATA = toy.graph(77)
DATA.batch = torch.zeros(DATA.num_nodes, dtype=torch.long)


def run(model: nn.Module) -> Tensor:
    with torch.no_grad():  # where gradients are wanted, the compiler itself warns
        return model(DATA.x, DATA.edge_index, DATA.batch)


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def inside(model: toy.Toy) -> nn.Module:
    model.second = compiled(model.second)
    return model


FORMS: dict[str, Callable[[Any], Any]] = {
    "torch.compile": compiled,
    "model.compile": in_place,
    "a layer of it": inside,
}


def fitted(model: nn.Module) -> GraphMask:
    explainer = GraphMask(model, divergence="kl", recipe=HASTY)
    explainer.fit(LOADER, progress=False)
    return explainer


@pytest.fixture(scope="module")
def plain() -> GraphMask:
    return fitted(toy.Toy())


@pytest.mark.parametrize("form", FORMS)
def test_the_explanation_is_that_of_the_model_before_compilation(form: str, plain: GraphMask) -> None:
    model = FORMS[form](toy.Toy().eval())
    expected = plain.explain(DATA, allow_infeasible=True)
    found = fitted(model).explain(DATA, allow_infeasible=True)
    assert torch.equal(found.kept, expected.kept)
    assert torch.equal(found.scores, expected.scores)
    assert found.divergence == expected.divergence
    assert found.sites == (("first", "second._orig_mod") if form == "a layer of it" else ("first", "second"))
    with masked(model, found) as given:
        assert given is model
        assert torch.equal(run(model), found.masked)
    assert torch.equal(run(model), found.original)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_as_compiled_as_before(form: str) -> None:
    counted = torch._dynamo.testing.CompileCounter()  # type: ignore[no-untyped-call]
    model = toy.Toy().eval()
    if form == "model.compile":
        model.compile(backend=counted)
    elif form == "a layer of it":
        model.second = torch.compile(model.second, backend=counted)  # type: ignore[assignment]
    else:
        model = torch.compile(model, backend=counted)  # type: ignore[assignment]
    run(model)
    before, frames = snapshot(model), counted.frame_count
    assert frames > 0
    found = methods.get("random")(model).explain(DATA)
    with masked(model, found):
        run(model)
    assert counted.frame_count == frames  # nothing of it was compiled with hooks in it
    assert_same(before, snapshot(model))
    run(model)
    assert counted.frame_count == frames  # and what was compiled is used again


def test_files_fit_the_model_in_either_form(plain: GraphMask, tmp_path: Path) -> None:
    model = toy.Toy()
    model.load_state_dict(plain.model.state_dict())
    plain.save(tmp_path / "toy.graphmask")
    again = load(tmp_path / "toy.graphmask", compiled(model))
    assert again.model is model
    expected = plain.explain(DATA, allow_infeasible=True)
    assert torch.equal(again.explain(DATA, allow_infeasible=True).kept, expected.kept)


def test_methods_are_compared_on_it() -> None:
    table = compare(compiled(toy.Toy()), LOADER, methods=["random", "occlusion"], metrics=["sufficiency"], seeds=1)
    assert not table.not_applicable


def test_without_a_way_to_pass_over_it_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "set_stance")
    GraphMask(compiled(toy.Toy()))  # the wrapper alone is simply taken off
    model = nn.Sequential(nn.Linear(2, 2))
    model.add_module("layer", compiled(pyg.SAGEConv(4, 4)))
    with pytest.raises(GraphMaskError, match=r"compiled with torch\.compile \(module 'layer'\)"):
        GraphMask(model)
