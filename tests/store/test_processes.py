"""Many processes write one store; what they wrote is one store, in the order of the loader."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graphmask import GraphMaskError, analysis, methods, store
from graphmask.analysis import everything
from graphmask.experiments.bench import kills
from graphmask.experiments.bench import store as bench
from graphmask.store import files, locks, order, writing
from laws.support import fitted

from .support import assert_tables, begun, counted, equal, explain, gcn, some_batches

GRAPHS, SEED = 700, 5


def drawn(out: Path, rank: int = 0, world: int = 1, graphs: int = GRAPHS, **options: Any) -> store.Store:
    loader = bench.Random(graphs, SEED, 30)
    options = {"progress": False, "shard_rows": 900} | options
    return bench.Drawn().explain_all(loader, out=out, shard=(rank, world), **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn(tmp_path_factory.mktemp("alone")).path


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three processes' shards, which lie in each other."""
    folder = tmp_path_factory.mktemp("three")
    for rank in (2, 0, 1):  # the first to begin is not rank 0
        opened = drawn(folder, rank, 3)
        assert opened.complete == (rank == 1)
    return folder


def test_three_processes_write_what_one_writes(alone: Path, three: Path) -> None:
    opened, whole = store.open(three), store.open(alone)
    assert {shard.name.rank for shard in opened.shards} == {0, 1, 2}
    assert len(opened.spans) == 24 > len(opened.shards)
    assert len(opened) == GRAPHS
    assert opened.complete
    assert all(equal(a, b) for a, b in zip(opened, whole, strict=True))
    assert all(equal(opened[number], whole[number]) for number in (0, 29, 30, 31, 89, 90, 350, -1))
    assert [e.original.tolist() for e in opened.sample(50)] == [e.original.tolist() for e in whole.sample(50)]
    assert kills.check(three, alone) == len(opened.shards)
    assert json.loads((three / "store.json").read_text()) == json.loads((alone / "store.json").read_text())


def test_their_frames_have_the_store_s_numbers(alone: Path, three: Path) -> None:
    opened, whole = store.open(three), store.open(alone)
    some = pl.col("graph").is_between(45, 100)
    for engine in ("streaming", "in-memory"):
        a, b = (
            o.edges.filter(some).group_by("graph").agg(pl.col("kept").sum()).sort("graph").collect(engine=engine)
            for o in (opened, whole)
        )
        assert a.equals(b)
        assert a["graph"].to_list() == list(range(45, 101))


@pytest.mark.parametrize("name", everything.STREAMED)
def test_their_tables_are_those_of_one(name: str, alone: Path, three: Path) -> None:
    table = everything.STREAMED[name][1]
    assert table(store.open(three)).equals(table(store.open(alone)))


def test_two_stores_of_the_same_graphs_are_compared_however_they_were_written(alone: Path, three: Path) -> None:
    assert analysis.stability([store.open(alone), store.open(three)])["kappa"].to_list() == [1.0] * 3


