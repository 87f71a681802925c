"""A question over documents: the mentions of its candidates, what the model passes between them, and the text.

Documents stand as boxes in two columns, mentions as pills in them. Messages between the columns cross the channel in
the middle, messages within a column run through the margin beside it, nested as the arcs of a sentence are: so no line
ever runs through a name. Computed here, like :mod:`graphmask.report.layout`, and drawn without JavaScript.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from graphmask.errors import GraphMaskError
from graphmask.report.sentence import LABEL, Arc, cut, levels_of, ports, text_width

SUBJECT = -1  # the entity of mentions of what is asked about
MENTIONS, LINES = 36, 56  # drawn at most; with more, nobody follows a line
ALL_MENTIONS_UP_TO = 24  # fewer are drawn even where nothing is kept
CHIPS, TEXTS = 10, 24  # candidates and documents written out
LONG_TEXT, AROUND = 70, 12  # tokens: longer documents are shortened to what is around their mentions

PILL, NAME = 24.0, 34  # height in pixels; letters, if narrow
COLUMN, CHANNEL = 236.0, 330.0
PAD, HEADER, BETWEEN = 10.0, 25.0, 6.0  # inside a box
APART = 14.0  # boxes
LANE, OUTERMOST = 17.0, 130.0  # of the margins: width of a level, of all levels
PORT = 0.7  # beside those of a sentence, whose words are further apart
HEAD = 8.0
NO_PATH = (0.0, 0)
NO_SPACE_BEFORE = frozenset([*",.;:!?)]}%…", "'s", "n't", "''", "-"])
NO_SPACE_AFTER = frozenset([*"([{", "``", "-"])
ROLES = {
    "subject": "subject of the question",
    "right": "model's answer, right",
    "wrong": "model's answer, wrong",
    "predicted": "model's answer",
    "missed": "right answer",
    "other": "other candidate",
}
SIGNS = {"subject": "◆", "right": "✓", "wrong": "✗", "predicted": "●", "missed": "★", "other": ""}


class Mention(NamedTuple):
    """Tokens ``start`` up to but not including ``end`` of a document name ``entity``: a candidate or SUBJECT."""

    document: int
    start: int
    end: int
    entity: int


@dataclass(frozen=True)
class Question:
    """What was asked; mention i is node i of the graph. Nodes beyond the mentions are padding."""

    query: str
    documents: list[list[str]]
    mentions: list[Mention]
    candidates: list[str]
    answer: int | None = None  #: right candidate, if known
    predicted: int | None = None
    evidence: frozenset[int] = frozenset()  #: documents that people marked
    before: list[float] = field(default_factory=list)  #: probability of each candidate; empty when not known
    after: list[float] = field(default_factory=list)  #: with superfluous messages replaced

    def __post_init__(self) -> None:
        names = len(self.candidates)
        for node, (document, start, end, entity) in enumerate(self.mentions):
            if not 0 <= document < len(self.documents):
                raise GraphMaskError(f"Mention {node} is in document {document} of {len(self.documents)}.")
            if not 0 <= start < end <= len(self.documents[document]):
                raise GraphMaskError(
                    f"Mention {node} is tokens {start} to {end} of document {document}, which has "
                    f"{len(self.documents[document])}. Hint: 0 <= start < end, and end is not included."
                )
            if not SUBJECT <= entity < names:
                raise GraphMaskError(f"Mention {node} is of entity {entity}; there are {names} candidates.")
        for key, choice in (("answer", self.answer), ("predicted", self.predicted)):
            if choice is not None and not 0 <= choice < names:
                raise GraphMaskError(f'"{key}" is {choice}; there are {names} candidates.')
        if not all(0 <= document < len(self.documents) for document in self.evidence):
            raise GraphMaskError(f'"evidence" has {max(self.evidence)}; there are {len(self.documents)} documents.')
        for values in (self.before, self.after):
            if values and len(values) != names:
                raise GraphMaskError(f"Expected {names} probabilities, got {len(values)}.")

    def text(self, node: int) -> str:
        document, start, end, _ = self.mentions[node]
        return spaced(self.documents[document][start:end])

    def role(self, entity: int) -> str:
        """A key of ROLES."""
        if entity == SUBJECT:
            return "subject"
        if entity == self.predicted:
            return "predicted" if self.answer is None else "right" if entity == self.answer else "wrong"
        return "missed" if entity == self.answer else "other"


class Message(NamedTuple):
    """Something kept between two mentions: one line of the drawing."""

    ends: tuple[int, int]  #: sender and receiver
    both: bool  #: the same layers keep the opposite direction
    type: str
    layers: tuple[int, ...]
    hops: tuple[tuple[int, int], ...]  #: (site, edge)
    score: float


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


class Chip(NamedTuple):
    name: str
    role: str
    tags: tuple[str, ...]
    before: float | None
    after: float | None


class Piece(NamedTuple):
    """A run of text: what separates it from the one before, itself, and what it mentions."""

    space: str
    text: str
    role: str = ""
    title: str = ""


class Passage(NamedTuple):
    document: int
    evidence: bool
    pieces: list[Piece]


def is_question(info: Mapping[str, Any]) -> bool:
    return info.get("documents") is not None and info.get("mentions") is not None


def read(info: Mapping[str, Any], nodes: int, original: Sequence[float], masked: Sequence[float]) -> Question:
    """The question of an explanation's ``info``; raises a GraphMaskError where that does not fit the graph.

    ``original`` and ``masked`` are the model's scores, one per candidate and any number for padding, or empty.
    """
    try:
        documents = [_texts(document) for document in info["documents"]]
        mentions = [Mention(*map(int, mention)) for mention in info["mentions"]]
        candidates = _texts(info.get("candidates") or [])
        answer, predicted = (None if info.get(key) is None else int(info[key]) for key in ("answer", "predicted"))
        evidence = frozenset(map(int, info.get("evidence") or ()))
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphMaskError(
            "Expected documents as lists of tokens, mentions as [document, start, end, entity] and numbers as answer, "
            f"predicted and evidence: {error}."
        ) from error
    if len(mentions) > nodes:
        raise GraphMaskError(f'"mentions" has {len(mentions):,} entries for {nodes:,} nodes.')
    before, after = (probabilities(scores[: len(candidates)]) for scores in (original, masked))
    if not len(before) == len(after) == len(candidates):
        before, after = [], []
    query = str(info.get("query") or "")
    return Question(query, documents, mentions, candidates, answer, predicted, evidence, before, after)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__} is not a list of texts")
    return [str(part) for part in value]


def probabilities(scores: Sequence[float]) -> list[float]:
    """Softmax; empty where it is not a number."""
    top = max(scores, default=math.nan)
    if not math.isfinite(top) or any(math.isnan(score) for score in scores):
        return []
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]


def chips(question: Question) -> tuple[list[Chip], int]:
    """Candidates to show, the likeliest first, and how many are left out."""
    before, after = question.before, question.after
    chosen = {question.predicted, question.answer} - {None}
    numbers = range(len(question.candidates))
    order = sorted(numbers, key=lambda c: (c not in chosen, -before[c] if before else 0.0, c))[:CHIPS]
    if before:
        order.sort(key=lambda c: -before[c])
    turned = max(numbers, key=after.__getitem__) if after else None
    if before and turned == max(numbers, key=before.__getitem__):
        turned = None
    found = []
    for c in order:
        named = {"model's answer": question.predicted, "right answer": question.answer, "after masking": turned}
        tags = tuple(tag for tag, number in named.items() if number == c)
        values = (before[c], after[c]) if before else (None, None)
        found.append(Chip(question.candidates[c], question.role(c), tags, *values))
    return found, len(question.candidates) - len(found)


def counts(
    question: Question,
    edges: Sequence[tuple[int, int]],
    types: Sequence[str] | None,
    kept: Sequence[Sequence[bool]],
    carried: Sequence[Sequence[bool]],
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Per type, how many edges between mentions are kept and how many there are: by layer, and last at any layer."""
    names = types if types is not None else ["edges"] * len(edges)
    real = [name if max(ends) < len(question.mentions) else None for name, ends in zip(names, edges, strict=True)]
    present = sorted({name for name in real if name is not None})
    both = [[k and c for k, c in zip(*rows, strict=True)] for rows in zip(kept, carried, strict=True)]
    told = [Counter(itertools.compress(real, row)) for row in (*both, map(any, zip(*both, strict=True)))]
    every = [Counter(itertools.compress(real, row)) for row in (*carried, map(any, zip(*carried, strict=True)))]
    return [(name, [(k[name], c[name]) for k, c in zip(told, every, strict=True)]) for name in present]


