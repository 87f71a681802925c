"""A report about many explanations: read once, summed over all, the right ones shown, small."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask import experiments
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.report import metadata
from graphmask.report.build import as_table, example, verdict, write_page, write_report
from graphmask.report.gallery import Gallery, Totals
from graphmask.report.page import Table

from .conftest import explain, make_sentence
from .test_page import Elements, data_of


def chain(number: int, **changes: Any) -> Explanation:
    """Five edges, of which ``number % 6`` are kept; every seventh is wrong, the divergence goes up and down."""
    info = {"label": 0 if number % 7 == 0 else 1, "id": f"chain {number}"}
    kept = list(range(number % 6))
    values = {"info": info, "divergence": 0.02 + 0.02 * math.sin(number), **changes}
    return explain([(i, i + 1) for i in range(5)], [kept], **values)


def titles(html: str) -> list[str]:
    return re.findall(r'<h2 id="title-\d+">(.*?)</h2>', html)


def test_a_stream_is_read_once_and_not_held(tmp_path: Path) -> None:
    alive: list[weakref.ref[Explanation]] = []
    most = 0

    def stream() -> Iterator[Explanation]:
        nonlocal most
        for number in range(300):
            explanation = chain(number)
            alive.append(weakref.ref(explanation))
            most = max(most, sum(ref() is not None for ref in alive))
            yield explanation

    write_report(tmp_path / "report.html", stream(), examples=10)
    assert len(alive) == 300
    assert most <= 2 * 10 + 2
    assert len(titles((tmp_path / "report.html").read_text())) == 10


def test_figures_are_over_all_not_over_what_is_shown(tmp_path: Path) -> None:
    explanations = [chain(number) for number in range(50)]
    html = write_report(tmp_path / "r.html", iter(explanations), examples=3, title="Chains").read_text()
    text = Elements(html).words
    faithful = sum(e.faithful for e in explanations)
    kept = sum(int(e.kept.sum()) for e in explanations) / 250
    assert f"In these 50 graphs the model keeps {kept:.1%} of its messages." in text
    assert f"With the others replaced, {faithful} of 50 stay within tolerance" in text
    assert "no prediction changes" in text
    assert f"within tolerance {faithful} of 50" in text
    assert f"of the messages kept {kept:.1%}" in text
    assert "same prediction 50 of 50" in text
    assert "right before masking 42 of 50" in text  # 0, 7, ... 49 are wrong
    assert "3 of 50 explanations are shown" in text
    assert f"conv1 all {int(kept * 250)} 250 {kept:.1%}" in text
    assert html.count("<dt>") == 4


def test_every_kind_is_shown_and_says_why(tmp_path: Path) -> None:
    explanations = [chain(number) for number in range(100)]
    gallery = Gallery(20)
    for explanation in explanations:
        gallery.add(explanation)
    chosen = {c.number: c.reasons for c in gallery.chosen()}
    assert len(chosen) == 20
    worst = sorted(range(100), key=lambda n: (-explanations[n].divergence, n))[:4]
    assert {n for n, reasons in chosen.items() if "its divergence is large" in reasons} == set(worst)
    assert {n for n, reasons in chosen.items() if "its prediction is wrong" in reasons} == {0, 7, 14, 21}
    assert {n for n, reasons in chosen.items() if "much is kept" in reasons} == {5, 11, 17, 23}
    assert {n for n, reasons in chosen.items() if "little is kept" in reasons} == {0, 6, 12, 18}
    drawn = [n for n, reasons in chosen.items() if reasons == ("it was drawn at random",)]
    assert len(drawn) >= 4
    first = write_report(tmp_path / "a.html", iter(explanations), examples=20).read_bytes()
    second = write_report(tmp_path / "b.html", iter(explanations), examples=20).read_bytes()
    assert first == second
    # Nothing is kept in number 0: the first card is one that shows something.
    telling = next(n for n in sorted(chosen) if int(explanations[n].kept.sum()) >= 2 and explanations[n].faithful)
    assert titles(first.decode()) == [f"chain {n}" for n in [telling, *sorted({*chosen} - {telling})]]
    assert b"Shown because its prediction is wrong and little is kept." in first  # number 0


def test_few_explanations_are_all_shown_in_order(tmp_path: Path) -> None:
    html = write_report(tmp_path / "r.html", (chain(n) for n in range(1, 7))).read_text()
    assert titles(html) == [f"chain {n}" for n in range(1, 7)]
    assert "Shown because" not in html
    assert "explanations are shown" not in html


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_one(tmp_path: Path, count: int) -> None:
    text = Elements(write_report(tmp_path / "r.html", (chain(3) for _ in range(count))).read_text()).words
    assert ("There are no explanations here." in text) == (count == 0)
    alone = replace(chain(3), info={})
    assert titles(write_page(tmp_path / "alone.html", [alone], title="One").read_text()) == ["Graph"]
    assert titles(write_page(tmp_path / "two.html", [alone] * 2, title="Two").read_text()) == ["Graph 0", "Graph 1"]
    assert ("its output stays within tolerance, with the same prediction" in text) == (count == 1)
    without = Elements(write_report(tmp_path / "r.html", [chain(1), chain(2)], examples=0).read_text()).words
    assert "0 of 2 explanations are shown" in without


def test_totals_with_infinite_divergence_and_other_layers() -> None:
    totals = Totals()
    for explanation in (chain(3, divergence=math.nan), chain(4), explain([(0, 1)], [[0], []], flips=1.0)):
        totals.add(explanation)
    unlabelled = Totals()
    for divergence in (math.nan, 0.01):
        unlabelled.add(explain([(0, 1)], [[0]], divergence=divergence))
    figures = {name: value for value, name in unlabelled.figures}
    assert figures["mean divergence, tolerance 0.03"] == "∞"
    assert totals.layers is None
    assert totals.verdict.endswith("1 prediction changes.")
    assert verdict([chain(0)]).startswith("The model keeps 0% of its messages")


def test_tables_are_sections_with_anchors(tmp_path: Path) -> None:
    figure = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    tables: list[Any] = [
        ("Edge types", [["type", "share"], ["SBJ", 0.25], ["OBJ", None]]),
        ("Edge types", ["type", "kept"], [["SBJ", True]]),
        Table("<b>Paths</b>", ["n"], [[3]], note="Read with care.", figure=figure),
    ]
    found = Elements(write_report(tmp_path / "r.html", [chain(1), chain(2)], tables=tables).read_text())
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    links = [str(attributes["href"])[1:] for tag, attributes in found.tags if tag == "a"]
    assert links == [
        "section-0-messages-kept-layer-by-layer", "cards", "section-1-edge-types", "section-2-edge-types",
        "section-3-b-paths-b",
    ]  # fmt: skip
    assert set(links) <= set(ids)
    assert len(ids) == len(set(ids))
    assert "type share SBJ 0.25 OBJ \N{EN DASH}" in found.words
    assert "SBJ yes" in found.words
    assert "Read with care." in found.words
    assert next(a["src"] for tag, a in found.tags if tag == "img").startswith("data:image/svg+xml;base64,")


def test_tables_from_frames() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"type": ["SBJ", "OBJ"], "share": [0.5, None], "sites": [[1, 2], [3]]})
    table = as_table(("Types", frame))
    assert list(table.header) == ["type", "share", "sites"]
    assert [list(row) for row in table.rows] == [["SBJ", 0.5, "1, 2"], ["OBJ", "\N{EN DASH}", "3"]]
    with pytest.raises(GraphMaskError, match="2 cells in every row"):
        as_table(("Types", ["a", "b"], [[1]]))
    with pytest.raises(GraphMaskError, match="Expected a table"):
        as_table(("Types", []))


def test_relay_reports_stay_small(tmp_path: Path) -> None:
    explanations = []
    relay = experiments.get("relay")
    for graph in relay.generate(200, seed=0, batch_size=1):
        nodes, edges, notes = relay.describe(graph)
        gold = graph.gold.t()
        explanations.append(
            explain(
                [(u, v) for u, v in graph.edge_index.t().tolist()],
                [row.nonzero().flatten().tolist() for row in gold],
                nodes=graph.num_nodes,
                scores=torch.rand(gold.shape, generator=torch.Generator().manual_seed(0)),
                info={
                    "node_labels": nodes, "edge_labels": edges, "notes": notes, "gold": gold.tolist(),
                    "label": int(graph.y),
                },
            )
        )  # fmt: skip
    path = write_report(tmp_path / "relay.html", explanations)
    assert len(data_of(path.read_text())) == 200
    assert path.stat().st_size < 2_000_000  # 3 MB are allowed; sections and figures need room, too


def test_sentences_stay_small(tmp_path: Path) -> None:
    """Thirty words, arcs in both directions, two layers; 200 of them by extrapolation."""
    edges = [e for i in range(1, 30) for e in ((i, i // 2), (i // 2, i))]
    info = {"tokens": [f"word{i}" for i in range(30)], "edge_labels": [f"dep{i % 9}" for i in range(58)]}
    one = explain(edges, [list(range(0, 58, 4)), list(range(0, 58, 5))], info=info)
    small, large = (write_report(tmp_path / "srl.html", [one] * n).stat().st_size for n in (2, 6))
    assert small + 198 * (large - small) / 4 < 2_500_000


# What is read from info ------------------------------------------------------------------------------------


def test_names_tokens_and_roles_are_read() -> None:
    found = example(make_sentence())
    assert found.tokens == found.node_labels == ["Prices", "that", "fell", "sharply", "will", "rebound"]
    assert found.roles == ((0, 4, "A1"), (5, 6, "V"))
    assert found.predicate == 5
    assert found.edge_types is not None
    assert found.edge_types[:3] == ["NMOD", "NMOD", "SBJ"]
    per_token = example(make_sentence(info={"roles": ["A1", "_", None, "O", "", "V"]}))
    assert per_token.roles == ((0, 1, "A1"), (5, 6, "V"))
    typed = explain([(0, 1), (1, 0)], [[0]], types=[1, 4])
    assert example(typed, type_names=["a", "b"]).edge_types == ["b", "type 4"]
    assert example(typed, type_names={4: "four"}).edge_types == ["type 1", "four"]


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"tokens": ["one"]}, '"tokens" has 1 entries for 6 nodes'),
        ({"tokens": "six"}, '"tokens" is not a list'),
        ({"roles": [{"start": 3, "end": 3, "label": "x"}]}, "end is not included"),
        ({"roles": [{"start": 3, "label": "x"}]}, '"roles" is neither'),
        ({"roles": ["x"]}, '"roles" is neither'),
        ({"roles": 3}, '"roles" is neither'),
        ({"predicate": 6}, '"predicate" is not the number of a token'),
        ({"gold": [[True]]}, '"gold" is not of shape [2][11]'),
        ({"edge_labels": []}, '"edge_labels" has 0 entries for 11 edges'),
    ],
)
def test_what_does_not_fit_is_left_out_and_said(info: dict[str, Any], words: str) -> None:
    found = example(make_sentence(info=info))
    assert any(words in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("info", "original", "expected"),
    [
        ({"label": 1}, [[0.0, 2.0]], ("1", "1", 0.0)),
        ({"label": 0}, [[0.0, 2.0]], ("0", "1", 1.0)),
        ({"label": True}, [[0.0, 2.0]], ("1", "1", 0.0)),
        ({"label": [0, 1, 1, 1]}, [[0.0, 2.0]] * 4, ("0, 1, 1, 1", "1, 1, 1, 1", 0.25)),
        ({"label": "yes", "classes": ["no", "yes"]}, [[0.0, 2.0]], ("yes", "yes", 0.0)),
        ({"label": 0, "classes": ["no", "yes"]}, [[0.0, 2.0]], ("no", "yes", 1.0)),
        ({"label": "yes"}, [[0.0, 2.0]], ("yes", "1", None)),  # which class is "yes"?
        ({"label": "yes", "prediction": "no"}, [[0.3]], ("yes", "no", 1.0)),
        ({"label": 1}, [[0.3]], ("1", None, None)),  # a logit, a probability or a regression
        ({"label": [0.5, 1.0]}, [[0.0, 2.0]], ("0.5, 1", None, None)),  # targets of a regression
        ({"label": [1, 0]}, [[0.0, 2.0]], ("1, 0", "1", None)),
        ({}, [[0.0, 2.0]], (None, "1", None)),
        ({"label": 3}, [], ("3", None, None)),
    ],
)
def test_predictions_are_compared_only_where_that_means_something(info: Any, original: Any, expected: Any) -> None:
    explanation = explain([(0, 1)], [[0]], info=info, original=torch.tensor(original))
    found = metadata.read(explanation)
    assert (found.label, found.predicted, found.error) == expected
    assert metadata.error_of(explanation) == expected[2]


def test_outputs_with_a_row_per_token_are_not_listed() -> None:
    from graphmask.report.build import _values

    assert _values(torch.arange(3.0)[None]) == [0.0, 1.0, 2.0]
    assert _values(torch.zeros(2, 3)) == [0.0] * 6
    assert _values(torch.zeros(20, 59)) == []
    assert len(_values(torch.zeros(1, 59))) == 59
