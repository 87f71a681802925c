"""Does a store of a million explanations go through every table in the memory that a tenth of it takes?

The explanations are random, so that no model's time is measured, and go through `explain_all(..., out=DIR)`. Every
figure is of a process of its own, see `resident`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from graphmask import store
from graphmask.analysis import edge_types, everything
from graphmask.analysis.side_by_side import side_by_side
from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench import resident
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.graphs.sites import Site
from graphmask.store import columns, files

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
        written = Drawn().explain_all(Random(graphs, seed), out=folder, repair=False, progress=False)
    return sum(shard.rows for shard in written.shards)


ROWS_PER_SHARD, EDGES = 1_000_000, 50


def write_rows(folder: Path, rows: int, seed: int = 0) -> int:
    """A store of so many rows of edges, or a few more, drawn column by column: no explanation is made."""
    import pyarrow as pa

    with runner.one_thread():
        write(folder, 1, seed)  # for its description
        (example,) = store.open(folder).shards
        graphs_schema, edges_schema = columns.schemas("float32")
        written, drawn = 0, np.random.default_rng(seed)
        first = batch = 1
        while written < rows:
            count = -(-min(ROWS_PER_SHARD, rows - written) // (EDGES * LAYERS))
            every, whole = count * EDGES * LAYERS, np.arange(count * EDGES * LAYERS)
            numbers, lists = np.arange(first, first + count), np.arange(count + 1, dtype=np.int32) * CLASSES
            output = pa.ListArray.from_arrays(lists, pa.array(drawn.standard_normal(count * CLASSES, "f4")))
            ends = drawn.integers(NODES, size=(3, count, 1, EDGES), dtype=np.int32).repeat(LAYERS, 2).reshape(3, -1)
            score = drawn.random(every, "f4")
            edges = {
                "graph": numbers.repeat(EDGES * LAYERS),
                "layer": (whole // EDGES % LAYERS).astype(np.int16),
                "edge": (whole % EDGES).astype(np.int32),
                **{name: end for name, end in zip(("source", "target", "type"), ends, strict=True)},
                "score": score,
                "kept": score > 0.7,
                "carried": score > 0.05,
            }
            graphs = {
                **{name: pa.nulls(count, graphs_schema.field(name).type) for name in graphs_schema.names},
                "graph": numbers,
                "num_nodes": np.full(count, NODES),
                "num_edges": np.full(count, EDGES),
                **{name: np.zeros(count) for name in ("divergence", "flips", "retained")},
                "tolerance": np.full(count, 0.03),
                "faithful": np.full(count, True),
                "reopened": np.zeros(count, int),
                "method": ["drawn"] * count,
                "shape": [[1, CLASSES]] * count,
                "original": output,
                "masked": output,
            }
            made = [
                pa.table([pa.array(table[field.name], field.type) for field in schema], schema=schema)
                for table, schema in ((graphs, graphs_schema), (edges, edges_schema))
            ]
            shard = {"first": first, "runs": [(batch, 1, count)], "batches": [""], "dtypes": example.dtypes}
            files.write_shard(folder, example.name._replace(number=batch), made[0], made[1], shard)
            first, batch, written = first + count, batch + 1, written + every
        files.write_description(folder, {**files.describe(folder), "graphs": first})
    return written + example.rows


def summarise(folder: Path) -> int:
    """Rows of the table of edge types by layer; sums are checked."""
    opened = store.open(folder)
    table = edge_types(opened)
    if not 0 < table["edges"].sum() <= sum(shard.rows for shard in opened.shards):
        raise GraphMaskError(f"Expected a table of all rows of {folder}, found {table['edges'].sum()}.")
    return table.height


def go_through(folder: Path) -> int:
    """Rows, read in blocks as the other tables read them."""
    with runner.one_thread():
        return sum(block.kept.numel() for block in side_by_side(store.open(folder)))


def measure_rows(rows: int = 100_000_000, seed: int = 0, *, progress: bool = True) -> dict[str, Any]:
    """Seconds and peak memory of writing so many rows, of summing them up by edge type, and of reading them in blocks.

    Memory is the resident peak of a process of its own, imports included.
    """
    if rows < 1:
        raise GraphMaskError(f"Expected at least one row, got {rows}.")
    with TemporaryDirectory(prefix="graphmask-") as folder, steps(3, enabled=progress) as step:
        free, needed = shutil.disk_usage(folder).free, 12 * rows
        if free < needed:
            raise GraphMaskError(f"Expected {needed / MEGA:.0f} MB of free disk space, found {free / MEGA:.0f} MB.")
        figures: dict[str, Any] = {}
        for name, job, *options in (
            ("write", write_rows, rows, seed),
            ("edge_types", summarise),
            ("blocks", go_through),
        ):
            step(f"{name}: {rows:,} rows")
            seconds, extra, result, peak, cpu = resident.cost(job, Path(folder), *options)
            figures[name] = {"seconds": seconds, "cpu": cpu, "peak_mb": peak / MEGA, "extra_mb": extra / MEGA}
            if name == "write":
                figures = {
                    "rows": result,
                    "disk_mb": sum(f.stat().st_size for f in Path(folder).iterdir()) / MEGA,
                } | figures
            figures[name]["rows_per_second"] = figures["rows"] / seconds
            figures[name]["rows_per_cpu_second"] = figures["rows"] / cpu
    return figures


def store_figures(rows: int = 100_000_000, graphs: int = 200_000, seed: int = 0) -> dict[str, Any]:
    """What `graphmask bench store --rows N` and ``--load N`` tell, without a progress bar; 0 leaves one out."""
    from graphmask.experiments.bench import load

    figures: dict[str, Any] = {}
    if rows:
        figures["rows"] = measure_rows(rows, seed, progress=False)
    if graphs:
        figures["load"] = load.measure(graphs, seed, progress=False)
    return figures


def analyse(folder: Path, name: str) -> int:
    """Rows of the table."""
    opened = store.open(folder)
    with runner.one_thread():
        if name == SAMPLED:
            return everything.mask_leakage_of(opened).work_out().frame.height
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
                seconds, extra, rows, *_ = resident.cost(write, Path(folder), size, seed)
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
                    seconds, extra, *_ = resident.cost(analyse, Path(folder), name)
                    tables[name].append({"seconds": seconds, "extra_mb": extra / MEGA})
    jobs = {"write": written, **tables}
    ratios = {name: larger["extra_mb"] / max(smaller["extra_mb"], 1.0) for name, (smaller, larger) in jobs.items()}
    return {"graphs": list(sizes), "write": written, "tables": tables, "memory_ratio": ratios}


def rows_of(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    header = ["", "s", "CPU s", "rows per CPU s", "peak MB", "beyond imports MB"]
    names = ("seconds", "cpu", "rows_per_cpu_second", "peak_mb", "extra_mb")
    return header, [[job, *(figures[job][name] for name in names)] for job in ("write", "edge_types", "blocks")]


def table(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    small, large = (f"{size:,}" for size in figures["graphs"])
    header = ["", f"s, {small}", f"s, {large}", f"extra MB, {small}", f"extra MB, {large}", "memory ratio"]
    jobs = {"write": figures["write"], **figures["tables"]}
    lines = [
        [
            name,
            *(f"{run['seconds']:.1f}" for run in runs),
            *(f"{run['extra_mb']:.0f}" for run in runs),
            f"{figures['memory_ratio'][name]:.2f}",
        ]
        for name, runs in jobs.items()
    ]
    return header, lines
