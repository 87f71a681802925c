"""Words as numbers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmask.errors import GraphMaskError
from graphmask.experiments.srl.vocabulary import Vocabulary


def test_by_hand() -> None:
    vocabulary = Vocabulary.of(["b", "a", "c", "c", "b", "d", "c"], minimum=2)
    assert vocabulary.words == ("<unknown>", "c", "b")
    assert Vocabulary.of("bacdca").words[1:] == ("a", "c", "b", "d")
    assert vocabulary.encode(["b", "a", "c", "<unknown>"]).tolist() == [2, 0, 1, 0]
    assert vocabulary.encode([]).tolist() == []
    assert vocabulary.decode(vocabulary.encode(["b", "a"])) == ["b", "<unknown>"]
    assert len(vocabulary) == 3
    assert "b" in vocabulary
    assert "a" not in vocabulary
    assert "<unknown>" not in vocabulary


@given(st.lists(st.text(max_size=3)), st.integers(1, 3))
def test_laws(words: list[str], minimum: int) -> None:
    vocabulary = Vocabulary.of(words, minimum)
    assert Vocabulary.of(sorted(words), minimum) == vocabulary  # only counts matter
    for word in words:
        number = int(vocabulary.encode([word])[0])
        assert (number > 0) == (words.count(word) >= minimum)
        assert number == 0 or vocabulary.words[number] == word
    assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary


@pytest.mark.parametrize("wrong", [None, {"a": 1}, ["a", 1], ["a", "a"], ["<unknown>"]])
def test_not_a_vocabulary(wrong: object) -> None:
    with pytest.raises(GraphMaskError, match="Expected"):
        Vocabulary.from_json(wrong)
