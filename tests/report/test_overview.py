"""The top of a report: charts with names, each with its table; what does not apply is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphmask.explanation import Explanation
from graphmask.report.build import write_report
from graphmask.report.overview import applies
from graphmask.report.page import Table
from report.conftest import explain

EVIL = "<img src=x onerror=alert(1)>"


def relay(number: int, names: tuple[str, str] = ("leaf to mid", "mid to root")) -> Explanation:
    """Leaves 3, 4, 5 report to mids 1, 2, these to the root; in every fourth graph nothing is kept."""
    edges = [(3, 1), (4, 1), (5, 2), (1, 0), (2, 0)]
    kept: list[list[int]] = [[0, 1], [3]] if number % 4 else [[], []]
    labels = [names[0]] * 3 + [names[1]] * 2
    return explain(edges, kept, types=[0, 0, 0, 1, 1], info={"edge_labels": labels})


GOLD = Table(
    "Kept edges against the known answer, per cent",
    ["site", "precision", "recall", "F1"],
    [["conv1", "100.0", "99.0", "99.5"], ["conv2", "98.0", "97.0", "97.5"], ["all", "99.0", "98.0", "98.5"]],
)


def table(title: str, columns: list[str], rows: list[list[Any]], note: str = "") -> dict[str, Any]:
    return {"title": title, "columns": columns, "rows": rows, "note": note}


ANALYSED = {
    "edge_types": table("Kept edges by layer and type", ["layer", "type", "kept"], [[0, 0, 6], [1, 1, 3]]),
    "patterns": table("Retained paths", ["pattern", "length", "paths"], [[[0], 1, 6], [[0, 1], 2, 3]]),
    "inverses": table("Edges whose inverse is kept", ["layer", "both", "base_rate"], [[0, 0, 0.0], [None, 0, 0.0]]),
    "overlap": table("Types that join the same two nodes", ["layer", "type", "overlap"], [[0, 0, None], [1, 1, None]]),
    "empty": table("Nothing at all", ["a"], []),
    "erosion": table(
        "The model without a random part of its messages", ["dropped", "fraction", "measure", "mean"],
        [[which, at, "agreement", 1 - at * loss] for which, loss in (("superfluous", 0.0), ("retained", 0.4))
         for at in (0.0, 0.5, 1.0)],
        "464 of 2,000 graphs",
    ),
    "frontier": table(
        "Sparsity against divergence", ["level", "retained", "divergence"],
        [[0.0, 1.0, 0.0], [0.5, 0.25, 0.01], [0.9, 0.1, 2.0]],
    ),
    "stability": table("Agreement of 3 fits", ["layer", "kappa"], [[0, 0.9], [1, 0.8], [None, 0.85]]),
}  # fmt: skip


def write(path: Path, *explanations: Explanation, **options: Any) -> Path:
    options = {"analysed": ANALYSED, "gold": GOLD, "title": "What the relay model used", **options}
    return write_report(path / "report.html", explanations or [relay(n) for n in range(30)], **options)


@pytest.fixture
def page(visit: Any, tmp_path: Path) -> Any:
    return visit(write(tmp_path), viewport={"width": 1280, "height": 900})


def test_one_glance(page: Any) -> None:
    assert page.locator(".verdict").inner_text().startswith("In these 30 graphs the model keeps 22.0% of its messages.")
    assert page.locator(".figures dd").count() == 4
    assert page.locator(".tile h2").all_inner_texts() == [
        "What is kept, by layer and type", "Against the known answer", "Sparsity against divergence",
        "Is what is kept needed?", "Do other fits agree?",
    ]  # fmt: skip
    assert page.locator(".tile svg.chart").count() == 5
    assert page.locator(".card").first.bounding_box()["y"] < 1200
    assert "No edge is kept" not in page.locator(".card").first.inner_text()
    assert "No edge is kept" in page.locator(".card").nth(1).inner_text()


def test_names_not_numbers(page: Any) -> None:
    first = page.locator(".tile").first
    assert first.locator("svg text").all_text_contents()[:3] == ["conv1", "leaf to mid", "48.9%"]
    assert "conv1 keeps leaf to mid (48.9%)" in first.locator("figcaption").inner_text()
    tables = page.locator(".tables .section", has_text="Kept edges by layer and type")
    assert tables.locator("tbody tr").all_inner_texts() == ["conv1\tleaf to mid\t6", "conv2\tmid to root\t3"]
    paths = page.locator(".tables .section", has_text="Retained paths")
    assert paths.locator("tbody tr").all_inner_texts()[1].startswith("leaf to mid then mid to root")
    assert "all layers" in page.locator(".tile").last.locator("svg").text_content()


def test_each_chart_folds_out_into_its_table_from_the_keyboard(page: Any) -> None:
    for tile in page.locator(".tile").all():
        assert tile.locator("table:visible").count() == 0
        tile.locator("summary").focus()
        page.keyboard.press("Enter")
        assert tile.locator("table:visible").count() == 1
        label = tile.locator("svg").get_attribute("aria-label")
        assert label == tile.locator("figcaption").inner_text()
    assert "464 of 2,000 graphs" in page.locator(".tile", has_text="needed").inner_text()


def test_what_was_measured_is_what_is_drawn(page: Any) -> None:
    widths = (
        page.locator(".tile").first.locator("rect.fill").evaluate_all("all => all.map(r => +r.getAttribute('width'))")
    )
    full = page.locator(".tile").first.locator("rect.track").first.evaluate("r => +r.getAttribute('width')")
    assert [round(width / full, 3) for width in widths] == [0.489, 0.0, 0.367, 0.0]
    text = page.locator(".tile", has_text="Sparsity").inner_text()
    assert "At the threshold in use 25.0% is kept and the divergence is 0.01, within the tolerance of 0.03." in text
    assert page.locator(".tile", has_text="Sparsity").locator("circle.chosen").count() == 2  # and one in the key
    assert "after dropping retained messages, 60.0%" in page.locator(".tile", has_text="needed").inner_text()


def test_figures_of_a_sample_say_so(visit: Any, tmp_path: Path) -> None:
    frontier = {**ANALYSED["frontier"], "note": "464 of 2,000 graphs, drawn with seed 0"}
    page = visit(write(tmp_path, analysed={"frontier": frontier}))
    text = page.locator(".tile", has_text="Sparsity").inner_text()
    assert "within the tolerance of 0.03. Measured on 464 of 2,000 graphs, drawn with seed 0." in text


def test_types_that_are_kept_alike_are_not_told_apart(visit: Any, tmp_path: Path) -> None:
    edges = [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)]
    labels = ["red", "red", "green", "green", "blue", "blue"]
    alike = [explain(edges, [[0, 2, 4]], info={"edge_labels": labels}) for _ in range(2)]
    page = visit(write(tmp_path, *alike, analysed=None, gold=None))
    said = page.locator(".tile figcaption").first.inner_text()
    assert said == "conv1 keeps about as much of each of these types (50.0% to 50.0%)."
    ranked = [explain(edges, [[0, 2, 3]], info={"edge_labels": labels}) for _ in range(2)]
    page = visit(write(tmp_path, *ranked, analysed=None, gold=None))
    assert page.locator(".tile figcaption").first.inner_text() == "conv1 keeps green (100%) and red (50.0%)."


def test_one_layer_is_compared_with_the_known_answer_once(visit: Any, tmp_path: Path) -> None:
    known = Table(GOLD.caption, GOLD.header, [["conv1", "100.0", "99.0", "99.5"], ["all", "100.0", "99.0", "99.5"]])
    page = visit(write(tmp_path, *[explain([(0, 1)], [[0]]) for _ in range(2)], analysed=None, gold=known))
    texts = page.locator(".tile", has_text="Against").locator("svg text").all_text_contents()
    assert texts == ["precision", "conv1", "100%", "recall", "conv1", "99.0%"]


def test_what_does_not_apply_is_not_there(page: Any, visit: Any, tmp_path: Path) -> None:
    titles = page.locator(".tables caption").all_inner_texts()
    assert titles == ["Kept edges by layer and type", "Retained paths"]
    assert "\N{EN DASH}, \N{EN DASH}" not in page.locator("main").inner_text()
    bare = visit(write(tmp_path, analysed=None, gold=None))
    assert bare.locator(".tile h2").all_inner_texts() == ["What is kept, by layer and type"]
    untyped = table("Retained paths", ["pattern", "paths"], [[[None], 3], [[None, None], 1]])
    assert not applies("patterns", untyped)
    assert applies("inverses", table("", ["both", "base_rate"], [[0, 0.25]]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_clipped_on_a_phone(visit: Any, tmp_path: Path, scheme: str) -> None:
    page = visit(write(tmp_path), viewport={"width": 400, "height": 800}, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for box in [chart.bounding_box() for chart in page.locator("svg.chart").all()]:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
    inside = """svg => { const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].every(t => { const b = t.getBoundingClientRect();
        return b.left >= box.left - 1 && b.right <= box.right + 1
          && b.top >= box.top - 2 && b.bottom <= box.bottom + 2; }); }"""
    for chart in page.locator("svg.chart").all():
        assert chart.evaluate(inside)
    colours = page.locator(".chart .axis:not(.strong)").first.evaluate("t => getComputedStyle(t).fill")
    assert colours == ("rgb(91, 99, 110)" if scheme == "light" else "rgb(163, 170, 180)")


def test_names_that_are_no_names_stay_text(visit: Any, tmp_path: Path) -> None:
    page = visit(write(tmp_path, *[relay(n, (EVIL, "other")) for n in range(5)]))
    assert page.locator("img").count() == 0
    assert EVIL in page.locator(".tile").first.inner_text()
