"""The device of a model, batches on it, and what differs between devices: random states and float64."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn


def device_of(model: nn.Module) -> torch.device | None:
    """The device of the model's first parameter or buffer, where its inputs must be; None if it has none."""
    for kind in ("_parameters", "_buffers"):
        waiting, seen = [model], set()
        while waiting:  # in the order of ``model.modules()``, whose nested generators small models notice
            module = waiting.pop()
            if module in seen:
                continue
            seen.add(module)
            for tensor in getattr(module, kind).values():
                if tensor is not None:
                    return tensor.device
            waiting += [inner for inner in reversed(module._modules.values()) if inner is not None]
    return None


def placed(batch: Any, device: torch.device | None) -> Any:
    """The batch itself if all of it is on the device, else a copy there; the user's batch is not changed."""
    return batch if device is None else _moved(batch, device, {})


def _moved(batch: Any, device: torch.device, done: dict[int, Any]) -> Any:
    """A part of a batch; ``done`` are copies of objects by the numbers of the originals, which may hold each other.

    PyG's data and the batches of `transformers` move themselves, on a copy, because they would change in place.
    """
    if id(batch) in done:
        return done[id(batch)]
    if not _elsewhere(batch, device):
        return batch
    # Pinned memory is copied while the processor goes on; what then runs on the device waits for it.
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")
    if callable(getattr(batch, "to", None)):
        return copy.copy(batch).to(device)
    if isinstance(batch, Mapping):
        found = {key: _moved(value, device, done) for key, value in batch.items()}
        return copy.copy(batch) | found if isinstance(batch, dict) else found
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(value, device, done) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(value, device, done) for value in batch)
    done[id(batch)] = moved = copy.copy(batch)
    for name, value in _attributes(batch).items():
        object.__setattr__(moved, name, _moved(value, device, done))  # dataclasses may be frozen
    return moved


def _elsewhere(batch: Any, device: torch.device) -> bool:
    """Whether any tensor in it is on another device, however deep it lies."""
    waiting, seen = [batch], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            if (value.device.type, value.device.index or 0) != (device.type, device.index or 0):
                return True
        elif id(value) not in seen:  # objects may know each other
            seen.add(id(value))
            waiting += _parts(value)
    return False


def _parts(value: Any) -> Iterable[Any]:
    """What a batch or a part of it holds; of models, functions and modules nothing, because they are no data."""
    if isinstance(value, nn.Module | type | FunctionType | ModuleType):
        return ()
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return [one for one in value if not isinstance(one, str | int | float)]  # of names there may be many
    stores = getattr(value, "stores", None)  # of PyG's data, which keep beside them what stays on the CPU
    return stores if isinstance(stores, list) else _attributes(value).values()


def _attributes(value: Any) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return {name: getattr(value, name) for name in fields} | getattr(value, "__dict__", {})


# Random states ---------------------------------------------------------------------------------------------


def _generators(devices: Iterable[torch.device | None]) -> list[tuple[str, int]]:
    """Type and number of the devices that draw random numbers of their own, beside the processor."""
    distinct = {(device.type, device.index or 0) for device in devices if device is not None and device.type != "cpu"}
    return sorted((kind, number) for kind, number in distinct if hasattr(getattr(torch, kind, None), "get_rng_state"))


def random_states(*devices: torch.device | None) -> list[Tensor]:
    """The random states of the CPU and of each of the devices, from which dropout draws."""
    return [torch.get_rng_state()] + [
        getattr(torch, kind).get_rng_state(torch.device(kind, number)) for kind, number in _generators(devices)
    ]


def set_random_states(states: list[Tensor], *devices: torch.device | None) -> None:
    """Set the states that `random_states` returned for the same devices."""
    torch.set_rng_state(states[0])
    for state, (kind, number) in zip(states[1:], _generators(devices), strict=True):
        getattr(torch, kind).set_rng_state(state, torch.device(kind, number))


@contextmanager
def forked(*devices: torch.device | None) -> Iterator[None]:
    """A context in which random numbers may be drawn and seeds set; afterwards all states are restored."""
    states = random_states(*devices)
    try:
        yield
    finally:
        set_random_states(states, *devices)


# float64 ---------------------------------------------------------------------------------------------------


@functools.cache
def _has_float64(kind: str) -> bool:
    try:
        torch.zeros(1, dtype=torch.double, device=kind)
    except (RuntimeError, TypeError):  # Apple's GPUs (mps)
        return False
    return True


def double(tensor: Tensor) -> Tensor:
    """The value in float64; on the CPU where the device has no float64. `back` takes results to the device again."""
    return tensor.double() if _has_float64(tensor.device.type) else tensor.cpu().double()


def back(tensor: Tensor, device: torch.device) -> Tensor:
    """The result of a computation on `double`, on the device; in float32 where the device has no float64."""
    if tensor.device == device:
        return tensor
    return (tensor.float() if tensor.dtype == torch.double else tensor).to(device)
