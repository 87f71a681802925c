"""What readers stumbled over: names cut off, drawings blown up or overcrowded, numbers beside their box."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask.explanation import Explanation
from graphmask.graphs.sites import Site
from graphmask.report.build import write_report
from graphmask.report.wording import MINUS
from report.conftest import explain

TOKENS = ["[CLS]", "the", "waiter", "never", "smiled", "[SEP]"]
OUTSIDE = """box => { const outer = box.getBoundingClientRect();
  return [...box.querySelectorAll('td, th, text')].filter(t => { const b = t.getBoundingClientRect();
    return b.width && (b.left < outer.left - 1 || b.right > outer.right + 1); }).map(t => t.textContent); }"""


def attention() -> Explanation:
    """Six tokens that all attend to each other with three heads at two layers; three pairs are kept."""
    pairs = [(sender, receiver) for _ in range(3) for receiver in range(6) for sender in range(6)]
    heads = [head for head in range(3) for _ in range(36)]
    found = explain(pairs, [[3], [36 + 4, 72 + 5]], types=heads, info={"tokens": TOKENS})
    names = [f"encoder.layer.{number}.self" for number in range(2)]
    return replace(found, structure=tuple(Site(name, name, (0,), heads="each") for name in names))


def test_attention_shows_heads_by_name_and_only_what_is_kept(visit: Any, tmp_path: Path) -> None:
    page = visit(attention().to_html(tmp_path / "page.html"))
    assert page.locator(".legend li").all_inner_texts() == ["head 0", "head 1", "head 2", "dropped"]
    drawn = page.eval_on_selector_all("svg.graph .edge", "all => all.map(g => +g.dataset.edge)")
    assert sorted(drawn) == [3, 40, 77]
    assert page.locator("svg.graph .node").count() == 6
    assert "The graph view shows only kept edges: there are 108 between 6 nodes." in page.locator(".card").inner_text()
    arcs = page.locator("svg.sentence .edge-label").all_text_contents()
    assert sorted(text for text in arcs if text) == ["head 0 (1)", "head 1 (2)", "head 2 (2)"]
    page.locator("[data-view=unrolled]").locator("..").get_by_label("show dropped").check()
    assert page.locator("svg.unrolled .hop").count() == 216  # the layers can still be seen with all their messages


def test_a_small_graph_is_not_blown_up(visit: Any, tmp_path: Path) -> None:
    info = {"node_labels": ["paper 3", "author 12", "author 26"]}
    page = visit(explain([(1, 0), (2, 0)], [[0, 1]], info=info).to_html(tmp_path / "page.html"))
    scale = page.evaluate("document.querySelector('svg.graph').getScreenCTM().a")
    assert scale <= 1.36
    # The two leaves lie beside the hub, so that no line runs through its name.
    boxes = [page.locator(f"svg.graph .node[data-node='{node}'] circle:not(.reach)").bounding_box() for node in (1, 2)]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=1)
    assert page.locator(".outputs th").all_inner_texts() == ["0", "1", "2"]


def test_numbers_and_names_stay_inside_their_boxes(visit: Any, tmp_path: Path) -> None:
    """Five figures side by side, long class names, values of very different size."""
    info = {"classes": ["a long class name", "mutagen", "harmless"], "label": 0}
    output = torch.tensor([[1.4097, -0.0768234, -2.16858]])
    examples = [explain([(0, 1)], [[0], [0]], original=output, masked=output / 3, info=info) for _ in range(2)]
    named = (Site("second", "second", (0,), kind="GraphConv"), Site("a", "a", (0,), kind="SuperGATConv"))
    examples = [replace(one, structure=named) for one in examples]
    for width in (1280, 400):
        page = visit(write_report(tmp_path / f"{width}.html", examples), viewport={"width": width, "height": 900})
        assert page.locator(".certificate").first.locator(".cell").count() == 5
        for box in [*page.locator(".outputs").all(), *page.locator("svg.chart").all(), *page.locator(".card").all()]:
            assert box.evaluate(OUTSIDE) == []
        names = page.locator("svg.chart").first.locator("text").all_text_contents()
        assert "second (GraphConv)" in names
        bars = page.locator(".outputs .pair").first.bounding_box()
        assert bars["width"] > 30
        numbers = [
            text.replace(MINUS, "-") for text in page.locator(".outputs").first.locator("td.num").all_inner_texts()
        ]
        assert numbers == ["1.410", "0.470", "-0.077", "-0.026", "-2.169", "-0.723"]


def test_the_layers_fit_a_phone_with_the_names_on_both_sides(visit: Any, tmp_path: Path) -> None:
    page = visit(
        explain([(0, 1), (1, 2), (2, 0)], [[0, 1], [1, 2]]).to_html(tmp_path / "page.html"),
        viewport={"width": 400, "height": 800},
    )
    holder = page.locator("[data-view=unrolled]")
    assert holder.evaluate("h => h.scrollWidth - h.clientWidth") <= 0
    assert page.locator("svg.unrolled .row").count() == 6
    assert holder.evaluate(OUTSIDE) == []
