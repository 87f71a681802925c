"""The files of a store: `store.json`, and shards in Parquet, each with a piece of the manifest that makes it count."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphmask import files
from graphmask.errors import GraphMaskError
from graphmask.store.safety import VERSION, check_kind, check_version, readable, regular

if TYPE_CHECKING:
    import pyarrow as pa

DESCRIPTION = "store.json"
#: What is read at least to get at one row; a group of graphs with large outputs is of fewer rows.
ROWS_AT_ONCE = {"graphs": 1 << 12, "edges": 1 << 16}
BYTES_AT_ONCE = 1 << 28
_NAME = re.compile(r"(graphs|edges|shard)-(?:g(\d+)-)?(?:r(\d+)-)?(\d{6,})\.(?:parquet|json)")


class Name(NamedTuple):
    """Who wrote a shard, and its number among those of the same writer."""

    generation: int  #: how often the store had been compacted
    rank: int
    number: int

    def path(self, folder: Path, kind: str) -> Path:
        made_by = f"g{self.generation}-" * bool(self.generation) + f"r{self.rank}-" * bool(self.rank)
        return folder / f"{kind}-{made_by}{self.number:06}.{'json' if kind == 'shard' else 'parquet'}"


class Run(NamedTuple):
    """Consecutive batches of the loader."""

    batch: int  #: number of the first
    batches: int
    graphs: int


def extend(runs: list[Run], run: Run) -> None:
    last = runs[-1] if runs else None
    if last is not None and last.batch + last.batches == run.batch:
        runs[-1] = Run(last.batch, last.batches + run.batches, last.graphs + run.graphs)
    else:
        runs.append(run)


class Sum(NamedTuple):
    """Size and hash of a file, by which changes are noticed."""

    bytes: int
    hash: str


@dataclass
class Shard:
    """A complete shard: the two files of graphs and edges, and what the manifest says of them."""

    name: Name
    graphs: Path
    edges: Path
    first: int  #: what its files call the first graph
    count: int  #: graphs
    rows: int  #: of edges
    runs: list[Run]  #: of batches that it was made from
    batches: list[str]  #: their hashes
    dtypes: dict[str, str | None]  #: of the tensors that the columns were made from
    sums: dict[str, Sum]  #: of graphs and edges; none in version 1

    def contents(self) -> dict[int, str]:
        """Hashes by the number of the batch."""
        numbers = (run.batch + position for run in self.runs for position in range(run.batches))
        return dict(zip(numbers, self.batches, strict=True))


def require() -> None:
    try:
        import polars  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise GraphMaskError("Expected pyarrow and polars to be installed. Try: pip install graphmask[store]") from None


def _own_json(path: Path, kind: str, what: str) -> dict[str, Any]:
    """A JSON file of ours, of a version that is understood."""
    regular(path)
    content = files.read_json(path)
    if not isinstance(content, dict) or content.get("graphmask") != kind:
        raise GraphMaskError(f"Expected {what} at {path}, found a foreign file.")
    check_version(content.get("schema_version"), path)
    return content


def describe(folder: Path) -> dict[str, Any]:
    """What `store.json` says."""
    path = folder / DESCRIPTION
    description = _own_json(path, "store", "the description of a store")
    with files.understood(path, "store"):
        description["generation"] = _whole(description.get("generation", 0))
    return description


def write_description(folder: Path, description: dict[str, Any], rank: int = 0) -> None:
    files.write_bytes(folder / DESCRIPTION, json.dumps(description, indent=1).encode(), tag=f"r{rank}.")


# Shards ------------------------------------------------------------------------------------------------------


def write_shard(folder: Path, name: Name, graphs: pa.Table, edges: pa.Table, shard: dict[str, Any]) -> None:
    """Write both files and then the manifest's piece, so that its presence means that the shard is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sums = {}
    for kind, table in (("edges", edges), ("graphs", graphs)):
        header = {
            "graphmask_table": kind,
            "graphmask_schema_version": str(VERSION),
            "graphmask_version": version("graphmask"),
        }
        buffer = pa.BufferOutputStream()
        group_size = min(ROWS_AT_ONCE[kind], max(BYTES_AT_ONCE * table.num_rows // max(table.nbytes, 1), 1))
        pq.write_table(table.replace_schema_metadata(header), buffer, compression="zstd", row_group_size=group_size)
        content = buffer.getvalue()
        files.write_bytes(name.path(folder, kind), content, tag=f"r{name.rank}.")
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        sums[kind] = {"rows": table.num_rows, "bytes": content.size, "hash": digest}
    piece = {"graphmask": "shard", "schema_version": VERSION, **shard, **sums}
    files.write_bytes(name.path(folder, "shard"), json.dumps(piece).encode(), tag=f"r{name.rank}.")


def shards(folder: Path, generation: int) -> list[Shard]:
    """All complete shards, in the order of their first batches."""
    names = {kind: set(of_kind) for kind, of_kind in listed(folder).items()}
    complete = _first_version(folder, sorted(names["graphs"] - names["shard"])) if generation == 0 else []
    complete += [_shard(folder, name) for name in names["shard"] if name.generation == generation]
    return sorted(complete, key=lambda shard: (shard.runs[0].batch, shard.name))


def listed(folder: Path) -> dict[str, list[Name]]:
    """For each kind (graphs, edges, manifest) the names of all files that follow the naming of shards."""
    names: dict[str, list[Name]] = {"graphs": [], "edges": [], "shard": []}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            kind, *numbers = match.groups()
            name = Name(*(int(number or 0) for number in numbers))
            if name.path(folder, kind) == path:  # one way to spell each
                names[kind].append(name)
    return names


def _shard(folder: Path, name: Name) -> Shard:
    path = name.path(folder, "shard")
    piece = _own_json(path, "shard", "a piece of a store's manifest")
    with files.understood(path, "store"):
        row_counts, sums = {}, {}
        for kind in ("graphs", "edges"):
            row_counts[kind] = _whole(piece[kind]["rows"])
            sums[kind] = Sum(_whole(piece[kind]["bytes"]), str(piece[kind]["hash"]))
            _check_size(name.path(folder, kind), sums[kind].bytes)
        runs = [Run(*map(_whole, run)) for run in piece["runs"]]
        if not runs or min(run.batches for run in runs) < 1 or sum(run.graphs for run in runs) != row_counts["graphs"]:
            raise TypeError("runs of batches that have other graphs")
        if sum(run.batches for run in runs) != len(piece["batches"]):
            raise TypeError("runs of other batches")
        return Shard(
            name,
            name.path(folder, "graphs"),
            name.path(folder, "edges"),
            _whole(piece["first"]),
            row_counts["graphs"],
            row_counts["edges"],
            runs,
            [str(content) for content in piece["batches"]],
            _dtypes(piece["dtypes"]),
            sums,
        )


def _check_size(path: Path, size: int) -> None:
    actual = regular(path)
    if actual != size:
        raise GraphMaskError(
            f"Expected {size} bytes in the shard of a store at {path}, found a truncated or foreign file of {actual}. "
            "Make the store anew."
        )


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TypeError(f"expected a number from 0 on, found {value!r:.40}")
    return value


def _dtypes(found: dict[str, Any]) -> dict[str, str | None]:
    named = {name: found[name] for name in ("edge_index", "edge_type", "output")}
    return {name: None if kind is None else str(kind) for name, kind in named.items()}


def _first_version(folder: Path, names: list[Name]) -> list[Shard]:
    """Shards of a store of version 1, which have no pieces of a manifest and follow one another."""
    import pyarrow.parquet as pq

    so_far: list[Shard] = []
    for name in names:
        graphs, edges = name.path(folder, "graphs"), name.path(folder, "edges")
        if name.generation or name.rank:
            continue
        regular(graphs)
        with readable(graphs):
            footer = pq.read_metadata(graphs)
        check_kind(footer.metadata, graphs, "graphs")
        if (footer.metadata or {})[b"graphmask_schema_version"] != b"1":
            continue
        regular(edges)
        with readable(edges):
            edge_rows = pq.read_metadata(edges).num_rows
        with files.understood(graphs, "store"):
            shard = files.parse_json(footer.metadata[b"graphmask_shard"], graphs)
            first = so_far[-1].first + so_far[-1].count if so_far else 0
            if name.number != len(so_far) or (shard["first"], shard["edges"]) != (first, edge_rows):
                raise GraphMaskError(
                    f"Expected shard {len(so_far)} of {folder} to begin at graph {first}, found one of another store, "
                    f"{graphs.name}. Make the store anew."
                )
            batch = sum(len(before.batches) for before in so_far)
            run = Run(batch, len(shard["batches"]), footer.num_rows)
            so_far.append(
                Shard(
                    name,
                    graphs,
                    edges,
                    first,
                    footer.num_rows,
                    edge_rows,
                    [run],
                    shard["batches"],
                    _dtypes(shard["dtypes"]),
                    {},
                )
            )
    return so_far


def rows(path: Path, start: int, stop: int, columns: list[str] | None = None) -> pa.Table:
    """Rows ``start`` to ``stop``, by no more row groups than they lie in."""
    import pyarrow.parquet as pq

    # Text as a dictionary: a thousand times the same long text is no thousand texts in memory.
    text = ["metadata"] if path.name.startswith("graphs") else None
    with readable(path), pq.ParquetFile(path, read_dictionary=text) as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = np.cumsum(sizes, dtype=int)
        if start == stop:
            return file.read_row_groups([], columns)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        table = file.read_row_groups(list(range(first, last + 1)), columns)
        return table.slice(start - int(ends[first] - sizes[first]), stop - start)


# What a writer finds in its folder -----------------------------------------------------------------------------


def sweep(folder: Path, generations: set[int], rank: int, world: int) -> None:
    """Delete what a killed process left: temporary files of this rank, and shards of other generations than these.

    Rank 0 also deletes those of ranks that do not exist any more.
    """
    for path in folder.iterdir():
        match = re.fullmatch(r"\.(.+?\.(?:json|parquet))\.(?:r(\d+)\.)?[^.]+", path.name)
        if match and (_NAME.fullmatch(match[1]) or match[1] == DESCRIPTION):
            owner = int(match[2] or 0)
            if owner == rank or (rank == 0 and owner >= world):
                path.unlink(missing_ok=True)
    for kind, names in listed(folder).items():
        for name in names:
            if name.generation not in generations:
                name.path(folder, kind).unlink(missing_ok=True)


def strangers(folder: Path) -> list[str]:
    """Files in the folder that are named like files of a store."""
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name) or path.name == DESCRIPTION)
