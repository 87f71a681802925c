"""The same thing done on the CPU and on the stand-in device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from graphmask import Explanation
from graphmask.fitting.recipe import Recipe

from .standin import install

CPU, DEVICE = torch.device("cpu"), install()
QUICK = Recipe(steps=10)  # both phases; every operation of the stand-in goes through Python
Found = TypeVar("Found")


def moved(data: Any, device: torch.device) -> Any:
    """Data as a user moves them."""
    if isinstance(data, nn.Module):
        return copy.deepcopy(data).to(device)
    if isinstance(data, Mapping):
        return type(data)({key: moved(value, device) for key, value in data.items()})
    if isinstance(data, list):
        return [moved(one, device) for one in data]
    return data.to(device) if hasattr(data, "to") else data


def on_both(run: Callable[[torch.device], Found]) -> tuple[Found, Found]:
    return run(CPU), run(DEVICE)


def assert_same(first: Sequence[Explanation], second: Sequence[Explanation]) -> None:
    """What was found on the CPU and on the device: the same masks, and the same numbers but for rounding."""
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        for explanation, device in ((one, "cpu"), (other, DEVICE.type)):
            tensors = (explanation.kept, explanation.scores, explanation.original, explanation.masked)
            assert {tensor.device.type for tensor in tensors} == {device}
        assert torch.equal(one.kept, other.kept.cpu())
        torch.testing.assert_close(one.scores, other.scores.cpu(), rtol=0, atol=1e-5)
        torch.testing.assert_close(one.masked, other.masked.cpu(), rtol=1e-4, atol=1e-5)
        assert abs(one.divergence - other.divergence) < 1e-5
