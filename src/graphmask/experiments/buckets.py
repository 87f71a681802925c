"""Batches of sentences of similar length: little padding, long sentences in small batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from graphmask.errors import GraphMaskError


def in_order(examples: Any, size: int = 64, form: str | None = None) -> list[Any]:
    """Batches whose graphs come in the order of the examples: explanations are found by their number.

    ``examples`` have a length and ``batch(numbers)``, or ``batch(numbers, form)`` where there are several forms.
    """
    more = () if form is None else (form,)
    return [examples.batch(range(low, min(low + size, len(examples))), *more) for low in range(0, len(examples), size)]


def batches(
    lengths: Sequence[int], *, tokens: int | None = None, examples: int | None = None, seed: int, epoch: int = 0
) -> list[list[int]]:
    """Numbers of the examples of each batch, every example once, batches in random order.

    A batch holds at most ``examples`` examples, and at most ``tokens`` tokens when all are padded to the longest (one
    example that is longer than that makes a batch of its own). Seed and epoch decide everything: a run that is
    resumed sees the batches it would have seen.
    """
    if tokens is None and examples is None:
        raise GraphMaskError("Expected a budget of tokens or of examples per batch, got neither.")
    for name, budget in (("tokens", tokens), ("examples", examples)):
        if budget is not None and budget < 1:
            raise GraphMaskError(f"Expected a positive budget of {name} per batch, got {budget}.")
    rng = random.Random(f"{seed} {epoch}")  # a string, so that no two pairs share a stream
    order = list(range(len(lengths)))
    rng.shuffle(order)  # among examples of one length, new neighbours in every epoch
    order.sort(key=lambda number: lengths[number])
    result: list[list[int]] = []
    batch: list[int] = []
    for number in order:
        # Lengths ascend: the newest example is the longest.
        padded = lengths[number] * (len(batch) + 1)
        if batch and ((examples and len(batch) == examples) or (tokens and padded > tokens)):
            result.append(batch)
            batch = []
        batch.append(number)
    if batch:
        result.append(batch)
    rng.shuffle(result)
    return result
