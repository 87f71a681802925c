"""What can be seen of a model and of the random states from outside, so that two moments can be compared."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Every module's attributes (hooks, flags, buffers and parameters are among them), gradients, random states."""
    seen: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            seen[f"{name}.{key}"] = _content(value)
        seen[f"{name} attributes"] = tuple(sorted(vars(module)))
    for name, parameter in model.named_parameters():
        seen[f"{name} requires_grad"] = parameter.requires_grad
        seen[f"{name} grad"] = _content(parameter.grad)
    seen["torch random"] = torch.get_rng_state().tolist()
    seen["numpy random"] = str(np.random.get_state())  # noqa: NPY002
    seen["python random"] = random.getstate()
    return seen


def _content(value: Any) -> Any:
    """Identity and, for what can change in place, the content."""
    if isinstance(value, Tensor):
        # As bytes: some layers have parameters that they forget to initialise, and NaN is not equal to itself.
        return id(value), value.dtype, tuple(value.shape), value.detach().to_dense().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return id(value), {key: _content(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return id(value), [_content(inner) for inner in value]
    return id(value) if not isinstance(value, (bool, int, float, str, type(None))) else value


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [key for key in {**before, **after} if key not in before or key not in after or before[key] != after[key]]
    assert changed == [], f"changed: {changed}"


def unsettle(model: nn.Module) -> None:
    """The state of a model in the middle of somebody's work: mixed modes, frozen parts, gradients, own hooks."""
    model.train()
    for number, module in enumerate(model.modules()):
        if number % 3 == 2:
            module.training = False
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
        if number % 3 == 0:
            parameter.grad = torch.full_like(parameter, 0.5)
    model.register_forward_hook(lambda *_: None)
