"""What speaks for the original's answer, and the loss against it, for every kind of output."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphmask.divergence import Divergence


def outputs(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(2 * torch.randn(2, *shape, generator=generator, dtype=torch.double))  # type: ignore[return-value]


def resolved(name: str, output: Tensor) -> Divergence:
    divergence = Divergence(name)
    divergence.resolve(output)
    return divergence


CATEGORICAL = ["kl", "js", "cross_entropy"]

# Support ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATEGORICAL)
@pytest.mark.parametrize("probabilities", [False, True])
def test_classes_are_supported_by_their_own_column(name: str, probabilities: bool) -> None:
    original, masked = outputs(12, 4)
    if probabilities:
        original, masked = original.softmax(-1), masked.softmax(-1)
    found = resolved(name, original).support(original, masked)
    assert found.tolist() == [masked[row, int(original[row].argmax())].item() for row in range(12)]


@pytest.mark.parametrize("shape", [(12,), (12, 1), (12, 3)])
@pytest.mark.parametrize("probabilities", [False, True])
def test_a_yes_is_supported_by_the_value_and_a_no_by_its_opposite(shape: tuple[int, ...], probabilities: bool) -> None:
    original, masked = outputs(*shape)
    if probabilities:
        original, masked = original.sigmoid(), masked.sigmoid()
    middle = 0.5 if probabilities else 0.0
    found = resolved("bernoulli", original).support(original, masked)
    pairs = zip(original.reshape(12, -1).tolist(), masked.reshape(12, -1).tolist(), strict=True)
    expected = [sum(b if a > middle else -b for a, b in zip(*pair, strict=True)) for pair in pairs]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mse", "gaussian"])
@pytest.mark.parametrize("shape", [(12,), (12, 3)])
def test_a_regression_is_supported_by_its_value(name: str, shape: tuple[int, ...]) -> None:
    original, masked = outputs(*shape)
    found = resolved(name, original).support(original, masked)
    assert found.tolist() == pytest.approx([sum(row) for row in masked.reshape(12, -1).tolist()])


def test_sequences_are_supported_step_by_step() -> None:
    original, masked = outputs(5, 3, 4)
    found = resolved("kl", original).support(original, masked)
    expected = [sum(float(masked[r, s, int(original[r, s].argmax())]) for s in range(3)) for r in range(5)]
    assert found.tolist() == pytest.approx(expected)


def test_with_a_divergence_of_ones_own_columns_are_classes() -> None:
    original, masked = outputs(6, 3)
    divergence = Divergence(lambda a, b: (a - b).abs().sum(1))
    divergence.resolve(original)
    found = divergence.support(original, masked)
    assert found.tolist() == [masked[row, int(original[row].argmax())].item() for row in range(6)]


# Loss ------------------------------------------------------------------------------------------------------


def surer(original: Tensor, masked: Tensor) -> Tensor:
    """[rows] is the masked output surer of the original's choice than the original was?"""
    choice = original.argmax(-1, keepdim=True)
    p, q = (x.log_softmax(-1).gather(-1, choice).squeeze(-1) for x in (original, masked))
    return q > p


@pytest.mark.parametrize("name", CATEGORICAL)
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("kind", ["less sure", "surer"])
def test_the_loss_of_classes_moves_like_the_cross_entropy(name: str, probabilities: bool, kind: str) -> None:
    """What it counts from does not matter to training: gradients do."""
    original, masked = outputs(60, 3)
    rows = surer(original, masked) if kind == "surer" else ~surer(original, masked)
    original, masked = original[rows], masked[rows]
    assert len(original) > 5
    masked.requires_grad_()
    expected = F.cross_entropy(masked, original.argmax(-1), reduction="none")
    divergence = resolved(name, original.softmax(-1) if probabilities else original)
    found = (
        divergence.own_loss(original.softmax(-1), masked.softmax(-1))
        if probabilities
        else divergence.own_loss(original, masked)
    )
    (a,), (b,) = (torch.autograd.grad(value.sum(), masked) for value in (found, expected))
    assert torch.allclose(a, b)
    assert float(found.std().detach()) == pytest.approx(float(expected.std().detach()), rel=0.5)


@pytest.mark.parametrize("shape", [(12,), (12, 1), (12, 3)])
@pytest.mark.parametrize("probabilities", [False, True])
def test_the_loss_of_a_yes_or_no(shape: tuple[int, ...], probabilities: bool) -> None:
    original, masked = outputs(*shape)
    given = (original.sigmoid(), masked.sigmoid()) if probabilities else (original, masked)
    found = resolved("bernoulli", given[0]).own_loss(*given)
    pairs = zip(original.reshape(12, -1).tolist(), masked.reshape(12, -1).tolist(), strict=True)
    expected = [
        sum(-math.log(1 / (1 + math.exp(-b if a > 0 else b))) for a, b in zip(*pair, strict=True)) for pair in pairs
    ]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mse", "gaussian"])
def test_the_loss_of_a_regression_is_the_divergence(name: str) -> None:
    original, masked = outputs(12, 2)
    scale = 1.0 if name == "mse" else 2 * float(original.var())
    expected = [
        sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) / 2 for pair in zip(original, masked, strict=True)
    ]
    found = resolved(name, original).own_loss(original, masked)
    assert found.tolist() == pytest.approx([float(value) / scale for value in expected])


def test_the_loss_of_ones_own_divergence_is_the_divergence() -> None:
    original, masked = outputs(6, 3)
    divergence = Divergence(lambda a, b: (a - b).abs().amax(1))
    divergence.resolve(original)
    assert torch.equal(divergence.own_loss(original, masked), (original - masked).abs().amax(1))
