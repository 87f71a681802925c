"""Labelled F1 of semantic roles, counted as the CoNLL-2009 scorer counts it.

What is counted are dependencies: from a predicate to each argument, labelled by the role, and, with senses, one from
an imagined root to each predicate, labelled by its sense. Of a sense only the part behind the last dot is compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphmask.errors import GraphMaskError
from graphmask.experiments.srl.conll09 import Sentence


@dataclass(frozen=True)
class Counts:
    """Dependencies that are right, that were predicted, and that there are."""

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.correct + other.correct, self.predicted + other.predicted, self.gold + other.gold)

    @property
    def precision(self) -> float:
        """In per cent, like the others; 0 where nothing was predicted."""
        return 100 * self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return 100 * self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        together = self.predicted + self.gold
        return 200 * self.correct / together if together else 0.0


def dependencies(sentence: Sentence, *, senses: bool, labelled: bool = True) -> set[tuple[int, int, str]]:
    """(predicate, token, role), and for senses (-1, predicate, sense)."""
    triples = {(p.index, token, role) for p in sentence.predicates for token, role in p.arguments}
    if senses:
        triples |= {(-1, p.index, p.sense.rsplit(".", 1)[-1]) for p in sentence.predicates}
    return triples if labelled else {(head, token, "") for head, token, _ in triples}


def score(
    gold: Iterable[Sentence], system: Iterable[Sentence], *, senses: bool = False, labelled: bool = True
) -> Counts:
    """Compare sentence by sentence. Arguments of a predicate that is none are wrong, as those of one not found are."""
    total = Counts()
    golds, systems = list(gold), list(system)
    if len(golds) != len(systems):
        raise GraphMaskError(f"Expected as many system sentences as gold ones ({len(golds)}), found {len(systems)}.")
    for number, (right, given) in enumerate(zip(golds, systems, strict=True)):
        if right.form != given.form:
            raise GraphMaskError(
                f"Expected the same words in sentence {number + 1} of both, found {' '.join(right.form[:6])!r} and "
                f"{' '.join(given.form[:6])!r}."
            )
        a, b = (dependencies(sentence, senses=senses, labelled=labelled) for sentence in (right, given))
        total += Counts(len(a & b), len(b), len(a))
    return total
