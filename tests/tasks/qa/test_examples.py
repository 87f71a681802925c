"""Questions as graphs, in both forms."""

from __future__ import annotations

import pytest
import torch

from graphmask.errors import GraphMaskError
from graphmask.experiments.buckets import in_order
from graphmask.experiments.qa.examples import Examples, Loader, Words
from graphmask.experiments.qa.mentions import RELATIONS
from graphmask.experiments.vectors import Vectors


def _neighbours(question, relation, node):
    """By the definition of the four relations, literally."""
    found = []
    for other, mention in enumerate(question.mentions):
        if other == node:
            continue
        mine = question.mentions[node]
        words = [tuple(word.lower() for word in question.words(m)) for m in (mine, mention)]
        match = words[0] == words[1] and mine.entity == mention.entity
        document = mine.span.document == mention.span.document
        coref = mine.cluster == mention.cluster
        holds = {"MATCH": match, "DOC-BASED": document, "COREF": coref}
        holds["COMPLEMENT"] = not (match or document or coref)
        if holds[relation]:
            found.append(other)
    return found


def test_the_matrices_are_those_of_the_definition(examples):
    numbers = [3, 0, 11]
    batch = examples.batch(numbers)
    assert batch["adjacency"].shape[:2] == (3, 4)
    for graph, number in enumerate(numbers):
        question = examples.questions[number]
        expected = torch.zeros_like(batch["adjacency"][graph])
        for kind, relation in enumerate(RELATIONS):
            for node in range(len(question.mentions)):
                neighbours = _neighbours(question, relation, node)
                for other in neighbours:
                    expected[kind, node, other] = 1 / len(neighbours)
        assert torch.equal(batch["adjacency"][graph], expected)


def test_both_forms_hold_the_same_graph(examples):
    numbers = [5, 0, 2]
    dense, edges = examples.batch(numbers), examples.batch(numbers, "edges")
    rebuilt = torch.zeros_like(dense["adjacency"])
    sender, receiver = edges.edge_index
    graph = edges.batch[receiver]
    first = edges.ptr[graph]
    rebuilt[graph, edges.edge_type, receiver - first, sender - first] = edges.edge_weight
    assert torch.equal(rebuilt, dense["adjacency"])
    for place, number in enumerate(numbers):
        size = len(examples.questions[number].mentions)
        rows = slice(int(edges.ptr[place]), int(edges.ptr[place + 1]))
        assert torch.equal(dense["x"][place, :size], edges.x[rows])
        assert torch.equal(dense["entity"][place, :size], edges.entity[rows])
        assert (dense["entity"][place, size:] < 0).all()
        assert not dense["x"][place, size:].any()
    for key in ("query", "lengths", "y", "example"):
        assert torch.equal(dense[key], edges[key])
    assert dense["y"].tolist() == [examples.questions[number].answer for number in numbers]


def test_a_mention_is_the_mean_of_its_known_words(examples, glove):
    (question,) = [q for q in examples.questions if q.id.startswith("Norway")]
    number = examples.questions.index(question)
    words = Vectors.open(glove).for_words(["norway", "oslo"]).table
    rows = examples.x[examples.first[number] :]
    assert torch.equal(rows[0], words[0])
    assert torch.equal(rows[2], words[1])
    table = Words(examples.questions, Vectors.open(glove))
    assert table.encode(["Norway", "never seen"]) == [table.number["norway"], 1]
    assert not table.table[:2].any()


def test_padding_of_queries(examples):
    batch = examples.batch(range(10))
    for row, number in enumerate(batch["example"].tolist()):
        length = len(examples.questions[number].query)
        assert int(batch["lengths"][row]) == length
        assert (batch["query"][row, :length] > 0).all()
        assert (batch["query"][row, length:] == 0).all()


def test_loaders_give_every_question_once(examples):
    for epoch in (0, 1):
        seen = torch.cat([batch["example"] for batch in Loader(examples, 7, epoch=epoch)])
        assert sorted(seen.tolist()) == list(range(len(examples)))
    orders = [[batch["example"].tolist() for batch in Loader(examples, 7, epoch=epoch)] for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert torch.cat([batch["example"] for batch in in_order(examples, 9)]).tolist() == list(range(len(examples)))
    some = torch.tensor([4, 2])
    assert sorted(torch.cat([b["example"] for b in Loader(examples, 7, only=some)]).tolist()) == [2, 4]


def test_refusals(examples, glove):
    words = Words(examples.questions, Vectors.open(glove))
    with pytest.raises(GraphMaskError, match="Expected at least one question"):
        Examples([], words, 6)
    with pytest.raises(GraphMaskError, match="at most 2 candidates, got a question with 4"):
        Examples(examples.questions, words, 2)
    with pytest.raises(GraphMaskError, match="a form among matrix, edges, got 'sparse'"):
        examples.batch([0], "sparse")
