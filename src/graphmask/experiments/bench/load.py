"""Does `explain_all` keep its rate, and its memory, over a long run?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch_geometric.data import Batch

from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner, star_graphs
from graphmask.experiments.bench import resident
from graphmask.explainer import GraphMask

AT_ONCE, DIFFERENT = 100, 20
#: Several are closed in each tenth of the run, so that tenths can be compared.
SHARDS = 100


@dataclass
class _Watched:
    """The same few batches again and again, so that only explaining takes time; looks around between any two.

    Each time the model runs once by itself: on a machine that others use too, both take longer.
    """

    explainer: GraphMask
    batches: list[Batch]
    count: int
    #: Per batch: seconds and CPU seconds of explaining it, CPU seconds of the model by itself, bytes resident.
    marks: list[tuple[float, float, float, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.count):
            batch, started = self.batches[number % len(self.batches)], time.process_time()
            with torch.no_grad():
                self.explainer.forward(self.explainer.model, batch)
            plain, wall, cpu = time.process_time() - started, time.perf_counter(), time.process_time()
            yield batch
            self.marks.append((time.perf_counter() - wall, time.process_time() - cpu, plain, resident.now()))


def run(graphs: int, seed: int, folder: Path) -> dict[str, Any]:
    """A fitted GraphMask explains star graphs into a store."""
    with runner.one_thread():
        batches = star_graphs.generate(AT_ONCE * DIFFERENT, seed=seed, batch_size=AT_ONCE)
        explainer = GraphMask(star_graphs.make(seed=seed), seed=seed)
        explainer.fit(batches[:2], epochs=1, progress=False)
        rows = sum(batch.edge_index.shape[1] for batch in batches) / DIFFERENT * graphs / AT_ONCE
        loader = _Watched(explainer, batches, graphs // AT_ONCE)
        written = explainer.explain_all(
            loader,
            out=folder,
            repair=False,
            allow_infeasible=True,
            progress=False,
            shard_rows=max(int(rows / SHARDS), 1),
        )
    tenth = loader.count // 10
    tenths = [_figures(loader.marks[start : start + tenth]) for start in range(0, 10 * tenth, tenth)]
    return {"graphs": len(written), "shards": len(written.shards), "tenths": tenths}


def _figures(marks: list[tuple[float, float, float, int]]) -> dict[str, float]:
    wall, cpu, plain, resident = zip(*marks, strict=True)
    return {
        "graphs_per_second": AT_ONCE * len(marks) / sum(wall),
        "graphs_per_cpu_second": AT_ONCE * len(marks) / sum(cpu),
        "explain_over_forward": sum(cpu) / sum(plain),
        "resident_mb": max(resident) / 1e6,
    }


def measure(graphs: int = 200_000, seed: int = 0, *, progress: bool = True) -> dict[str, Any]:
    """Rate and most resident memory in every tenth of the run, and the last over the first."""
    if graphs < 20 * AT_ONCE:
        raise GraphMaskError(f"Expected at least {20 * AT_ONCE} graphs, of which tenths are compared, got {graphs}.")
    with TemporaryDirectory(prefix="graphmask-") as folder, steps(1, enabled=progress) as step:
        step(f"explaining {graphs:,} graphs in a process of its own")
        figures = resident.cost(run, graphs, seed, Path(folder)).result
    first, last = figures["tenths"][0], figures["tenths"][-1]
    return figures | {"last_over_first": {name: last[name] / first[name] for name in first}}


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    tenths, ratios = figures["tenths"], figures["last_over_first"]
    header = ["tenth", *(str(number + 1) for number in range(len(tenths))), "last / first"]
    return header, [[name.replace("_", " "), *(tenth[name] for tenth in tenths), ratios[name]] for name in ratios]
