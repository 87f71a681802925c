"""From documents to a graph of mentions, as in Entity-GCN (De Cao, Aziz and Titov 2019, arXiv 1808.09920).

A node is a place where a candidate or the subject is named, or, with coreference clusters, referred to. Every pair of
nodes is joined by at least one of four relations.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from reprlib import repr as shown
from typing import Any, NoReturn

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa.questions import SUBJECT, Mention, Question, Span

MATCH, DOC_BASED, COREF, COMPLEMENT = range(4)
RELATIONS = ("MATCH", "DOC-BASED", "COREF", "COMPLEMENT")

#: A candidate of masked WikiHop. spaCy would take it apart, and differently before a hyphen than before a comma.
MASK = re.compile(r"(___MASK\d+___)", re.IGNORECASE)
ARTICLES = frozenset({"a", "an", "the"})


@cache
def _tokeniser() -> Callable[[str], Iterable[Any]]:
    try:
        import spacy
    except ImportError as error:
        raise GraphMaskError(
            f"Expected spaCy to split texts into tokens, found none ({error}). Install it: pip install graphmask[qa]"
        ) from error
    return spacy.blank("en").tokenizer


def tokenise(text: str) -> tuple[str, ...]:
    """Tokens of spaCy's rules for English without those of white space; ``___MASK7___`` is one token."""
    tokens: list[str] = []
    for piece in MASK.split(text):
        if MASK.fullmatch(piece):
            tokens.append(sys.intern(piece))
        elif piece:
            # The same words over and over fill a corpus: interned, each is kept once.
            tokens += [sys.intern(token.text) for token in _tokeniser()(piece) if not token.is_space]
    return tuple(tokens)


def names(text: str) -> frozenset[tuple[str, ...]]:
    """How a name can look as lower-cased tokens.

    WikiHop writes candidates in lower case and documents as they were, and spaCy's rules depend on case: ``u.s.`` is
    two tokens and ``U.S.`` one, and so with ``st. louis`` and ``warner bros.``.
    """
    forms = {_lower(tokenise(form)) for form in {text, text.lower(), text.title(), text.upper()}}
    return frozenset(forms - {()})


def find(documents: Sequence[Sequence[str]], candidates: Sequence[str], subject: str) -> list[Mention]:
    """All places in tokenised documents where a candidate or the subject stands word by word, in reading order.

    Case is ignored. A name within a longer one that is also found ("new york" within "new york city") is left to the
    longer one; names that merely overlap are both kept. Where several entities have the same name, each has a mention
    there: which one is meant cannot be known, and the answer must not decide.
    """
    entities: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for entity, text in [(SUBJECT, subject), *enumerate(candidates)]:
        for name in names(text):
            entities[name].append(entity)
    lengths: dict[str, set[int]] = defaultdict(set)
    for name in entities:
        lengths[name[0]].add(len(name))
    longest_first = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}

    mentions = []
    for number, document in enumerate(documents):
        words = _lower(document)
        covered = 0  # the furthest end so far: a later span that ends by there lies within an earlier one
        for start, word in enumerate(words):
            for length in longest_first.get(word, ()):
                end = start + length
                if covered < end <= len(words) and words[start:end] in entities:
                    mentions += [Mention(Span(number, start, end), entity) for entity in entities[words[start:end]]]
                    covered = end
                    break  # shorter names from here lie within this one
    return mentions


def spans(value: object, documents: Sequence[Sequence[str]], where: str) -> list[list[Span]]:
    """Coreference clusters ``[[[document, start, end], ...], ...]`` of one question, checked; ``where`` is for errors.

    Tokens are those of `tokenise`, ``end`` is not included, and no span is in two clusters.
    """

    def fail(expected: str, found: object, hint: str) -> NoReturn:
        raise GraphMaskError(f"{where}: expected {expected}, found {shown(found)}. {hint}")

    if not isinstance(value, list) or not all(isinstance(cluster, list) for cluster in value):
        fail(
            "a list of clusters, each a list of [document, start, end]",
            value,
            "See `graphmask.experiments.qa.mentions`.",
        )
    owners: dict[Span, int] = {}
    clusters: list[list[Span]] = []
    for number, cluster in enumerate(value):
        clusters.append([])
        for raw in cluster:
            # True and False are integers to Python, but nobody means them here.
            if not (isinstance(raw, list) and len(raw) == 3 and all(type(part) is int for part in raw)):
                fail("three whole numbers [document, start, end]", raw, "All three count from 0.")
            span = Span(*raw)
            if not 0 <= span.document < len(documents):
                fail(f"one of {len(documents)} documents", raw, "Documents count from 0.")
            size = len(documents[span.document])
            if not 0 <= span.start < span.end <= size:
                fail(
                    f"0 <= start < end <= {size}, the tokens of document {span.document}",
                    raw,
                    "Was the same tokeniser used? `end` is not included.",
                )
            if owners.setdefault(span, number) != number:
                fail("each span in one cluster", raw, f"It is in clusters {owners[span]} and {number}: join them.")
            clusters[-1].append(span)
    return clusters