def messages(
    question: Question,
    edges: Sequence[tuple[int, int]],
    types: Sequence[str] | None,
    kept: Sequence[Sequence[int]],
    scores: Sequence[Sequence[float]],
    reverse: Sequence[bool],
) -> list[Message]:
    """All that is kept between mentions, the most telling first.

    That is on the strongest retained paths from the subject to the model's answer (what a path consists of comes
    together), then on other paths to the answer, then the rest by score. ``kept[e]`` are the sites that keep edge e,
    ``scores`` are by site and edge, ``reverse`` is by site.
    """
    hops: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
    by_site: list[list[tuple[int, int, int]]] = [[] for _ in reverse]  # sender, receiver, edge
    for e, (u, v) in enumerate(edges):
        if kept[e] and max(u, v) < len(question.mentions):
            for site in kept[e]:
                sender, receiver = (v, u) if reverse[site] else (u, v)
                hops.setdefault((sender, receiver, types[e] if types is not None else ""), []).append((site, e))
                by_site[site].append((sender, receiver, e))
    backwards = [[(receiver, sender, e) for sender, receiver, e in row] for row in by_site]
    entities = [mention.entity for mention in question.mentions]
    arrived = _strengths(entities, SUBJECT, by_site, scores)
    onward = _strengths(entities, question.predicted, backwards[::-1], scores[::-1])[::-1]
    rank: dict[tuple[int, int], tuple[float, ...]] = {}
    for site, row in enumerate(by_site):
        for sender, receiver, e in row:
            (start, taken), (end, left) = arrived[site].get(sender, NO_PATH), onward[site + 1].get(receiver, NO_PATH)
            score = scores[site][e]
            # Rounded, because the factors of one path come in another order at each of its hops.
            rank[site, e] = (round(start * score * end, 12), taken + left, score * end, left, score)
    layers = {key: tuple(sorted({site for site, _ in value})) for key, value in hops.items()}
    result = []
    for (u, v, name), own in hops.items():
        both = u != v and layers.get((v, u, name)) == layers[u, v, name]
        if not both or u < v:
            every = tuple(sorted([*own, *(hops[v, u, name] if both else ())]))
            score = max(scores[site][e] for site, e in every)
            result.append(Message((u, v), both, name, layers[u, v, name], every, score))
    result.sort(key=lambda m: (m.ends, m.type))
    return sorted(result, key=lambda m: max(rank[hop] for hop in m.hops), reverse=True)


