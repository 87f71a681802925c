"""Several processes that work as one: the number of this process, and what they compute together.

Started by ``accelerate launch``, ``torchrun`` or Slurm, processes find each other through Hugging Face accelerate (gloo
between processors, NCCL between GPUs). A process on its own is a team of one, for which all of this does nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError, warn
from graphmask.launch import first, launched

__all__ = ["ALONE", "Team", "WorkerLost", "first", "launched", "team"]

#: Seconds to wait for the others, unless the environment says otherwise: a batch or a verdict takes less.
TIMEOUT, TIMEOUT_VARIABLE = 1800.0, "GRAPHMASK_TIMEOUT"
CPU = torch.device("cpu")


class WorkerLost(GraphMaskError):
    """Another process of the team ended, or does not answer."""


@dataclass(frozen=True)
class Team:
    """``size`` processes that all run the same program; this one is number ``rank``. All must make the same calls."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """True on rank 0, which prints and writes."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, bit for bit the same in each."""
        if self.size == 1:
            return value
        from accelerate.utils import reduce

        with self._answered():
            return reduce(value.to(self.device), "sum").to(value.device)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        if self.size == 1:
            return [value]
        from accelerate.utils import gather_object

        with self._answered():
            return gather_object([value])

    def align(self, module: nn.Module) -> None:
        """Copy the parameters and buffers of the first process to all others."""
        if self.size == 1:
            return
        from accelerate.utils import broadcast

        with self._answered(), torch.no_grad():
            for mine in module.state_dict().values():
                mine.copy_(broadcast(mine.clone().to(self.device)))

    def wait(self) -> None:
        """Wait until all processes have called this."""
        self.sum(torch.zeros(1))

    def agree(self, what: dict[str, Any], advice: str) -> None:
        """Raise, in every process, unless all passed the same value."""
        gathered = self.gather(what)
        for key in what:
            values = [one[key] for one in gathered]
            if any(value != values[0] for value in values):
                shown = ", ".join(str(value)[:40] for value in values[:4]) + (", ..." if len(values) > 4 else "")
                raise GraphMaskError(f"Expected the same {key} in all {self.size} processes, got {shown}. {advice}")

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what every backend of torch raises
            told = re.sub(r"^\[[^]]*\] *", "", str(error)).partition(". ")[0].strip()  # without the place in its source
            raise WorkerLost(
                f"A worker process ended or did not answer in time: process {self.rank} of {self.size} waited for it "
                f"in vain ({told or type(error).__name__})."
            ) from error


ALONE = Team()


def _on_cpu() -> bool:
    """Whether accelerate was told to use the CPU."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"


def team(accelerator: Any = None) -> Team:
    """The team this process is in; the first call lets the processes find each other.

    ``accelerator`` is the user's own :class:`accelerate.Accelerator`, if there is one: its process group, time limit
    and device are used.
    """
    count = launched()
    if accelerator is None and count == 1:
        if _on_cpu() and "MASTER_PORT" in os.environ and "WORLD_SIZE" not in os.environ:
            warn(
                "accelerate launch --cpu --num_processes N started one process: it needs --mpirun_hostfile for more. "
                "Use torchrun --nproc-per-node N, or accelerate launch --multi_gpu."
            )
        return ALONE
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise GraphMaskError(
            f"Expected accelerate to run in {count} processes, it is not installed. pip install graphmask[distributed]"
        ) from error
    state = accelerator
    if state is None:
        limit = timedelta(seconds=float(os.environ.get(TIMEOUT_VARIABLE) or TIMEOUT))
        on_cpu = _on_cpu() or not torch.cuda.is_available()
        state = PartialState(cpu=on_cpu, timeout=limit)  # one that is there already stays as it is
    if state.num_processes != count > 1:
        raise GraphMaskError(
            f"Expected accelerate to know of the {count} processes that were launched, it knows of "
            f"{state.num_processes}. Without GPUs say so: Accelerator(cpu=True), or ACCELERATE_USE_CPU=true."
        )
    return Team(state.process_index, state.num_processes, state.device) if state.num_processes > 1 else ALONE


def precision(accelerator: Any = None) -> str | None:
    """The precision that accelerate was told to use; None for the model's own."""
    told = os.environ.get("ACCELERATE_MIXED_PRECISION") if accelerator is None else accelerator.mixed_precision
    return None if told in (None, "", "no") else told


# Batches ---------------------------------------------------------------------------------------------------


def groups(loader: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Consecutive batches of a loader, ``size`` at a time; the last may be fewer."""
    group: list[Any] = []
    for batch in loader:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def shares(loader: Iterable[Any], team: Team, accumulate: int = 1) -> Iterator[list[Any]]:
    """This process's batches of every step: of every ``size * accumulate`` consecutive batches, each ``size``-th.

    All processes get the same number of steps; in the last one, a share may be empty.
    """
    steps = groups(loader, team.size * accumulate)
    if team.size * accumulate > 1:
        steps = groups(_apart(loader, team.rank), team.size * accumulate)
    for group in steps:
        yield group[team.rank :: team.size]


def _apart(loader: Iterable[Any], rank: int) -> Iterator[Any]:
    """Let the loader draw from a random state that all processes share, and the model from this process's own."""
    batches = iter(loader)
    common = torch.get_rng_state()
    torch.manual_seed(torch.initial_seed() + 7_919 * (rank + 1))
    while True:
        own = torch.get_rng_state()
        torch.set_rng_state(common)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            common = torch.get_rng_state()
            torch.set_rng_state(own)
        yield batch


def in_order(team: Team, mine: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The processes' results in the loader's order: batch ``n``, with ``sizes[n]`` results, belongs to ``n % size``."""
    streams = [iter(theirs) for theirs in team.gather(list(mine))]
    return [next(streams[number % team.size]) for number, size in enumerate(sizes) for _ in range(size)]
