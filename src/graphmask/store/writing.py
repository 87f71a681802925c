"""`explain_all(loader, out=DIR)`: batches that are not yet in the store are explained and written in shards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmask import bars
from graphmask import files as storage
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.store import columns, files, identity, locks
from graphmask.store.columns import Metadata
from graphmask.store.files import Run
from graphmask.store.identity import Explainer
from graphmask.store.reading import Store, read, shared_baselines
from graphmask.tapping.restore import restored

if TYPE_CHECKING:
    import pyarrow as pa

#: A shard is closed when it has this many rows or bytes, or when a kill would cost this much work.
ROWS_PER_SHARD, BYTES_PER_SHARD, SECONDS_PER_SHARD = 1_000_000, 1 << 28, 300.0
#: A model may take its time over the first batch.
SECONDS_FOR_THE_FIRST = 600.0


def write(
    method: Explainer,
    explain: Callable[[Any, str], list[Explanation]],
    loader: Iterable[Any],
    out: str | Path,
    *,
    repair: bool,
    metadata: Metadata | None,
    shard_rows: int | None,
    progress: bool,
    rank: int = 0,
    world: int = 1,
    total: int | None = None,
) -> Store:
    """Called by `Method.explain_all`, which see; ``explain(batch, where)`` explains the graphs of one batch.

    Several processes may write at once, each with a rank of its own and all with the same ``world``: the process of
    rank r explains the batches r, r + world, r + 2 world, ... that are not yet in the store, whoever wrote those. So a
    run may be resumed by another number of processes than it was begun with.

    Args:
        rank, world: which of how many processes this is.
        total: None if the loader has all batches, of which this process skips those of others. Else the loader has only
            this process's own, r, r + world, ..., of so many in all.

    Returns:
        What is there when this process is done; `Store.complete` when all are.
    """
    files.require()
    _check(shard_rows, rank, world, total)
    folder = Path(out)
    settings = {**identity.settings_of(method), "repair": repair, "metadata": metadata is not None}
    # The model is borrowed for all of it: a loader may draw from the user's random state.
    with locks.writing(folder, rank, world), restored(method.subject.model), _bar(loader, progress) as advance:
        writer = _Writer(method, folder, settings, shard_rows or ROWS_PER_SHARD, rank, world)
        known = writer.resume()
        if total is not None and rank:
            writer.wait()
        position = -1
        for position, batch in enumerate(loader):
            number = position if total is None else rank + position * world
            where = f"batch {number}"
            if number % world != rank:
                if number == 0 and writer.description is None:
                    writer.begin(explain(batch, where)[0])  # what it decides holds for all processes
            elif number not in known:
                explanations = explain(batch, where)
                notes = columns.notes_of(metadata, batch, explanations, where)
                writer.add(batch, explanations, identity.content_of(batch), notes, number)
            elif identity.content_of(batch) != known[number]:
                raise GraphMaskError(
                    f"Expected the batches that {folder} was begun with, in the same order, got another {where}. "
                    "Use a loader that does not shuffle (or seed it as then), or write to another folder."
                )
            advance(writer.graphs)
        writer.finish(_count_batches(position + 1, known, folder, rank, world, total))
    return read(folder)


def _check(shard_rows: int | None, rank: int, world: int, total: int | None) -> None:
    if shard_rows is not None and shard_rows < 1:
        raise GraphMaskError(f"Expected at least one row per shard, got {shard_rows}.")
    if not 0 <= rank < world:
        raise GraphMaskError(f"Expected a rank from 0 to {world - 1}, one per process, got {rank}.")
    if total is not None and total < 1:
        raise GraphMaskError(f"Expected at least one batch in all, got {total}.")


def _count_batches(seen: int, known: dict[int, str], folder: Path, rank: int, world: int, total: int | None) -> int:
    """The number of batches of the whole loader; raises if it gave fewer than there must be."""
    if total is None:
        least = max(known, default=-1) + 1
        expected = f"{least} batches, which {folder} has," if known else "one batch"
        wrong = seen < max(least, 1)
    else:
        least = len(range(rank, total, world))
        expected, wrong = f"its {least} of {total} batches", seen != least
    if wrong:
        raise GraphMaskError(
            f"Expected at least {expected} in the loader, found {seen or 'none'}. Is it a spent iterator?"
        )
    return seen if total is None else total


class _Writer:
    def __init__(
        self, method: Explainer, folder: Path, settings: dict[str, Any], most: int, rank: int, world: int
    ) -> None:
        self.method, self.folder, self.settings, self.most = method, folder, settings, most
        self.rank, self.world = rank, world
        self.description: dict[str, Any] | None = None
        self.described = False  #: in the folder too
        self.name = files.Name(0, rank, 0)  #: of the shard that is being made
        self.graphs = 0  #: explained so far
        self.in_order = world == 1  #: then files can have the numbers of the store
        self._begin_shard()

    def _begin_shard(self) -> None:
        self.pending: list[tuple[pa.Table, pa.Table]] = []  #: graphs and edges, batch by batch
        self.contents: list[str] = []
        self.runs: list[Run] = []
        self.dtypes: dict[str, str | None] = {}
        self.rows = self.bytes = self.count = 0
        self.first, self.since = self.graphs if self.in_order else 0, time.monotonic()

    def resume(self) -> dict[int, str]:
        """Hashes of the batches that are in the store already, by number; raises if another run wrote them."""
        folder = self.folder
        strangers = files.strangers(folder)  # looked for first: others may begin just now
        if not (folder / files.DESCRIPTION).exists():
            if strangers:
                raise GraphMaskError(
                    f"Expected a new folder or a store at {folder}, found {strangers[0]} without {files.DESCRIPTION}. "
                    "Write to another folder."
                )
            files.sweep(folder, {0}, self.rank, self.world)
            return {}
        description = files.describe(folder)
        done = files.shards(folder, description["generation"])
        if done:
            self._adopt(description)
        files.sweep(folder, {description["generation"]}, self.rank, self.world)
        mine = [shard.name.number for shard in done if shard.name.rank == self.rank]
        self.name = files.Name(description["generation"], self.rank, max(mine, default=-1) + 1)
        known = {number: content for shard in done for number, content in shard.contents().items()}
        self.graphs = sum(shard.count for shard in done)
        self.in_order &= len(known) == max(known, default=-1) + 1
        self._begin_shard()
        return known  # killed before there was anything to lose: none

    def _adopt(self, description: dict[str, Any]) -> None:
        with storage.understood(self.folder / files.DESCRIPTION, "store"):
            identity.adopt(self.method, self.settings, description, self.folder)
            self.baselines = shared_baselines(description)
        self.description, self.described = description, True

    def wait(self) -> None:
        """Wait until another process has written ``store.json``, which describes what the first batch decides."""
        patience = time.monotonic() + SECONDS_FOR_THE_FIRST
        while self.description is None:
            try:
                self._adopt(files.describe(self.folder))
            except GraphMaskError as error:  # not there yet, or of a run that was killed at once
                if time.monotonic() > patience:
                    raise GraphMaskError(
                        f"Expected the process of rank 0 to begin {self.folder} within {SECONDS_FOR_THE_FIRST:.0f} s, "
                        f"found that it has not: {error}"
                    ) from error
                time.sleep(0.05)

    def add(
        self, batch: Any, explanations: list[Explanation], content: str, notes: list[str] | None, number: int
    ) -> None:
        where = f"batch {number}"
        if self.description is None:
            self.begin(explanations[0])
        assert self.description is not None
        dtypes = columns.dtypes(explanations[0])
        if dtypes["output"] != self.description["output"]:
            raise GraphMaskError(
                f"Expected outputs of {self.description['output']} as on the first batch, got {dtypes['output']} on "
                f"{where}. Cast them: forward=lambda model, batch: model(...).float()."
            )
        if dtypes != self.dtypes:
            self.flush()
            self.dtypes = dtypes
        first = self.first + self.count
        tables = columns.tables(
            batch, explanations, first, self.method.subject.divergence, self.baselines, notes, where
        )
        self.pending.append(tables)
        self.contents.append(content)
        files.extend(self.runs, Run(number, 1, len(explanations)))
        self.graphs += len(explanations)
        self.count += len(explanations)
        self.rows += sum(table.num_rows for table in tables)
        self.bytes += sum(table.nbytes for table in tables)
        late = time.monotonic() - self.since > SECONDS_PER_SHARD
        if self.rows >= self.most or self.bytes >= BYTES_PER_SHARD or late:
            self.flush()

    def begin(self, example: Explanation) -> None:
        self.baselines = tuple(columns.cpu(baseline) for baseline in example.baselines)
        self.description = {
            "graphmask": "store",
            "schema_version": files.VERSION,
            "graphmask_version": version("graphmask"),
            "method": example.method,
            "tolerance": example.tolerance,
            "types": self.method.subject.types,
            "sites": [site.to_json() for site in example.structure],
            "baselines": [{"dtype": columns.name_of(b.dtype), "values": b.tolist()} for b in self.baselines],
            "output": columns.name_of(example.original.dtype),
            "divergence": identity.divergence_of(self.method),
            "settings": self.settings,
            "graphs": None,  # as long as there may be more
            "generation": self.name.generation,
        }
        if self.rank == 0:  # others may be waiting for it
            files.write_description(self.folder, self.description)
            self.described = True

    def _describe(self) -> None:
        """Write ``store.json``; its content is the same whichever process writes it."""
        if self.described or self.description is None:
            return
        path = self.folder / files.DESCRIPTION
        if not path.exists() or {**files.describe(self.folder), "graphs": None} != storage.as_json(self.description):
            files.write_description(self.folder, self.description, self.rank)
        self.described = True

    def flush(self) -> None:
        import pyarrow as pa

        if self.pending:
            self._describe()
            graphs, edges = (pa.concat_tables(tables) for tables in zip(*self.pending, strict=True))
            shard = {"first": self.first, "runs": self.runs, "batches": self.contents, "dtypes": self.dtypes}
            files.write_shard(self.folder, self.name, graphs, edges, shard)
            self.name = self.name._replace(number=self.name.number + 1)
        self._begin_shard()

    def finish(self, batches: int) -> None:
        """Mark the store as complete if all batches are there."""
        self.flush()
        self._describe()
        description = files.describe(self.folder)
        done = files.shards(self.folder, description["generation"])
        graphs = sum(shard.count for shard in done)
        now = {"graphs": graphs, "schema_version": files.VERSION}
        if sum(len(shard.batches) for shard in done) == batches and description["graphs"] != graphs:
            files.write_description(self.folder, {**description, **now}, self.rank)


@contextmanager
def _bar(loader: Iterable[Any], enabled: bool) -> Iterator[Callable[[int], None]]:
    # A log would get empty lines.
    with bars.bar("explaining", enabled=enabled and sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=_count(loader))
        yield lambda graphs: bar.update(task, advance=1, description=f"{graphs:,} graphs")


def _count(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader of a stream
        return None
