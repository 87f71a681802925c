"""The order of graphs in shards that several processes wrote: by batch, then by position in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphmask.errors import GraphMaskError
from graphmask.store.files import Shard


class Span(NamedTuple):
    """Graphs ``start`` to ``stop`` of a shard, which follow one another in the store too."""

    shard: int
    start: int
    stop: int
    first: int  #: number in the store of the first of them


def spans(shards: Sequence[Shard]) -> list[Span]:
    """All graphs in the order of the loader, numbered without gaps where batches are missing."""
    runs = []
    for at, shard in enumerate(shards):
        start = 0
        for run in shard.runs:
            runs.append((run.batch, at, start, run))
            start += run.graphs
    merged: list[Span] = []
    end = first = 0
    for batch, at, start, run in sorted(runs):
        if batch < end:
            raise GraphMaskError(
                f"Expected every batch once in {shards[at].graphs.parent}, found batch {batch} twice, again in "
                f"{shards[at].graphs.name}. Did writers run at once that were told different numbers of processes?"
            )
        stop = start + run.graphs
        if merged and merged[-1].shard == at and merged[-1].stop == start:
            merged[-1] = merged[-1]._replace(stop=stop)
        else:
            merged.append(Span(at, start, stop, first))
        end, first = batch + run.batches, first + run.graphs
    return merged


def at_once(spans: Sequence[Span]) -> int:
    """How many shards are read alternately by a pass through the store: mostly one per process that wrote it."""
    begin: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, span in enumerate(spans):
        begin.setdefault(span.shard, position)
        last[span.shard] = position
    steps = np.zeros(len(spans) + 1, dtype=int)
    np.add.at(steps, list(begin.values()), 1)
    np.add.at(steps, [position + 1 for position in last.values()], -1)
    return int(steps.cumsum().max(initial=0))


def numbers(spans: Sequence[Span], shards: Sequence[Shard]) -> dict[int, np.ndarray[Any, Any]]:
    """For shards that number graphs differently from the store: the store's numbers, graph by graph."""
    other = {span.shard for span in spans if span.first - span.start != shards[span.shard].first}
    by_shard = {at: np.empty(shards[at].count, dtype=np.int64) for at in other}
    for span in spans:
        if span.shard in other:
            by_shard[span.shard][span.start : span.stop] = np.arange(span.first, span.first + span.stop - span.start)
    return by_shard
