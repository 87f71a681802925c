"""The schedule of a fit, what it aims at, and which state it ends with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from graphmask import GraphMask
from graphmask.fitting import training
from graphmask.fitting.calibration import Candidate, Verdict
from graphmask.fitting.history import Epoch, History
from graphmask.fitting.recipe import PAPER, Recipe
from graphmask.fitting.training import Training, take
from graphmask.gates import hard_concrete
from graphmask.gates.passes import Gated

TOLERANCE = 0.04


def fresh(recipe: Recipe = Recipe(), steps: int = 100) -> Training:  # noqa: B008
    """A training of a two-layer GCN that has not begun."""
    torch.manual_seed(0)
    model = GCN(4, 4, num_layers=2, out_channels=2).eval()
    graph = Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12)))
    explainer = GraphMask(model, tolerance=TOLERANCE, recipe=Recipe(steps=1))
    explainer.fit([graph], progress=False)
    assert explainer.probe is not None
    for site in range(2):
        explainer.probe.gate(site).shift.zero_()
    return Training(explainer.probe, explainer.subject, TOLERANCE, recipe, seed=0, steps=steps)


def test_the_aim_rises_geometrically_and_then_stays() -> None:
    fit = fresh(steps=1000)
    aims = {}
    for step in (0, 298, 595, 700, 849):  # 595 is 70 % of the noisy phase, which has 850 steps
        fit.step = step
        aims[step] = fit.target() / TOLERANCE
    assert aims[0] == pytest.approx(0.05)
    assert aims[595] == pytest.approx(0.6)
    assert aims[298] == pytest.approx((0.05 * 0.6) ** 0.5, rel=1e-2)
    assert aims[700] == aims[849] == pytest.approx(0.6)
    fit.caution = 2.0
    assert fit.target() == pytest.approx(0.3 * TOLERANCE)


def test_rates_rise_stay_fall_and_settle() -> None:
    fit = fresh(steps=1000)
    rates = []
    for step in (0, 19, 400, 509, 714, 849, 850, 925, 999):
        fit.step = step
        rates.append(fit.rate())
    assert rates[:5] == pytest.approx([0.05, 1.0, 1.0, 1.0, 0.4], abs=3e-3)
    assert rates[5] == pytest.approx(1 / 850 / 0.4, abs=1e-4)
    assert rates[6:] == pytest.approx([1.0, 0.5, 1 / 150])
    fit.begin_step()
    assert fit.optimiser.param_groups[0]["lr"] == pytest.approx(fit.recipe.learning_rate / 150)


def test_gates_are_noisy_and_then_hard() -> None:
    fit, location = fresh(), torch.tensor([-3.0, -0.1, 0.0, 0.1, 3.0])
    draws = torch.stack([fit.activate(location, 0) for _ in range(400)])
    assert float(draws[:, 0].mean()) < 0.01
    assert float(draws[:, 4].mean()) > 0.99
    assert float((draws[:, 2] > 0.5).float().mean()) == pytest.approx(0.5, abs=0.08)
    # The noise is logistic, and less when the phase is drawn out.
    assert float((draws[:, 3] > 0.5).float().mean()) == pytest.approx(1 / (1 + math.exp(-1 / 3)), abs=0.06)
    assert fit.noise == 1.0
    fit.drawn_out = fit.step = 50
    assert fit.noise == 0.75
    fit.drawn_out = fit.step = 100
    draws = torch.stack([fit.activate(location, 0) for _ in range(400)])
    assert float((draws[:, 3] > 0.5).float().mean()) == pytest.approx(1 / (1 + math.exp(-2 / 3)), abs=0.06)
    fit.step = 190
    assert fit.activate(location, 0).tolist() == [0, 0, 0, 1, 1]


def test_the_price_is_linear_in_the_location_and_a_mean_over_edges_and_sites() -> None:
    fit = fresh()
    gates = [Gated(torch.tensor([-3.0, 0.0, 3.0]), torch.ones(3)), Gated(torch.tensor([3.0]), torch.ones(1))]
    assert fit.price(gates[0]).tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert float(fit.penalty(gates)) == pytest.approx(0.75)
    assert float(fit.penalty([gates[0], Gated(torch.empty(0), torch.empty(0))])) == pytest.approx(0.5)


def test_the_authors_loss() -> None:
    fit = fresh(PAPER)
    fit.step = 99
    gates = [Gated(torch.tensor([0.3, -0.3]), torch.ones(2)), Gated(torch.tensor([0.0]), torch.ones(1))]
    open_ = [torch.sigmoid(torch.tensor(x) - hard_concrete.EVEN) for x in (1.0, -1.0, 0.0)]
    assert float(fit.penalty(gates)) == pytest.approx(5 * float((open_[0] + open_[1]) / 2 + open_[2]), rel=1e-6)
    excess = fit.constrained(torch.tensor([0.0, TOLERANCE, TOLERANCE + 0.5]))
    assert excess.tolist() == pytest.approx([0.0, 0.0, 0.5], abs=1e-7)
    assert fit.rate() == 1.0


def test_the_authors_recipe_opens_sites_from_the_top_down() -> None:
    fit = fresh(PAPER)
    opened = []
    for fit.step in (0, 24, 25, 60):
        opened.append(fit.open_from)
    assert opened == [1, 1, 0, 0]
    fit.step = 0
    assert fit.activate(torch.zeros(3), 0).tolist() == [1, 1, 1]
    assert fresh().open_from == 0


class Judge:
    """Says what it is told."""

    def __init__(self, upper: float, gap: float = 1.0) -> None:
        self.upper, self.ratio = upper, gap

    def verdict(self, thresholds: object) -> Verdict:
        return Verdict(self.upper, 0.0, (0.5, 0.5))

    def gap(self, thresholds: object) -> float:
        return self.ratio


def test_caution_follows_what_held_out_data_and_hard_gates_ask_for() -> None:
    fit = fresh(steps=1000)
    fit.step = 100  # hard gates say nothing yet
    fit.review(Judge(upper=10 * TOLERANCE, gap=1.0))
    assert fit.caution == 1.0
    fit.review(Judge(upper=0.0, gap=4.0))
    assert fit.caution == pytest.approx(2.0)
    fit.step = fit.judged = 700
    fit.review(Judge(upper=0.8 * TOLERANCE))
    assert fit.caution == pytest.approx(2.0)
    fit.review(Judge(upper=0.96 * TOLERANCE))
    assert fit.caution == pytest.approx(2.4)
    fit.review(Judge(upper=10 * TOLERANCE))
    assert fit.caution == pytest.approx(3.6)
    for _ in range(20):
        fit.review(Judge(upper=0.0))
    assert fit.caution == 0.4
    for _ in range(20):
        fit.review(Judge(upper=1.0))
    assert fit.caution == 10.0


def test_the_noisy_phase_is_drawn_out_while_there_is_tolerance_to_spare() -> None:
    fit = fresh(steps=1000)
    fit.step, fit.judged = 500, 450  # the aim still rises
    fit.review(Judge(upper=0.0))
    assert fit.drawn_out == 0
    fit.step, fit.judged = 600, 550
    fit.review(Judge(upper=0.51 * TOLERANCE))
    assert fit.drawn_out == 0
    fit.review(Judge(upper=0.49 * TOLERANCE))
    assert (fit.drawn_out, fit.clock) == (50, 550)
    assert fit.progress == pytest.approx(550 / 850)
    fit.step = 700
    uncertain = Verdict(0.2 * TOLERANCE, 0.0, (0.5, 0.5), error=TOLERANCE, held_out=0.49 * TOLERANCE)
    assert fit.unfinished(uncertain)  # the mean counts: one bad row is no reason to stop
    assert not fit.unfinished(replace(uncertain, held_out=0.51 * TOLERANCE))
    fit.drawn_out = 1500
    fit.step, fit.judged = 2100, 2050
    fit.review(Judge(upper=0.0))
    assert (fit.drawn_out, fit.clock) == (1500, 600)
    assert fit.noise == 0.5
    fit.step = 2350
    assert fit.settling
    assert fit.rate() == pytest.approx(1.0)


def test_the_noisy_phase_is_not_drawn_out_where_nothing_changes_any_more() -> None:
    def verdict(*retained: float) -> Verdict:
        return Verdict(0.1 * TOLERANCE, 0.0, retained)

    fit = fresh(steps=1000)
    fit.step = 1650
    for share in (0.9, 0.5, 0.301, 0.3, 0.3, 0.299, 0.301, 0.3, 0.3):
        fit.history.epochs.append(Epoch(0, 0.0, 1.0, [0.5, 0.5], verdict(share, 0.1), True))
    assert fit.unfinished(verdict(0.3, 0.1))  # the eighth verdict of its like, but there is noise to be taken away
    fit.drawn_out = 1000
    assert fit.noise == 0.5
    assert not fit.unfinished(verdict(0.3015, 0.1))
    assert fit.unfinished(verdict(0.303, 0.1))  # .004 from the least of them
    assert fit.unfinished(verdict(0.3, 0.105))


def test_a_fit_that_is_drawn_out_ends_within_an_epoch_and_no_rate_is_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran on to the end of the epoch once, at negative rates: on relay baselines settled 40 times as far out."""
    seen: list[tuple[int, float]] = []

    def begin_step(self: Training) -> None:
        original(self)
        seen.append((self.clock, self.optimiser.param_groups[0]["lr"]))

    original = Training.begin_step
    monkeypatch.setattr(Training, "begin_step", begin_step)
    monkeypatch.setattr(Training, "unfinished", lambda self, verdict: self.drawn_out < 50 and self.progress >= 0.7)
    torch.manual_seed(0)
    model = GCN(4, 4, num_layers=2, out_channels=2).eval()
    graphs = [Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12))) for _ in range(120)]
    history = GraphMask(model, tolerance=TOLERANCE, recipe=Recipe(steps=90)).fit(
        graphs[:90], graphs[90:], progress=False
    )
    steps, rates = zip(*seen, strict=True)
    assert len(steps) == history.steps
    assert max(steps) == history.steps - 50 - 1
    assert min(rates) > 0


