"""States of a fit as tensors by name, in memory and in files: gates and baselines, and what Adam remembers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def snapshot(probe: nn.Module) -> dict[str, Tensor]:
    """A copy of all gates and baselines."""
    return {name: value.clone() for name, value in probe.state_dict().items()}


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with ``prefix``, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def optimiser_to_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What Adam remembers, by names that begin with ``adam.``."""
    state = optimiser.state_dict()["state"]
    return {f"adam.{at}.{key}": torch.as_tensor(value) for at, entry in state.items() for key, value in entry.items()}


def optimiser_from_tensors(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    adam: dict[int, dict[str, Tensor]] = {}
    for key, value in part(tensors, "adam.").items():
        at, name = key.split(".", 1)
        adam.setdefault(int(at), {})[name] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": adam})


def probe_and_optimiser(probe: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """A copy of both, to go back to."""
    adam = {name: value.clone() for name, value in optimiser_to_tensors(optimiser).items()}
    return {f"probe.{name}": value for name, value in snapshot(probe).items()} | adam


def go_back(probe: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Take up both where ``probe_and_optimiser`` found them; ``state`` may be used again."""
    probe.load_state_dict(part(state, "probe."))
    optimiser_from_tensors(optimiser, {name: value.clone() for name, value in state.items()})