def with_clusters(
    mentions: Iterable[Mention], clusters: Iterable[Iterable[Span]], documents: Sequence[Sequence[str]]
) -> tuple[list[Mention], int]:
    """Mentions in reading order with those that coreference adds, and how many clusters were dropped.

    A cluster holds a mention if one of its spans is that mention, articles aside: not if it merely overlaps, or the
    king of France would be France. A cluster with mentions of one entity gives the entity to its other spans and its
    number to all; a cluster with mentions of several entities is wrong about some of them, and dropped. A span that
    overlaps a mention of the same entity adds nothing but the number: a place is one node of an entity.
    """
    nodes = list(mentions)
    at: dict[Span, list[int]] = defaultdict(list)
    nearby: dict[tuple[int, int], list[int]] = defaultdict(list)  # by document and entity

    def note(node: int) -> None:
        mention = nodes[node]
        at[mention.span].append(node)
        nearby[mention.span.document, mention.entity].append(node)

    for node in range(len(nodes)):
        note(node)
    dropped = 0
    chosen: list[tuple[int, int, list[Span]]] = []
    for number, cluster in enumerate(clusters):
        ordered = sorted(set(cluster))
        held = [node for span in ordered for node in at.get(span) or at.get(_bare(span, documents)) or []]
        entities = {nodes[node].entity for node in held}
        dropped += len(entities) > 1
        if len(entities) == 1:
            chosen.append((number, entities.pop(), ordered))
            for node in held:
                nodes[node] = replace(nodes[node], cluster=number)
    for number, entity, ordered in chosen:  # after all are numbered: an exact span says more than an overlap
        for span in ordered:
            near = [node for node in nearby[span.document, entity] if _overlap(nodes[node].span, span)]
            for node in near:
                if nodes[node].cluster is None:
                    nodes[node] = replace(nodes[node], cluster=number)
            if not near:
                nodes.append(Mention(span, entity, number))
                note(len(nodes) - 1)
    return sorted(nodes, key=lambda mention: (mention.span, mention.entity)), dropped


def edges(question: Question) -> tuple[Tensor, Tensor]:
    """``edge_index`` [2, E] of (sender, receiver) and ``edge_type`` [E] between mentions, both of 64-bit integers.

    MATCH joins mentions of an entity by the same words, apart from case, at different places (two pronouns that
    coreference added match only if they mean the same); DOC-BASED the same document; COREF the same
    cluster; COMPLEMENT whatever none of these joins. A pair can have several of the first three, always in both
    directions; no mention is joined to itself. Edges are sorted by type, then receiver, then sender.
    """
    spans: dict[Span, int] = {}
    texts: dict[tuple[str, ...], int] = {}
    rows = [
        (
            spans.setdefault(mention.span, len(spans)),
            texts.setdefault(_lower(question.words(mention)), len(texts)),
            mention.entity,
            mention.span.document,
            -1 if mention.cluster is None else mention.cluster,
        )
        for mention in question.mentions
    ]
    span, text, entity, document, cluster = torch.tensor(rows, dtype=torch.int64).reshape(-1, 5).T
    others = ~torch.eye(len(rows), dtype=torch.bool)
    match = _pairs(text) & _pairs(entity) & ~_pairs(span)
    same = _pairs(document) & others
    coref = _pairs(cluster) & (cluster >= 0) & others
    joined = torch.stack([match, same, coref, others & ~(match | same | coref)])
    kind, receiver, sender = joined.nonzero().unbind(1)
    return torch.stack([sender, receiver]), kind


def _pairs(values: Tensor) -> Tensor:
    return values[:, None] == values[None, :]


def _lower(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.lower() for word in words)


def _bare(span: Span, documents: Sequence[Sequence[str]]) -> Span:
    """The span without an article at its beginning."""
    article = documents[span.document][span.start].lower() in ARTICLES
    return span._replace(start=span.start + 1) if article else span


def _overlap(one: Span, other: Span) -> bool:
    return one.document == other.document and one.start < other.end and other.start < one.end
