"""Counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphmask import GraphMaskError
from graphmask.experiments.srl.conll09 import Predicate, Sentence
from graphmask.experiments.srl.scorer import Counts, score


def sentence(*predicates: Predicate, words: tuple[str, ...] = ("the", "cat", "saw", "a", "fall")) -> Sentence:
    size = len(words)
    text, heads = words, (2, 3, 0, 5, 3)[:size]
    blank = ("_",) * size
    return Sentence(text, text, text, blank, blank, blank, blank, heads, heads, blank, blank, predicates)


SAW = Predicate(2, "see.01", ((1, "A0"), (4, "A1")))
FALL = Predicate(4, "fall.01", ((1, "A1"),))
GOLD = [sentence(SAW, FALL)]


def test_what_is_given_back_unchanged_is_right():
    assert score(GOLD, GOLD) == Counts(3, 3, 3)
    assert score(GOLD, GOLD, senses=True) == Counts(5, 5, 5)
    assert score(GOLD, GOLD).f1 == 100.0


def test_wrong_role_missing_argument_and_one_too_many():
    # see: A0 right, A1 mislabelled; fall: its argument missing, another given.
    system = [sentence(Predicate(2, "see.01", ((1, "A0"), (4, "A2"))), Predicate(4, "fall.01", ((0, "A1"),)))]
    found = score(GOLD, system)
    assert found == Counts(1, 3, 3)
    assert found.precision == found.recall == found.f1 == pytest.approx(100 / 3)
    assert score(GOLD, system, labelled=False) == Counts(2, 3, 3)
    assert score(GOLD, system, senses=True) == Counts(3, 5, 5)


def test_fewer_predicted_than_there_are():
    found = score(GOLD, [sentence(Predicate(2, "see.01", ((1, "A0"),)), Predicate(4, "fall.01", ()))])
    assert found == Counts(1, 1, 3)
    assert (found.precision, found.recall, found.f1) == (100.0, pytest.approx(100 / 3), 50.0)


def test_of_a_sense_only_the_number_counts():
    system = [sentence(replace(SAW, sense="saw.01"), replace(FALL, sense="fall.02"))]
    assert score(GOLD, system, senses=True) == Counts(4, 5, 5)
    assert score(GOLD, system, senses=True, labelled=False) == Counts(5, 5, 5)
    assert score(GOLD, system) == Counts(3, 3, 3)


def test_a_predicate_that_was_not_found_and_one_that_is_none():
    system = [sentence(SAW, Predicate(1, "cat.01", ((4, "A1"),)))]
    assert score(GOLD, system, senses=True) == Counts(3, 5, 5)


def test_nothing_predicted_and_nothing_there():
    empty = [sentence()]
    assert (score(GOLD, empty).precision, score(GOLD, empty).f1) == (0.0, 0.0)
    assert score(empty, empty).f1 == 0.0


def test_sentences_add_up():
    assert score(GOLD * 3, [GOLD[0], sentence(SAW), sentence()]) == Counts(5, 5, 9)


def test_files_that_do_not_belong_together():
    with pytest.raises(GraphMaskError, match="as many system sentences as gold ones \\(1\\), found 2"):
        score(GOLD, GOLD * 2)
    with pytest.raises(GraphMaskError, match="same words in sentence 1"):
        score(GOLD, [sentence(words=("the", "dog", "saw", "a", "fall"))])
