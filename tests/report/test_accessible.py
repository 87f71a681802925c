"""The charts at the top of a report without a mouse, without sight, without colour, in the dark and on paper."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from report.test_overview import write

TITLES = 5  # charts of a report on a task with a known answer, analysed and fitted several times

#: WCAG's contrast of two opaque colours as the browser gives them.
CONTRAST = """(front, back) => {
  const light = (colour) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [one, other] = [light(front), light(back)].sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
}"""
PAIRS = f"""() => {{
  const contrast = {CONTRAST};
  const card = getComputedStyle(document.querySelector('.tile')).backgroundColor;
  const style = (selector, name) => [...document.querySelectorAll(selector)].map((e) => getComputedStyle(e)[name]);
  const least = (colours, back = card) => Math.min(...colours.map((colour) => contrast(colour, back)));
  return {{
    words: least([...style('.chart .axis', 'fill'), ...style('.tile figcaption, .tile h2, .tile summary', 'color')]),
    graphics: least([
      ...style('.chart .fill', 'fill'), ...style('.chart .curve, .chart .chosen, .chart .limit', 'stroke'),
    ]),
    bars: least(style('.chart rect.fill', 'fill'), style('.chart .track', 'fill')[0]),
  }};
}}"""


@pytest.fixture
def page(visit: Any, tmp_path: Path) -> Any:
    return visit(write(tmp_path), viewport={"width": 1280, "height": 900})


def test_tab_goes_from_chart_to_chart_and_shows_where_it_is(page: Any) -> None:
    seen = []
    for _ in range(TITLES):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => { const at = document.activeElement, style = getComputedStyle(at);
                return [at.tagName, at.closest('.tile')?.querySelector('h2').textContent, style.outlineStyle,
                        parseFloat(style.outlineWidth)]; }"""
            )
        )
    assert [tag for tag, *_ in seen] == ["SUMMARY"] * TITLES
    assert [title for _, title, *_ in seen] == page.locator(".tile h2").all_inner_texts()
    assert all(style == "solid" and width >= 2 for *_, style, width in seen)


def test_from_the_keyboard_a_table_opens_scrolls_and_closes(page: Any) -> None:
    tile = page.locator(".tile").first
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert tile.locator("table").is_visible()
    page.keyboard.press("Tab")  # into the table, which scrolls by arrow keys
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Messages kept, layer by layer"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert not tile.locator("table").is_visible()


def test_a_screen_reader_is_told_what_a_chart_shows(page: Any) -> None:
    for tile in page.locator(".tile").all():
        drawing, caption = tile.locator("svg.chart"), tile.locator("figcaption").inner_text()
        assert drawing.get_attribute("role") == "img"
        assert page.get_by_role("img", name=caption, exact=True).count() == 1
        # One image with one name: its parts are not read out one by one.
        assert len(re.findall(r"\bimg \"", tile.aria_snapshot())) == 1
        assert tile.locator("caption").count() == 1
    assert page.get_by_role("main").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    levels = [int(tag[1]) for tag in page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(h => h.tagName)")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_stand_out(visit: Any, tmp_path: Path, scheme: str) -> None:
    """4.5 to 1 for text and 3 to 1 for what is drawn, as WCAG asks."""
    page = visit(write(tmp_path), color_scheme=scheme)
    found = page.evaluate(PAIRS)
    assert found["words"] >= 4.5
    assert found["graphics"] >= 3
    assert found["bars"] >= 3


def test_curves_differ_by_dashes_and_names_not_by_colour_alone(page: Any) -> None:
    chart = page.locator(".tile", has_text="Is what is kept needed?").locator("svg")
    curves = chart.locator("path.curve").evaluate_all("all => all.map(p => getComputedStyle(p).strokeDasharray)")
    assert len(curves) == 4  # two lines, and two in the key
    assert len(set(curves)) == 2
    names = chart.locator("text").all_text_contents()
    assert {"dropping superfluous messages", "dropping retained messages"} <= set(names)


def test_on_paper_charts_are_whole_and_light(visit: Any, tmp_path: Path) -> None:
    page = visit(write(tmp_path), color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator(".tile").first.evaluate("t => getComputedStyle(t).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("svg.chart:visible").count() == TITLES
    inside = page.locator(".tile").evaluate_all("all => all.map(t => getComputedStyle(t).breakInside)")
    assert set(inside) == {"avoid"}
    assert page.evaluate(PAIRS)["words"] >= 4.5
    assert len(page.pdf(format="A4", print_background=True)) > 10_000
