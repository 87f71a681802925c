"""The question view in Chromium: what people see and can do, in both themes, on narrow screens and paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from graphmask.explanation import Explanation
from graphmask.report.build import write_report

from .test_browser_sentence import CONTRAST
from .test_question import ask, crowd

Page = Any  # Playwright may not be installed


@pytest.fixture
def report(visit: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    def open_report(*explanations: Explanation, **options: Any) -> Page:
        return visit(write_report(tmp_path / "report.html", explanations), **options)

    return open_report


def test_layers_and_paths_are_shown_on_demand(report: Any) -> None:
    page = report(ask())
    assert page.locator("svg.question .edge").count() == 5
    assert page.locator("svg.graph").count() == 0  # the question view is the graph
    page.get_by_role("button", name="conv2").click()
    on = "svg.question .edge:not(.off)"
    assert page.eval_on_selector_all(on, "all => all.map(g => g.dataset.hops).sort()") == ["1:2 2:2", "1:3"]
    page.get_by_role("button", name="all layers").click()
    page.locator("svg.question .node[data-node='3']").click()
    lit = page.eval_on_selector_all("svg.question .edge.lit", "all => all.map(g => g.dataset.hops).sort()")
    expected = {f"{hop.site}:{hop.edge}" for path in ask().paths(3) for hop in path}
    assert {hop for hops in lit for hop in hops.split()} >= expected
    assert all(expected & set(hops.split()) for hops in lit)
    assert "Marie Curie → Warsaw → Warsaw → Poland" in page.locator(".status").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".lit").count() == 0
    page.locator("svg.question .node[data-node='3']").hover()
    assert page.locator("#tip").inner_text().startswith("Poland: model's answer, right (Poland), in document 1")


@pytest.mark.parametrize("make", [ask, crowd])
def test_lines_run_beside_names_and_labels_apart(report: Any, make: Any) -> None:
    page = report(make())
    through = page.evaluate(
        """() => {
          const pills = [...document.querySelectorAll("svg.question .mention rect")].map((r) => r.getBBox());
          return [...document.querySelectorAll("svg.question .line")].filter((line) =>
            Array.from({length: 60}, (_, i) => line.getPointAtLength(line.getTotalLength() * i / 59)).some((p) =>
              pills.some((b) => p.x > b.x + 1 && p.x < b.x + b.width - 1 && p.y > b.y && p.y < b.y + b.height))).length;
        }"""
    )
    assert through == 0
    fits = page.eval_on_selector_all(
        "svg.question .mention", "all => all.every(g => g.children[1].getBBox().width < g.children[0].getBBox().width)"
    )
    assert fits
    boxes = page.eval_on_selector_all(
        "svg.question .edge-label",
        "all => all.map(t => t.getBBox()).map(b => [b.x, b.x + b.width, b.y, b.y + b.height])",
    )
    assert boxes
    for (left, right, top, bottom), (x0, x1, y0, y1) in combinations(boxes, 2):
        assert right <= x0 or x1 <= left or bottom - 2 <= y0 or y1 - 2 <= top


@pytest.mark.parametrize("width", [400, 1000])
def test_nothing_sticks_out_of_the_page(report: Any, width: int) -> None:
    page = report(ask(), crowd(), viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    scrolls = page.eval_on_selector_all("[data-view=question]", "all => all.map(b => b.scrollWidth > b.clientWidth)")
    assert scrolls == [width == 400] * 2
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("svg.question").first.bounding_box()["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_light_and_dark(report: Any, scheme: str) -> None:
    page = report(ask(), ask(info={"predicted": 1}), color_scheme=scheme)
    selectors = [
        ".query", ".chip.right b", ".chip.right .tag", ".chip.wrong .tag", ".chip.missed b", ".share", ".document text",
        ".document .flag", ".mention.subject text", ".mention.missed text", ".passage", "mark.subject", "mark.right",
        "mark.wrong", "mark.missed", "svg.question .edge-label", ".types th", ".legend li",
    ]  # fmt: skip
    for selector, ratio in page.evaluate(CONTRAST, selectors):
        assert ratio >= 4.5, selector


def test_without_javascript_the_drawing_is_there(report: Any) -> None:
    page = report(ask(), java_script_enabled=False)
    assert page.locator("svg.question .edge").count() == 5
    assert page.locator("svg.question .edge-label").first.is_visible()
    assert page.locator(".passage").count() == 4
