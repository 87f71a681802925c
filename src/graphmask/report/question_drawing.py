"""Drawing a question: documents as boxes in two columns, mentions as pills in them, kept messages as lines.

Messages between the columns cross the channel in the middle, messages within a column run through the margin beside it,
nested as the arcs of a sentence are: so no line ever runs through a name. Computed here, like
:mod:`graphmask.report.layout`, and drawn without JavaScript.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphmask.report.question import ROLES, SIGNS, SUBJECT, Message, Question
from graphmask.report.question_lines import bracket, crossing
from graphmask.report.sentence import LABEL, Arc, cut, levels_of, ports, text_width

MENTIONS, LINES = 36, 56  # drawn at most; with more, nobody follows a line
ALL_MENTIONS_UP_TO = 24  # fewer are drawn even where nothing is kept
PILL, NAME = 24.0, 34  # height in pixels; letters, if narrow
COLUMN, CHANNEL = 236.0, 330.0
PAD, HEADER, BETWEEN = 10.0, 25.0, 6.0  # inside a box
APART = 14.0  # boxes
LANE, OUTERMOST = 17.0, 130.0  # of the margins: width of a level, of all levels
PORT = 0.7  # beside those of a sentence, whose words are further apart


@dataclass(frozen=True)
class Line:
    message: Message
    path: str
    heads: str
    label: str
    x: float  #: middle of the label
    y: float
    title: str

    @property
    def hops(self) -> str:
        return " ".join(f"{site}:{edge}" for site, edge in self.message.hops)


class Pill(NamedTuple):
    node: int
    x: float
    y: float
    width: float
    height: float
    text: str
    role: str
    title: str


class Box(NamedTuple):
    document: int
    x: float
    y: float
    width: float
    height: float
    evidence: bool
    more: str  #: how many of its mentions are not drawn


@dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    boxes: list[Box]
    pills: list[Pill]
    lines: list[Line]
    summary: str  #: how much of what is kept is drawn

    @property
    def edges(self) -> list[int]:
        return sorted({edge for line in self.lines for _, edge in line.message.hops})

    @property
    def roles(self) -> list[tuple[str, str, str]]:
        """For the legend: key, sign and words of the roles that occur."""
        present = {pill.role for pill in self.pills}
        return [(role, SIGNS[role], words) for role, words in ROLES.items() if role in present]


def choose(question: Question, messages: Sequence[Message]) -> tuple[list[int], list[Message]]:
    """The mentions and messages to draw."""
    nodes: set[int] = set()
    chosen: list[Message] = []
    for message in messages:
        if len(chosen) < LINES and len(nodes | set(message.ends)) <= MENTIONS:
            nodes |= set(message.ends)
            chosen.append(message)
    every = range(len(question.mentions))
    if len(every) <= ALL_MENTIONS_UP_TO:
        return list(every), chosen
    telling = [v for v in every if question.role(question.mentions[v].entity) != "other" and v not in nodes]
    return sorted(nodes | set(telling[: max(0, MENTIONS - len(nodes))])), chosen


def draw(question: Question, messages: Sequence[Message], sites: int) -> Drawing:
    """Place what :func:`choose` takes of ``messages``. Deterministic."""
    nodes, chosen = choose(question, messages)
    plan = _Plan(question, nodes, chosen, sites)
    kept, drawn = (len({edge for m in group for _, edge in m.hops}) for group in (messages, chosen))
    if drawn == kept:
        words = f"All {kept:,} kept edges are drawn" if kept > 1 else "The kept edge is drawn" if kept else ""
    else:
        words = (
            f"{drawn:,} of {kept:,} kept edges are drawn: first those on the strongest retained paths from the subject "
            "to the model's answer, then on other paths to the answer, then by score"
        )
    several = len(question.mentions)
    count = f"{len(nodes):,} of {several:,} mentions" if len(nodes) < several else f"all {several:,} mentions"
    summary = f"{words}; {count}." if words else f"Nothing is kept; {count} are drawn."
    return plan.drawing(summary)


class _Plan:
    """Where boxes, pills and lines go. Columns are 0 (left) and 1 (right)."""

    def __init__(self, question: Question, nodes: Sequence[int], chosen: Sequence[Message], sites: int) -> None:
        self.question, self.chosen, self.sites = question, chosen, sites
        self.document = {v: question.mentions[v].document for v in nodes}
        mentioned = Counter(mention.document for mention in question.mentions)
        drawn = Counter(self.document.values())
        self.rest = {d: mentioned[d] - drawn[d] for d in mentioned if d in drawn or d in question.evidence}
        self.pills = {d: [v for v in nodes if self.document[v] == d] for d in sorted(self.rest)}
        self.column = self._columns()
        self.across = [m for m in chosen if self.side(m.ends[0]) != self.side(m.ends[1])]
        self.within = [[m for m in chosen if self.side(m.ends[0]) == self.side(m.ends[1]) == c] for c in (0, 1)]
        self.height = self._heights(nodes)
        self.order = [[d for d in self.pills if self.column[d] == c] for c in (0, 1)]
        self.top: dict[int, float] = {}  # of pills
        self.box: dict[int, tuple[float, float]] = {}  # top and height
        self._stack()
        self._untangle()

    def side(self, node: int) -> int:
        return self.column[self.document[node]]

    def middle(self, node: int) -> float:
        return self.top[node] + self.height[node] / 2

    def _columns(self) -> dict[int, int]:
        """Documents that exchange messages face each other, as far as the columns stay about equally long."""
        ties = Counter(frozenset(self.document[v] for v in m.ends) for m in self.chosen)
        between = [(tuple(pair), count) for pair, count in ties.items() if len(pair) == 2]
        length = {d: len(pills) + 1.8 for d, pills in self.pills.items()}
        column = {d: position % 2 for position, d in enumerate(self.pills)}

        def cost() -> float:
            tilt = sum(size if column[d] else -size for d, size in length.items())
            return sum(2.0 * count for (a, b), count in between if column[a] == column[b]) + abs(tilt)

        best = cost()
        moves = [*((d,) for d in self.pills), *itertools.combinations(self.pills, 2)]
        for _ in range(8):
            before = best
            for move in moves:
                for d in move:
                    column[d] = 1 - column[d]
                now = cost()
                if now < best - 1e-9:
                    best = now
                else:
                    for d in move:
                        column[d] = 1 - column[d]
            if best == before:
                break
        # Read from the left to the right: from the subject to the answer, else from the first document.
        weight = {SUBJECT: 1, self.question.predicted: -1}
        lean = sum(
            weight.get(self.question.mentions[v].entity, 0) * (2 * column[d] - 1) for v, d in self.document.items()
        )
        if lean > 0 or (lean == 0 and column.get(min(column, default=0))):
            return {d: 1 - c for d, c in column.items()}
        return column

    def _heights(self, nodes: Sequence[int]) -> dict[int, float]:
        """Pills are as tall as the lines that end in them need."""
        inner = Counter(v for m in self.across for v in m.ends)
        room = {v: inner[v] * _gap(inner[v]) + 8 for v in nodes}
        for group in self.within:
            here = sorted({v for m in group for v in m.ends})
            _, needs = ports(len(here), [_arc(m, {v: i for i, v in enumerate(here)}) for m in group])
            for v, need in zip(here, needs, strict=True):
                room[v] = max(room[v], need * PORT + 4)
        return {v: max(PILL, round(room[v])) for v in nodes}

    def _stack(self) -> None:
        bottoms = []
        for column in self.order:
            y = 1.0
            for d in column:
                top, y = y, y + HEADER
                for v in self.pills[d]:
                    self.top[v] = y
                    y += self.height[v] + BETWEEN
                y += 17 if self.rest[d] else PAD - BETWEEN
                self.box[d] = (top, y - top)
                y += APART
            bottoms.append(max(0.0, y - APART))
        self.bottom = max(bottoms)
        for column, bottom in zip(self.order, bottoms, strict=True):
            down = (self.bottom - bottom) / 2
            for d in column:
                self.box[d] = (self.box[d][0] + down, self.box[d][1])
                for v in self.pills[d]:
                    self.top[v] += down

    def _untangle(self) -> None:
        """Move boxes, and the pills in them, towards those they share lines with."""
        others: dict[int, list[int]] = {v: [] for v in self.document}
        for m in self.chosen:
            for v, other in (m.ends, m.ends[::-1]):
                if v != other:
                    others[v].append(other)

        def aim(v: int) -> float:
            return sum(map(self.middle, others[v])) / len(others[v]) if others[v] else self.middle(v)

        def length() -> float:
            return sum(abs(self.middle(m.ends[0]) - self.middle(m.ends[1])) for m in self.chosen)

        best = (length(), [list(column) for column in self.order], {d: list(pills) for d, pills in self.pills.items()})
        for sweep in range(16):
            column = self.order[sweep % 2]
            for d in column:
                self.pills[d].sort(key=lambda v: (round(aim(v), 3), v))
            weight = {d: [aim(v) for v in self.pills[d] for _ in others[v]] for d in column}
            centre = {d: sum(w) / len(w) if w else self.box[d][0] + self.box[d][1] / 2 for d, w in weight.items()}
            column.sort(key=lambda d: (round(centre[d], 3), d))
            self._stack()
            if length() < best[0] - 1e-6:
                best = (length(), [list(c) for c in self.order], {d: list(p) for d, p in self.pills.items()})
        _, self.order, self.pills = best
        self._stack()

    def drawing(self, summary: str) -> Drawing:
        traces = self._margins()
        lefts = [max([LANE, *(far for _, far in side)]) for side in traces]
        single = not self.order[1]
        x = [lefts[0], lefts[0] + COLUMN + CHANNEL]
        width = x[0] + COLUMN + 2 if single else x[1] + COLUMN + lefts[1]
        lines: list[tuple[Message, str, str, np.ndarray]] = []
        for c, side in enumerate(traces):
            edge, out = (x[c] + PAD, -1) if c == 0 else (x[c] + COLUMN - PAD, 1)
            for (m, begin, end, depth), _ in side:
                lines.append((m, *bracket(m, edge, out, begin, end, depth)))
        inner = (x[0] + COLUMN - PAD, x[1] + PAD)
        for m, begin, end in self._channel():
            lines.append((m, *crossing(m, inner, self.side(m.ends[0]), begin, end)))
        boxes = [
            Box(d, x[c], round(self.box[d][0], 1), COLUMN, self.box[d][1], d in self.question.evidence, self._more(d))
            for c in (0, 1)
            for d in self.order[c]
        ]
        pills = [
            Pill(
                v, x[c] + PAD, round(self.top[v], 1), COLUMN - 2 * PAD, self.height[v], self._name(v),
                self.question.role(self.question.mentions[v].entity), self._title(v),
            )
            for c in (0, 1) for d in self.order[c] for v in self.pills[d]
        ]  # fmt: skip
        return Drawing(round(width, 1), round(self.bottom + 2, 1), boxes, pills, self._labelled(lines), summary)

    def _name(self, v: int) -> str:
        sign = SIGNS[self.question.role(self.question.mentions[v].entity)]
        text = f"{sign} {self.question.text(v)}".strip()
        room = COLUMN - 2 * PAD - 16
        return next(short for n in range(NAME, 0, -1) if text_width(short := cut(text, n), 13) <= room or n == 1)

    def _title(self, v: int) -> str:
        document, _, _, entity = self.question.mentions[v]
        role = ROLES[self.question.role(entity)]
        named = "" if entity == SUBJECT else f" ({self.question.candidates[entity]})"
        return f"{self.question.text(v)}: {role}{named}, in document {document}"

    def _more(self, d: int) -> str:
        rest = self.rest[d]
        words = "other mention" if self.pills[d] else "mention"
        return f"{'+ ' if self.pills[d] else ''}{rest} {words}{'' if rest == 1 else 's'}" if rest else ""

    def _margins(self) -> list[list[tuple[tuple[Message, float, float, float], float]]]:
        """Messages within each column: where they begin and end, how far out they run, and what that needs."""
        result = []
        for c, group in enumerate(self.within):
            row = {v: i for i, v in enumerate(v for d in self.order[c] for v in self.pills[d])}
            arcs = [_arc(m, row) for m in group]
            shift, _ = ports(len(row), arcs)
            spans = []
            for m, (low, high) in zip(group, shift, strict=True):
                upper, lower = sorted(m.ends, key=lambda v: row[v])
                if upper == lower:
                    spans.append((self.middle(upper) + PORT * low - 6, self.middle(upper) + PORT * low + 6))
                else:
                    spans.append((self.middle(upper) + PORT * low, self.middle(lower) + PORT * high))
            heights = levels_of(arcs, spans)
            widest = max((text_width(self._label(m), LABEL) for m in group), default=0.0)
            lane = min(max(LANE, widest + 8), OUTERMOST / max([1, *heights]))
            side = []
            for m, (top, bottom), level in zip(group, spans, heights, strict=True):
                begin, end = (top, bottom) if row[m.ends[0]] <= row[m.ends[1]] else (bottom, top)
                out = PAD + 8 + lane * level
                label = text_width(self._label(m), LABEL) / 2
                side.append(((m, begin, end, out), out - PAD + max(4, label + 3)))
            result.append(side)
        return result

    def _channel(self) -> Iterator[tuple[Message, float, float]]:
        """Messages between the columns and the height of their ends, in the order of the pills they come from."""
        at: dict[int, list[tuple[float, str, int]]] = {v: [] for v in self.document}
        for number, m in enumerate(self.across):
            u, v = m.ends
            at[u].append((self.middle(v), m.type, number))
            at[v].append((self.middle(u), m.type, number))
        y: dict[tuple[int, int], float] = {}
        for v, ends in at.items():
            gap = _gap(len(ends))
            for position, (_, _, number) in enumerate(sorted(ends)):
                y[number, v] = self.middle(v) + gap * (position - (len(ends) - 1) / 2)
        for number, m in enumerate(self.across):
            yield m, y[number, m.ends[0]], y[number, m.ends[1]]

    def _label(self, m: Message) -> str:
        return ",".join(map(str, m.layers)) if self.sites > 1 else ""

    def _labelled(self, lines: Sequence[tuple[Message, str, str, np.ndarray]]) -> list[Line]:
        """Each label where it covers least of the other lines and no other label."""
        every = np.concatenate([points for *_, points in lines]) if lines else np.zeros((0, 2))
        owner = np.repeat(np.arange(len(lines)), [len(points) for *_, points in lines])
        taken = np.zeros((0, 3))  # middle and half the width
        where: dict[int, tuple[float, float]] = {}
        for number in sorted(range(len(lines)), key=lambda n: (np.ptp(lines[n][3], axis=0).sum(), n)):
            points = lines[number][3]
            tries = np.array(sorted(range(len(points) // 6, len(points) - len(points) // 6), key=_from(len(points))))
            half = text_width(self._label(lines[number][0]), LABEL) / 2 + 3
            spots = points[tries]
            near = np.abs(spots[:, None] - every[None, owner != number]) < (half, 7)
            clash = np.abs(spots[:, None] - taken[None, :, :2]) < np.stack(
                [half + taken[:, 2], np.full(len(taken), 13.0)], axis=1
            )
            cost = near.all(-1).sum(1) + 100 * clash.all(-1).sum(1) + 0.02 * np.arange(len(tries))
            x, y = spots[int(cost.argmin())].tolist()
            where[number] = (round(x, 1), round(y + 4, 1))
            taken = np.concatenate([taken, [[x, y, half]]])
        return [
            Line(m, path, heads, self._label(m), *where[number], self._line_title(m))
            for number, (m, path, heads, _) in enumerate(lines)
        ]

    def _line_title(self, m: Message) -> str:
        ends = [f"{self.question.text(v)} (document {self.document[v]})" for v in m.ends]
        where = f"{'layer' if len(m.layers) == 1 else 'layers'} {', '.join(map(str, m.layers))}"
        kind = f"{m.type}, " if m.type else ""
        return f"{ends[0]} {'↔' if m.both else '→'} {ends[1]}\n{kind}kept at {where}, score {m.score:.2f}"


def _arc(message: Message, row: Mapping[int, int]) -> Arc:
    low, high = sorted(row[v] for v in message.ends)
    return Arc(low, high, (), "", True)


def _gap(ends: int) -> float:
    """The distance between lines that end in the same pill."""
    return 8.0 if ends <= 6 else max(3.0, 50 / ends)


def _from(length: int) -> Callable[[int], tuple[int, int]]:
    """Sorts positions by how far they are from the middle."""
    return lambda position: (abs(2 * position - length + 1), position)
