"""The Hard Concrete against its definition: frequencies, closed forms, integrals, gradients."""

import math

import pytest
import torch

from graphmask.gates import hard_concrete
from reference import hard_concrete as literal

LOCATIONS = [-3.0, -1.0, hard_concrete.EVEN, 0.0, 0.7, 2.0, 3.0]


def test_constants_are_the_papers() -> None:
    assert hard_concrete.TEMPERATURE == 1 / 3
    assert (hard_concrete.LOW, hard_concrete.HIGH) == (-0.2, 1.2)
    assert pytest.approx(1 / 3 * math.log(0.2 / 1.2), abs=1e-15) == hard_concrete.EVEN


@pytest.mark.parametrize("location", LOCATIONS)
def test_closed_forms_are_the_integrals_of_the_density(location: float) -> None:
    zero, one = -literal.L / (literal.R - literal.L), (1 - literal.L) / (literal.R - literal.L)

    def density(s: float, rest: float) -> float:
        return literal.binary_concrete_density(s, rest, location)

    assert literal.integrate(density, 0, 1) == pytest.approx(1, abs=1e-5)
    assert literal.integrate(density, 0, zero) == pytest.approx(literal.probability_zero(location), abs=1e-5)
    assert literal.integrate(density, one, 1) == pytest.approx(literal.probability_one(location), abs=1e-5)


@pytest.mark.parametrize("location", LOCATIONS)
def test_probability_open_is_one_minus_the_mass_at_zero(location: float) -> None:
    found = float(hard_concrete.probability_open(torch.tensor(location, dtype=torch.double)))
    assert found == pytest.approx(1 - literal.probability_zero(location), abs=1e-12)


@pytest.mark.parametrize("location", LOCATIONS)
def test_frequencies_of_samples(location: float) -> None:
    count = 200_000
    z = hard_concrete.sample(torch.full((count,), location), torch.Generator().manual_seed(7), rounded=False)
    assert 0 <= float(z.min()) <= float(z.max()) <= 1
    expected = {
        "zero": literal.probability_zero(location),
        "one": literal.probability_one(location),
        "open": 1 - literal.probability_zero(location),
        "below half": literal.binary_concrete_cdf((0.5 - literal.L) / (literal.R - literal.L), location),
    }
    found = {"zero": z == 0, "one": z == 1, "open": z != 0, "below half": z < 0.5}
    for name, probability in expected.items():
        margin = 5 * math.sqrt(probability * (1 - probability) / count)  # five standard errors
        assert float(found[name].double().mean()) == pytest.approx(probability, abs=margin), name


def test_rounded_samples_are_the_rounded_soft_samples() -> None:
    location = torch.linspace(-3, 3, 1001)
    soft = hard_concrete.sample(location, torch.Generator().manual_seed(1), rounded=False)
    hard = hard_concrete.sample(location, torch.Generator().manual_seed(1))
    assert set(hard.tolist()) == {0.0, 1.0}
    assert torch.equal(hard, soft.round())


def test_every_sample_is_the_literal_formula() -> None:
    location = torch.linspace(-3, 3, 301, dtype=torch.double)
    u = torch.rand(301, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    z = hard_concrete.sample(location, torch.Generator().manual_seed(3), rounded=False)
    for found, noise, gamma in zip(z.tolist(), u.tolist(), location.tolist(), strict=True):
        assert found == pytest.approx(literal.sample(noise, gamma), abs=1e-12)


@pytest.mark.parametrize("rounded", [False, True])
def test_gradient_is_that_of_the_unrounded_formula(rounded: bool) -> None:
    """Straight-through: rounding changes the value, not the derivative."""
    location = torch.linspace(-3, 3, 301, dtype=torch.double, requires_grad=True)
    u = torch.rand(301, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    hard_concrete.sample(location, torch.Generator().manual_seed(3), rounded=rounded).sum().backward()
    assert location.grad is not None
    nonzero = 0
    for found, noise, gamma in zip(location.grad.tolist(), u.tolist(), location.tolist(), strict=True):
        z = literal.sample(noise, gamma)
        s = (z - literal.L) / (literal.R - literal.L)
        # dz/dgamma = (r - l) s (1 - s) / tau between the two point masses, 0 in them
        expected = (literal.R - literal.L) * s * (1 - s) / literal.TAU if 0 < z < 1 else 0.0
        step = 1e-6
        numeric = (literal.sample(noise, gamma + step) - literal.sample(noise, gamma - step)) / (2 * step)
        assert found == pytest.approx(expected, abs=1e-9)
        assert found == pytest.approx(numeric, abs=1e-5)
        nonzero += expected > 0
    assert nonzero > 30


def test_hard_gates_are_open_when_more_likely_open_than_shut() -> None:
    location = torch.cat(
        [torch.linspace(-3, 3, 601), torch.tensor([hard_concrete.EVEN - 1e-6, hard_concrete.EVEN + 1e-6])]
    )
    assert torch.equal(hard_concrete.hard(location), hard_concrete.probability_open(location) > 0.5)
    even = torch.tensor(hard_concrete.EVEN, dtype=torch.double)
    assert float(hard_concrete.probability_open(even)) == 0.5
    assert not bool(hard_concrete.hard(even))
    assert not bool(hard_concrete.hard(torch.tensor(-torch.inf)))
    assert float(hard_concrete.probability_open(torch.tensor(-torch.inf))) == 0


def test_the_initial_location_is_open() -> None:
    assert 1 - literal.probability_zero(2.0) > 0.9
    assert literal.probability_one(2.0) > 0.75


def test_noise_comes_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first = hard_concrete.sample(torch.zeros(50), torch.Generator().manual_seed(2), rounded=False)
    torch.rand(3)
    second = hard_concrete.sample(torch.zeros(50), torch.Generator().manual_seed(2), rounded=False)
    assert torch.equal(first, second)
    torch.set_rng_state(before)
    hard_concrete.sample(torch.zeros(50), torch.Generator().manual_seed(2))
    assert torch.equal(torch.get_rng_state(), before)
