"""The user's model is a guest: whatever happens inside `with guest(model)`, it leaves as it came."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def guest(model: nn.Module) -> Iterator[None]:
    """Restore attributes, modes, buffers, ``requires_grad``, ``grad`` and all random states on the way out.

    Layers write to themselves while they run (cached normalisations, ``fuse``, running statistics, notes in lists),
    so every module's ``__dict__`` and what can change in it is remembered, not only what this library means to change.
    """
    found: dict[int, tuple[Any, Any]] = {}
    for module in model.modules():
        _remember(vars(module), found)
    parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the model's own randomness
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for value, content in found.values():
            _restore(value, content)
        for parameter, requires_grad, grad in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


def _remember(value: Any, found: dict[int, tuple[Any, Any]]) -> None:
    """Everything below ``value`` that can change in place, with a copy of what it holds now."""
    if id(value) in found:
        return
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not isinstance(value, nn.Parameter):
            found[id(value)] = value, value.detach().clone()
    elif isinstance(value, (dict, list, set)):
        found[id(value)] = value, dict(value) if isinstance(value, dict) else list(value)
        for inner in value.values() if isinstance(value, dict) else value:
            _remember(inner, found)
    elif isinstance(value, tuple):
        for inner in value:
            _remember(inner, found)


def _restore(value: Any, content: Any) -> None:
    if isinstance(value, Tensor):
        if not torch.equal(value, content):
            with torch.no_grad():
                value.copy_(content)
    elif isinstance(value, dict):
        for key in [key for key in value if key not in content]:
            del value[key]
        for key, inner in content.items():
            if key not in value or value[key] is not inner:
                value[key] = inner
    elif isinstance(value, list):
        value[:] = content
    else:
        value.clear()
        value.update(content)


def freeze(model: nn.Module, *, training: bool) -> None:
    """Parameters fixed; ``training`` keeps dropout on, statistics that layers track stay frozen either way."""
    model.requires_grad_(False)
    model.train(training)
    if training:
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                module.eval()
