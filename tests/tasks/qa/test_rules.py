"""Rules that need no model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from graphmask.experiments.qa import redocred, rules

from .support import NAMES, NORWAY


@pytest.fixture
def question():
    (found,) = redocred.questions(NORWAY, NAMES, Counter())
    return found


def test_what_each_rule_says(question):
    assert rules.most_mentioned(question) == [1, 2, 1]
    # Norway is token 0; Denmark 4; Oslo 6 + 3 and 16; Bergen 6 + 6.
    assert rules.nearest(question) == [-4, -9, -12]
    assert rules.random(question) == [0, 0, 0]
    other = replace(question, answer=2)
    assert rules.most_frequent([question, question, other])(question) == [0, 2, 1]
    assert rules.most_frequent([question])(replace(question, relation=("country",))) == [0, 0, 0]


def test_without_mentions_a_rule_has_no_favourite(question):
    bare = replace(question, mentions=())
    assert rules.nearest(bare) == [-24] * 3
    assert rules.most_mentioned(bare) == [0] * 3


def test_accuracy_shares_ties(question):
    both = [question, replace(question, answer=0)]
    assert rules.accuracies([question], both) == {
        "random candidate": pytest.approx(100 / 3),
        "most mentioned": 50,
        "nearest to the subject": 50,
        "most frequent in training": 50,
    }
    tied = rules.most_frequent([question, replace(question, answer=0)])
    assert rules.accuracy(tied, both) == 50
