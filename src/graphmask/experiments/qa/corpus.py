"""Questions with documents: their files, their three parts, and what a reader wants to know of a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa import redocred, wikihop
from graphmask.experiments.qa.examples import Examples, Words
from graphmask.experiments.qa.mentions import RELATIONS
from graphmask.experiments.qa.questions import SUBJECT, Caps, Read
from graphmask.experiments.text import SPLITS
from graphmask.experiments.vectors import Vectors


@dataclass
class Corpus:
    """The three parts of a data set, ready to be batched."""

    words: Words
    parts: dict[str, Examples]
    lost: dict[str, dict[str, int]]  #: by part, what could not be used and what was cut

    @property
    def candidates(self) -> int:
        return self.parts["test"].candidates


def load(folder: Path, *, vectors: Path | None, caps: Caps | None = None, limit: int | None = None) -> Corpus:
    """Re-DocRED or WikiHop, by what the folder holds. ``limit`` takes the first so many documents or questions."""
    caps = caps or Caps()
    reads = {split: part(folder, split, caps, limit) for split in SPLITS}
    every = [question for read in reads.values() for question in read.questions]
    words = Words(every, Vectors.open(vectors))
    most = max((len(question.candidates) for question in every), default=0)
    parts = {split: Examples(read.questions, words, most) for split, read in reads.items()}
    return Corpus(words, parts, {split: dict(read.lost) for split, read in reads.items()})


def part(folder: Path, split: str, caps: Caps, limit: int | None) -> Read:
    """WikiHop publishes no test part: its development file is explained, a tenth of its training file held out."""
    if (folder / redocred.RELATIONS).is_file():
        return redocred.read(folder, split, limit=limit)
    path = folder / ("dev.json" if split == "test" else "train.json")
    if not path.is_file():
        raise GraphMaskError(
            f"Expected Re-DocRED ({', '.join((*redocred.FILES, redocred.RELATIONS))}) or WikiHop (train.json, "
            f"dev.json) in {folder}, found neither."
        )
    clusters = folder / f"{path.stem}.coreference.json"
    read = wikihop.read(path, caps=caps, clusters=clusters if clusters.is_file() else None, limit=limit)
    if split != "test":
        held_out = [number % 10 == 9 for number in range(len(read.questions))]
        wanted = split == "dev"
        read.questions = [q for q, out in zip(read.questions, held_out, strict=True) if out == wanted]
    return read


def describe(examples: Examples, batch: Mapping[str, Any], answers: Tensor) -> list[dict[str, Any]]:
    """What a reader, and the study, want to know of each question beside its explanation."""
    return [record(examples, number, int(answers[number])) for number in batch["example"].tolist()]


def record(examples: Examples, number: int, predicted: int) -> dict[str, Any]:
    question = examples.questions[number]
    relation, subject = " ".join(question.relation), " ".join(question.subject)
    right = question.candidates[question.answer]
    kinds = examples.edge_type[examples.edges_of(number)].tolist()
    notes = [] if predicted == question.answer else [f"The model errs: the answer is {right}."]
    nodes = list(enumerate(question.mentions))
    return {
        "title": f"{relation}: {subject}",
        "id": question.id,
        "query": f"{relation}: {subject}",
        "relation": relation,
        "documents": [list(document) for document in question.documents],
        "mentions": [[*mention.span, mention.entity] for mention in question.mentions],
        "candidates": list(question.candidates),
        "answer": question.answer,
        "predicted": predicted,
        "evidence": sorted(question.evidence),
        "subject_nodes": [node for node, mention in nodes if mention.entity == SUBJECT],
        "predicted_nodes": [node for node, mention in nodes if mention.entity == predicted],
        "edge_labels": [RELATIONS[kind] for kind in kinds],
        "node_labels": [" ".join(question.words(mention)) for mention in question.mentions],
        "notes": notes,
    }
