"""Many small shards merged into few: the same explanations, in the order of the loader; a kill loses none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmask.errors import GraphMaskError
from graphmask.store import files, locks
from graphmask.store.files import Name, Run, Shard
from graphmask.store.reading import Store, open
from graphmask.store.writing import BYTES_PER_SHARD, ROWS_PER_SHARD

if TYPE_CHECKING:
    import pyarrow as pa


def compact(path: str | Path, *, shard_rows: int = ROWS_PER_SHARD) -> Store:
    """Merge the shards of a store into as few as ``shard_rows`` rows each allow.

    New shards are written beside the old ones, and count from the moment that ``store.json`` says so, all at once; the
    old ones are deleted then. One that was killed goes on where it was when it is called again. It is refused while
    somebody writes; whoever has the store open must open it again.
    """
    if shard_rows < 1:
        raise GraphMaskError(f"Expected at least one row per shard, got {shard_rows}.")
    folder = Path(path)
    open(folder)  # is it a store?
    with locks.alone(folder):
        store = open(folder)
        description = files.describe(folder)
        old, new = description["generation"], description["generation"] + 1
        files.sweep(folder, {old, new}, rank=0, world=1)
        done = files.shards(folder, new)
        if not done and not _worthwhile(store, shard_rows):
            return store
        writer = _Merger(store, folder, new, shard_rows, done)
        for piece in _pieces(store):
            writer.add(*piece)
        writer.flush()
        _check_same(store, files.shards(folder, new))
        files.write_description(folder, {**description, "schema_version": files.VERSION, "generation": new})
        files.sweep(folder, {new}, rank=0, world=1)
    return open(folder)


def _worthwhile(store: Store, most: int) -> bool:
    """False if the store is in order already and no two neighbouring shards fit into one."""
    if len(store.spans) > len(store.shards) or any(not shard.sums for shard in store.shards):
        return True
    sizes = [shard.rows + shard.count for shard in store.shards]
    return any(a + b <= most for a, b in pairwise(sizes))


def _pieces(store: Store) -> Iterator[tuple[Shard, Run, list[str], int, int]]:
    """Runs of batches in the order of the loader: their shard, their hashes, their first graph there and its end."""
    runs = []
    for shard in store.shards:
        start = batch = 0
        for run in shard.runs:
            hashes = shard.batches[batch : batch + run.batches]
            runs.append((run, hashes, start, shard))
            start, batch = start + run.graphs, batch + run.batches
    for run, hashes, start, shard in sorted(runs, key=lambda found: found[0].batch):
        yield shard, run, hashes, start, start + run.graphs


class _Merger:
    def __init__(self, store: Store, folder: Path, generation: int, most: int, done: list[Shard]) -> None:
        self.store, self.folder, self.most = store, folder, most
        self.shard_number = {shard.name: at for at, shard in enumerate(store.shards)}
        self.name = Name(generation, 0, len(done))
        self.skip = sum(len(shard.batches) for shard in done)  #: batches that an earlier call has merged
        self.first = sum(shard.count for shard in done)
        self._begin()

    def _begin(self) -> None:
        self.tables: list[tuple[pa.Table, pa.Table]] = []
        self.runs: list[Run] = []
        self.hashes: list[str] = []
        self.dtypes: dict[str, Any] = {}
        self.size = self.bytes = self.count = 0

    def add(self, shard: Shard, run: Run, hashes: list[str], start: int, stop: int) -> None:
        if self.skip:
            self.skip -= run.batches  # shards end with runs
            return
        at = self.shard_number[shard.name]
        rows = self.store.rows_of(at)
        begin, end = int(rows[start]), int(rows[stop])
        if self.tables and (shard.dtypes != self.dtypes or self.size + end - begin + stop - start > self.most):
            self.flush()
        self.dtypes = shard.dtypes
        first = self.first + self.count
        graphs, edges = self.store.rows(at, "graphs", start, stop), self.store.rows(at, "edges", begin, end)
        by, schemas = first - shard.first - start, self.store.schemas
        self.tables.append((_moved(graphs, by, schemas["graphs"]), _moved(edges, by, schemas["edges"])))
        files.extend(self.runs, run)
        self.hashes += hashes
        self.count += run.graphs
        self.size += end - begin + stop - start
        self.bytes += sum(table.nbytes for table in self.tables[-1])
        if self.size >= self.most or self.bytes >= BYTES_PER_SHARD:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self.tables:
            graphs, edges = (pa.concat_tables(tables) for tables in zip(*self.tables, strict=True))
            shard = {"first": self.first, "runs": self.runs, "batches": self.hashes, "dtypes": self.dtypes}
            files.write_shard(self.folder, self.name, graphs, edges, shard)
            self.name = self.name._replace(number=self.name.number + 1)
        self.first += self.count
        self._begin()


def _moved(table: pa.Table, by: int, schema: pa.Schema) -> pa.Table:
    """A table with other numbers of graphs, and otherwise as it was in the file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: table[name] for name in schema.names} | {"graph": pc.add(table["graph"], by)}
    return pa.Table.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _check_same(store: Store, made: list[Shard]) -> None:
    """Raise unless the new shards have the batches and the number of rows of the old ones."""
    contents, expected = (
        {n: h for shard in shards for n, h in shard.contents().items()} for shards in (made, store.shards)
    )
    sizes = [(sum(s.count for s in shards), sum(s.rows for s in shards)) for shards in (made, store.shards)]
    if contents != expected or sizes[0] != sizes[1]:
        raise GraphMaskError(
            f"Expected {sizes[1][0]} graphs in {sizes[1][1]} rows from compacting {store.path}, found {sizes[0][0]} in "
            f"{sizes[0][1]}. The store is as it was; delete its files of the next generation, *-g*."
        )