def _strengths(
    entities: Sequence[int],
    start: int | None,
    by_site: Sequence[Sequence[tuple[int, int, int]]],
    scores: Sequence[Sequence[float]],
) -> list[dict[int, tuple[float, int]]]:
    """Before each site and after the last: the best path there from a mention of ``start``.

    A path is as strong as the product of its scores; of equals the shorter is the better, so its hops count
    negatively. Nodes hold their state over a site.
    """
    found = [{v: (1.0, 0) for v, entity in enumerate(entities) if entity == start}]
    for row, values in zip(by_site, scores, strict=True):
        best = dict(found[-1])
        for sender, receiver, e in row:
            if sender in found[-1]:
                strength, hops = found[-1][sender]
                best[receiver] = max(best.get(receiver, NO_PATH), (strength * values[e], hops - 1))
        found.append(best)
    return found


def choose(question: Question, found: Sequence[Message]) -> tuple[list[int], list[Message]]:
    """The mentions and messages to draw."""
    nodes: set[int] = set()
    chosen: list[Message] = []
    for message in found:
        if len(chosen) < LINES and len(nodes | set(message.ends)) <= MENTIONS:
            nodes |= set(message.ends)
            chosen.append(message)
    every = range(len(question.mentions))
    if len(every) <= ALL_MENTIONS_UP_TO:
        return list(every), chosen
    telling = [v for v in every if question.role(question.mentions[v].entity) != "other" and v not in nodes]
    return sorted(nodes | set(telling[: max(0, MENTIONS - len(nodes))])), chosen


