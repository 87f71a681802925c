"""The device of a model, batches on it, and what differs between devices: random states and float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
    """The batch itself if it is on the device, else a copy there; the user's batch is not changed.

    PyG's data and the batches of `transformers` move themselves, on a copy, because they would change in place.
    """
    if device is None or not _elsewhere(batch, device):
        return batch
    # Pinned memory is copied while the processor goes on; what then runs on the device waits for it.
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")
    if callable(getattr(batch, "to", None)):
        return copy.copy(batch).to(device)
    if isinstance(batch, Mapping):
        return {key: placed(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(placed(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(placed(value, device) for value in batch)
    moved = copy.copy(batch)
    for name, value in vars(batch).items():
        setattr(moved, name, placed(value, device))
    return moved


def _elsewhere(batch: Any, device: torch.device) -> bool:
    """Is any tensor in it on another device?"""
    if hasattr(batch, "__dict__") and not isinstance(batch, Tensor | Mapping | list | tuple):
        # Of PyG's data the stores, which are mappings; of any other object its attributes.
        stores = getattr(batch, "stores", None)
        batch = stores if isinstance(stores, list) else vars(batch)
    waiting = [batch]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            if (value.device.type, value.device.index or 0) != (device.type, device.index or 0):
                return True
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple) and value and not isinstance(value[0], str | int | float):
            waiting += value  # names and numbers, of which there may be many, are passed over
    return False


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
    """In float64; on the CPU where the device has none. `back` brings back what is made of it."""
    return tensor.double() if _has_float64(tensor.device.type) else tensor.cpu().double()


def back(tensor: Tensor, device: torch.device) -> Tensor:
    """What was made of `double`, on the device; in float32 where that has no float64."""
    if tensor.device == device:
        return tensor
    return (tensor.float() if tensor.dtype == torch.double else tensor).to(device)
