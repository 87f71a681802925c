"""Agreement of several fits: against statsmodels, by loops, and by hand."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmask import Explanation, GraphMaskError, analysis

from . import literal
from .support import explanation_of, explanations

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from statsmodels.stats.inter_rater import fleiss_kappa as by_statsmodels


@st.composite
def fits(draw: st.DrawFn) -> list[list[Explanation]]:
    """The same graphs with other gates open."""
    first = draw(explanations())
    found = [first]
    for _ in range(draw(st.integers(1, 3))):
        other = []
        for e in first:
            rows = [[draw(st.booleans()) for _ in row] for row in e.kept]
            other.append(replace(e, kept=torch.tensor(rows, dtype=torch.bool).view(e.kept.shape) & e.carried))
        found.append(other)
    return found


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(1, 3), st.data())
def test_kappa_is_that_of_statsmodels(raters: int, categories: int, data: st.DataObject) -> None:
    subjects = data.draw(st.integers(1, 12))
    chosen = [[data.draw(st.integers(0, categories)) for _ in range(raters)] for _ in range(subjects)]
    counts = torch.tensor([[row.count(c) for c in range(categories + 1)] for row in chosen])
    found = analysis.fleiss_kappa(counts)
    with np.errstate(invalid="ignore"):
        expected = float(by_statsmodels(counts.numpy()))
    if math.isnan(expected):  # one category only: ours by definition
        assert found == 1.0
    else:
        assert found == pytest.approx(expected)
    # A row may stand for many.
    rows, times = counts.unique(dim=0, return_counts=True)
    assert analysis.fleiss_kappa(rows, times) == pytest.approx(found)


def test_kappa_by_hand() -> None:
    """Fleiss' own example as Wikipedia has it: 10 subjects, 14 raters, 5 categories, kappa .210."""
    counts = torch.tensor(
        [
            [0, 0, 0, 0, 14],
            [0, 2, 6, 4, 2],
            [0, 0, 3, 5, 6],
            [0, 3, 9, 2, 0],
            [2, 2, 8, 1, 1],
            [7, 7, 0, 0, 0],
            [3, 2, 6, 3, 0],
            [2, 5, 3, 2, 2],
            [6, 5, 2, 1, 0],
            [0, 2, 2, 3, 7],
        ]
    )
    assert analysis.fleiss_kappa(counts) == pytest.approx(0.20993, abs=1e-5)


@pytest.mark.parametrize("counts", [torch.zeros(0, 2), torch.tensor([[1, 0]]), torch.tensor([[2, 0], [2, 1]])])
def test_kappa_of_what_is_no_rating(counts: Tensor) -> None:
    with pytest.raises(GraphMaskError, match="each rated by the same two raters or more"):
        analysis.fleiss_kappa(counts)


def test_by_hand() -> None:
    edges = [(0, 1), (1, 2), (2, 0), (0, 2)]
    together = [[explanation_of(edges, [kept, []])] for kept in ([0, 1], [0, 1], [0, 2])]
    found = analysis.stability(together)
    assert found["layer"].to_list() == [0, 1, None]
    # Gates 0: 3 of 3 votes; 1: 2; 2: 1; 3: 0. Agreeing pairs 1, 1/3, 1/3, 1; half of all votes are open.
    assert found["agreement"].to_list() == pytest.approx([2 / 3, 1.0, 5 / 6])
    assert found["kappa"].to_list() == pytest.approx([(2 / 3 - 1 / 2) / (1 / 2), 1.0, (5 / 6 - 5 / 8) / (3 / 8)])
    assert found["jaccard"].to_list() == pytest.approx([(1 + 1 / 3 + 1 / 3) / 3, 1.0, 5 / 9])
    assert found["retained"].to_list() == pytest.approx([0.5, 0.0, 0.25])
    assert found["gates"].to_list() == [4, 4, 8]
    merged = list(analysis.consensus(together))
    assert merged[0].kept.tolist() == [[True, True, False, False], [False] * 4]
    assert merged[0].scores[0].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert not merged[0].faithful  # nobody has run it
    assert math.isnan(merged[0].divergence)
    assert merged[0].method == "consensus"
    tie = list(analysis.consensus(together[1:]))
    assert tie[0].kept[0].tolist() == [True, False, False, False]  # one of two is no majority


@settings(max_examples=60)
@given(fits(), st.sampled_from([1, 1000]))
def test_by_loops(together: list[list[Explanation]], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphmask.analysis.side_by_side.EDGES_AT_ONCE", at_once)
        found = analysis.stability([iter(fit) for fit in together])
    layers = literal.layers_of(together[0])
    count = len(together)
    for row, chosen in zip(found.to_dicts(), [*([k] for k in layers), layers], strict=True):
        rated = literal.ratings(together, chosen)
        assert row["gates"] == len(rated)
        if not rated:
            assert row["kappa"] is None
            continue
        table = np.array([[sum(r), count - sum(r)] for r in rated])
        with np.errstate(invalid="ignore"):
            kappa = float(by_statsmodels(table))
        assert row["kappa"] == pytest.approx(1.0 if math.isnan(kappa) else kappa)
        assert row["agreement"] == pytest.approx(literal.agreement(rated, count))
        assert row["jaccard"] == pytest.approx(literal.jaccard(rated, count))
        assert row["retained"] == pytest.approx(sum(map(sum, rated)) / (count * len(rated)))
    for merged, *each in zip(analysis.consensus([iter(fit) for fit in together]), *together, strict=True):
        for site, edge in np.ndindex(*merged.kept.shape):
            votes = sum(bool(e.kept[site, edge]) for e in each)
            assert bool(merged.kept[site, edge]) == (votes > count / 2)
            assert float(merged.scores[site, edge]) == pytest.approx(votes / count)


def test_fits_must_be_of_the_same_graphs() -> None:
    one = explanation_of([(0, 1)], [[0]])
    others = [[explanation_of([(1, 0)], [[0]])], [one, one], [explanation_of([(0, 1), (0, 1)], [[0]])]]
    for other in others:
        with pytest.raises(GraphMaskError, match="the same graphs in the same order"):
            analysis.stability([[one], other])
        with pytest.raises(GraphMaskError, match="the same graphs in the same order"):
            list(analysis.consensus([[one], other]))
    with pytest.raises(GraphMaskError, match="at least two fits"):
        analysis.stability([[one]])
    with pytest.raises(GraphMaskError, match="at least two fits"):
        analysis.consensus([one, one])  # type: ignore[list-item]
    with pytest.raises(GraphMaskError, match="Expected explanations of one model"):
        analysis.stability([[one], [explanation_of([(0, 1)], [[0], [0]])]])


def test_one_category_for_all_is_full_agreement_whatever_the_rounding() -> None:
    for subjects in range(1, 3000, 7):
        counts = torch.tensor([[5, 0]]).expand(subjects, 2)
        assert analysis.fleiss_kappa(counts) == 1.0
        assert analysis.fleiss_kappa(counts, torch.rand(subjects) + 0.1) == 1.0
