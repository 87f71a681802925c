"""What a HeteroExplanation tells, in files, stores, tables and pages."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import networkx
import polars as pl
import pytest
import torch
from torch_geometric.explain import HeteroExplanation as PygExplanation
from typer.testing import CliRunner

import graphmask
from graphmask import Explanation, HeteroExplanation, analysis, methods
from graphmask.analysis import everything
from graphmask.cli import app
from graphmask.graphs.sites import Site
from graphmask.report import overview
from graphmask.report.gallery import Totals

from .support import BY_NAME, TYPES, batch, fitted, graph

KINDS = tuple(TYPES[1])


def made(kept: dict[tuple[int, int], bool] | None = None) -> HeteroExplanation:
    """Two layers of two sites each: a -> b by site 0 and 2, b -> a by site 1 and 3. 2 nodes of type a, 3 of type b."""
    there, back = ("a", "to", "b"), ("b", "from", "a")
    edges = torch.tensor([[0, 1, 2, 4], [2, 4, 1, 0]])
    carried = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]] * 2).bool()
    structure = tuple(
        Site(f"{layer}.{kind[1]}", f"{layer}.{kind[1]}", (0,), False, ((kind,),), layer)
        for layer in ("low", "high")
        for kind in (there, back)
    )
    open_ = carried if kept is None else torch.tensor([[kept.get((s, e), False) for e in range(4)] for s in range(4)])
    return HeteroExplanation(
        edge_index=edges,
        kept=open_ & carried,
        scores=torch.arange(16).view(4, 4) / 16 * carried,
        carried=carried,
        original=torch.zeros(1, 2),
        masked=torch.zeros(1, 2),
        divergence=0.0,
        flips=0.0,
        tolerance=0.1,
        structure=structure,
        baselines=tuple(torch.zeros(2) for _ in structure),
        num_nodes=5,
        edge_type=torch.tensor([0, 0, 1, 1]),
        num_nodes_dict={"a": 2, "b": 3},
        edge_types=(there, back),
    )


def test_by_type() -> None:
    found = made({(0, 1): True, (3, 2): True})
    there, back = found.edge_types
    assert (there, back) == (("a", "to", "b"), ("b", "from", "a"))
    assert (found.node_types, found.num_nodes_dict) == (("a", "b"), {"a": 2, "b": 3})
    assert found.info == {}
    part = found[there]
    assert (part.sites, part.site_numbers, part.edges.tolist()) == (("low.to", "high.to"), (0, 2), [0, 1])
    assert part.edge_index.tolist() == [[0, 1], [0, 2]]
    assert found[back].edge_index.tolist() == [[0, 2], [1, 0]]
    assert part.kept.tolist() == [[False, True], [False, False]]
    assert part.scores.tolist() == [[0, 1 / 16], [8 / 16, 9 / 16]]
    assert (part.retained, part.retained_per_site) == (1 / 4, (1 / 2, 0.0))
    assert found.retained_by_type == {there: 1 / 4, back: 1 / 4}
    assert found.kept_dict[back].tolist() == [[False, False], [True, False]]
    assert found.scores_dict[back].tolist() == [[6 / 16, 7 / 16], [14 / 16, 15 / 16]]
    assert {kind: edges.tolist() for kind, edges in found.edge_index_dict.items()} == {
        there: [[0, 1], [0, 2]],
        back: [[0, 2], [1, 0]],
    }
    assert [found.node(number) for number in range(5)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert [found.number(node) for node in (("a", 1), ("b", 2))] == [1, 4]
    assert "by type a to b 25%, b from a 25%" in repr(found)


def test_paths_do_not_run_within_a_layer() -> None:
    """Both types of a layer send at once: a -> b at one and b -> a at the other are no chain."""
    hops = [(0, 0, 0, 2), (1, 2, 2, 1)]  # a0 -> b0, and b0 -> a1, both in the low layer
    same = made({(hop[0], hop[1]): True for hop in hops})
    assert [tuple(map(tuple, path)) for path in same.paths(("a", 1))] == [(hops[1],)]
    assert analysis.list_paths(same, targets=[1]) == same.paths(("a", 1))
    assert analysis.count_paths(same) == 2
    chain = made({(0, 0): True, (3, 2): True})
    assert [tuple(map(tuple, path)) for path in chain.paths(("a", 1))] == [((0, 0, 0, 2), (3, 2, 2, 1))]
    assert chain.paths(("a", 1), persist=False) == chain.paths(1) == analysis.list_paths(chain, targets=[1])
    assert [path[0].site for path in chain.paths(("b", 0))] == [0]
    patterns = analysis.path_patterns([same, chain])
    assert {tuple(row["pattern"]): row["paths"] for row in patterns.to_dicts()} == {(0,): 2, (1,): 1, (0, 1): 1}


def test_tables_are_by_layer() -> None:
    found = analysis.edge_types([made({(0, 0): True, (0, 1): True, (3, 2): True})])
    assert found.select("layer", "type", "edges", "kept", "base_rate").rows() == [
        (0, 0, 2, 2, 0.5),
        (0, 1, 2, 0, 0.5),
        (1, 0, 2, 0, 0.5),
        (1, 1, 2, 1, 0.5),
    ]
    together = made().by_layer()
    assert together.sites == ("low", "high")
    assert together.kept.tolist() == together.carried.tolist() == [[True] * 4] * 2
    assert together.scores.tolist() == [[0, 1 / 16, 6 / 16, 7 / 16], [8 / 16, 9 / 16, 14 / 16, 15 / 16]]
    assert together.retained == made().retained


def test_to_pyg() -> None:
    data = graph(5)
    found = fitted("sage")[1].explain(data, allow_infeasible=True)
    theirs = found.to_pyg()
    assert isinstance(theirs, PygExplanation)
    assert theirs.validate()
    for kind in KINDS:
        assert torch.equal(theirs[kind].edge_index, data[kind].edge_index)
        assert torch.equal(theirs[kind].site_mask, found[kind].scores.t())
        assert torch.equal(theirs[kind].edge_mask, found[kind].scores.max(0).values)
        assert theirs[kind].site_kept.shape == (data[kind].num_edges, 2)
    assert set(theirs.get_explanation_subgraph().edge_types) == set(KINDS)


def test_to_networkx() -> None:
    theirs = made({(0, 1): True}).to_networkx()
    assert isinstance(theirs, networkx.MultiDiGraph)
    assert set(theirs.nodes) == {("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)}
    assert theirs.edges[("a", 1), ("b", 2), 1]["edge_type"] == ("a", "to", "b")
    assert theirs.edges[("a", 1), ("b", 2), 1]["kept"] == {
        "low.to": True,
        "low.from": False,
        "high.to": False,
        "high.from": False,
    }


def test_page(tmp_path: Path) -> None:
    made().to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for name in ("a 0", "b 2", ">to<", ">from<", "low", "high"):
        assert name in text, name
    assert "low.from" not in text


def loader() -> list[Any]:
    return [batch(0, 1, 2), graph(4)]


@pytest.mark.parametrize("name", ["sage", "hgt"])
def test_store(name: str, tmp_path: Path) -> None:
    model, explainer = fitted(name)
    notes = {"metadata": lambda batch: [{"title": "mine"}] * getattr(batch, "num_graphs", 1)}
    for number, options in enumerate(({}, notes)):
        folder = tmp_path / str(number)
        store = explainer.explain_all(loader(), out=folder, allow_infeasible=True, progress=False, **options)
        for found, expected in zip(store, explainer.explain_all(loader(), allow_infeasible=True), strict=True):
            assert isinstance(found, HeteroExplanation)
            assert found.info == expected.info | ({"title": "mine"} if options else {})
            for field in ("edge_index", "kept", "scores", "carried", "original", "masked", "edge_type"):
                assert torch.equal(getattr(found, field), getattr(expected, field)), field
            assert (found.structure, found.num_nodes) == (expected.structure, expected.num_nodes)
        with graphmask.masked(model, store[3]):
            assert torch.equal(BY_NAME[name].run(model, graph(4)), store[3].masked)
        again = explainer.explain_all(loader(), out=folder, allow_infeasible=True, progress=False, **options)
        assert again.complete
    assert store.types == explainer.types


def test_a_store_is_taken_up_by_a_method_that_has_seen_nothing(tmp_path: Path) -> None:
    model = BY_NAME["hgt"].model()
    begun = methods.get("random")(model).explain_all(loader()[:1], out=tmp_path, progress=False)
    fresh = methods.get("random")(model)
    store = fresh.explain_all(loader(), out=tmp_path, progress=False)
    assert len(store) == 4
    assert store.types == begun.types is not None
    assert fresh.types is None  # what a store holds is taken up by the call that writes to it
    assert torch.equal(store[3].kept, methods.get("random")(model).explain(graph(4)).kept)


def test_labels_are_those_of_the_rows(tmp_path: Path) -> None:
    _, explainer = fitted("sage")
    one, other = graph(0), graph(1)
    for data in (one, other):
        data["paper"].y = torch.arange(len(data["paper"].x)) % 3
        data["author"].y = torch.zeros(4, dtype=torch.long)
    store = explainer.explain_all([one, other], out=tmp_path, allow_infeasible=True, progress=False)
    assert store.graphs.collect()["label"].to_list() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2, 0]]
    frame = analysis.erosion(explainer, [one], fractions=(0.5,), draws=1, allow_infeasible=True)
    assert "accuracy" in frame["measure"].to_list()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_analyse_and_report(tmp_path: Path) -> None:
    _, explainer = fitted("sage")
    found = list(explainer.explain_all(loader(), allow_infeasible=True))
    store = explainer.explain_all(loader(), out=tmp_path, allow_infeasible=True, progress=False)
    names = ["author writes paper", "paper rev_writes author", "paper cites paper"]
    assert everything.type_names(store) == names
    run = CliRunner().invoke(app, ["analyse", str(tmp_path)])
    assert run.exit_code == 0, run.output
    tables = json.loads((tmp_path / "analysis" / "tables.json").read_text())
    frame = pl.DataFrame(tables["edge_types"]["rows"], tables["edge_types"]["columns"], orient="row")
    expected = [
        (
            layer,
            name,
            sum(int(e[kind].carried[layer].sum()) for e in found),
            sum(int(e[kind].kept[layer].sum()) for e in found),
        )
        for layer in range(2)
        for name, kind in zip(names, KINDS, strict=True)
    ]
    assert sorted(frame.select("layer", "type", "edges", "kept").rows()) == sorted(expected)
    by_hand = analysis.edge_types(found)
    assert sorted(by_hand["kept"].to_list()) == sorted(frame["kept"].to_list())
    patterns = {tuple(row[0]): row[2] for row in tables["patterns"]["rows"]}
    assert sum(patterns.values()) == sum(analysis.count_paths(explanation) for explanation in found)
    assert {name for pattern in patterns for name in pattern} <= set(names)
    run = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert run.exit_code == 0, run.output
    page = (tmp_path / "report.html").read_text()
    for text in ("author writes paper", "rev_writes", "author 3", "paper 5"):
        assert text in page, text
    assert (tmp_path / "figures" / "edge_types.svg").exists()


def test_the_chart_of_a_report_has_one_heading_per_layer_and_a_bar_per_edge_type() -> None:
    totals = Totals()
    for _ in range(2):
        totals.add(made({(0, 0): True, (1, 2): True, (1, 3): True, (2, 1): True}))
    (chart,) = overview.charts_of(totals, {})
    assert re.findall(r'class="axis strong"[^>]*>([^<]*)<', chart.drawing) == ["low", "high"]
    bars = re.findall(r"<title>([^:]*): ([0-9]+ of [0-9]+)</title>", chart.drawing)
    low, high = [("b from a", "4 of 4"), ("a to b", "2 of 4")], [("a to b", "2 of 4"), ("b from a", "0 of 4")]
    assert bars == low + high
    assert chart.sentence == "low keeps b from a (100%) and a to b (50.0%); high keeps a to b (50.0%)."


def test_files_of_graphs_without_types_are_as_before(tmp_path: Path) -> None:
    """A saved explanation says nothing of types unless there are any."""
    whole = made()
    found = Explanation(**{field.name: getattr(whole, field.name) for field in fields(Explanation)})
    found.save(tmp_path / "plain")
    assert type(Explanation.load(tmp_path / "plain")) is Explanation


def test_explaining_leaves_a_method_as_it_was() -> None:
    """What is found on one batch says nothing of the next: explanations do not depend on those before them."""
    model = BY_NAME["sage"].model()
    method = methods.get("occlusion")(model)
    before = vars(method).copy()
    few = graph(4)
    for kind in few.edge_types[1:]:
        few[kind].edge_index, few[kind].edge_attr = few[kind].edge_index[:, :0], few[kind].edge_attr[:0]
    method.explain(few)
    list(method.explain_all([few, graph(5)]))
    assert vars(method) == before
    assert method.sites is None
    after, first = method.explain(graph(5)), methods.get("occlusion")(model).explain(graph(5))
    assert after.sites == first.sites
    assert torch.equal(after.kept, first.kept)
    assert torch.equal(after.scores, first.scores)


def test_types_are_no_notes_of_the_user(tmp_path: Path) -> None:
    """In memory they are fields of the explanation; in a file they lie beside what is in ``info``."""
    found = made()
    found.info["mine"] = [1]
    found.save(tmp_path / "x")
    read = Explanation.load(tmp_path / "x")
    assert isinstance(read, HeteroExplanation)
    assert read.info == {"mine": [1]}
    assert (read.num_nodes_dict, read.edge_types) == (found.num_nodes_dict, found.edge_types)
