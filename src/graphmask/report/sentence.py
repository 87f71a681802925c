"""Where the words and arcs of a sentence go on the page: tokens in a row, arcs above, roles below.

Like :mod:`graphmask.report.layout`, computed here so that the same explanation always gives the same picture. Arcs
are drawn as dependency parses are: an arc lies above every shorter arc it spans, arcs of one word leave it side by
side without crossing, and words move apart until every label fits on its arc.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

WORD, LABEL = 14.0, 11.0  # font sizes, as in page.css
LONGEST_WORD, LONGEST_LABEL = 24, 14  # letters; the whole text is in the tooltip
LEVEL = 25.0  # height of an arc above the next shorter one
TALLEST = 380.0  # all levels together; beyond this they move closer and become a texture
LABELLED_ARCS = 80  # with more, labels would cover the drawing
LOOP = 9.0  # half the width of a self-loop
NARROW, WIDE = frozenset("iljftrI.,;:'|!()[]{}-\"` "), frozenset("mwMW@%")


class Role(NamedTuple):
    """What the words ``start`` up to but not including ``end`` are, as in a slice."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Arc:
    """An edge between two words, or two in opposite directions."""

    low: int
    high: int
    edges: tuple[int, ...]
    text: str  #: type and layers; empty where nothing is kept
    kept: bool


class PlacedArc(NamedTuple):
    arc: Arc
    left: float
    right: float
    top: float
    label: float  #: centre of its text


class Sentence(NamedTuple):
    """Pixels; words stand below ``base``, arcs above it."""

    width: float
    height: float
    base: float
    words: list[tuple[float, float]]  # centre and width of the box of each
    arcs: list[PlacedArc]
    roles: list[tuple[float, float, float, float, str]]  # left, right, top, middle of the label, label


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def text_width(text: str, size: float) -> float:
    """An estimate of the width, on the large side, because the reader's font is not known here."""
    total = 0.0
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            total += 1.0
        elif letter in NARROW:
            total += 0.4
        else:
            total += 0.9 if letter in WIDE else 0.7 if letter.isupper() else 0.62
    return total * size


def arcs(
    edges: Sequence[tuple[int, int]],
    shown: Sequence[int],
    kept: Sequence[Sequence[int]],
    labels: Sequence[str] | None,
    reverse: Sequence[bool],
) -> list[Arc]:
    """The ``shown`` edges, opposite ones in pairs. ``kept[e]`` are the sites that keep edge e, ``reverse`` is by site.

    Edges of the same type are paired first; what is left over (an inverse may have a type of its own) in order.
    """
    between: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for e in shown:
        u, v = edges[e]
        between.setdefault((min(u, v), max(u, v)), ([], []))[int(u > v)].append(e)
    groups: list[tuple[int, int, tuple[int, ...]]] = []
    for (low, high), (forth, back) in sorted(between.items()):
        left = list(back)
        partner: dict[int, int] = {}
        for e in forth:
            match = next((b for b in left if labels is not None and labels[b] == labels[e]), None)
            if match is not None:
                partner[e] = match
                left.remove(match)
        for e in forth:
            if e not in partner and left:
                partner[e] = left.pop(0)
        groups += [(low, high, (e, partner[e]) if e in partner else (e,)) for e in forth]
        groups += [(low, high, (e,)) for e in left]
    labelled = sum(any(kept[e] for e in members) for _, _, members in groups) <= LABELLED_ARCS
    result = []
    for low, high, members in groups:
        text = _text(members, edges, kept, labels, reverse) if labelled else ""
        result.append(Arc(low, high, members, text, any(kept[e] for e in members)))
    return result


def _text(
    members: Sequence[int],
    edges: Sequence[tuple[int, int]],
    kept: Sequence[Sequence[int]],
    labels: Sequence[str] | None,
    reverse: Sequence[bool],
) -> str:
    """Type and numbers of the layers, with arrows where the two directions differ."""
    parts = []
    for e in members:
        if kept[e]:
            name = cut(labels[e], LONGEST_LABEL) if labels is not None else ""
            layers = ", ".join(str(site + 1) for site in kept[e]) if len(reverse) > 1 else ""
            to_the_right = (edges[e][0] < edges[e][1]) != reverse[kept[e][0]]
            layers = f"({layers})" if layers and name[-1:].isdigit() else layers  # head 2 (1), not head 2 1
            parts.append(("→" if to_the_right else "←", f"{name} {layers}".strip()))
    if len({text for _, text in parts}) <= 1:
        return parts[0][1] if parts else ""
    return "  ".join(f"{arrow} {text}" for arrow, text in parts)


