"""Names that go with explanations, and a model that is no longer the one that was fitted to."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask import GraphMask, GraphMaskError, load
from graphmask.labels import check
from graphmask.report import metadata
from reference.hasty import HASTY
from report.conftest import explain
from test_as_people_call_it import GRAPHS, LOADER, Model


@pytest.fixture(scope="module")
def explainer() -> GraphMask:
    made = GraphMask(Model(), recipe=HASTY)
    made.fit(LOADER, progress=False)
    return made


def test_names_given_to_explain_are_everywhere(explainer: GraphMask, tmp_path: Path) -> None:
    nodes = [f"atom {n}" for n in range(6)]
    found = explainer.explain(GRAPHS[0], allow_infeasible=True, node_labels=nodes, class_names=["inert", "mutagenic"])
    assert found.info["node_labels"] == nodes
    assert set(found.to_pandas()["source_name"]) <= set(nodes)
    page = found.to_html(tmp_path / "page.html").read_text()
    assert re.search(r'<th scope="row" title="inert">inert</th>', page)
    assert "mutagenic" in page
    assert "atom 3" in page
    assert "atom 0" in found._repr_html_()


def test_class_names_given_to_a_page(explainer: GraphMask, tmp_path: Path) -> None:
    found = explainer.explain(GRAPHS[0], allow_infeasible=True)
    page = found.to_html(tmp_path / "page.html", class_names=["no", "<b>yes</b>"]).read_text()
    assert "&lt;b&gt;yes&lt;/b&gt;</th>" in page
    assert "classes" not in found.info
    assert '<th scope="row" title="0">0</th>' in found.to_html(tmp_path / "page.html").read_text()


EXAMPLE = explain([(0, 1), (1, 2)], [[0], [1]])


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"node_labels": ["a"]}, "'node_labels' of here to be a list with one text per node, 3, got 1"),
        ({"node_labels": "abc"}, "one text per node, 3, got str"),
        ({"edge_labels": ["a"] * 3}, "one text per edge, 2, got 3"),
        ({"tokens": ["a"] * 4}, "'tokens' of here .* 3, got 4"),
        ({"classes": "yes"}, "'classes' of here to be a list of names, got str"),
        ({"classes": ["yes", "no"]}, "a name for each of the 3 outputs"),
        ({"gold": [[True, False]]}, "'gold' of here .* 2 of 2"),
    ],
)
def test_known_keys_of_a_wrong_shape_are_refused(info: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphMaskError, match=words):
        check(info, EXAMPLE, "here")


def test_other_keys_are_kept() -> None:
    check({"smiles": "CCO", "node_labels": ["a", "b", "c"], "gold": [[True, False]] * 2, "colour": 3}, EXAMPLE, "here")


def test_a_store_refuses_names_that_do_not_fit(explainer: GraphMask, tmp_path: Path) -> None:
    with pytest.raises(GraphMaskError, match="'node_labels' of graph 0 of batch 0"):
        explainer.explain_all(
            LOADER, out=tmp_path, metadata=lambda batch: [{"node_labels": ["a"]}] * 4, progress=False,
            allow_infeasible=True,
        )  # fmt: skip


def test_the_docs_have_every_key_that_the_page_reads() -> None:
    page = (Path(__file__).parents[1] / "docs" / "report.md").read_text()
    keys = re.findall(r"^``(\w+)``", metadata.__doc__ or "", re.M)
    assert len(keys) > 12
    assert [key for key in keys if f"`{key}`" not in page] == []


# Weights -------------------------------------------------------------------------------------------------------


def test_a_model_that_changed_is_told(tmp_path: Path) -> None:
    model = Model()
    explainer = GraphMask(model, recipe=HASTY)
    explainer.fit(LOADER, progress=False)
    explainer.save(tmp_path / "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(GRAPHS[0], allow_infeasible=True)
        model.load_state_dict(copy.deepcopy(model.state_dict()))  # the same numbers, written anew
        explainer.explain(GRAPHS[0], allow_infeasible=True)
        loaded = load(tmp_path / "fit", model)
        loaded.explain(GRAPHS[0], allow_infeasible=True)
    with torch.no_grad():
        model.out.weight += 1
    for one in (explainer, loaded):
        with pytest.warns(UserWarning, match="weights have changed since GraphMask was fitted"):
            one.explain(GRAPHS[0], allow_infeasible=True)
