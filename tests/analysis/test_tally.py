"""Sums and means over explanations, against a calculation with fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmask.analysis.tally import Tally

from .support import explanation_of, explanations

EDGES = [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_counted_by_hand() -> None:
    """Messages that no layer carried count nowhere, and a large graph counts for more than a small one."""
    found = Tally.of(
        [
            explanation_of(EDGES, [[0, 1], [2]], carried=[[0, 1, 2], [1, 2]], divergence=0.25, flips=0.0),
            explanation_of(EDGES[:1], [[], [0]], divergence=0.01, flips=1.0),
        ]
    )
    assert (found.count, found.kept, found.carried) == (2, 4, 7)
    assert found.sites == ("layer0", "layer1")
    assert found.per_site == [[2, 4], [2, 3]]
    assert found.means == {
        "retained": 4 / 7,
        "retained_per_site": [2 / 4, 2 / 3],
        "divergence": 0.13,
        "flips": 0.5,
        "faithful": 0.5,
    }


def test_of_nothing_and_of_layers_that_differ() -> None:
    assert Tally().means == {"retained": 0, "retained_per_site": [], "divergence": 0, "flips": 0, "faithful": 0}
    one, two = explanation_of(EDGES, [[0]]), explanation_of(EDGES, [[0], [1, 2]])
    found = Tally.of([one, two, one])
    assert (found.sites, found.per_site) == ((), [])
    assert found.retained == 5 / 16


@given(explanations(), st.data())
def test_against_fractions(found: list, data: st.DataObject) -> None:
    for explanation in found:
        explanation.divergence = data.draw(st.integers(0, 64)) / 512
    tally = Tally.of(iter(found))
    for site, share in enumerate(tally.retained_per_site):
        kept = sum(bool(flag) for e in found for flag in e.kept[site])
        carried = sum(bool(flag) for e in found for flag in e.carried[site])
        assert share == (float(Fraction(kept, carried)) if carried else 0)
    assert tally.means["divergence"] == pytest.approx(
        float(sum(Fraction(e.divergence) for e in found) / len(found)), abs=1e-15
    )
    assert tally.means["faithful"] == sum(e.divergence <= e.tolerance for e in found) / len(found)
