"""`with restored(model)`: inside, the user's model may be changed; afterwards it is as before, also after an error."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from graphmask.devices import forked
from graphmask.tapping import compiled
from graphmask.tapping.contents import Contents


@contextmanager
def restored(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Restore attributes, modes, buffers, ``requires_grad``, ``grad`` and all random states at the end.

    Layers write to themselves while they run (cached normalisations, ``fuse``, running statistics, notes in lists), so
    every module's ``__dict__`` and everything in it that can change is recorded, not only what this library means to
    change. Inside, compiled parts run uncompiled. It yields all modules of the model.
    """
    modules = modules_of(model)
    contents = Contents([module.__dict__ for module in modules])
    parameters = [(p, p.requires_grad, p.grad) for p in parameters_of(modules)]
    python_state, numpy_state = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002 - the model's own
    try:
        with forked(*{p.device for p, _, _ in parameters}), compiled.eager(modules):
            yield modules
    finally:
        random.setstate(python_state)
        _set_numpy_state(numpy_state)
        contents.put_back()
        for parameter, requires_grad, grad in parameters:
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
            if parameter.grad is not grad:
                parameter.grad = grad


def _set_numpy_state(state: Any) -> None:
    """NumPy reads the 624 numbers of its usual generator one by one: of a list in a tenth of the time."""
    if state["bit_generator"] == "MT19937":
        state = {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}}
    np.random.set_state(state)  # noqa: NPY002


def __getattr__(name: str) -> Any:
    if name == "guest":  # what `restored` was called before 0.1
        warnings.warn("graphmask.tapping.restore.guest is called restored now.", DeprecationWarning, stacklevel=2)
        return restored
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def named_modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The same as ``model.named_modules()``, without its nested generators: small models notice them at every call."""
    named: dict[int, tuple[str, nn.Module]] = {}
    stack = [("", model)]
    while stack:
        name, module = here = stack.pop()
        if id(module) in named:
            continue
        named[id(module)] = here
        if module._modules:
            prefix = f"{name}." if name else ""
            stack += [(prefix + key, inner) for key, inner in reversed(module._modules.items()) if inner is not None]
    return list(named.values())


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The same as ``model.modules()``, without its nested generators."""
    modules: dict[int, nn.Module] = {}
    stack = [model]
    while stack:
        module = stack.pop()
        if id(module) not in modules:
            modules[id(module)] = module
            if module._modules:
                stack += [inner for inner in reversed(module._modules.values()) if inner is not None]
    return list(modules.values())


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """All of theirs; one that several modules share comes several times."""
    return [p for module in modules for p in module._parameters.values() if p is not None]


def freeze(model: nn.Module, *, training: bool, modules: Sequence[nn.Module] | None = None) -> None:
    """Fix all parameters. ``training`` keeps dropout on; running statistics are never updated.

    ``modules`` are all of the model's, where they are known.
    """
    modules = modules_of(model) if modules is None else modules
    for parameter in parameters_of(modules):
        if parameter.requires_grad:
            parameter.requires_grad_(False)
    if training or any([module.training for module in modules]):
        model.train(training)
    if training:
        for module in modules:
            if getattr(module, "running_mean", None) is not None:
                module.eval()
