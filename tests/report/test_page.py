"""The page as text: escaping, determinism, nothing from the network, honest numbers."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from graphmask.errors import GraphMaskError
from graphmask.report import cards, page
from graphmask.report.layout import bends, layout
from graphmask.report.page import Table, render, write

HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "\"'><b>&amp;", "<!--", "]]>"]


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("style", "script"):
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def data_of(html: str) -> Any:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html).group(1))


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_text_stays_text(example: Any, evil: str) -> None:
    x = example(title=evil, notes=[evil], sites=(evil, "second"), edge_types=[evil] * 5, node_labels=[evil] * 6)
    html = render([x, x], title=evil, verdict=evil, tables=[Table(evil, [evil], [[evil], [1.5]])])
    clean = render([example(), example()], title="t", verdict="v", tables=[Table("c", ["h"], [["r"], [1.5]])])
    found, usual = Elements(html), Elements(clean)
    # One type instead of three makes the legend shorter; no other element may appear or vanish.
    for tag in {name for name, _ in found.tags + usual.tags} - {"li", "svg", "path"}:
        assert sum(t == tag for t, _ in found.tags) == sum(t == tag for t, _ in usual.tags), tag
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on")]
    assert evil in "".join(found.text)
    assert data_of(html)[0]["nodes"][0][3] == evil
    assert data_of(html)[0]["types"][0][0] == evil


def test_same_input_same_bytes(example: Any, plain: Any) -> None:
    examples = [example(), plain(30, [(i, (i * 7 + 3) % 30) for i in range(30)])]
    assert render(examples, title="t", verdict="v") == render(examples, title="t", verdict="v")


def test_nothing_comes_from_the_network(example: Any) -> None:
    html = render([example()], title="t", verdict="v")
    assert set(re.findall(r"https?://[^\"'\s]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in html
    assert "@import" not in html
    for tag, attributes in Elements(html).tags:
        assert "src" not in attributes, tag
        assert attributes.get("href", "data:,") == "data:,"


def test_policy_names_exactly_our_script(example: Any) -> None:
    html = render([example()], title="t", verdict="v")
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_certificate_says_what_was_measured(example: Any) -> None:
    text = Elements(render([example()], title="t", verdict="v")).words
    assert "37.5%" in text
    assert "3 of 8 messages; 3 of 4 right messages kept, and no others" in text
    assert "Divergence 0.004 tolerance 0.03" in text
    assert "NOT within tolerance" not in text
    failed = example(faithful=False, divergence=math.inf, same_prediction=None, masked=[math.nan, 0.1])
    text = Elements(render([failed], title="t", verdict="v")).words
    assert "Divergence ∞ tolerance 0.03" in text
    assert "NOT within tolerance" in text
    assert "CHANGED prediction" not in text
    assert "not a number" in text


def test_figures_over_several_examples(example: Any) -> None:
    examples = [example(), example(retained=0.125, faithful=False, same_prediction=None, divergence=0.2)]
    text = Elements(render(examples, title="t", verdict="v")).words
    assert "within tolerance 1 of 2" in text
    assert "same prediction 1 of 1" in text
    assert "kept, mean of graphs 25.0%" in text
    assert "largest divergence 0.2" in text


def test_large_graph_draws_kept_edges_only(plain: Any) -> None:
    edges = [(i % 90, (i * 13 + 1) % 90) for i in range(450)]
    x = plain(1000, edges)
    html = render([x], title="t", verdict="v")
    data = data_of(html)[0]
    drawn = [edge[0] for edge in data["edges"] if edge[4] is not None]
    assert drawn == [e for e in range(450) if x.kept[0][e]]
    assert {row[0] for row in data["nodes"]} == {v for e in drawn for v in edges[e]}
    best = sorted(range(450), key=lambda e: (-x.scores[0][e], e))[:200]
    assert sorted(data["table"]) == sorted(best)
    assert "The 200 highest scoring of 450 edges." in html
    assert "the drawings show only kept edges" in html


def test_very_many_kept_edges_are_cut_with_a_note(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "DRAW_AT_MOST", 100)
    html = render([plain(50, [(i % 50, (i * 7) % 50) for i in range(600)])], title="t", verdict="v")
    assert "Of 200 kept edges the 100 with the highest score are drawn." in html
    assert sum(edge[4] is not None for edge in data_of(html)[0]["edges"]) == 100


def test_no_kept_edges_is_said(plain: Any) -> None:
    html = render([plain(2, [(0, 1)], kept=[[False]])], title="t", verdict="v")
    assert "No edge is kept: within the tolerance" in html


@pytest.mark.parametrize(("nodes", "edges"), [(0, []), (1, []), (5, []), (1, [(0, 0)]), (2, [(0, 1)] * 3)])
def test_tiny_graphs_render(plain: Any, nodes: int, edges: list[tuple[int, int]]) -> None:
    data = data_of(render([plain(nodes, edges)], title="t", verdict="v"))
    assert len(data[0]["nodes"]) == nodes
    assert len(data[0]["edges"]) == len(edges)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kept": [[True] * 5]}, r"kept of shape \[2\]\[5\]"),
        ({"edges": [(0, 1)] * 4 + [(0, 6)]}, "nodes 0..5"),
        ({"scores": [[math.nan] * 5] * 2}, "finite scores"),
        ({"node_labels": ["a"]}, "6 node_labels, got 1"),
    ],
)
def test_wrong_input_is_refused(example: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphMaskError, match=words):
        example(**changes)


def test_colours_follow_names_and_stay_apart() -> None:
    slots = page.type_slots(["zebra", "red", "blue edge", "type 10", "type 2"])
    assert (slots["red"], slots["blue edge"]) == (1, 0)
    assert slots["type 2"] < slots["type 10"] < slots["zebra"]
    many = page.type_slots([f"t{i}" for i in range(24)] + ["crimson red", "red"])
    assert len(set(many.values())) == 26


def test_numbers_are_written_for_people() -> None:
    assert [page.number(v) for v in (-0.0, 0.00123, -1.5, 12345.0, 7, "x")] == [
        "0", "0.00123", "\N{MINUS SIGN}1.5", "12,345", "7", "x",
    ]  # fmt: skip
    assert page.in_line([100.0, 99.8, "n/a", -3.0]) == ["100.0", "99.8", "n/a", "\N{MINUS SIGN}3.0"]
    assert [page.percent(v) for v in (0.0, 0.0001, 0.125, 0.9999, 1.0)] == [
        "0%", "< 0.1%", "12.5%", "> 99.9%", "100%",
    ]  # fmt: skip


GRAPHS: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "empty": (0, []),
    "one node": (1, []),
    "no edges": (7, []),
    "self-loops": (3, [(0, 0), (0, 0), (1, 1), (0, 1)]),
    "duplicates": (3, [(0, 1), (0, 1), (1, 0), (1, 2)]),
    "star": (10, [(i, 0) for i in range(1, 10)]),
    "tree": (7, [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]),
    "both ways": (7, [e for i in range(1, 7) for e in ((i, (i - 1) // 2), ((i - 1) // 2, i))]),
    "feed-forward": (6, [(0, 2), (0, 3), (1, 3), (2, 4), (3, 4), (3, 5)]),
    "complete": (8, [(i, j) for i in range(8) for j in range(8)]),
    "cycles": (9, [(i, (i + 1) % 4) for i in range(4)] + [(4 + i, 4 + (i + 1) % 5) for i in range(5)]),
    "long chain": (40, [(i, i + 1) for i in range(39)]),
    "large": (700, [(i, (i * i + 1) % 700) for i in range(700)] + [(i, (i + 1) % 700) for i in range(700)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_layout_is_finite_repeatable_and_inside_its_box(name: str) -> None:
    n, edges = GRAPHS[name]
    first, second = layout(range(n), edges), layout(range(n), edges)
    assert first == second
    assert set(first.positions) == set(range(n))
    for x, y in first.positions.values():
        assert first.radius <= x <= first.width - first.radius
        assert first.radius <= y <= first.height - first.radius
    if n <= 100:
        points = list(first.positions.values())
        nearest = min((math.dist(p, q) for i, p in enumerate(points) for q in points[:i]), default=math.inf)
        assert nearest > 2 * first.radius, "nodes overlap"


def test_known_shapes_are_drawn_as_such() -> None:
    star = layout(range(10), GRAPHS["star"][1]).positions
    assert len({round(math.dist(star[0], star[i])) for i in range(1, 10)}) == 1
    tree = layout(range(7), GRAPHS["tree"][1])
    assert tree.columns
    x = {v: p[0] for v, p in tree.positions.items()}
    assert x[3] == x[4] == x[5] == x[6] < x[1] == x[2] < x[0]  # messages flow to the right


def test_edges_that_share_their_ends_bend_apart() -> None:
    assert bends([(0, 1), (1, 2)]) == [0, 0]
    forth, back = bends([(0, 1), (1, 0)])
    assert forth == back != 0  # the same offset seen from opposite directions: two sides
    assert len(set(bends([(0, 1)] * 3))) == 3
    assert bends([(2, 2), (2, 2)]) == [0, 1]


def test_write_replaces_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    write(target, "old é")
    assert target.read_text(encoding="utf-8") == "old é"

    def broken(source: Any, destination: Any) -> None:
        assert Path(source).parent == tmp_path
        assert Path(source).read_text(encoding="utf-8") == "new"
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        with pytest.raises(OSError, match="disk full"):
            write(target, "new")
    assert target.read_text(encoding="utf-8") == "old é"
    assert os.listdir(tmp_path) == ["page.html"]
    write(str(target), "a lone surrogate \ud800 does no harm")
    assert "does no harm" in target.read_text(encoding="utf-8")
