"""The files of a store: `store.json`, and shards in Parquet that say what they are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmask import storage
from graphmask.errors import GraphMaskError

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
DESCRIPTION = "store.json"
#: What is read at least to get at one row.
ROWS_AT_ONCE = {"graphs": 1 << 12, "edges": 1 << 16}
_NAME = re.compile(r"store\.json|(graphs|edges)-\d{6}\.parquet")


@dataclass
class Shard:
    """A pair of files that is there as a whole."""

    graphs: Path
    edges: Path
    first: int  #: number of its first graph
    count: int  #: graphs
    rows: int  #: of edges
    batches: list[str]  #: hashes of the batches it was made from
    dtypes: dict[str, str | None]  #: of the tensors that the columns were made from


def require() -> None:
    try:
        import polars  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise GraphMaskError("Expected pyarrow and polars to be installed. Try: pip install graphmask[store]") from None


def parse(text: str | bytes, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise GraphMaskError(f"Expected JSON at {path}, found a truncated or foreign file.") from None


def describe(folder: Path) -> dict[str, Any]:
    """What `store.json` says."""
    path = folder / DESCRIPTION
    description = parse(path.read_bytes(), path)
    if not isinstance(description, dict) or description.get("graphmask") != "store":
        raise GraphMaskError(f"Expected the description of a store at {path}, found a foreign file.")
    _check_version(description.get("schema_version"), path)
    return description


def write_description(folder: Path, description: dict[str, Any]) -> None:
    storage.write_bytes(folder / DESCRIPTION, json.dumps(description, indent=1).encode())


def _check_version(found: Any, path: Path) -> None:
    if str(found) != str(VERSION):
        raise GraphMaskError(
            f"Expected version {VERSION} of the store's schema at {path}, found {found!r}. "
            "Install the version of graphmask that wrote it."
        )


# Shards ------------------------------------------------------------------------------------------------------


def paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"graphs-{number:06}.parquet", folder / f"edges-{number:06}.parquet"


def write_shard(folder: Path, number: int, graphs: pa.Table, edges: pa.Table, shard: dict[str, Any]) -> None:
    """Edges first: where the graphs are, the shard is whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    beside, path = paths(folder, number)
    for name, table, at in (("edges", edges, path), ("graphs", graphs, beside)):
        header = {
            "graphmask_table": name,
            "graphmask_schema_version": str(VERSION),
            "graphmask_version": version("graphmask"),
            "graphmask_shard": json.dumps({**shard, "edges": edges.num_rows}),
        }
        content = pa.BufferOutputStream()
        whole = table.replace_schema_metadata(header)
        pq.write_table(whole, content, compression="zstd", row_group_size=ROWS_AT_ONCE[name])
        storage.write_bytes(at, content.getvalue().to_pybytes())


def shards(folder: Path) -> list[Shard]:
    """The shards that are whole, from their footers."""
    import pyarrow.parquet as pq

    found: list[Shard] = []
    count = sum(bool(re.fullmatch(r"graphs-\d{6}\.parquet", path.name)) for path in folder.iterdir())
    for number in range(count):
        sizes: list[int] = []
        header: dict[bytes, bytes] = {}
        for path in paths(folder, number):
            if not path.exists():
                raise GraphMaskError(f"Expected {count} shards in {folder}, found no {path.name}. Make the store anew.")
            with _readable(path):
                footer = pq.read_metadata(path)
            header = footer.metadata or {}
            if header.get(b"graphmask_table", b"").decode() != path.name.split("-")[0]:
                raise GraphMaskError(f"Expected a shard of a store at {path}, found a Parquet file of another kind.")
            _check_version(header.get(b"graphmask_schema_version", b"").decode(), path)
            sizes.append(footer.num_rows)
        graphs, edges = paths(folder, number)
        with storage.understood(edges, "store"):
            shard = parse(header[b"graphmask_shard"], edges)
            first = found[-1].first + found[-1].count if found else 0
            if (shard["first"], shard["edges"]) != (first, sizes[1]):
                raise GraphMaskError(
                    f"Expected shard {number} of {folder} to begin at graph {first}, found one of another store. Make "
                    "the store anew."
                )
            found.append(Shard(graphs, edges, first, sizes[0], sizes[1], shard["batches"], shard["dtypes"]))
    return found


def rows(path: Path, start: int, stop: int, columns: list[str] | None = None) -> pa.Table:
    """Rows ``start`` to ``stop``, by no more row groups than they lie in."""
    import pyarrow.parquet as pq

    with _readable(path), pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = np.cumsum(sizes, dtype=int)
        if start == stop:
            return file.read_row_groups([], columns)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        table = file.read_row_groups(list(range(first, last + 1)), columns)
        return table.slice(start - int(ends[first] - sizes[first]), stop - start)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        raise GraphMaskError(
            f"Expected a shard of a store at {path}, found a truncated or foreign file ({error}). Make the store anew."
        ) from None


# A folder to write to ------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes to the folder meanwhile, where the system can tell; a kill unlocks it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise GraphMaskError(f"Expected a folder to write to at {folder}, found a file.") from None
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GraphMaskError(
                f"Expected to write to {folder} alone, found another process at it. Wait for it, or write elsewhere."
            ) from None
        except OSError:
            pass  # a network file system without locks
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a loader's workers have the handle too
        os.close(handle)


def sweep(folder: Path) -> None:
    """Delete temporary files of writes that were killed."""
    for path in folder.iterdir():
        if path.name.startswith(".") and _NAME.match(path.name[1:]):
            path.unlink()


def strangers(folder: Path) -> list[str]:
    """Files with names of a store's."""
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
