"""Trials at the end of a fit: does one site, or a part of it, turn out to be superfluous once baselines adapt?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from graphmask.fitting.calibration import SOME_EXAMPLES, Judge
from graphmask.fitting.step import take_step
from graphmask.fitting.training import Training, snapshot
from graphmask.team import shares

#: Trials of keeping less at one site, at most; steps in which baselines adapt to each; and the upper bound of the
#: divergence before they have, in tolerances, up to which a trial is worth it.
TRIALS, TRIAL_STEPS, PLAUSIBLE = 6, 60, 4.0


def prune(training: Training, loader: Iterable[Any], held_out: Iterable[Any] | None) -> None:
    """Trials: raise the threshold of one site, let baselines adapt, and stay with that if the tolerance is met.

    A group of messages may be superfluous as a whole, once baselines know that it is gone, while every way there
    leads through states that are worse. Whether gates have come by such a way hangs on the seed; with the trials it
    does not. Those that would save most come first.
    """
    if not training.recipe.settle:
        return

    def judge() -> Judge:
        return training.judge(loader, held_out, SOME_EXAMPLES)

    before = judge()
    if not before.verdict(training.hard).meets(training.tolerance):
        return
    failed: set[tuple[int, float]] = set()
    batches = _endless(loader, training)
    for _ in range(TRIALS):
        trial = _next_trial(before, training.hard, training.tolerance, failed)
        if trial is None:
            break
        site, level = trial
        state, hard = snapshot(training.probe), training.hard
        training.hard = [*hard[:site], level, *hard[site + 1 :]]
        settle_again(training, batches)
        after = judge()
        if after.verdict(training.hard).meets(training.tolerance):
            before, failed = after, set()
        else:
            training.probe.load_state_dict(state)
            training.hard = hard
            failed.add(trial)


def _next_trial(
    judge: Judge, hard: list[float], tolerance: float, failed: set[tuple[int, float]]
) -> tuple[int, float] | None:
    """The site and the threshold that save most, of those that have not failed and are not out of reach."""
    levels = [(less, site, level) for site, at in enumerate(hard) for level, less in judge.levels(site, at)]
    for _, site, level in sorted(levels, reverse=True):
        if (site, level) in failed:
            continue
        if judge.verdict([*hard[:site], level, *hard[site + 1 :]]).upper <= PLAUSIBLE * tolerance:
            return site, level
        failed.add((site, level))
    return None


def settle_again(training: Training, batches: Iterator[list[Any]]) -> None:
    """Let baselines adapt to other thresholds, in fewer steps than at first."""
    length = training.recipe.settle * training.steps
    count = min(TRIAL_STEPS, math.ceil(length))
    for number in range(count):
        training.step = training.drawn_out + math.ceil(training.steps - length * (1 - number / count))
        take_step(training, next(batches))
    training.step = training.drawn_out + training.steps
    training.history.steps += count


def _endless(loader: Iterable[Any], training: Training) -> Iterator[list[Any]]:
    while True:
        yield from shares(loader, training.team, training.accumulate)
