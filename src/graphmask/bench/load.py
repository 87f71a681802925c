"""Does `explain_all` keep its rate, and its memory, over a long run?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch_geometric.data import Batch

from graphmask.bench import resident
from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask
from graphmask.tasks import runner, star_graphs

AT_ONCE, DIFFERENT = 100, 20
#: Several are closed in each tenth of the run, so that tenths can be compared.
SHARDS = 100


@dataclass
class _Watched:
    """The same few batches again and again, so that only explaining takes time; looks around between any two."""

    batches: list[Batch]
    count: int
    marks: list[tuple[float, float, int]] = field(default_factory=list)  #: seconds, CPU seconds, bytes resident

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.count):
            self.marks.append((time.perf_counter(), time.process_time(), resident.now()))
            yield self.batches[number % len(self.batches)]


def run(graphs: int, seed: int, folder: Path) -> dict[str, Any]:
    """A fitted GraphMask explains star graphs into a store."""
    with runner.one_thread():
        batches = list(star_graphs.generate(AT_ONCE * DIFFERENT, seed=seed, batch_size=AT_ONCE))
        explainer = GraphMask(star_graphs.make(seed=seed), seed=seed)
        explainer.fit(batches[:2], epochs=1, progress=False)
        rows = sum(batch.edge_index.shape[1] for batch in batches) / DIFFERENT * graphs / AT_ONCE
        loader = _Watched(batches, graphs // AT_ONCE)
        written = explainer.explain_all(
            loader, out=folder, allow_infeasible=True, progress=False, shard_rows=max(int(rows / SHARDS), 1)
        )
    tenth = loader.count // 10
    first, last = loader.marks[: tenth + 1], loader.marks[-tenth - 1 :]

    def rate(marks: list[tuple[float, float, int]], clock: int) -> float:
        return AT_ONCE * (len(marks) - 1) / (marks[-1][clock] - marks[0][clock])

    figures: dict[str, Any] = {"graphs": len(written), "shards": len(written.shards)}
    for name, marks in (("first_tenth", first), ("last_tenth", last)):
        figures[name] = {
            "graphs_per_second": rate(marks, 0),
            "graphs_per_cpu_second": rate(marks, 1),
            "resident_mb": max(mark[2] for mark in marks) / 1e6,
        }
    return figures


def measure(graphs: int = 200_000, seed: int = 0) -> dict[str, Any]:
    """Rate and most resident memory in the first and in the last tenth, and their ratios."""
    if graphs < 20 * AT_ONCE:
        raise GraphMaskError(f"Expected at least {20 * AT_ONCE} graphs, of which tenths are compared, got {graphs}.")
    with TemporaryDirectory(prefix="graphmask-") as folder:
        figures = resident.cost(run, graphs, seed, Path(folder)).result
    first, last = figures["first_tenth"], figures["last_tenth"]
    return figures | {"last_over_first": {name: last[name] / first[name] for name in first}}


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    header = ["", "first tenth", "last tenth", "last / first"]
    columns = (figures["first_tenth"], figures["last_tenth"], figures["last_over_first"])
    return header, [[name.replace("_", " "), *(column[name] for column in columns)] for name in columns[0]]