def draw(question: Question, found: Sequence[Message], sites: int) -> Drawing:
    """Place what :func:`choose` takes of ``found``. Deterministic."""
    nodes, chosen = choose(question, found)
    plan = _Plan(question, nodes, chosen, sites)
    kept, drawn = (len({edge for m in group for _, edge in m.hops}) for group in (found, chosen))
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
        column = {d: place % 2 for place, d in enumerate(self.pills)}

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
        """Boxes, and pills in them, move towards what they are joined with."""
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
                lines.append((m, *_bracket(m, edge, out, begin, end, depth)))
        inner = (x[0] + COLUMN - PAD, x[1] + PAD)
        for m, begin, end in self._channel():
            lines.append((m, *_crossing(m, inner, self.side(m.ends[0]), begin, end)))
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
            for place, (_, _, number) in enumerate(sorted(ends)):
                y[number, v] = self.middle(v) + gap * (place - (len(ends) - 1) / 2)
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
    """Between lines that end in the same pill."""
    return 8.0 if ends <= 6 else max(3.0, 50 / ends)


def _from(length: int) -> Callable[[int], tuple[int, int]]:
    """Sorts positions by how far they are from the middle."""
    return lambda place: (abs(2 * place - length + 1), place)


def _head(x: float, y: float, way: int) -> str:
    """An arrow head with its tip at x, to the right (1) or to the left (-1)."""
    return f"M{x:.1f} {y:.1f}l{-HEAD * way:g} -3.6l{1.8 * way:g} 3.6l{-1.8 * way:g} 3.6z"


def _bracket(m: Message, edge: float, out: int, begin: float, end: float, depth: float) -> tuple[str, str, np.ndarray]:
    """Out of a pill, along the margin, back into a pill."""
    far, r = edge + out * depth, min(9.0, abs(end - begin) / 2)
    down = 1 if end >= begin else -1
    start, stop = edge + out * (HEAD - 2) * m.both, edge + out * (HEAD - 2)
    path = (
        f"M{start:.1f} {begin:.1f}H{far - out * r:.1f}Q{far:.1f} {begin:.1f} {far:.1f} {begin + down * r:.1f}"
        f"V{end - down * r:.1f}Q{far:.1f} {end:.1f} {far - out * r:.1f} {end:.1f}H{stop:.1f}"
    )
    heads = _head(edge, end, -out) + (_head(edge, begin, -out) if m.both else "")
    along = np.linspace(0, 1, 25)
    legs = np.linspace(edge, far, 5)
    points = np.concatenate(
        [
            np.stack([legs, np.full(5, begin)], 1),
            np.stack([np.full(25, far), begin + (end - begin) * along], 1),
            np.stack([legs[::-1], np.full(5, end)], 1),
        ]
    )
    return path, heads, points


