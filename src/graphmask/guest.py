"""The user's model is a guest: whatever happens inside `with guest(model)`, it leaves as it came."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

_CONTAINERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def guest(model: nn.Module) -> Iterator[None]:
    """Restore attributes, modes, buffers, ``requires_grad``, ``grad`` and all random states on the way out.

    Layers write to themselves while they run (cached normalisations, ``fuse``, running statistics), so
    every module's ``__dict__`` is remembered, not only what this library means to change.
    """
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    containers = [{name: dict(vars(module)[name]) for name in _CONTAINERS} for module in modules]
    parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    buffers = [(b, b.clone()) for b in model.buffers()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the model's own randomness
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for module, saved, inner in zip(modules, attributes, containers, strict=True):
            _restore(vars(module), saved)
            for name in _CONTAINERS:
                _restore(vars(module)[name], inner[name])
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, requires_grad, grad in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


def _restore(current: dict[str, object], saved: dict[str, object]) -> None:
    for key in [key for key in current if key not in saved]:
        del current[key]
    for key, value in saved.items():
        if current.get(key) is not value or key not in current:
            current[key] = value


def freeze(model: nn.Module, *, training: bool) -> None:
    """Parameters fixed; ``training`` keeps dropout on, statistics that layers track stay frozen either way."""
    model.requires_grad_(False)
    model.train(training)
    if training:
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                module.eval()
