"""Averaged weights: those of the formula, judged and kept in place of the last, and the same after a cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graphmask.experiments import learning
from graphmask.experiments.learning import Pace

PACE = Pace(epochs=3, learning_rate=0.1, average=0.8)


def data(epoch: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(epoch)
    return [(torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator)) for _ in range(4)]


def train(pace: Pace, scores: list[float], path: Path | None = None) -> tuple[nn.Linear, list[Tensor], list[Tensor]]:
    """The model, its weight after every step, and the weight that was judged after every epoch."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    steps, judged = [model.weight.detach().clone()], []

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        steps.append(model.weight.detach().clone())
        return (model(batch[0]) - batch[1]).square().mean()

    def score(found: nn.Module) -> float:
        judged.append(found.weight.detach().clone())
        if len(judged) > len(scores):
            raise KeyboardInterrupt
        return scores[len(judged) - 1]

    learning.train(model, data, loss, score, pace, measure="score", settings={}, seed=0, path=path, progress=False)
    steps.append(model.weight.detach().clone())
    return model, steps[2:], judged


def test_without_an_average_the_best_epochs_last_weights_are_kept() -> None:
    model, steps, judged = train(replace(PACE, average=0.0), [1.0, 3.0, 2.0])
    assert torch.equal(judged[1], steps[7])
    assert torch.equal(model.weight, judged[1])


def test_the_average_is_that_of_the_formula() -> None:
    _, steps, _ = train(replace(PACE, average=0.0), [1.0, 2.0, 3.0])
    model, _, judged = train(PACE, [1.0, 3.0, 2.0])
    expected, at_epochs = steps[0].double(), []
    for number, weight in enumerate(steps):
        expected = 0.8 * expected + 0.2 * weight.double() if number else expected
        if number % 4 == 3:
            at_epochs.append(expected)
    for found, wanted in zip(judged, at_epochs, strict=True):
        assert torch.allclose(found.double(), wanted, atol=1e-6)
    assert not torch.allclose(judged[1], steps[7], atol=1e-3)  # it does lag behind
    assert torch.equal(model.weight, judged[1])


def test_a_training_with_an_average_that_was_cut_off_goes_on_alike(tmp_path: Path) -> None:
    whole, _, judged = train(PACE, [1.0, 2.0, 3.0], tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(PACE, [1.0, 2.0], tmp_path / "cut")
    rest, _, again = train(PACE, [3.0], tmp_path / "cut")
    assert torch.equal(rest.weight, whole.weight)
    assert torch.equal(again[0], judged[2])
