"""What becomes of gates that settled within the tolerance but not within the margin."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from graphmask import hard_concrete, training
from graphmask.calibration import KEEP_ALL, Verdict
from graphmask.training import History, Recipe, Training

SETTLED, OPEN = [0.5, -0.5], [0.5, KEEP_ALL]


def finish(
    monkeypatch: pytest.MonkeyPatch, settled: Verdict, calibrated: Verdict, clear: float
) -> tuple[list[float], Training]:
    """The end of a fit at tolerance .03 whose calibration came to OPEN; the thresholds that were taken."""
    verdicts = {tuple(SETTLED): settled, tuple(OPEN): calibrated}
    validation = SimpleNamespace(
        verdict=lambda thresholds: verdicts[tuple(thresholds)], clear_flips=lambda thresholds, tolerance: clear
    )
    monkeypatch.setattr(training, "Validation", lambda *_: validation)
    monkeypatch.setattr(training, "calibrate", lambda *_: OPEN)
    gates = [SimpleNamespace(shift=torch.zeros(())) for _ in range(2)]
    fit = object.__new__(Training)
    fit.probe = SimpleNamespace(forget=lambda: None, sites=(0, 1), gate=lambda site: gates[site])
    fit.model = fit.forward = fit.divergence = fit.team = None
    fit.recipe, fit.tolerance, fit.best, fit.history = Recipe(), 0.03, None, History()
    fit.thresholds = SETTLED
    fit.finish([])
    return [float(gate.shift) + hard_concrete.EVEN for gate in gates], fit


@pytest.mark.parametrize(
    ("settled", "clear", "taken"),
    [
        (Verdict(0.02, 0.02, (0.0, 0.2)), 0.02, SETTLED),  # within .03, not within .015, and far sparser than what is
        (Verdict(0.02, 0.06, (0.0, 0.2)), 0.02, SETTLED),  # most that changed were undecided
        (Verdict(0.04, 0.0, (0.0, 0.2)), 0.0, OPEN),  # not within tolerance
        (Verdict(0.02, 0.04, (0.0, 0.2)), 0.04, OPEN),  # changes too many predictions
        (Verdict(0.02, 0.0, (0.0, 0.9)), 0.0, OPEN),  # hardly sparser: the margin is worth it
    ],
)
def test_a_margin_is_not_bought_with_all_sparsity(
    settled: Verdict, clear: float, taken: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, fit = finish(monkeypatch, settled, Verdict(0.0, 0.0, (0.0, 1.0)), clear)
    assert found == pytest.approx(taken)
    assert fit.history.feasible
    assert fit.history.verdict == (settled if taken is SETTLED else Verdict(0.0, 0.0, (0.0, 1.0)))
