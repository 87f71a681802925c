"""Both multipliers against the same recursions written out by hand."""

import math

import pytest
import torch

from graphmask.constraint import LagrangianConstraint, MultiplicativeConstraint
from reference import constraint as literal

TOLERANCE = 0.03
KINDS = [MultiplicativeConstraint, LagrangianConstraint]


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
def test_lagrangian_is_projected_rmsprop_ascent(seed: int) -> None:
    constraint = LagrangianConstraint(TOLERANCE)
    sequence = divergences(400, seed)
    for divergence, expected in zip(sequence, literal.lagrangian(sequence, TOLERANCE), strict=True):
        constraint.update(divergence)
        assert constraint.multiplier == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_lagrangian_multiplier_stays_at_zero_while_the_constraint_holds() -> None:
    constraint = LagrangianConstraint(TOLERANCE)
    for _ in range(300):
        constraint.update(0.0)
    assert constraint.multiplier == 0
    constraint.update(1.0)
    assert constraint.multiplier > 0


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
    multiplicative, lagrangian = MultiplicativeConstraint(TOLERANCE), LagrangianConstraint(TOLERANCE)
    for constraint in (multiplicative, lagrangian):
        for value in (0.5, 0.001, 0.2):
            constraint.update(value)
    m = multiplicative.multiplier
    assert float(multiplicative.loss(penalty, divergence).detach()) == pytest.approx(
        (0.4 + m * 0.05) / (1 + m), rel=1e-6
    )
    m = lagrangian.multiplier
    loss = lagrangian.loss(penalty, divergence)
    assert float(loss.detach()) == pytest.approx(0.4 + m * (0.05 - TOLERANCE), rel=1e-6)
    loss.backward()
    for weight, leaf in ((1, penalty), (m, divergence)):
        assert leaf.grad is not None
        assert float(leaf.grad) == pytest.approx(weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 1, 37])
def test_a_saved_state_continues_identically(kind: type, at: int) -> None:
    sequence = divergences(80, 5, scale=0.5)
    whole, resumed = kind(TOLERANCE), kind(TOLERANCE)
    for divergence in sequence[:at]:
        whole.update(divergence)
    resumed.load_state(whole.state())
    for divergence in sequence[at:]:
        whole.update(divergence)
        resumed.update(divergence)
        assert resumed.multiplier == whole.multiplier
    assert all(math.isfinite(value) for value in whole.state().values())
