"""Writers of a store are killed (SIGKILL) at random moments and started again: is every graph there exactly once?"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch_geometric.data import Data

from graphmask import store
from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench.store import Drawn, Random
from graphmask.store import files

#: Of one store: some fifty shards, so that a kill often meets one half written.
GRAPHS, AT_ONCE, SHARD_ROWS = 4_000, 20, 1_600
#: A writer lives this share of the time that a store takes, at most, from its first batch on.
SHARE = 0.5


class _Announced(Random):
    """Says when its first batch is asked for: from then on there is something to kill."""

    ready: Connection | None = None

    def __iter__(self) -> Iterator[Data]:
        if self.ready is not None:
            self.ready.send_bytes(b"!")
        yield from super().__iter__()


def write(folder: Path, graphs: int, seed: int, rank: int, world: int, ready: Connection | None = None) -> None:
    loader = _Announced(graphs, seed, AT_ONCE)
    loader.ready = ready
    with runner.one_thread():
        Drawn().explain_all(
            loader, out=folder, repair=False, progress=False, shard_rows=SHARD_ROWS, shard=(rank, world)
        )


def measure(
    kills: int = 50, writers: int = 1, seed: int = 0, *, graphs: int = GRAPHS, progress: bool = True
) -> dict[str, Any]:
    """Store after store is written by so many processes at once, until there were enough kills; each is then checked.

    Returns:
        How many kills, of how many writers of each store; how many stores, graphs and shards were checked; and after
        how many kills there was something unfinished in the folder.
    """
    if kills < 1 or writers < 1:
        raise GraphMaskError(f"Expected at least one kill and one writer, got {kills} and {writers}.")
    counts = {"kills": 0, "writers": writers, "stores": 0, "graphs": 0, "shards": 0, "unfinished": 0}
    dice = random.Random(seed)
    with TemporaryDirectory(prefix="graphmask-") as top, steps(kills, enabled=progress) as step:
        while counts["kills"] < kills:
            number = seed + counts["stores"]
            folder, reference = Path(top) / f"killed-{number}", Path(top) / f"whole-{number}"
            started = time.perf_counter()
            write(reference, graphs, number, 0, 1)
            patience = SHARE * (time.perf_counter() - started)
            for unfinished in _kill(folder, graphs, number, writers, kills - counts["kills"], patience, dice):
                step(f"kill -9, store {counts['stores']}")
                counts["kills"] += 1
                counts["unfinished"] += unfinished
            counts["shards"] += check(folder, reference)
            counts["stores"] += 1
            counts["graphs"] += graphs
    return counts


def _kill(
    folder: Path, graphs: int, seed: int, writers: int, most: int, patience: float, dice: random.Random
) -> Iterator[bool]:
    """A store is written to its end, its writers killed until there were enough kills; yields at each."""
    # Children of a process that has imported everything start at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])

    def start(rank: int) -> tuple[BaseProcess, Connection]:
        ready, says = context.Pipe(duplex=False)
        process = context.Process(target=write, args=(folder, graphs, seed, rank, writers, says))
        process.start()
        says.close()
        return process, ready

    alive = {rank: start(rank) for rank in range(writers)}
    kills = 0
    while alive:
        rank = dice.choice(sorted(alive))
        process, ready = alive.pop(rank)
        ready.poll(None)  # also where it has ended
        process.join(dice.uniform(0, patience) if kills < most else None)
        process.kill()
        process.join()
        if process.exitcode == 0:
            continue
        if process.exitcode != -signal.SIGKILL:
            raise GraphMaskError(f"Expected a writer to go on with {folder}, found that it failed; see above.")
        kills += 1
        yield _unfinished(folder)
        alive[rank] = start(rank)


def _unfinished(folder: Path) -> bool:
    if not folder.exists():
        return False
    names = files.listed(folder)
    temporary = any(path.name.startswith(".") and not path.name.endswith(".lock") for path in folder.iterdir())
    return temporary or bool(set(names["edges"]) - set(names["shard"]))


def check(folder: Path, reference: Path) -> int:
    """Raise unless the two hold the same, and all of it is as it was written; returns how many shards there are."""
    made, whole = store.open(folder), store.open(reference)
    made.verify()
    numbers = made.graphs.select("graph").collect()["graph"].sort().to_list()
    if not made.complete or numbers != list(range(len(whole))):
        raise GraphMaskError(f"Expected {len(whole)} graphs, each once, in {folder}, found {made!r}.")
    for kind, key in (("graphs", ["graph"]), ("edges", ["graph", "layer", "edge"])):
        a, b = (getattr(opened, kind).sort(key).collect() for opened in (made, whole))
        if not a.equals(b):
            raise GraphMaskError(f"Expected the {kind} of a store that was never killed in {folder}, found others.")
    return len(made.shards)
