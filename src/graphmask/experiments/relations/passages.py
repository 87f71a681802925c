"""Re-DocRED as passages with two marked entities: how are they related, and which sentences say so?

A passage is the sentences that people marked as evidence, and the nearest others that leave it short enough. Every
mention of the subject is written ``@ so @``, of the object ``# so #``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa.redocred import FILES, RELATIONS, SPLITS, load, part_of

SUBJECT, OBJECT = "@", "#"

#: Words to the numbers of their pieces.
Encode = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class Passage:
    """Tokens without [CLS] and [SEP], and what is known of its sentences, which are numbered from 0."""

    id: str
    relation: str
    tokens: tuple[int, ...]
    owners: tuple[int, ...]  #: of each token: its sentence
    evidence: frozenset[int]
    marked: tuple[int, ...]  #: of each sentence: how many mentions of the two entities it has

    @property
    def sentences(self) -> int:
        return len(self.marked)

    @property
    def tempting(self) -> bool:
        """Is either entity also mentioned where the evidence is not?"""
        return any(count for number, count in enumerate(self.marked) if number not in self.evidence)


@dataclass
class Read:
    """Passages by split, and why others are none."""

    parts: dict[str, list[Passage]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    lost: Counter[str] = field(default_factory=Counter)
    relations: tuple[str, ...] = ()  #: most frequent of the training part first
    names: dict[str, str] = field(default_factory=dict)


def read(folder: Path, encode: Encode, *, longest: int, relations: int) -> Read:
    """All passages of the so many relations that are most frequent in the training part.

    Args:
        longest: tokens of a passage, with [CLS] and [SEP].
    """
    result = Read(names=load(folder / RELATIONS, dict))
    for path in (folder / name for name in FILES):
        for number, document in enumerate(load(path, list)):
            try:
                result.parts[part_of(document["title"])] += _passages(document, encode, longest, result.lost)
            except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
                raise GraphMaskError(
                    f"{path}: document {number}: expected DocRED's title, sents, vertexSet and labels, found otherwise "
                    f"({type(error).__name__}: {error}). Is the file complete?"
                ) from error
    counts = Counter(passage.relation for passage in result.parts["train"])
    result.relations = tuple(sorted(counts, key=lambda name: (-counts[name], name))[:relations])
    for split, passages in result.parts.items():
        result.parts[split] = [passage for passage in passages if passage.relation in result.relations]
        result.lost["of a rare relation"] += len(passages) - len(result.parts[split])
    return result


def _passages(document: dict[str, Any], encode: Encode, longest: int, lost: Counter[str]) -> Iterator[Passage]:
    """Of every pair of entities with one relation and evidence for it."""
    pairs = Counter((label["h"], label["t"]) for label in document["labels"])
    for label in document["labels"]:
        head, tail, evidence = label["h"], label["t"], set(label["evidence"])
        if pairs[head, tail] > 1 or head == tail:
            lost["several relations"] += 1
        elif not evidence:
            lost["no evidence"] += 1
        elif min(evidence) < 0 or max(evidence) >= len(document["sents"]):
            raise ValueError(f"evidence in sentences {sorted(evidence)} of {len(document['sents'])}")
        else:
            sentences = [_marked(document, number, head, tail) for number in range(len(document["sents"]))]
            choice = _chosen([encode(words) for words, _ in sentences], evidence, longest - 2)
            if choice is None:
                lost["too long, or nothing beside the evidence"] += 1
                continue
            chosen, pieces = choice
            if not all(any(sentences[number][1][which] for number in chosen) for which in (0, 1)):
                lost["an entity is not mentioned"] += 1
                continue
            yield Passage(
                id=f"{document['title']} / {label['r']} / {head} / {tail}",
                relation=label["r"],
                tokens=tuple(token for part in pieces for token in part),
                owners=tuple(index for index, part in enumerate(pieces) for _ in part),
                evidence=frozenset(index for index, number in enumerate(chosen) if number in evidence),
                marked=tuple(sum(sentences[number][1]) for number in chosen),
            )


def _marked(document: dict[str, Any], number: int, head: int, tail: int) -> tuple[list[str], tuple[int, int]]:
    """The words of a sentence with both entities marked, and how many mentions of either there are."""
    words = document["sents"][number]
    before: list[list[str]] = [[] for _ in range(len(words) + 1)]
    after: list[list[str]] = [[] for _ in range(len(words) + 1)]
    counts = []
    for entity, sign in ((head, SUBJECT), (tail, OBJECT)):
        spans = {tuple(one["pos"]) for one in document["vertexSet"][entity] if one["sent_id"] == number}
        for start, end in sorted(spans):
            if not 0 <= start < end <= len(words):
                raise ValueError(f"a mention at tokens {start} to {end} of sentence {number}")
            before[start].append(sign)
            after[end].append(sign)
        counts.append(len(spans))
    whole = [part for at, word in enumerate(words) for part in (*after[at], *before[at], word)] + after[len(words)]
    return whole, (counts[0], counts[1])


def _chosen(pieces: list[list[int]], evidence: set[int], room: int) -> tuple[list[int], list[list[int]]] | None:
    """Which sentences: the evidence, and the nearest others that there is room for, at least one."""
    room -= sum(len(pieces[number]) for number in evidence)
    chosen = set(evidence)
    others = sorted({*range(len(pieces))} - evidence, key=lambda one: (min(abs(one - e) for e in evidence), one))
    for number in others:
        if 0 < len(pieces[number]) <= room:
            chosen.add(number)
            room -= len(pieces[number])
    if room < 0 or chosen == evidence:
        return None
    order = sorted(chosen)
    return order, [pieces[number] for number in order]
