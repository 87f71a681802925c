"""Questions as graphs: a node per mention, four relations; cut into batches of either form by indexing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.errors import GraphMaskError
from graphmask.experiments import buckets
from graphmask.experiments.qa import mentions
from graphmask.experiments.qa.mentions import RELATIONS
from graphmask.experiments.qa.model import FORMS
from graphmask.experiments.qa.questions import SUBJECT, Question
from graphmask.experiments.ragged import spans, starts
from graphmask.experiments.vectors import Vectors

#: The word where a padded query has none; words that are unknown are 1.
PADDING, UNKNOWN = 0, 1
#: Graphs of hundreds of mentions are batched by few.
ENTRIES = 1 << 21


class Words:
    """The words of some questions and their vectors.

    A word without one (a year, a rare name) gets a random vector, always the same: with zeros, any two of them would
    be one and the same to the model. Padding and words of other questions have zeros.
    """

    def __init__(self, questions: Sequence[Question], source: Vectors) -> None:
        words = {word.lower() for q in questions for word in q.query}
        words |= {word.lower() for q in questions for mention in q.mentions for word in q.words(mention)}
        listed = sorted(words)
        vectors = source.for_words(listed)
        self.number = {word: at + 2 for at, word in enumerate(listed)}
        self.table = torch.cat(
            [torch.zeros(2, vectors.table.shape[1]), vectors.table + vectors.initial(0)[vectors.slots]]
        )
        self.known = float(vectors.found.float().mean()) if len(listed) else 0.0

    def encode(self, words: Sequence[str]) -> list[int]:
        return [self.number.get(word.lower(), UNKNOWN) for word in words]


class Examples:
    """Questions ready to be batched; every one has at least one mention of a candidate."""

    def __init__(self, questions: Sequence[Question], words: Words, candidates: int) -> None:
        if not questions:
            raise GraphMaskError("Expected at least one question, got none.")
        self.questions, self.candidates = questions, candidates
        most = max(len(q.candidates) for q in questions)
        if most > candidates:
            raise GraphMaskError(f"Expected at most {candidates} candidates, got a question with {most}.")
        self.lengths = torch.tensor([len(q.query) for q in questions])
        self.query = torch.full((len(questions), int(self.lengths.max())), PADDING)
        for row, q in zip(self.query, questions, strict=True):
            row[: len(q.query)] = torch.tensor(words.encode(q.query))
        self.answer = torch.tensor([q.answer for q in questions])
        self.answerable = torch.tensor([q.answerable for q in questions])
        self.sizes = torch.tensor([len(q.mentions) for q in questions])
        self.first = starts(self.sizes)[:-1]
        self.entity = torch.tensor([mention.entity for q in questions for mention in q.mentions])
        self.x = _means(words, [q.words(mention) for q in questions for mention in q.mentions])
        edges = [mentions.edges(q) for q in questions]
        self.edge_sizes = torch.tensor([len(kinds) for _, kinds in edges])
        self.edge_first = starts(self.edge_sizes)[:-1]
        self.edge_index = torch.cat([index for index, _ in edges], 1)  # within the graph
        self.edge_type = torch.cat([kinds for _, kinds in edges])
        receiver = self.edge_index[1] + self.first.repeat_interleave(self.edge_sizes)
        slot = receiver * len(RELATIONS) + self.edge_type
        neighbours = torch.bincount(slot, minlength=len(self.x) * len(RELATIONS))
        self.edge_weight = 1 / neighbours[slot].to(self.x.dtype)

    def __len__(self) -> int:
        return len(self.questions)

    def edges_of(self, number: int) -> slice:
        """Where a question's edges lie."""
        first = int(self.edge_first[number])
        return slice(first, first + int(self.edge_sizes[number]))

    def batch(self, numbers: Sequence[int], form: str = "matrix") -> Any:
        """A batch for either form of the model; ``y`` ``[B]`` is the answer, ``example`` the number here."""
        chosen = torch.as_tensor(list(numbers))
        sizes, edge_sizes = self.sizes[chosen], self.edge_sizes[chosen]
        nodes, edges = spans(self.first[chosen], sizes), spans(self.edge_first[chosen], edge_sizes)
        lengths = self.lengths[chosen]
        common = {
            "query": self.query[chosen, : int(lengths.max())],
            "lengths": lengths,
            "y": self.answer[chosen],
            "example": chosen,
        }
        if form == "edges":
            ptr = starts(sizes)
            return Batch(
                x=self.x[nodes],
                entity=self.entity[nodes],
                edge_index=self.edge_index[:, edges] + ptr[:-1].repeat_interleave(edge_sizes),
                edge_type=self.edge_type[edges],
                edge_weight=self.edge_weight[edges],
                batch=torch.arange(len(chosen)).repeat_interleave(sizes),
                ptr=ptr,
                **common,
            )
        if form != "matrix":
            raise GraphMaskError(f"Expected a form among {', '.join(FORMS)}, got {form!r}.")
        graphs, most = len(chosen), int(sizes.max())
        owner, column = torch.arange(graphs).repeat_interleave(sizes), spans(torch.zeros_like(sizes), sizes)
        x = self.x.new_zeros(graphs, most, self.x.shape[1])
        x[owner, column] = self.x[nodes]
        entity = torch.full((graphs, most), SUBJECT)  # scores nothing, as padding must
        entity[owner, column] = self.entity[nodes]
        adjacency = self.x.new_zeros(graphs, len(RELATIONS), most, most)
        sender, receiver = self.edge_index[:, edges]
        whose = torch.arange(graphs).repeat_interleave(edge_sizes)
        adjacency[whose, self.edge_type[edges], receiver, sender] = self.edge_weight[edges]
        return {"x": x, "entity": entity, "adjacency": adjacency, **common}


def _means(words: Words, names: Sequence[Sequence[str]]) -> Tensor:
    """[n, d] the mean vector of each name's words."""
    sizes = torch.tensor([len(name) for name in names])
    rows = words.table[torch.tensor([word for name in names for word in words.encode(name)], dtype=torch.long)]
    owner = torch.arange(len(names)).repeat_interleave(sizes)
    total = rows.new_zeros(len(names), rows.shape[1]).index_add(0, owner, rows)
    return total / sizes.clamp_min(1)[:, None]


class Loader:
    """Batches of graphs of similar size, always the same ones; cut out when they are asked for.

    A batch has at most ``size`` graphs, and at most ``ENTRIES`` entries in its adjacency matrices.
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        *,
        form: str = "matrix",
        seed: int = 0,
        epoch: int = 0,
        only: Tensor | None = None,
    ) -> None:
        self.examples, self.form = examples, form
        numbers = torch.arange(len(examples)) if only is None else only
        entries = len(RELATIONS) * examples.sizes[numbers] ** 2
        chosen = buckets.batches(entries.tolist(), tokens=ENTRIES, examples=size, seed=seed, epoch=epoch)
        self.batches = [numbers[batch].tolist() for batch in chosen]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return (self.examples.batch(numbers, self.form) for numbers in self.batches)
