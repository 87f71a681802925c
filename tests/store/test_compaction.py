"""Few shards hold what many held, and a kill leaves one or the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graphmask import GraphMaskError, cli, store
from graphmask.experiments.bench import kills
from graphmask.experiments.bench import store as bench
from graphmask.store import compacting, files

from .support import assert_tables, counted, equal, explain, gcn, some_batches, words
from .test_processes import alone, drawn, three

__all__ = ["alone", "three"]


def test_the_same_in_fewer_files(whole: Path, tmp_path: Path) -> None:
    """Notes, labels and outputs included; bit for bit the files of a run that wrote large shards at once."""
    explain(gcn(), some_batches(), tmp_path / "large", shard_rows=None, metadata=words)
    small = explain(gcn(), some_batches(), tmp_path / "small", shard_rows=1, metadata=words)
    before = list(small)
    assert len(small.shards) == 5
    compacted = store.compact(tmp_path / "small")
    assert len(compacted.shards) == 1
    assert compacted.complete
    assert all(equal(a, b) for a, b in zip(compacted, before, strict=True))
    for kind in ("graphs", "edges"):
        name = f"{kind}-g1-000000.parquet"
        assert (tmp_path / "small" / name).read_bytes() == (tmp_path / "large" / f"{kind}-000000.parquet").read_bytes()
    assert len(list((tmp_path / "small").iterdir())) == 4
    with pytest.raises(GraphMaskError, match=r"graphs-000000\.parquet, found a truncated or foreign file"):
        next(iter(store.Store(small.path, files.describe(small.path), small.shards)))  # opened before


def test_shards_of_several_processes_are_put_in_order(alone: Path, three: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(three, tmp_path / "copy")
    compacted = store.compact(folder, shard_rows=4000)
    assert [span.shard for span in compacted.spans] == list(range(len(compacted.shards)))
    assert len(compacted.shards) == 4
    assert_tables(folder, alone)  # rows in the loader's order, without sorting
    kills.check(folder, alone)
    again = store.compact(folder, shard_rows=4000)  # there is nothing left to do
    assert [shard.name for shard in again.shards] == [shard.name for shard in compacted.shards]
    larger = store.compact(folder)
    assert [shard.name.generation for shard in larger.shards] == [2]
    assert_tables(folder, alone)
    assert drawn(folder).complete


def test_an_unfinished_store_is_compacted_and_gone_on_with(alone: Path, tmp_path: Path) -> None:
    drawn(tmp_path, 1, 3)
    store.compact(tmp_path)
    drawn(tmp_path, 2, 3)
    assert len(store.open(tmp_path)) == 460
    for rank in range(2):
        drawn(tmp_path, rank, 2)
    kills.check(tmp_path, alone)
    assert len(store.compact(tmp_path).shards) == 1
    assert_tables(tmp_path, alone)


@pytest.mark.parametrize("call", range(7))
def test_killed_anywhere(call: int, alone: Path, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is left by a crash at any of its writes, a reader finds the store, and another call finishes it."""
    folder = shutil.copytree(three, tmp_path / "copy")
    real, calls = files.files.write_bytes, []

    def crash(path: Path, content: Any, tag: str = "") -> None:
        calls.append(path.name)
        if len(calls) > call:
            raise KeyboardInterrupt
        real(path, content, tag)

    with monkeypatch.context() as patch:
        patch.setattr(files.files, "write_bytes", crash)
        with pytest.raises(KeyboardInterrupt):
            store.compact(folder, shard_rows=8000)
    kills.check(folder, alone)
    if call == 5:  # a writer in between: what was merged may be out of date
        drawn(folder)
        assert not list(folder.glob("*-g1-*"))
    done = len(list(folder.glob("shard-g1-*")))
    with monkeypatch.context() as patch:
        patch.setattr(files.files, "write_bytes", lambda *a, **k: (calls.append(a[0].name), real(*a, **k)))
        calls.clear()
        store.compact(folder, shard_rows=8000)
    assert len(calls) == 3 * (2 - done) + 1  # what was merged is not merged again
    kills.check(folder, alone)
    assert_tables(folder, alone)


def test_killed_before_the_old_files_were_deleted(alone: Path, three: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(three, tmp_path / "copy")
    store.compact(folder)
    for path in three.iterdir():
        if path.name != "store.json":
            shutil.copy(path, folder)
    kills.check(folder, alone)
    assert counted_drawn(folder) == []
    assert not list(folder.glob("*-r1-*"))
    kills.check(folder, alone)


def counted_drawn(folder: Path) -> list[str]:
    seen: list[str] = []

    class Watched(bench.Drawn):
        def _explain(self, batch: Any, repair: bool, where: str) -> Any:
            seen.append(where)
            return super()._explain(batch, repair, where)

    Watched().explain_all(bench.Random(700, 5, 30), out=folder, progress=False)
    return seen


def test_on_the_command_line(three: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(three, tmp_path / "copy")
    invoke = CliRunner().invoke
    result = invoke(cli.app, ["store", "compact", str(folder)])
    assert f"{len(store.open(three).shards)} shards are now 1: Store(" in result.output
    assert "as written: Store(" in invoke(cli.app, ["store", "verify", str(folder)]).output
    content = (folder / "edges-g1-000000.parquet").read_bytes()
    (folder / "edges-g1-000000.parquet").write_bytes(content[:-20] + bytes(20))
    result = invoke(cli.app, ["store", "verify", str(folder)])
    assert "found it altered" in str(result.exception)


def test_no_store_and_no_rows(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(GraphMaskError, match="found no such folder"):
        store.compact(tmp_path / "nowhere")
    with pytest.raises(GraphMaskError, match="at least one row per shard, got 0"):
        store.compact(whole, shard_rows=0)
    copy = shutil.copytree(whole, tmp_path / "copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacting._Merger, "add", lambda *_: None)
        with pytest.raises(GraphMaskError, match=r"Expected 15 graphs in .* rows from compacting .*, found 0 in 0"):
            store.compact(copy)
    assert_tables(copy, whole)
    assert counted(gcn(), copy) == []
