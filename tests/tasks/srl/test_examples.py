"""Sentences as graphs: by hand, and against a loop over tokens."""

from __future__ import annotations

import pytest
import torch

from graphmask import GraphMaskError
from graphmask.experiments.srl.conll09 import Predicate, Sentence
from graphmask.experiments.srl.examples import AUXILIARY, NOUN, OTHER, VERB, Examples, Vocabularies, kind_of


def sentence(words: str, tags: str, heads: tuple[int, ...], labels: str, *predicates: Predicate) -> Sentence:
    form, tag, label = (tuple(text.split()) for text in (words, tags, labels))
    blank = ("_",) * len(form)
    return Sentence(form, form, form, tag, tag, blank, blank, heads, heads, label, label, predicates)


CAT = sentence(
    "The cat saw a fall", "DT NN VBD DT NN", (2, 3, 0, 5, 3), "det nsubj root det obj",
    Predicate(2, "see.01", ((1, "A0"), (4, "A1"))), Predicate(4, "fall.01", ((1, "A1"),)),
)  # fmt: skip
IS = sentence("It is red", "PRP VBZ JJ", (3, 3, 0), "nsubj cop root", Predicate(1, "be.01", ((0, "A1"),)))
RAN = sentence("It ran", "PRP VBD", (2, 0), "nsubj root", Predicate(1, "run.02", ((0, "A0"),)))
ALL = [CAT, IS, RAN]


@pytest.fixture(scope="module")
def examples() -> Examples:
    return Examples(ALL, Vocabularies.of(ALL, minimum=1))


def test_kinds():
    assert [kind_of(s, p) for s in ALL for p in s.predicates] == [VERB, NOUN, AUXILIARY, VERB]
    red = sentence("red", "JJ", (0,), "root", Predicate(0, "red.02", ()))
    assert kind_of(red, red.predicates[0]) == OTHER


def test_auxiliaries_are_left_out_unless_asked_for(examples):
    assert examples.at == [(0, 0), (0, 1), (2, 0)]
    assert examples.kinds == [VERB, NOUN, VERB]
    assert Examples(ALL, examples.vocabularies, kinds=[AUXILIARY]).at == [(1, 0)]
    with pytest.raises(GraphMaskError, match="predicates of kind other in the sentences, found none"):
        Examples(ALL, examples.vocabularies, kinds=[OTHER])


def test_a_batch_by_hand(examples):
    v, batch = examples.vocabularies, examples.batch([1, 2])
    assert batch.ptr.tolist() == [0, 5, 7]
    assert batch.batch.tolist() == [0] * 5 + [1] * 2
    assert v.words.decode(batch.x[:, 0]) == ["the", "cat", "saw", "a", "fall", "it", "ran"]
    assert batch.x[:, 3].tolist() == [0, 0, 0, 0, 1, 0, 1]
    assert batch.predicate.tolist() == [4, 6]
    assert v.frames.decode(batch.frame) == ["fall", "ran"]
    assert v.roles.decode(batch.y) == ["<unknown>", "A1", *["<unknown>"] * 3, "A0", "<unknown>"]
    assert batch.arguments.tolist() == [1, 1]
    # Each dependency twice: from the head, to the head; none for the root.
    ends = batch.edge_index.t().tolist()
    assert ends == [[1, 0], [0, 1], [2, 1], [1, 2], [4, 3], [3, 4], [2, 4], [4, 2], [6, 5], [5, 6]]
    names = [v.edge_type_name(kind) for kind in batch.edge_type.tolist()]
    assert names == [
        "det -->", "det <--", "nsubj -->", "nsubj <--", "det -->", "det <--", "obj -->", "obj <--", "nsubj -->",
        "nsubj <--",
    ]  # fmt: skip


def test_batches_are_their_examples_side_by_side(examples):
    together = examples.batch([2, 0, 1])
    for place, number in enumerate([2, 0, 1]):
        alone = examples.batch([number])
        nodes = slice(*together.ptr[place : place + 2].tolist())
        mine = together.batch[together.edge_index[0]] == place
        assert torch.equal(together.x[nodes], alone.x)
        assert torch.equal(together.y[nodes], alone.y)
        assert torch.equal(together.edge_index[:, mine] - nodes.start, alone.edge_index)
        assert torch.equal(together.edge_type[mine], alone.edge_type)
        assert int(together.predicate[place]) - nodes.start == int(alone.predicate[0])


def test_rare_words_are_unknown_and_so_are_new_roles():
    v = Vocabularies.of(ALL, minimum=2)
    assert v.words.words == ("<unknown>", "it")
    new = sentence("It ran", "PRP VBD", (2, 0), "nsubj root", Predicate(1, "run.02", ((0, "A7"),)))
    batch = Examples([new], v).batch([0])
    assert batch.y.tolist() == [0, 0]
    assert batch.arguments.tolist() == [1]


def test_vocabularies_come_back_from_json(examples):
    assert Vocabularies.from_json(examples.vocabularies.to_json()) == examples.vocabularies


def test_a_sentence_of_one_word_has_no_edges():
    go = sentence("Go", "VB", (0,), "root", Predicate(0, "go.01", ()))
    found = Examples([go, RAN], Vocabularies.of([go, RAN], minimum=1)).batch([0, 1])
    assert found.edge_index.tolist() == [[2, 1], [1, 2]]
