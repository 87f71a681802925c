"""Whatever kills a writer, going on gives the store of a run that was never killed."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from graphmask import GraphMaskError, methods, store
from graphmask.store import writing
from laws.support import fitted
from reference import fresh

from .support import (
    assert_tables,
    begun,
    counted,
    equal,
    explain,
    gcn,
    some_batches,
)

# Killed and resumed ------------------------------------------------------------------------------------------

#: Stops in the middle of the second shard: the first time `function` is called on its path, it never returns.
SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
extra = ["polars", "pyarrow.parquet"]
sys.modules |= dict.fromkeys(extra)  # as if they were not installed: the library itself must do without
import graphmask.store
for name in extra:
    del sys.modules[name]
from store import support
from graphmask import load, storage
from laws.cases import BY_NAME

real = storage.{module}{function}
def stopping(*arguments, **options):
    if {at!r} in str(arguments[-1 if {last} else 0]):
        print("now", flush=True)
        time.sleep(60)
    return real(*arguments, **options)
storage.{module}{function} = stopping
explainer = load({fit!r}, BY_NAME["GCN"].model())
explainer.explain_all(support.some_batches(), out={out!r}, allow_infeasible=True, shard_rows=60)
"""
STOPS = {
    "before its piece of the manifest": (
        "",
        "write_bytes",
        "shard-000001",
        False,
        ["edges-000001.parquet", "graphs-000001.parquet"],
    ),
    "before a file is renamed": ("os.", "replace", "edges-000001", True, [".edges-000001.parquet.tmp"]),
}


@pytest.mark.parametrize("stop", list(STOPS))
def test_killed_and_resumed_is_never_killed(stop: str, whole: Path, tmp_path: Path) -> None:
    module, function, at, last, left = STOPS[stop]
    fit, out = tmp_path / "x.graphmask", tmp_path / "out"
    gcn().save(fit)
    script = SCRIPT.format(
        tests=str(Path(__file__).parents[1]),
        module=module,
        function=function,
        at=at,
        last=last,
        fit=str(fit),
        out=str(out),
    )
    with fresh.running(script) as process:
        assert process.stdout.readline() == "now\n"
        process.kill(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    names = [re.sub(r"(?<=parquet\.).*", "tmp", path.name) for path in out.iterdir()]
    shard = ["graphs-000000.parquet", "edges-000000.parquet", "shard-000000.json"]
    assert sorted(names) == sorted([*left, *shard, "store.json", ".writer-0-of-1.lock"])

    partial = store.open(out)  # what is whole can be read
    assert not partial.complete
    assert "cut short" in repr(partial)
    done = len(partial.shards[0].batches)
    assert 0 < done < 5
    assert len(partial) == 3 * done
    assert all(equal(a, b) for a, b in zip(partial, store.open(whole), strict=False))

    explained = counted(gcn(), out)
    assert explained == [f"batch {number}" for number in range(done, 5)]  # nothing is done again
    assert_tables(out, whole)
    assert store.open(out).complete
    assert all(equal(a, b) for a, b in zip(store.open(out), store.open(whole), strict=True))
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
    assert counted(gcn(), out) == []  # and once it is complete, nothing at all


def test_leftovers_of_a_killed_shard_are_ignored_and_overwritten(whole: Path, tmp_path: Path) -> None:
    begun(gcn(), tmp_path)
    (tmp_path / "edges-000002.parquet").write_bytes(b"half a shard")
    (tmp_path / ".graphs-000002.parquet.abc").write_bytes(b"a tenth")
    (tmp_path / "notes.txt").write_text("the user's")
    assert len(store.open(tmp_path)) == 6
    explain(gcn(), some_batches(), tmp_path)
    assert_tables(tmp_path, whole)
    assert not (tmp_path / ".graphs-000002.parquet.abc").exists()
    assert (tmp_path / "notes.txt").read_text() == "the user's"


def test_what_the_first_batch_decides_survives(tmp_path: Path) -> None:
    """The variance of a Gaussian and the sites are found on the first batch, which a resumed run does not see."""

    def method() -> Any:
        return methods.get("random")(fitted("GCN").model, divergence="gaussian")

    explain(method(), some_batches(), tmp_path / "whole")
    begun(method(), tmp_path / "resumed")
    resumed = method()
    explain(resumed, some_batches(), tmp_path / "resumed")
    assert_tables(tmp_path / "resumed", tmp_path / "whole")
    other = method()
    list(other.explain_all(some_batches()[2:]))
    assert other.divergence.variance != resumed.divergence.variance
    with pytest.raises(GraphMaskError, match="found one with another divergence"):
        explain(other, some_batches(), tmp_path / "resumed")


def test_more_batches_are_added(whole: Path, tmp_path: Path) -> None:
    assert explain(gcn(), some_batches()[:3], tmp_path).complete
    assert counted(gcn(), tmp_path) == ["batch 3", "batch 4"]
    assert_tables(tmp_path, whole)
    assert len(store.open(tmp_path)) == 15
    assert store.open(tmp_path).complete


def test_slow_explanations_are_written_in_time(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SECONDS_PER_SHARD", 0.0)
    assert len(explain(gcn(), some_batches(), tmp_path, shard_rows=None).shards) == 5
    assert_tables(tmp_path, whole)


def test_killed_before_the_first_shard_is_started_anew(whole: Path, tmp_path: Path) -> None:
    description = json.loads((whole / "store.json").read_text())
    description["settings"]["seed"], description["baselines"] = 9, []
    (tmp_path / "store.json").write_text(json.dumps(description))
    with pytest.raises(GraphMaskError, match="at least one complete shard"):
        store.open(tmp_path)
    explain(gcn(), some_batches(), tmp_path)
    assert_tables(tmp_path, whole)
