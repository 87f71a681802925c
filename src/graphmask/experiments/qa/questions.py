"""A question over several documents: which of the candidates stands in this relation to that subject?

WikiHop (`wikihop.py`) and Re-DocRED (`redocred.py`) are both read as these.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

#: The entity of mentions of the query's subject; other entities are candidates, counted from 0.
SUBJECT = -1


class Span(NamedTuple):
    """Tokens ``start`` to ``end`` (not included) of a document."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Mention:
    """A node of the graph: an entity named at a place."""

    span: Span
    entity: int  #: number of a candidate, or SUBJECT
    cluster: int | None = None  #: mentions with the same number are coreferent


@dataclass(frozen=True)
class Question:
    """What is asked, the candidates, and every place where they or the subject are mentioned."""

    id: str
    relation: tuple[str, ...]  #: words
    subject: tuple[str, ...]  #: words
    candidates: tuple[str, ...]
    answer: int  #: number of a candidate
    documents: tuple[tuple[str, ...], ...]  #: tokens
    mentions: tuple[Mention, ...]
    evidence: frozenset[int] = frozenset()  #: documents that people need for the answer; none if nobody was asked

    @property
    def query(self) -> tuple[str, ...]:
        return self.relation + self.subject

    @property
    def answerable(self) -> bool:
        """The right candidate is mentioned somewhere: without, a model over mentions cannot choose it."""
        return any(mention.entity == self.answer for mention in self.mentions)

    def words(self, mention: Mention) -> tuple[str, ...]:
        document, start, end = mention.span
        return self.documents[document][start:end]


@dataclass(frozen=True)
class Caps:
    """Sizes beyond which a question is cut; None is no limit. Defaults are Entity-GCN's."""

    nodes: int | None = 500
    query: int | None = 25
    candidates: int | None = 80


@dataclass
class Read:
    """Questions, and what was lost on the way: counts by reason."""

    questions: list[Question] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
