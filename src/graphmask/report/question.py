"""A question over documents: the mentions of its candidates, what the model passes between them, and the text.

How it is drawn: :mod:`graphmask.report.question_drawing`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphmask.errors import GraphMaskError

SUBJECT = -1  # the entity of mentions of what is asked about
CHIPS, TEXTS = 10, 24  # candidates and documents written out
LONG_TEXT, AROUND = 70, 12  # tokens: longer documents are shortened to what is around their mentions

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
    shown = []
    for c in order:
        named = {"model's answer": question.predicted, "right answer": question.answer, "after masking": turned}
        tags = tuple(tag for tag, number in named.items() if number == c)
        values = (before[c], after[c]) if before else (None, None)
        shown.append(Chip(question.candidates[c], question.role(c), tags, *values))
    return shown, len(question.candidates) - len(shown)


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
    both = [[k and c for k, c in zip(*pair, strict=True)] for pair in zip(kept, carried, strict=True)]
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
    strengths = [{v: (1.0, 0) for v, entity in enumerate(entities) if entity == start}]
    for row, values in zip(by_site, scores, strict=True):
        best = dict(strengths[-1])
        for sender, receiver, e in row:
            if sender in strengths[-1]:
                strength, hops = strengths[-1][sender]
                best[receiver] = max(best.get(receiver, NO_PATH), (strength * values[e], hops - 1))
        strengths.append(best)
    return strengths


def spaced(tokens: Sequence[str]) -> str:
    """Tokens as a reader expects them, roughly."""
    return "".join(_space(tokens, i) + token for i, token in enumerate(tokens))


def _space(tokens: Sequence[str], position: int) -> str:
    glued = not position or tokens[position] in NO_SPACE_BEFORE or tokens[position - 1] in NO_SPACE_AFTER
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
        positions = list(group)
        space = _space(tokens, positions[0])
        if not visible:
            if not pieces or pieces[-1].text != "…":
                pieces.append(Piece(" " if pieces else "", "…"))
            continue
        text = "".join((_space(tokens, i) if i > positions[0] else "") + tokens[i] for i in positions)
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
