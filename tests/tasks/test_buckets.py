"""Batches by length."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmask.errors import GraphMaskError
from graphmask.experiments.buckets import batches


@given(
    st.lists(st.integers(1, 30), max_size=60),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 8),
    st.integers(-3, 3),
    st.integers(0, 3),
)
def test_laws(lengths: list[int], tokens: int | None, examples: int | None, seed: int, epoch: int) -> None:
    if tokens is None and examples is None:
        tokens = 50
    made = batches(lengths, tokens=tokens, examples=examples, seed=seed, epoch=epoch)
    assert sorted(number for batch in made for number in batch) == list(range(len(lengths)))
    assert made == batches(lengths, tokens=tokens, examples=examples, seed=seed, epoch=epoch)
    for batch in made:
        assert batch
        assert examples is None or len(batch) <= examples
        assert tokens is None or len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= tokens
    # Similar lengths: no two batches overlap but at their ends.
    ranges = sorted((min(lengths[n] for n in batch), max(lengths[n] for n in batch)) for batch in made)
    assert all(low[1] <= high[0] for low, high in pairwise(ranges))


def test_new_in_every_epoch_and_for_every_seed() -> None:
    lengths = [10] * 50 + [20] * 50
    made = [batches(lengths, tokens=200, seed=seed, epoch=epoch) for seed in (0, 1, 11) for epoch in (0, 1, 10)]
    assert len({str(each) for each in made}) == 9
    assert len({str(sorted(map(sorted, each))) for each in made}) == 9  # not only the order of batches
    assert {len(each) for each in made} == {8}  # 20 short ones or 10 long ones each, and one of both lengths


def test_budgets() -> None:
    for wrong in ({}, {"tokens": 0}, {"examples": -1}):
        with pytest.raises(GraphMaskError, match="budget"):
            batches([1, 2], seed=0, **wrong)
    assert batches([], tokens=5, seed=0) == []
    assert batches([9], tokens=5, seed=0) == [[0]]