def test_snapshots_are_taken_while_the_aim_rises() -> None:
    fit = fresh(steps=1000)
    at = []
    for fit.step in range(0, 850, 50):
        before = len(fit.rungs)
        fit.review(Judge(upper=0.0))
        at += [fit.step] * (len(fit.rungs) - before)
    assert at == [150, 300, 450]  # from a quarter, a half and three quarters of 595 on
    assert fit.rungs[0]["scales"] is not fit.probe.scales


def test_a_candidate_becomes_the_state_of_the_probe() -> None:
    fit = fresh()
    fit.rungs = [training.snapshot(fit.probe), training.snapshot(fit.probe)]
    fit.rungs[0]["scales"].fill_(7.0)
    history = History(tolerance=TOLERANCE)
    take(fit.probe, Candidate((0.5, -0.25), Verdict(0.01, 0.0, (0.5, 0.5)), 0), fit.rungs, history)
    assert fit.probe.scales.tolist() == [7.0, 7.0]
    assert [float(fit.probe.gate(site).shift) + hard_concrete.EVEN for site in range(2)] == pytest.approx([0.5, -0.25])
    assert history.feasible
    take(fit.probe, Candidate((-4.0, -4.0), Verdict(0.0, 0.0, (1.0, 1.0))), fit.rungs, history)
    assert not history.feasible  # it is within tolerance, and explains nothing
    assert fit.probe.scales.tolist() != [7.0, 7.0]


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict(0.01, 0.0, (0.99, 0.97)), "Nearly everything is kept"),
        (Verdict(0.01, 0.0, (0.0, 0.001)), "Next to nothing is kept"),
        (Verdict(0.05, 0.0, (0.5, 0.5)), "No state within tolerance"),
        (Verdict(0.01, 0.0, (0.5, 0.5)), ""),
    ],
)
def test_a_history_says_what_to_do(verdict: Verdict, says: str) -> None:
    history = History([], True, verdict, 1000, 12.0, TOLERANCE, ("conv1", "conv2"))
    assert (says in history.advice()) if says else history.advice() == ""
    text = str(history)
    assert "1,000 steps in 12 s" in text
    assert f"conv1 {verdict.retained[0]:.1%}, conv2 {verdict.retained[1]:.1%}" in text
    assert f"Divergence {verdict.divergence:.3g}" in text


def test_a_fit_that_keeps_everything_warns() -> None:
    model = GCN(4, 4, num_layers=2, out_channels=2).eval()
    graph = Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12)))
    with pytest.warns(UserWarning, match="Nearly everything is kept"):
        found = GraphMask(model, tolerance=1e-12, recipe=Recipe(steps=2)).fit([graph], progress=False)
    assert not found.feasible
