"""A store's frames, and its explanations one by one."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphmask import files as storage
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation, build
from graphmask.explanation_contents import check_ends
from graphmask.graphs.layout import Types
from graphmask.graphs.sites import Site
from graphmask.store import columns, files, order, safety
from graphmask.store.columns import dtype_of
from graphmask.store.files import Shard
from graphmask.store.recent import Recent

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

#: Columns of the graphs that an explanation works out by itself, or that are looked at one by one.
_DERIVED = ("graph", "original", "masked", "prediction", "label", "faithful", "retained", "metadata")


def open(path: str | Path) -> Store:
    """The explanations that ``explain_all(loader, out=path)`` has written so far.

    Several processes may be writing: what they have finished is read as one store, in the order of the loader. A
    graph's number is its place in this order, and grows as long as batches before it are missing.
    """
    files.require()
    folder = Path(path)
    if not (folder / files.DESCRIPTION).is_file():
        found = f"a folder without {files.DESCRIPTION}" if folder.is_dir() else "no such folder"
        raise GraphMaskError(f"Expected a store of explanations at {folder}, found {found}.")
    store = read(folder)
    if not store.shards:
        raise GraphMaskError(
            f"Expected at least one complete shard in {folder}, found none. Run explain_all(loader, out=...) again."
        )
    return store


def read(folder: Path) -> Store:
    """The store of a folder, which may have no shard yet."""
    description = files.describe(folder)
    try:
        shards = files.shards(folder, description["generation"])
    except GraphMaskError:
        if files.describe(folder)["generation"] != description["generation"]:
            return read(folder)  # compacted just now
        raise
    with storage.understood(folder / files.DESCRIPTION, "store"):
        return Store(folder, description, shards)


class Store:
    """Explanations on disk: lazy frames for questions about all of them, and each one as an `Explanation`.

    .. code-block:: python

        store = graphmask.store.open("DIR")
        store.edges.group_by("layer").agg(pl.col("kept").mean()).collect()
        explanation = store[12]
    """

    def __init__(self, path: Path, description: dict[str, Any], shards: list[Shard]) -> None:
        self.path = path
        self.structure = tuple(Site.from_json(site) for site in description["sites"])
        self.method: str = description["method"]
        self.tolerance: float = description["tolerance"]
        self.precision: str | None = description["settings"].get("precision")
        self.types = Types.from_json(description.get("types"))  #: node and edge types of heterogeneous data
        self.baselines = shared_baselines(description)  #: per site, of graphs that have none of their own
        self.shards = shards
        self.spans = order.spans(shards)  #: where the graphs lie, in their order
        self.complete: bool = description["graphs"] == len(self)  #: False where a run was cut short
        self.schemas = dict(zip(("graphs", "edges"), columns.schemas(description["output"]), strict=True))
        self._checked: set[Path] = set()
        # Shards that several processes wrote lie in each other: as many are kept at hand.
        self._at_once = order.at_once(self.spans)
        self._located: Recent[int, np.ndarray[Any, Any]] = Recent(self._at_once)
        self._blocks: Recent[tuple[Path, str], tuple[int, pa.Table]] = Recent(4 * self._at_once)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, input side first."""
        return tuple(site.name for site in self.structure)

    @property
    def edges(self) -> pl.LazyFrame:
        """One row per graph, layer and edge that the layer carries; read when it is collected.

        Rows are in the order of the loader where one process wrote the store, or `compact` did.
        """
        import polars as pl

        return self._frame("edges").filter(pl.col("carried")).drop("carried")

    @property
    def graphs(self) -> pl.LazyFrame:
        """One row per graph: its certificate, what the model said, and the user's notes."""
        return self._frame("graphs")

    def _frame(self, kind: str) -> pl.LazyFrame:
        import polars as pl

        other = order.numbers(self.spans, self.shards)
        same: list[Path] = []
        frames: list[pl.LazyFrame] = []
        for at in range(len(self.shards)):
            path = self._file(at, kind)
            if at not in other:
                same.append(path)
                continue
            frames += [_scan(same)] if same else []
            frames.append(_renumbered(_scan([path]), other[at], self.shards[at].first))
            same = []
        frames += [_scan(same)] if same else []
        return pl.concat(frames)

    def verify(self) -> None:
        """Raise unless all files are as they were written; what is read is verified anyway, when it is first read."""
        for at in range(len(self.shards)):
            for kind in ("graphs", "edges"):
                self._file(at, kind)

    def _file(self, at: int, kind: str) -> Path:
        """The path of a file, after its hash and its footer were verified."""
        shard = self.shards[at]
        path: Path = getattr(shard, kind)
        if path not in self._checked:
            if kind in shard.sums:
                safety.check_hash(path, shard.sums[kind].hash)
            row_count = shard.count if kind == "graphs" else shard.rows
            safety.check_footer(path, kind, row_count, self.schemas[kind])
            self._checked.add(path)
        return path

    def __repr__(self) -> str:
        state = "" if self.complete else "; cut short, run explain_all again to go on"
        return f"Store({str(self.path)!r}: {len(self)} graphs by {self.method} at {', '.join(self.sites)}{state})"

    def __len__(self) -> int:
        return sum(shard.count for shard in self.shards)

    def __getitem__(self, graph: int) -> Explanation:
        number = operator.index(graph)
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"Expected a graph from 0 to {len(self) - 1}, got {graph}.")
        span = self.spans[bisect_right(self.spans, number, key=lambda span: span.first) - 1]
        start = span.start + number - span.first
        return next(self.read(span.shard, start, start + 1))

    def __iter__(self) -> Iterator[Explanation]:
        for at, start, stop in self._spans():
            yield from self.read(at, start, stop)  # gone when it ends

    def sample(self, count: int, seed: int = 0) -> Iterator[Explanation]:
        """At most so many explanations, drawn uniformly without replacement, in the order of the store."""
        numbers = range(len(self))
        drawn = sorted(Random(seed).sample(numbers, count)) if count < len(self) else numbers
        first = 0
        for at, start, stop in self._spans():
            here = drawn[bisect_left(drawn, first) : bisect_left(drawn, first + stop - start)]
            if here:
                yield from self.read(at, start, stop, [number - first for number in here])
            first += stop - start

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Number of a shard, first graph, and the one after the last: as many as are read at once."""
        step = files.ROWS_AT_ONCE["graphs"]
        for at, begin, end, _ in self.spans:
            for start in range(begin, end, step):
                yield at, start, min(start + step, end)

    def read(self, at: int, start: int, stop: int, only: list[int] | None = None) -> Iterator[Explanation]:
        """The explanations ``start`` to ``stop`` of a shard, or of these ``only`` some, counted from ``start``."""
        shard, sites = self.shards[at], len(self.structure)
        sizes = np.diff(self.rows_of(at)[start : stop + 1]).tolist()
        column = self.edge_columns(at, start, stop)
        graphs = self.rows(at, "graphs", start, stop)
        nodes = graphs["num_nodes"].to_numpy()
        graphs = graphs if only is None else graphs.take(only)
        with storage.understood(shard.graphs, "store"):
            index, kind, output = (dtype_of(shard.dtypes[name]) for name in ("edge_index", "edge_type", "output"))
            both = torch.stack([column.pop("source"), column.pop("target")])
            check_ends(both, torch.from_numpy(np.repeat(nodes, sizes)))
            ends = both.to(index).split(sizes, 1)
            parts = {name: values.split(sizes) for name, values in column.items()}
            rows, texts = graphs.drop_columns(list(_DERIVED)).to_pylist(), graphs["metadata"]
            lengths = [prod(row["shape"]) for row in rows]
            outputs = [_values(graphs[name]).to(output).split(lengths) for name in ("original", "masked")]
        del graphs, column, both
        for position, (number, row) in enumerate(zip(only or range(stop - start), rows, strict=True)):
            with storage.understood(shard.graphs, "store"):
                count, shape = row.pop("num_edges"), row.pop("shape")
                notes, own = texts[position].as_py(), row.pop("baselines")
                kept, scores, carried = (parts[n][number].view(sites, count) for n in ("kept", "score", "carried"))
                # Copies, so that whoever keeps one explanation does not keep its shard.
                explanation = build(
                    edge_index=ends[number][:, :count].clone(),
                    kept=kept.clone(),
                    scores=scores.clone(),
                    carried=carried.clone(),
                    original=outputs[0][position].view(shape).clone(),
                    masked=outputs[1][position].view(shape).clone(),
                    structure=self.structure,
                    baselines=self.baselines if own is None else self._as_baselines(own),
                    edge_type=None if kind is None else parts["type"][number][:count].to(kind, copy=True),
                    info={} if notes is None else storage.parse_json(notes, shard.graphs),
                    precision=self.precision,
                    **row,
                )
            yield explanation

    def edge_columns(self, at: int, start: int, stop: int) -> dict[str, Tensor]:
        """The columns of edges of the graphs ``start`` to ``stop`` of a shard; without types where there are none."""
        shard, starts = self.shards[at], self.rows_of(at)
        names = ["source", "target", "score", "kept", "carried"]
        names += [] if shard.dtypes["edge_type"] is None else ["type"]
        edges = self.rows(at, "edges", int(starts[start]), int(starts[stop]), names)
        with storage.understood(shard.edges, "store"):
            return {name: torch.from_numpy(edges[name].to_numpy().copy()) for name in names}

    def _as_baselines(self, own: list[list[float]]) -> tuple[Tensor, ...]:
        return tuple(torch.tensor(v, dtype=b.dtype) for v, b in zip(own, self.baselines, strict=True))

    def rows(self, at: int, kind: str, start: int, stop: int, names: list[str] | None = None) -> pa.Table:
        """Rows ``start`` to ``stop`` of a table of a shard."""
        path = self._file(at, kind)
        if self._at_once == 1:
            return files.rows(path, start, stop, names)
        # Spans are short here, and follow one another in each shard: what lies around them is read once.
        key = (path, ",".join(names or ()))
        first, block = self._blocks.get(key) or (0, None)
        if block is None or not first <= start <= stop <= first + block.num_rows:
            most = self.shards[at].count if kind == "graphs" else self.shards[at].rows
            end = min(max(stop, start + files.ROWS_AT_ONCE[kind]), most)
            first, block = self._blocks[key] = start, files.rows(path, start, end, names)
        return block.slice(start - first, stop - start)

    def rows_of(self, at: int) -> np.ndarray[Any, Any]:
        """[graphs + 1] the row of the shard's table of edges at which each graph begins; last, the number of rows."""
        if at not in self._located:
            shard = self.shards[at]
            sizes = files.rows(self._file(at, "graphs"), 0, shard.count, ["num_nodes", "num_edges"])
            nodes, edges = (sizes[name].to_numpy() for name in ("num_nodes", "num_edges"))
            starts = np.concatenate([[0], np.cumsum(len(self.structure) * edges)])
            if starts[-1] != shard.rows or (np.diff(starts) < 0).any() or not ((nodes >= 0) & (nodes < 1 << 31)).all():
                raise GraphMaskError(
                    f"Expected {starts[-1]} rows in {shard.edges}, found {shard.rows}. Make the store anew."
                )
            self._located[at] = starts
        return self._located[at]


def shared_baselines(description: dict[str, Any]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(b["values"], dtype=dtype_of(b["dtype"])) for b in description["baselines"])


def _scan(paths: list[Path]) -> pl.LazyFrame:
    import polars as pl

    # The names are taken as they are, brackets and equals signs in them included.
    return pl.scan_parquet(paths, glob=False, hive_partitioning=False)


def _renumbered(frame: pl.LazyFrame, numbers: np.ndarray[Any, Any], first: int) -> pl.LazyFrame:
    import polars as pl

    def of_store(graph: pl.Series) -> pl.Series:
        return pl.Series(numbers[graph.to_numpy() - first])

    return frame.with_columns(pl.col("graph").map_batches(of_store, return_dtype=pl.Int64, is_elementwise=True))


def _values(column: Any) -> Tensor:
    """The values of all lists of a column, concatenated."""
    return torch.from_numpy(column.combine_chunks().flatten().to_numpy(zero_copy_only=False).copy())
