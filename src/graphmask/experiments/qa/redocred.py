"""Re-DocRED as questions: (relation, subject) asks for the one entity so related, among entities of its type.

Sentences are the documents of a question, so that its evidence, the sentences that people say it takes to know the
answer, can be compared with what a model used.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa.questions import SUBJECT, Mention, Question, Read, Span

FILES = ("dev_revised.json", "test_revised.json")
RELATIONS = "rel_info.json"
SPLITS = ("train", "dev", "test")
#: Of ten parts of the documents, by their titles: the files' own split has no training part.
PARTS = {"train": range(7), "dev": range(7, 8), "test": range(8, 10)}


def read(folder: Path, split: str | None = None, *, limit: int | None = None) -> Read:
    """The questions of a split (all of them by default); ``limit`` takes the first so many documents."""
    if split is not None and split not in SPLITS:
        raise GraphMaskError(f"Expected a split among {', '.join(SPLITS)}, got {split!r}.")
    names = load(folder / RELATIONS, dict)
    result = Read()
    files = [folder / name for name in FILES]
    documents = [(path, number, document) for path in files for number, document in enumerate(load(path, list))]
    for path, number, document in documents[:limit]:
        try:
            if split is None or part_of(document["title"]) == split:
                result.questions += questions(document, names, result.lost)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise GraphMaskError(
                f"{path}: document {number}: expected DocRED's title, sents, vertexSet and labels, found otherwise "
                f"({type(error).__name__}: {error}). Is the file complete?"
            ) from error
    return result


def part_of(title: str) -> str:
    """The split of a document: by its title alone, whatever other documents there are."""
    tenth = sha256(title.encode()).digest()[0] * 10 // 256
    return next(split for split, tenths in PARTS.items() if tenth in tenths)


def questions(document: dict[str, Any], names: dict[str, str], lost: Counter[str]) -> Iterator[Question]:
    """Every question with one answer and at least one other candidate."""
    entities = [_mentions(entity, document["sents"]) for entity in document["vertexSet"]]
    kinds = [Counter(mention["type"] for mention in entity).most_common(1)[0][0] for entity in document["vertexSet"]]
    answers: dict[tuple[int, str], set[int]] = defaultdict(set)
    evidence: dict[tuple[int, str], set[int]] = defaultdict(set)
    for label in document["labels"]:
        answers[label["h"], label["r"]].add(label["t"])
        evidence[label["h"], label["r"]].update(label["evidence"])
    for (head, relation), tails in sorted(answers.items()):
        if len(tails) > 1:
            lost["several answers"] += 1
            continue
        (tail,) = tails
        candidates = [number for number, kind in enumerate(kinds) if kind == kinds[tail] and number != head]
        if tail == head or len(candidates) < 2:
            lost["no other candidate"] += 1
            continue
        yield Question(
            id=f"{document['title']} / {relation} / {head}",
            relation=tuple(names[relation].split()),
            subject=_text(document, entities[head]),
            candidates=tuple(" ".join(_text(document, entities[number])) for number in candidates),
            answer=candidates.index(tail),
            documents=tuple(map(tuple, document["sents"])),
            mentions=_nodes(entities, candidates, head),
            evidence=_within(evidence[head, relation], len(document["sents"])),
        )


def _nodes(entities: Sequence[list[Span]], candidates: Sequence[int], head: int) -> tuple[Mention, ...]:
    """In reading order. The mentions of an entity are one cluster of coreference."""
    mentions = [Mention(span, SUBJECT, head) for span in entities[head]]
    mentions += [Mention(span, order, number) for order, number in enumerate(candidates) for span in entities[number]]
    return tuple(sorted(mentions, key=lambda mention: (mention.span, mention.entity)))


def _mentions(entity: list[dict[str, Any]], sentences: Sequence[Sequence[str]]) -> list[Span]:
    spans = {Span(mention["sent_id"], *mention["pos"]) for mention in entity}
    for document, start, end in spans:
        if not 0 <= document < len(sentences) or not 0 <= start < end <= len(sentences[document]):
            raise ValueError(f"a mention at tokens {start} to {end} of sentence {document}")
    return sorted(spans)


def _text(document: dict[str, Any], spans: Sequence[Span]) -> tuple[str, ...]:
    """An entity's name: its longest mention, the first of them if there are several."""
    sentence, start, end = max(spans, key=lambda span: span.end - span.start)
    return tuple(document["sents"][sentence][start:end])


def _within(evidence: set[int], sentences: int) -> frozenset[int]:
    for number in evidence:
        if not 0 <= number < sentences:
            raise ValueError(f"evidence in sentence {number} of {sentences}")
    return frozenset(evidence)


def load(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise GraphMaskError(f"{path}: expected a file of Re-DocRED, found none to read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and brackets in brackets
        raise GraphMaskError(f"{path}: expected JSON, found otherwise: {error}. Is the file complete?") from error
    if not isinstance(content, kind):
        raise GraphMaskError(f"{path}: expected a JSON {kind.__name__}, found a {type(content).__name__}.")
    return content
