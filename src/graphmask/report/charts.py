"""Charts for the top of a report: SVG in the page's own colours, each with a sentence and the table behind it.

Drawn here rather than by matplotlib, so that a chart follows the page into dark mode and onto a phone, names are text
that can be searched and read aloud, and a report needs no further package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from markupsafe import escape as escape_markup

from graphmask.report.page import Table, number, percent
from graphmask.texts import visible

WIDTH = 360
LABEL, VALUE = (128, 168), 54  # least and most room for names, and room for numbers, of WIDTH
LETTER = 7.1  # the mean width of one in a wide font, so that no name is cut off at the left
ROW, HEADING = 23, 24


def escape(text: str) -> Markup:
    return escape_markup(visible(text))


@dataclass(frozen=True)
class Chart:
    """A drawing with a title, one sentence that reads it, and its table."""

    title: str
    sentence: str
    drawing: Markup
    table: Table


@dataclass(frozen=True)
class Bar:
    """A share with a name; ``text`` stands at its end."""

    name: str
    share: float
    text: str = ""
    value: str = ""  #: what is written behind it; the share in per cent by default


def bars(groups: Mapping[str, Sequence[Bar]], said: str) -> Markup:
    """Horizontal bars from 0 to 1, under a heading per group; one group without a name has none."""
    parts: list[str] = []
    y = 0
    longest = max((len(bar.name) for some in groups.values() for bar in some), default=0)
    label = min(max(LABEL[0], 8 + math.ceil(LETTER * longest)), LABEL[1])
    for slot, (heading, some) in enumerate(groups.items()):
        if heading:
            parts.append(f'<text class="axis strong" x="0" y="{y + 15}">{escape(_cut(heading, 44))}</text>')
            y += HEADING
        for bar in some:
            room = WIDTH - label - VALUE
            name = escape(_cut(bar.name, int((label - 8) / LETTER)))
            width = room * min(max(bar.share, 0.0), 1.0) if math.isfinite(bar.share) else 0.0
            value = escape(bar.value or percent(bar.share))
            parts.append(
                f"<g><title>{escape(bar.name)}: {escape(bar.text)}</title>"
                f'<text class="axis" x="{label - 8}" y="{y + 15}" text-anchor="end">{name}</text>'
                f'<rect class="track" x="{label}" y="{y + 5}" width="{room}" height="13" rx="2"/>'
                f'<rect class="fill s{slot % 4}" x="{label}" y="{y + 5}" width="{width:.1f}" height="13" rx="2"/>'
                f'<text class="axis" x="{WIDTH - VALUE + 6}" y="{y + 15}">{value}</text></g>'
            )
            y += ROW
        y += 4
    return _svg(parts, max(y, 1), said)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    said: str,
    *,
    x_label: str,
    y_label: str,
    top: float,
    limit: tuple[float, str] | None = None,
    chosen: tuple[float, float, str] | None = None,
    shares: bool = True,
) -> Markup:
    """Lines over shares from 0 to 1; ``limit`` is a level with its name, ``chosen`` a point with its name."""
    left, right, floor, ceiling = 44, WIDTH - 8, 114, 16
    top = top or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y / top, 0.0), 1.0)
        return left + (right - left) * min(max(x, 0.0), 1.0), floor - (floor - ceiling) * inside

    parts = [f'<path class="rule" d="M{left} {floor}H{right}M{left} {floor}V{ceiling}"/>']
    for share in (0.0, 0.5, 1.0):
        x, _ = at(share, 0)
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(f'<text class="axis" x="{x:.0f}" y="{floor + 15}" text-anchor="{anchor}">{share:.0%}</text>')
        _, y = at(0, share * top)
        text = f"{share * top:.0%}" if shares else number(share * top)
        parts.append(f'<text class="axis" x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{text}</text>')
    middle = (left + right) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{floor + 31}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<text class="axis" x="{left + 4}" y="10">{escape(y_label)}</text>')
    if limit is not None:
        _, y = at(0, limit[0])
        parts.append(f'<path class="limit" d="M{left} {y:.1f}H{right}"/>')
        parts.append(f'<text class="axis" x="{right}" y="{y - 4:.1f}" text-anchor="end">{escape(limit[1])}</text>')
    key = floor + 52
    for slot, (name, points) in enumerate(series.items()):
        drawn = [at(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        parts.append(f'<path class="curve s{slot % 4} k{slot % 4}" d="M{path}"/>')
        parts += [f'<circle class="fill s{slot % 4}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in drawn]
        parts.append(f'<path class="curve s{slot % 4} k{slot % 4}" d="M{left} {key - 4}h22"/>')
        parts.append(f'<text class="axis" x="{left + 29}" y="{key}">{escape(_cut(name, 42))}</text>')
        key += 18
    if chosen is not None:
        x, y = at(chosen[0], chosen[1])
        parts.append(f'<circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="6.5"/>')
        parts.append(f'<circle class="chosen" cx="{left + 11}" cy="{key - 4}" r="5"/>')
        parts.append(f'<text class="axis" x="{left + 29}" y="{key}">{escape(_cut(chosen[2], 42))}</text>')
        key += 18
    return _svg(parts, key - 8, said)


def _svg(parts: Sequence[str], height: float, said: str) -> Markup:
    box = f"0 0 {WIDTH} {height:.0f}"
    return Markup(f'<svg class="chart" viewBox="{box}" role="img" aria-label="{escape(said)}">{"".join(parts)}</svg>')


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
