"""Both multipliers against the same recursions written out by hand."""

import math
from collections.abc import Callable

import pytest
import torch

from graphmask.fitting.constraint import Constraint, MultiplicativeConstraint, SoftplusConstraint
from reference import constraint as literal

TOLERANCE = 0.03
KINDS = [lambda: MultiplicativeConstraint(TOLERANCE), SoftplusConstraint]


def divergences(count: int, seed: int = 0, scale: float = 2.0) -> list[float]:
    """Log-normal around the tolerance: both signs of the violation, and both clips."""
    noise = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return (TOLERANCE * (scale * noise).exp()).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_multiplicative_follows_the_design(seed: int) -> None:
    constraint = MultiplicativeConstraint(TOLERANCE)
    sequence = divergences(400, seed)
    for divergence, expected in zip(sequence, literal.multiplicative(sequence, TOLERANCE), strict=True):
        constraint.update(divergence)
        assert constraint.multiplier == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_authors_multiplier_is_centred_rmsprop_on_a_softplus(seed: int) -> None:
    constraint, alpha = SoftplusConstraint(), torch.tensor(0.55, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.RMSprop([alpha], lr=1e-2, centered=True, maximize=True)
    for divergence in divergences(400, seed):
        violation = max(divergence - TOLERANCE, 0.0)
        constraint.update(violation)
        optimiser.zero_grad()
        (torch.nn.functional.softplus(alpha) * violation).backward()
        optimiser.step()
        with torch.no_grad():
            alpha.clamp_(-2, 30)
        assert constraint.multiplier == pytest.approx(math.log1p(math.exp(float(alpha.detach()))), rel=1e-6)


@pytest.mark.parametrize(("divergence", "bound"), [(10.0, 100.0), (0.0, 0.01)])
def test_multiplicative_stays_within_its_bounds(divergence: float, bound: float) -> None:
    constraint = MultiplicativeConstraint(TOLERANCE)
    for _ in range(3000):
        constraint.update(divergence)
    assert constraint.multiplier == pytest.approx(bound)
    constraint.update(TOLERANCE * (0.5 if bound > 1 else 1.5))
    assert (constraint.multiplier < bound) == (bound > 1)  # it leaves its bound at once


def test_losses() -> None:
    penalty, divergence = torch.tensor(0.4, requires_grad=True), torch.tensor(0.05, requires_grad=True)
    multiplicative, authors = MultiplicativeConstraint(TOLERANCE), SoftplusConstraint()
    for constraint in (multiplicative, authors):
        for value in (0.5, 0.001, 0.2):
            constraint.update(value)
    m = multiplicative.multiplier
    for of_step in (0.05, 12.0):  # the slope of 3 log(1 + D / 3)
        expected = (0.4 + m * 0.05 / (1 + of_step / 3)) / (1 + m)
        assert float(multiplicative.loss(penalty, divergence, of_step).detach()) == pytest.approx(expected, rel=1e-6)
    m = authors.multiplier
    loss = authors.loss(penalty, divergence, 0.05)
    assert float(loss.detach()) == pytest.approx(0.4 + m * 0.05, rel=1e-6)
    loss.backward()
    for weight, leaf in ((1, penalty), (m, divergence)):
        assert leaf.grad is not None
        assert float(leaf.grad) == pytest.approx(weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 1, 37])
def test_a_saved_state_continues_identically(kind: Callable[[], Constraint], at: int) -> None:
    sequence = divergences(80, 5, scale=0.5)
    whole, resumed = kind(), kind()
    for divergence in sequence[:at]:
        whole.update(divergence)
    resumed.load_state(whole.state())
    for divergence in sequence[at:]:
        whole.update(divergence)
        resumed.update(divergence)
        assert resumed.multiplier == whole.multiplier
    assert all(math.isfinite(value) for value in whole.state().values())


def test_units_of_the_divergence_do_not_matter() -> None:
    """Ten times the divergence at ten times the tolerance: the same multipliers, and a loss that weighs it alike."""
    usual, other = MultiplicativeConstraint(TOLERANCE), MultiplicativeConstraint(10 * TOLERANCE)
    penalty = torch.tensor(0.4)
    for divergence in divergences(100):
        usual.update(divergence)
        other.update(10 * divergence)
        assert other.multiplier == pytest.approx(usual.multiplier, rel=1e-9)
        expected = (0.4 + usual.multiplier * divergence / (1 + divergence / 3)) / (1 + usual.multiplier)
        weighed = usual.loss(penalty, torch.tensor(divergence), divergence)
        assert float(weighed) == pytest.approx(expected, rel=1e-5)
        weighed = other.loss(penalty, torch.tensor(10 * divergence), 10 * divergence)
        assert float(weighed) == pytest.approx(expected, rel=1e-5)
