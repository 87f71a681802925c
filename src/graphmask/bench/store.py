"""Does a store of a million explanations go through every table in the memory that a tenth of it takes?

The explanations are random, so that no model's time is measured, and go through `explain_all(..., out=DIR)`. Every
figure is of a process of its own, see `resident`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from graphmask import store
from graphmask.analysis import everything
from graphmask.bench import resident
from graphmask.capture import Site
from graphmask.case import Case, Choice
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.method import Method
from graphmask.progress import steps
from graphmask.tasks import runner

NODES, FEWEST_EDGES, MOST_EDGES, TYPES, LAYERS, CLASSES = 6, 8, 12, 4, 2, 2
AT_ONCE = 512
MEGA = 1e6
#: The one table that works on a sample, beside those that are sums.
SAMPLED = "mask_leakage"


@dataclass
class Random:
    """Can be read again and again, as a loader must."""

    graphs: int
    seed: int
    at_once: int = 0

    def __len__(self) -> int:
        return -(-self.graphs // (self.at_once or AT_ONCE))

    def __iter__(self) -> Iterator[Data]:
        at_once = self.at_once or AT_ONCE
        for number in range(len(self)):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            count = min(at_once, self.graphs - number * at_once)
            sizes = torch.randint(FEWEST_EDGES, MOST_EDGES + 1, (count,), generator=generator)
            edges = int(sizes.sum())
            carried = torch.rand(LAYERS, edges, generator=generator) < 0.95
            yield Data(
                edge_index=torch.randint(NODES, (2, edges), generator=generator),
                edge_type=torch.randint(TYPES, (edges,), generator=generator),
                scores=torch.rand(LAYERS, edges, generator=generator) * carried,
                carried=carried,
                sizes=sizes,
                output=torch.randn(count, CLASSES, generator=generator),
            )


class Drawn(Method):
    """Explanations as a batch of `Random` has them; a model is there because a store belongs to one."""

    name = "drawn"

    def __init__(self) -> None:
        super().__init__(GCN(1, 1, LAYERS))
        for weights in self.model.parameters():
            torch.nn.init.zeros_(weights)
        self.divergence.resolve(torch.zeros(1, CLASSES))
        self.structure = tuple(Site(f"layer{k}", f"layer{k}", (0,), False) for k in range(LAYERS))
        self.baselines = tuple(torch.zeros(1) for _ in range(LAYERS))

    def choose(self, case: Case) -> Choice:
        raise NotImplementedError

    def _explain(self, batch: Any, repair: bool, where: str, *_: Any, **__: Any) -> list[Explanation]:
        sizes = batch.sizes.tolist()
        edge_index, scores, carried = (batch[name].split(sizes, 1) for name in ("edge_index", "scores", "carried"))
        kinds, outputs = batch.edge_type.split(sizes), batch.output.split(1)
        return [
            Explanation(
                edge_index=edges,
                kept=score > 0.7,
                scores=score,
                carried=sent,
                original=output,
                masked=output,
                divergence=0.0,
                flips=0.0,
                tolerance=self.tolerance,
                structure=self.structure,
                baselines=self.baselines,
                num_nodes=NODES,
                edge_type=kind,
                method=self.name,
            )
            for edges, score, sent, kind, output in zip(edge_index, scores, carried, kinds, outputs, strict=True)
        ]


def write(folder: Path, graphs: int, seed: int = 0) -> int:
    """Rows of edges."""
    with runner.one_thread():
        written = Drawn().explain_all(Random(graphs, seed), out=folder, progress=False)
    return sum(shard.rows for shard in written.shards)


def analyse(folder: Path, name: str) -> int:
    """Rows of the table."""
    opened = store.open(folder)
    with runner.one_thread():
        if name == SAMPLED:
            return everything.mask_leakage_of(opened).frame.height
        return everything.STREAMED[name][1](opened).height


def measure(graphs: int = 1_000_000, seed: int = 0, *, progress: bool = True) -> dict[str, Any]:
    """Writing, and every table, of a tenth of the graphs and of all."""
    if graphs < 100:
        raise GraphMaskError(f"Expected at least 100 explanations, of which a tenth is analysed too, got {graphs}.")
    names = [*everything.STREAMED, SAMPLED]
    sizes = (graphs // 10, graphs)
    written: list[dict[str, float]] = []
    tables: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with steps(len(sizes) * (len(names) + 1), enabled=progress) as step:
        for size in sizes:
            with TemporaryDirectory(prefix="graphmask-") as folder:
                step(f"writing {size:,} explanations")
                seconds, extra, rows = resident.cost(write, Path(folder), size, seed)
                files = sum(file.stat().st_size for file in Path(folder).iterdir())
                written.append(
                    {
                        "graphs": size,
                        "rows": rows,
                        "seconds": seconds,
                        "disk_mb": files / MEGA,
                        "extra_mb": extra / MEGA,
                    }
                )
                for name in names:
                    step(f"{name} of {size:,}")
                    seconds, extra, _ = resident.cost(analyse, Path(folder), name)
                    tables[name].append({"seconds": seconds, "extra_mb": extra / MEGA})
    jobs = {"write": written, **tables}
    ratios = {name: larger["extra_mb"] / max(smaller["extra_mb"], 1.0) for name, (smaller, larger) in jobs.items()}
    return {"graphs": list(sizes), "write": written, "tables": tables, "memory_ratio": ratios}


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    small, large = (f"{size:,}" for size in figures["graphs"])
    header = ["", f"s, {small}", f"s, {large}", f"extra MB, {small}", f"extra MB, {large}", "memory ratio"]
    jobs = {"write": figures["write"], **figures["tables"]}
    table = [
        [
            name,
            *(f"{run['seconds']:.1f}" for run in runs),
            *(f"{run['extra_mb']:.0f}" for run in runs),
            f"{figures['memory_ratio'][name]:.2f}",
        ]
        for name, runs in jobs.items()
    ]
    return header, table
