"""A corpus of sentences with roles: its files, its three parts, and what a reader wants to know of an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch

from graphmask.errors import GraphMaskError
from graphmask.experiments.srl import conll09
from graphmask.experiments.srl.examples import NO_ROLE, Examples, Vocabularies
from graphmask.experiments.text import SPLITS
from graphmask.experiments.vectors import Found, Vectors

#: Files of a corpus by split: our own names, then those of the shared task.
NAMES = {"train": ("train.conll09", "*train*"), "dev": ("dev.conll09", "*development*", "*dev*")}
NAMES["test"] = ("test.conll09", "*evaluation-English.*", "*test*")


@dataclass
class Corpus:
    """The three parts of a corpus, encoded by what the training part shows."""

    vocabularies: Vocabularies
    vectors: Found
    parts: dict[str, Examples]

    @property
    def counts(self) -> dict[str, int]:
        v = self.vocabularies
        sizes = {name: len(getattr(v, name)) for name in ("lemmas", "tags", "frames", "roles")}
        return {**sizes, "edge_types": v.edge_types}


def find(folder: Path, split: str) -> Path:
    """The file of a split, by our names or those of the shared task."""
    for pattern in NAMES[split]:
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(paths) == 1:
            return paths[0]
        if paths:
            names = ", ".join(path.name for path in paths)
            raise GraphMaskError(f"Expected one {split} file in {folder}, found {names}. Name yours {NAMES[split][0]}.")
    raise GraphMaskError(f"Expected a {split} file in {folder}, found none. Name yours {NAMES[split][0]}.")


def load(
    folder: Path,
    *,
    minimum: int,
    vectors: Path | None,
    predicted: bool = True,
    limit: int | None = None,
    vocabularies: Vocabularies | None = None,
) -> Corpus:
    """Read and encode. ``limit`` takes the first so many sentences of every file, for trying things out."""
    sentences = {split: conll09.read(find(folder, split), limit=limit) for split in SPLITS}
    if vocabularies is None:
        vocabularies = Vocabularies.of(sentences["train"], minimum=minimum, predicted=predicted)
    words = list(vocabularies.words.words)
    parts = {split: Examples(part, vocabularies, predicted=predicted) for split, part in sentences.items()}
    return Corpus(vocabularies, Vectors.open(vectors).for_words(words), parts)


def describe(examples: Examples, batch: Batch, roles: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """What a reader, and the study, want to know of each example beside its explanation."""
    v = examples.vocabularies
    names = v.roles.words
    records = []
    for number in batch.example.tolist():
        sentence, predicate = examples.predicate_of(number)
        gold = dict(predicate.arguments)
        given = {token: names[role] for token, role in enumerate(roles[number].tolist()) if role != NO_ROLE}
        others = {token for other in sentence.predicates if other is not predicate for token, _ in other.arguments}
        wrong = [f"{sentence.form[t]} is {gold[t]}" for t in gold if given.get(t) != gold[t]]
        wrong += [f"{sentence.form[t]} has no role" for t in given if t not in gold]
        sentence_number, which = examples.at[number]
        records.append(
            {
                "title": f"{predicate.sense} in sentence {sentence_number + 1}",
                "tokens": list(sentence.form),
                "predicate": predicate.index,
                "sense": predicate.sense,
                "which": which,
                "kind": examples.kinds[number],
                "roles": [given.get(token, "_") for token in range(len(sentence))],
                "gold_roles": [gold.get(token, "_") for token in range(len(sentence))],
                "other_arguments": sorted(others),
                "notes": [f"The model errs: {'; '.join(wrong)}."] if wrong else [],
            }
        )
    edges = [v.edge_type_name(kind) for kind in batch.edge_type.tolist()]
    owner = batch.batch[batch.edge_index[0]].tolist()
    for record in records:
        record["edge_labels"] = []
    for name, graph in zip(edges, owner, strict=True):
        records[graph]["edge_labels"].append(name)
    return records
