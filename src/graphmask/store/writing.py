"""`explain_all(loader, out=DIR)`: what is not yet in the store is explained, batch by batch, shard by shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from graphmask import storage
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.guest import guest
from graphmask.store import columns, files, identity
from graphmask.store.columns import Metadata
from graphmask.store.files import Shard
from graphmask.store.reading import Store, open, shared_baselines

if TYPE_CHECKING:
    import pyarrow as pa

    from graphmask.method import Method

#: A shard is closed when it has this many rows, or when a kill would cost this much work.
ROWS_PER_SHARD, SECONDS_PER_SHARD = 1_000_000, 300.0


def write(
    method: Method,
    explain: Callable[[Any, str], list[Explanation]],
    loader: Iterable[Any],
    out: str | Path,
    *,
    repair: bool,
    metadata: Metadata | None,
    shard_rows: int | None,
    progress: bool,
) -> Store:
    """Called by `Method.explain_all`, which see; ``explain(batch, where)`` explains the graphs of one batch."""
    files.require()
    if shard_rows is not None and shard_rows < 1:
        raise GraphMaskError(f"Expected at least one row per shard, got {shard_rows}.")
    folder = Path(out)
    settings = {**identity.settings_of(method), "repair": repair, "metadata": metadata is not None}
    # The model is borrowed for all of it: a loader may draw from the user's random state.
    with files.locked(folder), guest(method.model), _bar(loader, progress) as advance:
        writer = _Writer(method, folder, settings, shard_rows or ROWS_PER_SHARD)
        known = [content for shard in writer.resume() for content in shard.batches]
        count = 0
        for count, batch in enumerate(loader, start=1):
            content, where = identity.content_of(batch), f"batch {count - 1}"
            if count > len(known):
                found = explain(batch, where)
                writer.add(batch, found, content, columns.notes_of(metadata, batch, len(found), where), where)
            elif content != known[count - 1]:
                raise GraphMaskError(
                    f"Expected the batches that {folder} was begun with, in the same order, got another {where}. "
                    "Use a loader that does not shuffle (or seed it as then), or write to another folder."
                )
            advance(writer.graphs)
        if count < max(len(known), 1):
            least = f"{len(known)} batches, which {folder} has," if known else "one batch"
            raise GraphMaskError(
                f"Expected at least {least} in the loader, found {count or 'none'}. Is it a spent iterator?"
            )
        writer.finish()
    return open(folder)


class _Writer:
    def __init__(self, method: Method, folder: Path, settings: dict[str, Any], most: int) -> None:
        self.method, self.folder, self.settings, self.most = method, folder, settings, most
        self.description: dict[str, Any] | None = None
        self.shard = 0  #: number of the one that is being made
        self.graphs = 0  #: explained so far
        self._begin_shard()

    def _begin_shard(self) -> None:
        self.pending: list[tuple[pa.Table, pa.Table]] = []  #: graphs and edges, batch by batch
        self.contents: list[str] = []
        self.dtypes: dict[str, str | None] = {}
        self.rows, self.first, self.since = 0, self.graphs, time.monotonic()

    def resume(self) -> list[Shard]:
        """What is there already of this very run."""
        folder = self.folder
        files.sweep(folder)
        if not (folder / files.DESCRIPTION).exists():
            strangers = files.strangers(folder)
            if strangers:
                raise GraphMaskError(
                    f"Expected a new folder or a store at {folder}, found {strangers[0]} without {files.DESCRIPTION}. "
                    "Write to another folder."
                )
            return []
        description, done = files.describe(folder), files.shards(folder)
        if not done:
            return []  # killed before there was anything to lose
        with storage.understood(folder / files.DESCRIPTION, "store"):
            identity.adopt(self.method, self.settings, description, folder)
            self.baselines = shared_baselines(description)
        self.description, self.shard, self.graphs = description, len(done), done[-1].first + done[-1].count
        self._begin_shard()
        return done

    def add(self, batch: Any, found: list[Explanation], content: str, notes: list[str] | None, where: str) -> None:
        if self.description is None:
            self._begin(found[0])
        assert self.description is not None
        dtypes = columns.dtypes(found[0])
        if dtypes["output"] != self.description["output"]:
            raise GraphMaskError(
                f"Expected outputs of {self.description['output']} as on the first batch, got {dtypes['output']} on "
                f"{where}. Cast them: forward=lambda model, batch: model(...).float()."
            )
        if dtypes != self.dtypes:
            self.flush()
            self.dtypes = dtypes
        tables = columns.tables(batch, found, self.graphs, self.method.divergence, self.baselines, notes, where)
        self.pending.append(tables)
        self.contents.append(content)
        self.graphs += len(found)
        self.rows += sum(table.num_rows for table in tables)
        if self.rows >= self.most or time.monotonic() - self.since > SECONDS_PER_SHARD:
            self.flush()

    def _begin(self, example: Explanation) -> None:
        self.baselines = tuple(columns.cpu(baseline) for baseline in example.baselines)
        self.description = {
            "graphmask": "store",
            "schema_version": files.VERSION,
            "graphmask_version": version("graphmask"),
            "method": example.method,
            "tolerance": example.tolerance,
            "sites": [asdict(site) for site in example.structure],
            "baselines": [{"dtype": columns.name_of(b.dtype), "values": b.tolist()} for b in self.baselines],
            "output": columns.name_of(example.original.dtype),
            "divergence": identity.divergence_of(self.method),
            "settings": self.settings,
            "graphs": None,  # as long as there may be more
        }
        files.write_description(self.folder, self.description)

    def flush(self) -> None:
        import pyarrow as pa

        if self.pending:
            graphs, edges = (pa.concat_tables(tables) for tables in zip(*self.pending, strict=True))
            shard = {"first": self.first, "batches": self.contents, "dtypes": self.dtypes}
            files.write_shard(self.folder, self.shard, graphs, edges, shard)
            self.shard += 1
        self._begin_shard()

    def finish(self) -> None:
        self.flush()
        assert self.description is not None
        if self.description["graphs"] != self.graphs:
            files.write_description(self.folder, {**self.description, "graphs": self.graphs})


@contextmanager
def _bar(loader: Iterable[Any], enabled: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    shown = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    off = not enabled or not console.is_terminal  # a log would get empty lines
    with Progress(TextColumn("explaining"), *shown, console=console, disable=off, transient=True) as bar:
        task = bar.add_task("", total=_count(loader))
        yield lambda graphs: bar.update(task, advance=1, description=f"{graphs:,} graphs")


def _count(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader of a stream
        return None