def test_what_lies_in_each_other_is_read_once(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = store.open(three)
    real, read = files.rows, []

    def counting(path: Path, start: int, stop: int, columns: list[str] | None = None) -> Any:
        read.append(stop - start if path.name.startswith("edges") else 0)
        return real(path, start, stop, columns)

    monkeypatch.setattr(files, "rows", counting)
    everything.STREAMED["layers"][1](opened)
    assert sum(read) == sum(shard.rows for shard in opened.shards)
    assert max(len(opened._blocks), 1) <= 4 * order.at_once(opened.spans)
    assert order.at_once(opened.spans) <= 6
    assert order.at_once(store.open(three).spans[:1]) == 1


def test_resumed_by_another_number_of_processes(alone: Path, tmp_path: Path) -> None:
    """What is done is known by batch: three processes begin, one of them dies, two go on, then one."""
    drawn(tmp_path, 2, 3, graphs=300)  # as if it was cut short
    drawn(tmp_path, 0, 3)
    partial = store.open(tmp_path)
    assert not partial.complete
    batches = sorted(number for shard in partial.shards for number in shard.contents())
    assert batches == [0, 2, 3, 5, 6, 8, 9, 12, 15, 18, 21]
    assert len(partial) == 30 * 11
    whole = list(store.open(alone))
    expected = [whole[30 * number + place] for number in batches for place in range(30)]
    assert all(equal(a, b) for a, b in zip(partial, expected, strict=True))  # in order, closed up
    assert partial.graphs.select("graph").sort("graph").collect()["graph"].to_list() == list(range(330))
    drawn(tmp_path, 1, 2)
    assert not store.open(tmp_path).complete
    drawn(tmp_path)
    assert store.open(tmp_path).complete
    kills.check(tmp_path, alone)
    before = sorted(tmp_path.iterdir())
    assert drawn(tmp_path, 3, 4).complete
    assert sorted(tmp_path.iterdir()) == before


def test_what_the_first_batch_decides_holds_for_all(tmp_path: Path) -> None:
    """A Gaussian's variance comes from the first batch, which only the process of rank 0 explains."""

    def method() -> Any:
        return methods.get("random")(fitted("GCN").model, divergence="gaussian")

    explain(method(), some_batches(), tmp_path / "one")
    for rank in (1, 0):
        explain(method(), some_batches(), tmp_path / "two", shard=(rank, 2))
    a, b = (store.open(tmp_path / name) for name in ("one", "two"))
    assert all(equal(x, y) for x, y in zip(a, b, strict=True))
    more = explain(method(), some_batches(1), tmp_path / "idle", shard=(1, 2))  # a process that has nothing to do
    assert (len(more), more.complete) == (0, False)
    assert explain(method(), some_batches(1), tmp_path / "idle", shard=(0, 2)).complete
    assert explain(method(), some_batches(1), tmp_path / "idle", shard=(1, 2)).complete


def own(out: Path, rank: int, total: int = 5, **changes: Any) -> store.Store:
    """As an accelerated loader would: each process is given its own batches only."""
    model = copy.deepcopy(fitted("GCN").model)  # processes do not share one
    method = changes.pop("method", None) or methods.get("random")(model, divergence="gaussian")
    batches = changes.pop("batches", some_batches()[rank::2])
    options = {"repair": True, "metadata": None, "shard_rows": 60, "progress": False}
    return writing.write(
        method,
        lambda batch, where: method._explain(batch, True, where),
        batches,
        out,
        rank=rank,
        world=2,
        total=total,
        **options,
    )


def test_processes_that_see_only_their_own_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = methods.get("random")(fitted("GCN").model, divergence="gaussian")
    explain(method, some_batches(), tmp_path / "one")
    late = threading.Thread(target=own, args=(tmp_path / "two", 1))
    late.start()  # waits for what the first batch decides
    own(tmp_path / "two", 0)
    late.join(60)
    a, b = (store.open(tmp_path / name) for name in ("one", "two"))
    assert b.complete
    assert all(equal(x, y) for x, y in zip(a, b, strict=True))
    with pytest.raises(GraphMaskError, match="its 3 of 6 batches in the loader, found 2"):
        own(tmp_path / "two", 1, total=6)
    monkeypatch.setattr(writing, "SECONDS_FOR_THE_FIRST", 0.1)
    with pytest.raises(GraphMaskError, match=r"Expected the process of rank 0 to begin .* within 0 s"):
        own(tmp_path / "new", 1)


# Who may write -----------------------------------------------------------------------------------------------


def test_one_process_per_rank_and_one_number_of_processes(tmp_path: Path) -> None:
    with locks.writing(tmp_path, 1, 3):
        with pytest.raises(GraphMaskError, match="alone, found another process at it"):
            drawn(tmp_path, 1, 3)
        with pytest.raises(GraphMaskError, match=r"Expected all that write to .* to be 2 processes, found one of 3"):
            drawn(tmp_path, 0, 2)
        with pytest.raises(GraphMaskError, match=r"Expected all that write to .* to be 1 processes, found one of 3"):
            drawn(tmp_path)
        drawn(tmp_path, 0, 3)
        with pytest.raises(GraphMaskError, match="alone, found another process at it"):
            store.compact(tmp_path)
    (tmp_path / ".writer-1-of-7.lock").touch()  # of a kill
    drawn(tmp_path, 1, 3)
    drawn(tmp_path, 2, 3)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    for rank, world in ((3, 3), (-1, 2), (0, 0)):
        with pytest.raises(GraphMaskError, match="Expected a rank from 0"):
            drawn(tmp_path, rank, world)


def test_a_writer_leaves_the_files_of_others_alone(tmp_path: Path) -> None:
    begun(gcn(), tmp_path)
    others = [".edges-r1-000000.parquet.r1.abc", ".store.json.r1.abc"]
    mine = [".edges-000007.parquet.r0.abc", ".graphs-000002.parquet.abc", ".shard-r5-000000.json.r5.abc"]
    for name in (*others, *mine, ".edges-000000.parquet", ".notes.json.abc"):
        (tmp_path / name).write_bytes(b"half")
    counted(gcn(), tmp_path)  # alone: all that are left are nobody's
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert left == {".edges-000000.parquet", ".notes.json.abc"}
    for name in (*others, *mine):
        (tmp_path / name).write_bytes(b"half")
    explain(gcn(), some_batches(), tmp_path, shard=(0, 2))
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert left == {".edges-000000.parquet", ".notes.json.abc", *others}


# Killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writers", [1, 2])
def test_killed_at_random_moments(writers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`graphmask bench store --kills 50` does more of it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = kills.measure(5, writers, seed=writers, graphs=1500, progress=False)
    assert (found["kills"], found["writers"]) == (5, writers)
    assert found["graphs"] == 1500 * found["stores"]
    assert found["shards"] >= 18 * found["stores"]


def test_a_reader_sees_only_what_is_whole(alone: Path, tmp_path: Path) -> None:
    """Opened whenever a file has appeared."""
    seen: list[int] = []
    real = files.files.write_bytes

    def looking(path: Path, content: Any, tag: str = "") -> None:
        real(path, content, tag)
        if seen or path.name.startswith("shard"):
            opened = store.open(tmp_path)
            opened.verify()
            seen.append(len(opened))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.files, "write_bytes", looking)
        drawn(tmp_path)
    assert seen == sorted(seen)
    assert set(seen) == {60 * (n + 1) for n in range(GRAPHS // 60)} | {GRAPHS}
    kills.check(tmp_path, alone)


# Of the version before ---------------------------------------------------------------------------------------

OLD = Path(__file__).parent / "version_1"


def test_a_store_of_version_1_is_read_resumed_and_compacted(tmp_path: Path) -> None:
    """It was cut short after four of eight batches of ten, and has no manifest."""
    loader = bench.Random(80, 7, 10)
    bench.Drawn().explain_all(loader, out=tmp_path / "new", repair=False, progress=False, shard_rows=400)
    old, whole = store.open(OLD), list(store.open(tmp_path / "new"))
    assert not old.complete
    assert [shard.count for shard in old.shards] == [20, 20]
    assert not any(shard.sums for shard in old.shards)
    assert all(equal(a, b) for a, b in zip(old, whole[:40], strict=True))
    folder = tmp_path / "old"
    folder.mkdir()
    for path in OLD.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    seen: list[str] = []

    class Watched(bench.Drawn):
        def _explain(self, batch: Any, repair: bool, where: str) -> Any:
            seen.append(where)
            return super()._explain(batch, repair, where)

    Watched().explain_all(loader, out=folder, repair=False, progress=False, shard_rows=400)
    assert seen == [f"batch {number}" for number in range(4, 8)]
    kills.check(folder, tmp_path / "new")
    store.compact(folder)
    assert [path.name for path in folder.iterdir() if "-g1-" not in path.name] == ["store.json"]
    kills.check(folder, tmp_path / "new")
    assert_tables(folder, tmp_path / "new")
    assert Watched().explain_all(loader, out=folder, repair=False, progress=False).complete
    assert len(seen) == 4
