"""Precision, recall and F1 by hand."""

from __future__ import annotations

import pytest
import torch

from graphmask.experiments.gold import Agreement


def test_counted_by_hand() -> None:
    kept = torch.tensor([True, True, True, False, False])
    gold = torch.tensor([True, True, False, True, False])
    found = Agreement.of(kept, gold)
    assert found.precision == pytest.approx(200 / 3)
    assert found.recall == pytest.approx(200 / 3)
    assert found.f1 == pytest.approx(200 / 3)


def test_nothing_kept_is_no_division_by_zero() -> None:
    nothing, gold = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    assert Agreement.of(nothing, gold) == Agreement(0.0, 0.0, 0.0)
    assert Agreement.of(gold, gold) == Agreement(100.0, 100.0, 100.0)
