"""What becomes of gates that settled within the tolerance but not within the margin."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from graphmask import hard_concrete, training
from graphmask.calibration import KEEP_ALL, Verdict
from graphmask.training import History, Recipe, Training

SETTLED, OPEN, BEST = [0.5, -0.5], [0.5, KEEP_ALL], [0.25, -0.25]


def finish(
    monkeypatch: pytest.MonkeyPatch, settled: Verdict, calibrated: Verdict, clear: float, best: Verdict | None = None
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
    fit.probe = SimpleNamespace(
        forget=lambda: None, sites=(0, 1), gate=lambda site: gates[site], load_state_dict=lambda state: None
    )
    fit.model = fit.forward = fit.divergence = fit.team = None
    fit.recipe, fit.tolerance, fit.history = Recipe(), 0.03, History()
    fit.best = None if best is None else ({}, BEST, best)
    fit.thresholds, fit.step, fit.steps = SETTLED, 1, 1
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


@pytest.mark.parametrize(
    ("retained", "undecided"),
    [((0.0, 1.0), True), ((1.0, 1.0), True), ((0.0, 0.0), False), ((0.0, 0.9), False), ((0.005, 0.995), True)],
)
def test_a_state_that_chooses_nothing_is_undecided(retained: tuple[float, ...], undecided: bool) -> None:
    assert Verdict(0.0, 0.0, retained).undecided == undecided


def aiming(best: Verdict, tightness: float) -> Training:
    """A fit at tolerance .03, between the thaw and settling, whose baselines have moved from 0 to 1."""
    fit = object.__new__(Training)
    fit.recipe, fit.tolerance, fit.steps, fit.step = Recipe(), 0.03, 100, 60
    only = [torch.nn.Parameter(torch.ones(2))]
    fit.probe = SimpleNamespace(baselines=only, logits={}, learned=only)
    fit.starts, fit.bare, fit.tightness = [torch.zeros(2)], False, tightness
    fit.best = {}, [0.0, 0.0], best
    return fit


FAR = Verdict(1.0, 0.0, (0.0, 0.4))


def test_without_any_choice_at_a_low_aim_baselines_go_back_and_stay() -> None:
    fit = aiming(Verdict(0.0, 0.0, (0.0, 1.0)), 1.0)
    fit.thaw()
    assert fit.probe.learned[0].requires_grad
    aims = []
    for _ in range(4):
        fit.tighten(FAR)
        aims.append(fit.tightness)
    assert aims == [0.5, 0.25, 0.5, 0.25]  # an eighth would be hopeless: begin again
    assert fit.bare
    assert torch.equal(fit.probe.learned[0], torch.zeros(2))
    fit.thaw()
    assert not fit.probe.learned[0].requires_grad
    fit.step = 90  # settling
    fit.thaw()
    assert fit.probe.learned[0].requires_grad


@pytest.mark.parametrize(
    ("best", "at_gap"),
    [(Verdict(0.0, 0.0, (0.0, 0.8)), FAR), (Verdict(0.0, 0.0, (0.0, 1.0)), Verdict(0.14, 0.0, (0.0, 0.4)))],
)
def test_a_fit_that_has_found_a_choice_or_is_near_one_keeps_its_baselines_at_any_aim(
    best: Verdict, at_gap: Verdict
) -> None:
    fit = aiming(best, 0.25)
    fit.tighten(at_gap)
    assert (fit.tightness, fit.bare) == (0.125, False)
    assert torch.equal(fit.probe.learned[0], torch.ones(2))


@pytest.mark.parametrize(
    ("best", "taken"),
    [
        (Verdict(0.01, 0.01, (0.0, 0.9)), SETTLED),  # within the margin, at more than twice the price
        (Verdict(0.01, 0.01, (0.0, 0.3)), BEST),  # within the margin, and not much denser
    ],
)
def test_nor_with_a_state_on_the_way(best: Verdict, taken: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    settled = Verdict(0.012, 0.03, (0.0, 0.2))  # three predictions in a hundred change, all but undecided
    found, fit = finish(monkeypatch, settled, Verdict(0.0, 0.0, (0.0, 1.0)), 0.01, best)
    assert found == pytest.approx(taken)
    assert fit.history.feasible
