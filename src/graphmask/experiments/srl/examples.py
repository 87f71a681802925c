"""Sentences and their predicates as graphs: one example per predicate, a node per token, two edges per dependency.

Everything lies end to end in a few tensors, so that a batch is cut out by indexing, without a loop over sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.errors import GraphMaskError
from graphmask.experiments.ragged import spans, starts
from graphmask.experiments.srl.conll09 import Predicate, Sentence
from graphmask.experiments.srl.vocabulary import Vocabulary

#: Kinds of predicates. The study is about verbs and nouns; auxiliaries are set aside, as CoNLL-2009 leaves most out.
VERB, NOUN, AUXILIARY, OTHER = "V", "N", "AUX", "other"
KINDS = (VERB, NOUN, AUXILIARY, OTHER)
#: How messages run along a dependency.
FROM_HEAD, TO_HEAD = 0, 1
#: The class of a token that is no argument.
NO_ROLE = 0


def kind_of(sentence: Sentence, predicate: Predicate, predicted: bool = False) -> str:
    """Verb, noun, auxiliary (by its dependency label or tag), or other."""
    tag = sentence.tags(predicted)[predicate.index]
    label = sentence.tree(predicted).labels[predicate.index].split(":")[0]
    if tag == "MD" or (tag.startswith("V") and label in ("aux", "cop")):
        return AUXILIARY
    return {"V": VERB, "N": NOUN}.get(tag[:1], OTHER)


@dataclass(frozen=True)
class Vocabularies:
    """Numbers for everything a model looks up; made from training data alone."""

    words: Vocabulary
    lemmas: Vocabulary
    tags: Vocabulary
    labels: Vocabulary
    frames: Vocabulary  #: lemmas of predicates
    roles: Vocabulary

    @classmethod
    def of(cls, sentences: Sequence[Sentence], *, minimum: int = 2, predicted: bool = False) -> Vocabularies:
        """Words, lemmas and frames that occur less than ``minimum`` times are unknown."""

        def each(part: Any) -> Iterable[str]:
            return (value for sentence in sentences for value in part(sentence))

        return cls(
            words=Vocabulary.of(each(lambda s: [form.lower() for form in s.form]), minimum),
            lemmas=Vocabulary.of(each(lambda s: s.lemmas(predicted)), minimum),
            tags=Vocabulary.of(each(lambda s: s.tags(predicted))),
            labels=Vocabulary.of(each(lambda s: s.tree(predicted).labels)),
            frames=Vocabulary.of(each(lambda s: [s.lemmas(predicted)[p.index] for p in s.predicates]), minimum),
            roles=Vocabulary.of(each(lambda s: [role for p in s.predicates for _, role in p.arguments])),
        )

    def to_json(self) -> dict[str, list[str]]:
        return {name: getattr(self, name).to_json() for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: dict[str, list[str]]) -> Vocabularies:
        return cls(**{name: Vocabulary.from_json(words) for name, words in value.items()})

    @property
    def edge_types(self) -> int:
        return 2 * len(self.labels)

    def edge_type_name(self, edge_type: int) -> str:
        """As in the paper's figures: flow from the head (-->) or to the head (<--)."""
        label = self.labels.words[edge_type // 2]
        return f"{label} -->" if edge_type % 2 == FROM_HEAD else f"{label} <--"


class Examples:
    """All predicates of some kinds in some sentences, ready to be batched."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        vocabularies: Vocabularies,
        *,
        kinds: Sequence[str] = (VERB, NOUN),
        predicted: bool = False,
    ) -> None:
        self.sentences, self.vocabularies, self.predicted = sentences, vocabularies, predicted
        v = vocabularies
        self.at: list[tuple[int, int]] = []  # sentence, predicate in it
        self.kinds: list[str] = []
        for number, sentence in enumerate(sentences):
            for which, predicate in enumerate(sentence.predicates):
                kind = kind_of(sentence, predicate, predicted)
                if kind in kinds:
                    self.at.append((number, which))
                    self.kinds.append(kind)
        if not self.at:
            raise GraphMaskError(f"Expected predicates of kind {' or '.join(kinds)} in the sentences, found none.")

        def flat(words: Vocabulary, part: Any) -> Tensor:
            return words.encode([value for sentence in sentences for value in part(sentence)])

        self.sizes = torch.tensor([len(sentence) for sentence in sentences])
        self.first = starts(self.sizes)[:-1]
        self.tokens = torch.stack(
            [
                flat(v.words, lambda s: [form.lower() for form in s.form]),
                flat(v.lemmas, lambda s: s.lemmas(predicted)),
                flat(v.tags, lambda s: s.tags(predicted)),
            ],
            1,
        )
        # Two edges per dependency, next to each other: head to dependent, dependent to head; none for the root.
        heads = torch.tensor([head for s in sentences for head in s.tree(predicted).heads]) - 1
        labels = flat(v.labels, lambda s: s.tree(predicted).labels)
        within = spans(torch.zeros_like(self.sizes), self.sizes)
        attached = heads >= 0
        heads, dependents, labels = heads[attached], within[attached], labels[attached]
        down = torch.stack([heads, dependents])
        self.edge_index = torch.stack([down, down.flip(0)], 2).flatten(1)  # within the sentence
        self.edge_type = torch.stack([2 * labels + FROM_HEAD, 2 * labels + TO_HEAD], 1).flatten()
        owner = torch.arange(len(sentences)).repeat_interleave(self.sizes)[attached]
        self.edge_sizes = 2 * torch.bincount(owner, minlength=len(sentences))
        self.edge_first = starts(self.edge_sizes)[:-1]

        asked = [(sentences[number], sentences[number].predicates[which]) for number, which in self.at]
        self.sentence = torch.tensor([number for number, _ in self.at])
        self.predicate = torch.tensor([predicate.index for _, predicate in asked])
        self.frame = v.frames.encode([s.lemmas(predicted)[predicate.index] for s, predicate in asked])
        counts = torch.tensor([len(predicate.arguments) for _, predicate in asked])
        self.argument_first, self.argument_sizes = starts(counts)[:-1], counts
        self.argument_token = torch.tensor([token for _, p in asked for token, _ in p.arguments], dtype=torch.long)
        self.argument_role = v.roles.encode([role for _, p in asked for _, role in p.arguments])

    def __len__(self) -> int:
        return len(self.at)

    def lengths(self) -> list[int]:
        """Tokens per example."""
        return self.sizes[self.sentence].tolist()

    def predicate_of(self, example: int) -> tuple[Sentence, Predicate]:
        number, which = self.at[example]
        return self.sentences[number], self.sentences[number].predicates[which]

    def batch(self, examples: Sequence[int]) -> Batch:
        """``x`` ``[N, 4]`` is word, lemma, tag and whether the token is the predicate; ``y`` ``[N]`` the roles.

        ``predicate`` ``[B]`` is the node that is the predicate, ``frame`` its lemma, ``example`` the number here,
        ``arguments`` how many there are, including those whose roles training never showed and which have no number.
        """
        chosen = torch.as_tensor(list(examples))
        sentence = self.sentence[chosen]
        sizes, edge_sizes, argument_sizes = self.sizes[sentence], self.edge_sizes[sentence], self.argument_sizes[chosen]
        ptr = starts(sizes)
        tokens = self.tokens[spans(self.first[sentence], sizes)]
        edges = spans(self.edge_first[sentence], edge_sizes)
        arguments = spans(self.argument_first[chosen], argument_sizes)
        predicate = ptr[:-1] + self.predicate[chosen]
        marked = torch.zeros(len(tokens), 1, dtype=torch.long)
        marked[predicate] = 1
        y = torch.full((len(tokens),), NO_ROLE)
        y[ptr[:-1].repeat_interleave(argument_sizes) + self.argument_token[arguments]] = self.argument_role[arguments]
        return Batch(
            x=torch.cat([tokens, marked], 1),
            edge_index=self.edge_index[:, edges] + ptr[:-1].repeat_interleave(edge_sizes),
            edge_type=self.edge_type[edges],
            batch=torch.arange(len(chosen)).repeat_interleave(sizes),
            ptr=ptr,
            predicate=predicate,
            frame=self.frame[chosen],
            example=chosen,
            arguments=argument_sizes,
            y=y,
        )
