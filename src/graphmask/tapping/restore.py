"""`with restored(model)`: inside, the user's model may be changed; afterwards it is as before, also after an error."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphmask.devices import forked
from graphmask.tapping import compiled


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore attributes, modes, buffers, ``requires_grad``, ``grad`` and all random states at the end.

    Layers write to themselves while they run (cached normalisations, ``fuse``, running statistics, notes in lists), so
    every module's ``__dict__`` and everything in it that can change is recorded, not only what this library means to
    change. Inside, compiled parts run uncompiled.
    """
    modules = modules_of(model)
    empty, filled = _remember([vars(module) for module in modules])
    parameters = [(p, p.requires_grad, p.grad) for p in parameters_of(modules)]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the model's own randomness
    try:
        with forked(*{p.device for p, _, _ in parameters}), compiled.eager(modules):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for value in empty:
            if value:
                value.clear()
        for value, content in filled:
            _restore(value, content)
        for parameter, requires_grad, grad in parameters:
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
            if parameter.grad is not grad:
                parameter.grad = grad


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


_MUTABLE = (dict, list, set, tuple, Tensor)  # a tuple may hold what can change
_PLAIN = frozenset({type(None), bool, int, float, str})
_DICTS = frozenset({dict, OrderedDict})


def _remember(stack: list[Any]) -> tuple[list[dict[Any, Any]], list[tuple[Any, Any]]]:
    """Copies of everything in these values that can be changed in place, at any depth.

    Empty dictionaries are only listed, because nearly all are: every module has a dozen of them, for hooks.
    """
    empty: list[dict[Any, Any]] = []
    filled: dict[int, tuple[Any, Any]] = {}
    while stack:
        value = stack.pop()
        if id(value) in filled:
            continue
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not isinstance(value, nn.Parameter):
                filled[id(value)] = value, value.detach().clone()
            continue
        content = dict(value) if isinstance(value, dict) else list(value)
        filled[id(value)] = value, content
        for inner in content.values() if isinstance(content, dict) else content:
            kind = type(inner)
            if kind in _DICTS and not inner:
                empty.append(inner)
            elif kind not in _PLAIN and issubclass(kind, _MUTABLE):
                stack.append(inner)
    return empty, list(filled.values())


def _restore(value: Any, content: Any) -> None:
    if isinstance(value, dict):
        if list(value) != list(content):  # emptied only then: the order of entries is the user's too
            value.clear()
        value.update(content)
    elif isinstance(value, list):
        value[:] = content
    elif isinstance(value, set):
        # Only what differs: a set filled anew may come out in another order, even with the same elements.
        value.difference_update(value.difference(content))
        value.update(content)
    elif isinstance(value, Tensor) and not torch.equal(value, content):
        with torch.no_grad():
            value.copy_(content)


def freeze(model: nn.Module, *, training: bool) -> None:
    """Fix all parameters. ``training`` keeps dropout on; running statistics are never updated."""
    modules = modules_of(model)
    for parameter in parameters_of(modules):
        if parameter.requires_grad:
            parameter.requires_grad_(False)
    if training or any(module.training for module in modules):
        model.train(training)
    if training:
        for module in modules:
            if getattr(module, "running_mean", None) is not None:
                module.eval()
