"""Sentences, reports, keyboard, themes and paper, in headless Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphmask.explanation import Explanation
from graphmask.report.build import example, write_report

from .conftest import WORDS, explain, make_sentence

Page = Any  # Playwright may not be installed

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def report(visit: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Opens a report about explanations."""

    def open_report(*explanations: Explanation, tables: Any = (), **options: Any) -> Page:
        return visit(write_report(tmp_path / "report.html", explanations, tables=tables), **options)

    return open_report


def until(page: Page, expression: str) -> None:
    """Playwright's own wait_for_function evaluates text inside the page, which the page's policy forbids."""
    for _ in range(100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def ends(page: Page, selector: str = "") -> set[int]:
    """Edges whose arrow heads are to be seen in the sentence."""
    return set(
        page.eval_on_selector_all(
            f"svg.sentence .arc:not([hidden]) .end:not([hidden]){selector}", "all => all.map(g => +g.dataset.edge)"
        )
    )


def arcs(page: Page, selector: str = "") -> set[str]:
    return set(
        page.eval_on_selector_all(f"svg.sentence .arc:not([hidden]){selector}", "all => all.map(g => g.dataset.edges)")
    )


def labels(page: Page) -> list[str]:
    return sorted(page.locator("svg.sentence .edge-label:not([hidden])").all_text_contents())


def lit(page: Page, view: str) -> set[Any]:
    if view == "sentence":
        return ends(page, ".lit")
    pairs = page.eval_on_selector_all(
        f"svg.{view} .edge.lit", "all => all.map(g => [+(g.dataset.site ?? -1), +g.dataset.edge])"
    )
    return {edge if view == "graph" else (site, edge) for site, edge in pairs}


def test_kept_arcs_stand_above_the_words(report: Any) -> None:
    page = report(make_sentence())
    assert page.locator("svg.sentence .word text").all_text_contents() == WORDS
    assert page.locator("svg.sentence .role text").all_text_contents() == ["A1", "V"]
    assert page.locator("svg.sentence .word.predicate").get_attribute("data-node") == "5"
    assert page.locator("svg.sentence .word.predicate").get_attribute("aria-label").startswith("predicate word 6, ")
    assert ends(page) == {0, 1, 2, 4, 6, 7, 10}
    assert arcs(page) == {"1,0", "2,3", "5,4", "6,7", "10"}  # both directions of an arc that is kept in one
    assert labels(page) == ["MNR 1", "SBJ 1", "SBJ 2", "self 1, 2", "→ NMOD 1  ← NMOD 1, 2"]
    assert page.locator("svg.sentence .arc[data-edges='6,7'] .end:not([hidden])").count() == 2  # one arc, two heads
    assert page.locator("svg.sentence .arc[data-edges='2,3'] .end:not([hidden])").count() == 1
    base = page.locator("svg.sentence .word").first.bounding_box()["y"]
    roles = page.locator("svg.sentence .role").first.bounding_box()["y"]
    top = page.locator("svg.sentence .arc").first.bounding_box()["y"]
    assert top < base < roles


def test_layers_and_dropped_arcs_can_be_chosen(report: Any) -> None:
    page = report(make_sentence())
    page.get_by_role("button", name="conv2").click()
    assert ends(page) == {0, 6, 7, 10}
    assert labels(page) == ["NMOD", "SBJ", "self"]  # the layer is chosen: no numbers
    assert page.locator("svg.unrolled .hop.off").count() == 5
    page.get_by_role("button", name="conv1").click()
    assert ends(page) == {0, 1, 2, 4, 10}
    page.get_by_role("button", name="all layers").click()
    assert page.locator("svg.unrolled .hop.off").count() == 0
    box = page.get_by_role("region", name="Sentence view").get_by_label("show dropped")
    box.check()
    assert arcs(page, ".dropped") == {"8,9"}
    assert labels(page) == ["MNR 1", "SBJ 1", "SBJ 2", "self 1, 2", "→ NMOD 1  ← NMOD 1, 2"]
    page.get_by_role("button", name="conv1").click()
    assert ends(page, ".kept") == {0, 1, 2, 4, 10}
    assert "6,7" in arcs(page, ".dropped")
    box.uncheck()
    assert arcs(page, ".dropped") == set()


@pytest.mark.parametrize("reverse", [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("view", ["sentence", "graph", "unrolled"])
def test_click_lights_exactly_the_paths(report: Any, view: str, reverse: tuple[bool, bool]) -> None:
    explanation = make_sentence(reverse=reverse)
    page = report(explanation)
    for node in range(explanation.num_nodes):
        page.locator(f"svg.{view} .node[data-node='{node}']").last.click()
        hops = {(hop.site, hop.edge) for path in explanation.paths(node) for hop in path}
        assert lit(page, "unrolled") == hops
        assert lit(page, "graph") == lit(page, "sentence") == {edge for _, edge in hops}
        assert page.locator("svg.sentence .word.chosen").get_attribute("data-node") == str(node)
        words = {v for path in explanation.paths(node) for hop in path for v in (hop.source, hop.target)} | {node}
        shining = page.eval_on_selector_all("svg.sentence .word.lit", "all => all.map(g => +g.dataset.node)")
        assert set(shining) == words
    page.keyboard.press("Escape")
    assert page.locator(".lit, .chosen, .selecting").count() == 0


def test_a_layer_that_sends_backwards_is_drawn_so(report: Any) -> None:
    page = report(explain([(0, 1)], [[0], [0]], reverse=[False, True], info={"tokens": ["left", "right"]}))
    heads = page.locator("svg.graph .edge g:not([hidden]) .head")
    assert heads.count() == 2
    assert page.locator("svg.sentence .end:not([hidden])").count() == 2
    middle = page.locator("svg.sentence .arc").bounding_box()
    for layer, to_the_right in (("conv1", True), ("conv2", False)):
        page.get_by_role("button", name=layer).click()
        assert heads.count() == 1
        tip = page.locator("svg.sentence .end:not([hidden])").bounding_box()
        assert (tip["x"] > middle["x"] + middle["width"] / 2) == to_the_right
    y = page.eval_on_selector_all(
        "svg.unrolled .hop .line", "all => all.map(l => l.getAttribute('d').split(/[M C]/)[2])"
    )
    assert y[0] != y[1]  # one goes down, the other up
    page.get_by_role("button", name="all layers").click()
    page.locator("svg.sentence .word").first.click()
    assert page.locator(".status").inner_text() == "1 retained path ends in left: left → right → left"


def test_texts_do_not_lie_on_each_other(report: Any) -> None:
    """Measured with the fonts of this browser, not with our guess."""
    edges = [(i, j) for i in range(9) for j in (i + 1, i // 2) if i != j and j < 9]
    kept = [list(range(len(edges))), list(range(0, len(edges), 2))]
    info = {
        "tokens": ["The", "WWWM", "quickest", "brown", "foxes", "jumped", "over", "lazy", "dogs"],
        "edge_labels": ["NMOD", "a longer label", "WMW"] * 5 + ["OBJ"],
        "roles": ["A0", "a role with a long name", "", "A1", "AM-TMP", "V", "", "A2", "A3"],
    }
    page = report(explain(edges, kept, info={**info, "edge_labels": info["edge_labels"][: len(edges)]}))
    boxes = [
        page.eval_on_selector_all(
            f"svg.sentence {texts}",
            "all => all.map(t => [t.textContent, t.getBoundingClientRect()])"
            ".map(([t, b]) => [t, b.left, b.right, b.top, b.bottom])",
        )
        for texts in (".word text", ".edge-label:not([hidden])", ".role text")
    ]
    assert [len(group) for group in boxes] == [9, len(page.locator("svg.sentence .arc.kept").all()), 7]
    every = [box for group in boxes for box in group]
    for number, (one, left, right, top, bottom) in enumerate(every):
        for other, x0, x1, y0, y1 in every[:number]:
            # Line boxes are taller than letters; two pixels of air may be shared.
            assert right <= x0 or x1 <= left or bottom - 2 <= y0 or y1 - 2 <= top, (one, other)


def test_long_sentences_scroll_inside_their_box(report: Any) -> None:
    words = [f"word{i}" for i in range(80)]
    long = explain([(i, i + 1) for i in range(79)], [[0, 40, 78]], info={"tokens": words})
    page = report(long, viewport={"width": 700, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    wide, box = page.eval_on_selector("[data-view=sentence]", "b => [b.scrollWidth, b.clientWidth]")
    assert wide > 2 * box
    page.locator("[data-view=sentence]").focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('[data-view=sentence]').scrollLeft > 0")


def test_odd_sentences_draw(report: Any) -> None:
    page = report(
        explain([], [[]], nodes=1, info={"tokens": ["alone"]}),
        explain([], [[]], nodes=0, info={"tokens": []}),
        explain([(0, 0), (0, 0), (0, 1), (0, 1), (1, 0)], [[0, 1, 2, 3]], info={"tokens": ["", "b"]}),
        explain([(i, j) for i in range(22) for j in range(22)], [[3, 5]], info={"tokens": ["w"] * 22}),
        explain([(0, 1)], [[]], info={"tokens": ["none", "kept"]}),
    )
    drawn = page.eval_on_selector_all("svg path, svg rect", "all => all.map(p => p.outerHTML).join()")
    assert "NaN" not in drawn
    assert "undefined" not in drawn
    assert page.locator("svg.sentence").count() == 5


def test_hostile_tokens_and_roles_are_text(report: Any) -> None:
    info = {
        "tokens": [EVIL] * 6, "roles": [EVIL] * 6, "edge_labels": [EVIL] * 11, "title": EVIL, "notes": EVIL,
        "label": EVIL, "prediction": EVIL, "classes": [EVIL],
    }  # fmt: skip
    page = report(make_sentence(info=info), make_sentence(info=info), tables=[(EVIL, [[EVIL], [EVIL]])])
    assert page.locator("img").count() == 0
    assert page.locator("svg.sentence .word text").first.text_content() == EVIL[:23] + "…"
    page.get_by_text("Contents").click()
    assert page.locator("nav a").last.inner_text() == EVIL
    page.locator("svg.sentence .word").first.hover()
    assert page.locator("#tip").inner_text().startswith(EVIL)
    page.locator("svg.sentence .word").first.click()
    assert EVIL in page.locator(".status").first.inner_text()
    page.get_by_role("searchbox").fill("onerror")
    assert page.locator(".card:visible").count() == 2


def test_wrong_predictions_come_first(report: Any) -> None:
    def one(title: str, label: Any) -> Explanation:
        info = {"title": title} if label is None else {"title": title, "label": label}
        return explain([(0, 1)], [[0]], info=info)

    page = report(one("right", 1), one("unknown", None), one("wrong", 2), one("also wrong", 0))
    shown = page.locator(".card:visible h2")
    page.get_by_label("Sort by").select_option(label="error, wrong predictions first")
    assert shown.all_inner_texts() == ["wrong", "also wrong", "right", "unknown"]
    badges = page.locator(".card .cell", has_text="Predicted").locator(".badges").all_inner_texts()
    assert badges == ["wrong", "wrong", "right"]
    assert page.locator(".card").first.locator(".cell", has_text="Predicted").inner_text().split() == [
        "Predicted", "1", "label", "2", "wrong",
    ]  # fmt: skip
    page = report(one("a", None), one("b", None))
    assert page.locator("#sort option", has_text="error").count() == 0


def test_contents_lead_to_sections(report: Any) -> None:
    page = report(
        make_sentence(), make_sentence(), tables=[("Long", ["n"], [[i] for i in range(300)]), ("Paths", ["n"], [[1]])]
    )
    page.get_by_text("Contents").click()
    page.get_by_role("navigation").get_by_role("link", name="Paths").click()
    assert page.evaluate("location.hash").endswith("-paths")
    section = page.locator(page.evaluate("location.hash"))
    assert section.locator("td").all_inner_texts() == ["1"]
    assert 0 <= section.bounding_box()["y"] < 1000
    tall = page.locator(".section", has_text="Long").bounding_box()["height"]
    assert tall < 700  # a long table scrolls in its box


FOCUSED = """() => {
  const e = document.activeElement, node = e.matches(".node"), style = getComputedStyle(e);
  if (node) {
    const shape = getComputedStyle(e.querySelector("rect, circle:not(.reach)"));
    return [e.closest("svg").getAttribute("class") + " node", parseFloat(shape.strokeWidth) >= 3];
  }
  const name = e.id || (e.dataset.layer && "layer " + e.dataset.layer) || e.dataset.view || e.className;
  return [
    name || e.textContent.trim().split(" ")[0] || e.tagName,
    style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
  ];
}"""


def test_one_example_by_keyboard_alone(report: Any) -> None:
    page = report(make_sentence(), make_sentence())
    reached = {}
    for _ in range(18):
        page.keyboard.press("Tab")
        name, visible = page.evaluate(FOCUSED)
        reached.setdefault(name, visible)
    for control in (
        "search",
        "sort",
        "layer 0",
        "layer 1",
        "show-dropped",
        "sentence node",
        "graph node",
        "unrolled node",
        "Edges",
    ):
        assert control in reached, reached
    assert all(reached.values()), reached  # and one sees where one is

    page.reload()
    while page.evaluate(FOCUSED)[0] != "sentence node":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # "fell"
    page.keyboard.press("Enter")
    first = page.locator(".card").first
    expected = {hop.edge for path in make_sentence().paths(2) for hop in path}
    assert ends(page, ".lit") == expected
    assert "in fell" in first.locator(".status").inner_text()
    page.keyboard.press("Escape")
    assert ends(page, ".lit") == set()
    page.keyboard.press("Space")
    assert ends(page, ".lit") == expected
    page.keyboard.press("Space")
    assert ends(page, ".lit") == set()
    while page.evaluate(FOCUSED)[0] != "layer 1":
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert first.locator("svg.sentence .arc:not([hidden])").count() == 3
    while page.evaluate(FOCUSED)[0] != "show-dropped":
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert first.locator("svg.sentence .arc:not([hidden])").count() == 6
    while page.evaluate(FOCUSED)[0] != "Edges":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    first.locator(".edge-table").wait_for()


CONTRAST = """(selectors) => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return (parts(colour)[3] ?? 1) === 1 ? colour : under(element.parentElement);
  };
  return selectors.map((selector) => {
    const e = document.querySelector(selector), style = getComputedStyle(e), svg = e.ownerSVGElement;
    const pair = [light(svg ? style.fill : style.color), light(under(svg ? svg.parentElement : e))];
    return [selector, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_light_and_dark(report: Any, scheme: str, tmp_path: Path) -> None:
    wrong = make_sentence(info={"label": 0}, divergence=1.0)
    page = report(make_sentence(), wrong, tables=[("T", ["a"], [[1]])], color_scheme=scheme)
    selectors = [
        ".verdict", ".figures dt", "nav a", ".plain th", ".plain td", ".sub", ".badges .good", ".badges .bad",
        ".layers button[aria-pressed=false]", ".check", ".word text", ".word.predicate text", ".role text",
        ".edge-label", ".legend li", ".status", ".node .outside", "svg.unrolled .row", ".bottom p",
    ]  # fmt: skip
    for selector, ratio in page.evaluate(CONTRAST, selectors):
        assert ratio >= 4.5, selector
    page.locator("svg.sentence .word").first.click()
    page.wait_for_timeout(300)  # the transition
    assert page.screenshot(path=tmp_path / f"{scheme}.png")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 20, 23)") == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_shows_everything_and_no_controls(report: Any, scheme: str, tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(40)]
    long = explain([(i, i + 1) for i in range(39)], [[0, 20, 38], [3]], info={"tokens": words})
    page = report(
        *[make_sentence() for _ in range(29)], long, viewport={"width": 700, "height": 900}, color_scheme=scheme
    )
    assert page.locator("svg.sentence").count() < 30
    page.emulate_media(media="print")
    until(page, "document.querySelectorAll('svg.sentence').length === 30")
    assert page.locator("svg.graph").count() == page.locator("svg.unrolled").count() == 30
    for control in (".tools", ".layers", ".check", ".status", ".contents", "summary"):
        assert page.locator(f"{control}:visible").count() == 0, control
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page_box = page.locator("main").bounding_box()
    for box in [picture.bounding_box() for picture in page.locator("svg.sentence").all()]:
        assert box["x"] + box["width"] <= page_box["x"] + page_box["width"] + 1  # nothing to scroll to
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    sheets = page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
    assert sheets.startswith(b"%PDF")


def test_search_finds_words_and_roles(report: Any) -> None:
    page = report(make_sentence(info={"title": "one"}), explain([(0, 1)], [[0]], info={"tokens": ["Guten", "Tag"]}))
    page.get_by_role("searchbox").fill("guten")
    assert page.locator(".card:visible").count() == 1
    page.get_by_role("searchbox").fill("rebound a1")
    assert page.locator(".card:visible h2").all_inner_texts() == ["one"]


def test_a_figure_shows(report: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from graphmask.report.figures import bars
    from graphmask.report.page import Table

    picture = bars(tmp_path / "bars.svg", "Types", {"SBJ": {"kept": 0.5}})
    page = report(make_sentence(), tables=[Table("Types", ["a"], [[1]], figure=picture.read_bytes())])
    assert page.eval_on_selector("img.figure", "i => i.complete && i.naturalWidth") > 100


def test_page_without_tokens_has_no_sentence(show: Any) -> None:
    page = show(example(explain([(0, 1)], [[0]])))
    assert page.locator("svg.sentence").count() == 0
    assert page.locator("svg.graph").count() == 1
