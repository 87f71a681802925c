"""The training loop: from gates that are all open to the state that a fit ends with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from graphmask.devices import forked
from graphmask.fitting.calibration import SOME_EXAMPLES
from graphmask.fitting.history import History
from graphmask.fitting.step import take_step
from graphmask.fitting.training import Training
from graphmask.team import shares


def run(
    training: Training,
    loader: Iterable[Any],
    again: Iterable[Any],
    held_out: Sequence[Iterable[Any]],
    *,
    mode: Callable[[bool], None],
    on_step: Callable[[Training, float, list[float]], None] = lambda *_: None,
    on_epoch: Callable[[Training], None] = lambda *_: None,
) -> History:
    """The algorithm: for every epoch, for every batch, a step; now and then a verdict; at the end, a choice.

    ``mode(True)`` puts the model in the state for training gates, ``mode(False)`` in the state for judging them.
    ``again`` is the loader in a fixed order of its own, ``held_out`` the other data to judge on: validation data and
    what was split off the loader.
    """
    started = time.perf_counter()
    while training.clock < training.steps:
        # The loader's shuffle and the noise of an epoch depend on nothing before it: a resumed fit goes on alike.
        torch.manual_seed(training.seed * 1_000_003 + training.epoch)
        training.generator.manual_seed(_seed(training))
        mode(True)
        for mine in shares(loader, training.team, training.accumulate):
            if training.clock >= training.steps:  # drawn out, a fit may end within an epoch
                break
            if training.due:
                mode(False)
                with forked(training.subject.device):
                    training.record(training.review(training.judge(again, held_out, SOME_EXAMPLES)))
                mode(True)
            divergence, gates = take_step(training, mine)
            training.sums += torch.tensor([1.0, divergence, *gates], dtype=torch.double)
            on_step(training, divergence, gates)
        training.epoch += 1
        training.team.align(training.probe)  # should machines round differently
        training.history.seconds += time.perf_counter() - started
        started = time.perf_counter()
        training.history.steps = training.step
        on_epoch(training)
    mode(False)
    training.finish(again, held_out)
    training.passes.forget()
    training.history.seconds += time.perf_counter() - started
    return training.history


def _seed(training: Training) -> int:
    """The seed for this epoch's gate noise: different in every process, and the same when the fit is resumed."""
    return (training.seed * 1_000_003 + training.epoch) * 65_537 + training.team.rank
