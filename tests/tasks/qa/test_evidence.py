"""Agreement with people's evidence."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmask.experiments.qa import evidence
from graphmask.experiments.qa.questions import SUBJECT
from graphmask.explanation import Explanation
from graphmask.graphs.sites import Site


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=12))
def test_area_is_the_chance_of_the_right_order(pairs):
    scores = torch.tensor([float(score) for score, _ in pairs])
    truth = torch.tensor([true for _, true in pairs])
    if not truth.any() or truth.all():
        return
    wins = [(a > b) + 0.5 * (a == b) for a, b in product(scores[truth].tolist(), scores[~truth].tolist())]
    assert evidence.area(scores, truth) == pytest.approx(sum(wins) / len(wins))


def _explanation(kept, scores, marked=(0, 1)):
    """Subject in document 0, answer in 1, another candidate in 2; edges 0>1, 1>0, 0>2, 2>1 at two layers."""
    return Explanation(
        edge_index=torch.tensor([[0, 1, 0, 2], [1, 0, 2, 1]]),
        kept=torch.tensor(kept, dtype=torch.bool),
        scores=torch.tensor(scores),
        carried=torch.ones(2, 4, dtype=torch.bool),
        original=torch.zeros(1, 2),
        masked=torch.zeros(1, 2),
        divergence=0.0,
        flips=0.0,
        tolerance=0.1,
        structure=(Site("conv", "conv", (0,)), Site("conv#1", "conv", (1,))),
        baselines=(torch.zeros(1), torch.zeros(1)),
        num_nodes=4,  # one is padding
        info={
            "mentions": [[0, 0, 1, SUBJECT], [1, 0, 1, 0], [2, 0, 1, 1]],
            "evidence": list(marked),
            "subject_nodes": [0],
            "predicted_nodes": [1],
        },
    )


def test_agreement_by_hand():
    first = _explanation([[1, 0, 1, 0], [0, 0, 0, 1]], [[0.9, 0.2, 0.8, 0.1], [0.1, 0.1, 0.1, 0.7]])
    second = _explanation([[1, 1, 0, 0], [0, 0, 0, 0]], [[0.9, 0.8, 0.1, 0.1], [0.3, 0.1, 0.1, 0.2]])
    silent = _explanation([[1, 1, 1, 1], [1, 1, 1, 1]], [[0.5] * 4] * 2, marked=())
    every = _explanation([[1, 1, 1, 1], [1, 1, 1, 1]], [[0.5] * 4] * 2, marked=(0, 1, 2))
    (row,) = evidence.agreement({"ours": [first, second, silent, every]}).iter_rows(named=True)
    assert row["method"] == "ours"
    assert row["graphs"] == 2
    assert row["edges"] == 4 / 8  # 0>1 and 1>0 in each
    assert row["precision"] == pytest.approx(3 / 5)  # 0>1, 0>2, 2>1; 0>1, 1>0
    assert row["recall"] == pytest.approx(3 / 4)
    assert row["path_precision"] == pytest.approx(2 / 4)  # 0>1, 0>2, 2>1; 0>1
    # First: .9 beats .8 and .7, .2 beats neither; second: both beat both.
    assert row["auc"] == pytest.approx((0.5 + 1) / 2)
    assert row["margin"] == pytest.approx(1.96 * 0.5 / 2**0.5 / 2**0.5)


def test_nothing_to_compare():
    silent = _explanation([[1, 1, 1, 1], [1, 1, 1, 1]], [[0.5] * 4] * 2, marked=())
    (row,) = evidence.agreement({"ours": [silent]}).iter_rows(named=True)
    assert row["graphs"] == 0
    assert row["auc"] is None is row["precision"]