def layout(words: Sequence[str], drawn: Sequence[Arc], roles: Sequence[Role] = ()) -> Sentence:
    """Place ``words``, arcs and roles. Deterministic; no label is wider than its arc."""
    shift, room = ports(len(words), drawn)
    boxes = [max(text_width(cut(w, LONGEST_WORD), WORD) + 12, room[i], 20.0) for i, w in enumerate(words)]
    needs: list[list[tuple[int, float]]] = [[] for _ in words]
    for number, arc in enumerate(drawn):
        if arc.low < arc.high:
            outside = shift[number][0] - shift[number][1]
            needs[arc.high].append((arc.low, outside + max(text_width(arc.text, LABEL) + 18, 16)))
    x: list[float] = []
    for i, box in enumerate(boxes):
        at = x[-1] + boxes[i - 1] / 2 + box / 2 + 8 if x else box / 2 + 8
        x.append(max([at, *(x[low] + need for low, need in needs[i])]))
    ends = [
        (x[a.low] + s[0], x[a.high] + s[1]) if a.low < a.high else (x[a.low] + s[0] - LOOP, x[a.low] + s[0] + LOOP)
        for a, s in zip(drawn, shift, strict=True)
    ]
    levels = levels_of(drawn, ends)
    step = min(LEVEL, TALLEST / max([1, *levels]))
    base = round(24 + step * max([0, *levels]), 1)
    placed = [
        PlacedArc(
            arc,
            round(left, 1),
            round(right, 1),
            round(base - 8 - step * level, 1),
            round(_clear(number, drawn, ends, levels), 1),
        )
        for number, (arc, (left, right), level) in enumerate(zip(drawn, ends, levels, strict=True))
    ]
    width = x[-1] + boxes[-1] / 2 + 8 if x else 0.0
    beneath, row_count, width = _roles(x, boxes, roles, base + 36, width)
    height = base + 34 + 36 * row_count
    return Sentence(
        round(width, 1), round(height, 1), base, [(round(a, 1), round(b, 1)) for a, b in zip(x, boxes, strict=True)],
        placed, beneath,
    )  # fmt: skip


def ports(count: int, drawn: Sequence[Arc]) -> tuple[list[tuple[float, float]], list[float]]:
    """How far beside the middle of its words each arc ends, and the room each word needs for that.

    From left to right: arcs from the left, the shortest first; loops; arcs to the right, the longest first. So
    arcs that share a word never cross there.
    """
    at: list[list[tuple[int, int, int, int]]] = [[] for _ in range(count)]
    for number, arc in enumerate(drawn):
        span = arc.high - arc.low
        if span:
            at[arc.high].append((0, span, number, 1))
            at[arc.low].append((2, -span, -number, 0))
        else:
            at[arc.low].append((1, 0, number, 0))
    shift = [[0.0, 0.0] for _ in drawn]
    room = []
    for ends in at:
        ends.sort()
        gap = 10.0 if len(ends) <= 6 else max(3.0, 60 / len(ends))
        # The label of a loop may be wider than the loop.
        sizes = [
            max(2 * LOOP + 4, text_width(drawn[number].text, LABEL) + 8) if side == 1 else gap
            for side, _, number, _ in ends
        ]
        reach = -sum(sizes) / 2
        for (_, _, number, end), size in zip(ends, sizes, strict=True):
            shift[abs(number)][end] = reach + size / 2
            reach += size
        room.append(sum(sizes) + 4)
    return [(a, b) for a, b in shift], room


def levels_of(drawn: Sequence[Arc], ends: Sequence[tuple[float, float]]) -> list[int]:
    """1 is the lowest; an arc is above all shorter ones it meets."""
    levels = [0] * len(drawn)
    order = sorted(range(len(drawn)), key=lambda n: (drawn[n].high - drawn[n].low, drawn[n].low, n))
    done: list[int] = []
    for n in order:
        left, right = ends[n]
        below = [levels[m] for m in done if ends[m][0] < right and left < ends[m][1]]
        levels[n] = 1 + max(below, default=0)
        done.append(n)
    return levels


def _clear(number: int, drawn: Sequence[Arc], ends: Sequence[tuple[float, float]], levels: Sequence[int]) -> float:
    """Where along its arc a label is not crossed by the end of a higher arc; the middle if nowhere."""
    left, right = ends[number]
    middle, half = (left + right) / 2, text_width(drawn[number].text, LABEL) / 2 + 3
    if not drawn[number].text:
        return middle
    in_the_way = [x for m, pair in enumerate(ends) if levels[m] > levels[number] for x in pair if left < x < right]
    space = max(0.0, (right - left) / 2 - half - 4)
    tries = [middle + sign * 6.0 * k for k in range(int(space // 6) + 1) for sign in (1, -1)]
    return next((x for x in tries if all(abs(x - leg) > half for leg in in_the_way)), middle)


def _roles(
    x: Sequence[float], boxes: Sequence[float], roles: Sequence[Role], top: float, width: float
) -> tuple[list[tuple[float, float, float, float, str]], int, float]:
    """Brackets below the words, in as few rows as keep their labels apart."""
    rows: list[float] = []  # how far to the right each row is taken
    result = []
    for role in sorted(roles):
        left, right = x[role.start] - boxes[role.start] / 2 + 2, x[role.end - 1] + boxes[role.end - 1] / 2 - 2
        label = cut(role.label, LONGEST_WORD)
        half = text_width(label, LABEL + 1) / 2
        middle = max((left + right) / 2, half + 2)  # not beyond the left edge
        begin, end = min(left, middle - half), max(right, middle + half)
        row = next((r for r, taken in enumerate(rows) if taken + 4 < begin), len(rows))
        if row == len(rows):
            rows.append(end)
        rows[row] = end
        width = max(width, end + 4)
        result.append((round(left, 1), round(right, 1), round(top + 36 * row, 1), round(middle, 1), label))
    return result, len(rows), width