def _crossing(
    m: Message, inner: tuple[float, float], column: int, begin: float, end: float
) -> tuple[str, str, np.ndarray]:
    """From one column to the other."""
    x0, x1 = inner[column], inner[1 - column]
    way = 1 if x1 > x0 else -1
    start, stop = x0 + way * (HEAD - 2) * m.both, x1 - way * (HEAD - 2)
    pull = abs(x1 - x0) * 0.42 * way
    path = f"M{start:.1f} {begin:.1f}C{start + pull:.1f} {begin:.1f} {stop - pull:.1f} {end:.1f} {stop:.1f} {end:.1f}"
    heads = _head(x1, end, way) + (_head(x0, begin, -way) if m.both else "")
    t = np.linspace(0, 1, 41)[:, None]
    a, b, c, d = np.array([[start, begin], [start + pull, begin], [stop - pull, end], [stop, end]])
    points = (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
    return path, heads, points


def spaced(tokens: Sequence[str]) -> str:
    """Tokens as a reader expects them, roughly."""
    return "".join(_space(tokens, i) + token for i, token in enumerate(tokens))


def _space(tokens: Sequence[str], place: int) -> str:
    glued = not place or tokens[place] in NO_SPACE_BEFORE or tokens[place - 1] in NO_SPACE_AFTER
    return "" if glued else " "


def passages(question: Question, nodes: Sequence[int]) -> tuple[list[Passage], int]:
    """The documents with mentions or evidence as text, and how many are left out.

    Those of the mentions ``nodes`` come first when there are too many; long ones are cut to what is around them.
    """
    mentioned: dict[int, list[int]] = {}
    for v, mention in enumerate(question.mentions):
        mentioned.setdefault(mention.document, []).append(v)
    drawn = {question.mentions[v].document for v in nodes}
    every = sorted({*mentioned, *question.evidence}, key=lambda d: (d not in question.evidence, d not in drawn, d))
    return [
        Passage(d, d in question.evidence, _pieces(question, d, mentioned.get(d, []), set(nodes)))
        for d in sorted(every[:TEXTS])
    ], max(0, len(every) - TEXTS)


def _pieces(question: Question, document: int, mentions: Sequence[int], nodes: set[int]) -> list[Piece]:
    tokens = question.documents[document]
    owner: list[int | None] = [None] * len(tokens)
    rank = list(ROLES).index
    # The shortest of nested mentions is written last; of equals, the one with the more telling role.
    for v in sorted(mentions, key=lambda v: (-_length(question, v), -rank(_role(question, v)), -v)):
        owner[question.mentions[v].start : question.mentions[v].end] = [v] * _length(question, v)
    shown = [True] * len(tokens)
    if len(tokens) > LONG_TEXT:
        centres = [question.mentions[v] for v in mentions if v in nodes] or [question.mentions[v] for v in mentions[:3]]
        spans = [(m.start - AROUND, m.end + AROUND) for m in centres] or [(0, LONG_TEXT)]
        shown = [any(start <= i < end for start, end in spans) for i in range(len(tokens))]
    pieces: list[Piece] = []
    for (v, visible), group in itertools.groupby(range(len(tokens)), key=lambda i: (owner[i], shown[i])):
        places = list(group)
        space = _space(tokens, places[0])
        if not visible:
            if not pieces or pieces[-1].text != "…":
                pieces.append(Piece(" " if pieces else "", "…"))
            continue
        text = "".join((_space(tokens, i) if i > places[0] else "") + tokens[i] for i in places)
        if v is None:
            pieces.append(Piece(space, text))
        else:
            entity = question.mentions[v].entity
            named = "" if entity == SUBJECT else f": {question.candidates[entity]}"
            pieces.append(Piece(space, text, question.role(entity), ROLES[question.role(entity)] + named))
    return pieces


def _length(question: Question, node: int) -> int:
    return question.mentions[node].end - question.mentions[node].start


def _role(question: Question, node: int) -> str:
    return question.role(question.mentions[node].entity)
