"""The last graph's original run, kept so that another question about the same graph does not need a new one.

The run depends on the batch, the model, and the network that reads its messages. The content of all three is compared
before a run is used again; version counters would not do, because a fused optimiser or a view in NumPy leaves them as
they were. Nothing is kept for models that draw random numbers, or where a user's own function calls the model, because
such a function may read anything.
"""

from __future__ import annotations

import random
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphmask.devices import random_states
from graphmask.graphs import batches
from graphmask.store.identity import hash_of
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import Trace


@dataclass(frozen=True)
class State:
    """Everything that the original run on a batch depends on."""

    batch: Callable[[], Any]  #: a reference that does not keep it
    content: str  #: of all tensors in it, in the model and in what is looked with
    subject: Subject
    parts: list[Any]  #: what the model and the batch are made of

    @classmethod
    def of(cls, subject: Subject, batch: Any, read: nn.Module | None) -> State | None:
        """The state, or None where it cannot be determined; ``read`` is the network that reads messages."""
        own = subject.forward is not batches.default_forward or subject.features is not None
        if own or read is None or not hasattr(batch, "__weakref__"):
            return None
        made = _made_of([subject.model, *(part for item in batches.items(batch) for part in item)])
        if made is None:
            return None
        parts, tensors = made
        return cls(weakref.ref(batch), hash_of([*tensors, *read.state_dict().values()]), subject, parts)

    def is_that_of(self, other: State) -> bool:
        batch = self.batch()
        if batch is None or batch is not other.batch() or self.subject is not other.subject:
            return False
        if self.content != other.content or len(self.parts) != len(other.parts):
            return False
        return all(map(_same, self.parts, other.parts))


class Asked:
    """The last run and the state it depends on; a copy of its owner starts without one."""

    def __init__(self) -> None:
        self._known: tuple[State, Trace] | None = None
        self._end: weakref.ref[Any] | None = None

    def __reduce__(self) -> tuple[type[Asked], tuple[()]]:
        return Asked, ()

    def trace(self, state: State | None, record: Callable[[], Trace]) -> Trace:
        """The run of this state: the known one, or what ``record`` makes."""
        if state is None:
            return record()
        if self._known is not None and self._known[0].is_that_of(state):
            return _own(self._known[1])
        device = state.subject.device
        before = _random(device)
        trace = record()
        if bool(torch.isfinite(trace.output).all()) and _random(device) == before:
            self._known = state, _own(trace)
            self._end = weakref.ref(state.batch(), self._forget)
        return trace

    def _forget(self, _: Any) -> None:
        """The batch is gone."""
        self._known = None


def _own(trace: Trace) -> Trace:
    """The same with tensors of its own: explanations hand theirs to the user."""
    return replace(trace, **{name: getattr(trace, name).clone() for name in ("output", "values", "carried")})


def _random(device: torch.device | None) -> list[Any]:
    """All states that a model may draw random numbers from."""
    state: Any = np.random.get_state()  # noqa: NPY002 - the model's own randomness
    return [*(one.numpy().tobytes() for one in random_states(device)), random.getstate(), state[1].tobytes(), state[2:]]


#: What is compared by its value; anything else by being the same object.
_VALUES = (type(None), bool, int, float, str)
#: What changes without a sign, or is drawn from.
_UNTOLD = (np.ndarray, torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
#: Objects of these packages are taken as they are, as are functions and classes.
_FOREIGN = ("torch", "torch_geometric", "builtins")


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _VALUES) and one == other)


#: Of tensors, what can be compared.
_LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)


def _made_of(stack: list[Any]) -> tuple[list[Any], list[Tensor]] | None:
    """Everything that these values and their attributes hold, at any depth, and the tensors among that."""
    parts: list[Any] = []
    tensors: list[Tensor] = []
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if isinstance(value, _UNTOLD) or (isinstance(value, Tensor) and value.layout not in _LAYOUTS):
            return None
        parts.append(value)
        if isinstance(value, _VALUES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, nn.Module):
            stack.append(vars(value))
        elif isinstance(value, Mapping):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            stack += value
        elif hasattr(value, "__dict__") and not _opaque(value):
            stack.append(vars(value))
    return parts, tensors


def _opaque(value: Any) -> bool:
    kinds = (type, types.FunctionType, types.MethodType, types.ModuleType)
    return isinstance(value, kinds) or type(value).__module__.partition(".")[0] in _FOREIGN
