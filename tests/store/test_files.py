"""The model is untouched, memory is bounded, and the files and the docs say what is in them."""

from __future__ import annotations

import errno
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor
from torch_geometric.loader import DataLoader

import graphmask
from graphmask import Explanation
from graphmask import files as storage
from graphmask.store import columns, files, reading
from laws.cases import BY_NAME, CLASSES, RELATIONS
from laws.support import QUICK, fitted
from laws.untouched import assert_same, snapshot, unsettle
from reference.hasty import halve

from .support import (
    assert_tables,
    equal,
    explain,
    gcn,
    some_batches,
)

DOCS = Path(__file__).parents[2] / "docs" / "store.md"


# Laws --------------------------------------------------------------------------------------------------------


def test_the_model_is_untouched_whatever_the_writer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    explainer = graphmask.GraphMask(BY_NAME["GCN"].model(), recipe=QUICK)
    explainer.fit(BY_NAME["GCN"].loader(), progress=False)
    halve(explainer, BY_NAME["GCN"].loader())
    unsettle(explainer.model)
    graphs = [graph for batch in some_batches() for graph in batch.to_data_list()]
    before = snapshot(explainer.model)
    real, calls = storage.write_bytes, []

    def full(path: Path, content: bytes, tag: str) -> None:
        calls.append(path.name)
        if len(calls) == 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content, tag)

    monkeypatch.setattr(storage, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        explain(explainer, DataLoader(graphs, batch_size=3), tmp_path, shard_rows=1)
    monkeypatch.undo()
    kinds = ("edges-00000{}.parquet", "graphs-00000{}.parquet", "shard-00000{}.json")
    assert calls == ["store.json", *(kind.format(number) for number in (0, 1) for kind in kinds)]
    assert_same(before, snapshot(explainer.model))
    with pytest.raises(ZeroDivisionError):
        explain(explainer, DataLoader(graphs, batch_size=3), tmp_path / "x", metadata=lambda batch: 1 // 0)
    assert_same(before, snapshot(explainer.model))
    explain(explainer, DataLoader(graphs, batch_size=3), tmp_path)
    assert_same(before, snapshot(explainer.model))  # DataLoaders draw from the random state: not the user's
    assert_tables(tmp_path, whole)


def test_iterating_holds_one_shard_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = some_batches(40)
    opened = explain(gcn(), batches, tmp_path, shard_rows=1)
    assert len(opened.shards) == 40
    read: list[weakref.ref[Any]] = []
    real = files.rows

    def watched(*arguments: Any) -> Any:
        table = real(*arguments)
        read.append(weakref.ref(table))
        return table

    monkeypatch.setattr(reading.files, "rows", watched)
    kept, held, alive = [], [], []
    explanations: list[weakref.ref[Explanation]] = []
    for number, explanation in enumerate(opened):
        explanations.append(weakref.ref(explanation))
        alive.append((sum(ref() is not None for ref in read), sum(ref() is not None for ref in explanations)))
        if number % 3 == 0:
            kept.append(explanation)
        if number in (29, 119):
            gc.collect()
            held.append(sum(t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) is Tensor))
    explanations.clear()
    assert len(read) == 120  # two tables a shard, and where its rows are
    assert max(tables for tables, _ in alive) == 0  # they are gone once their columns are tensors
    assert max(count for _, count in alive) <= len(kept) + 2
    # Ten more shards' graphs were kept than at the first look, and no more than just those.
    own = sum(
        getattr(e, name).untyped_storage().nbytes()
        for e in kept[10:]
        for name in ("edge_index", "kept", "scores", "carried", "original", "masked", "edge_type")
    )
    assert held[1] - held[0] < 1.2 * own + 10_000
    assert all(e.kept.untyped_storage().nbytes() == e.kept.numel() for e in kept)


# What the files say of themselves, and the docs of them --------------------------------------------------------


def test_files_describe_themselves(whole: Path) -> None:
    for name, schema in zip(("graphs", "edges"), columns.schemas("float32"), strict=True):
        found = pq.read_schema(whole / f"{name}-000000.parquet")
        assert found.metadata[b"graphmask_schema_version"] == b"2"
        assert found.equals(schema, check_metadata=False)
        for column in schema:
            assert len(column.metadata[b"description"]) > 4
            assert found.field(column.name).metadata[b"description"] == column.metadata[b"description"]
        assert pq.read_schema(whole / f"{name}-000001.parquet").equals(schema)


def test_the_docs_list_the_columns() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", DOCS.read_text(), re.M)
    expected = [
        (
            column.name,
            str(column.type).replace("element: ", "").replace("item: ", ""),
            column.metadata[b"description"].decode(),
        )
        for schema in columns.schemas("float32")
        for column in schema
    ]
    assert rows == expected


def test_the_docs_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = fitted("RGCN")
    names: dict[str, Any] = {"explainer": known.explainer, "model": known.model, "loader": some_batches()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known.explainer, "check_ready", lambda allow_infeasible: None)
        blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
        assert len(blocks) == 5
        for number, block in enumerate(blocks):
            exec(compile(block, f"{DOCS.name} block {number}", "exec"), names)
    expected = known.explain_all(some_batches(), repair=True)
    by_type = {(layer, kind): share for layer, kind, share, _ in names["by_type"].rows()}
    for layer in (0, 1):
        for kind in range(RELATIONS):
            kept = torch.cat([e.kept[layer][e.edge_type == kind] for e in expected if e.edge_type is not None])
            assert by_type[layer, kind] == pytest.approx(float(kept.float().mean()))
    wrong = [i for i, e in enumerate(expected) if e.faithful and int(e.original.argmax()) != (i * i) % CLASSES]
    assert wrong
    assert names["wrong"]["graph"].to_list() == wrong
    assert names["wrong"]["name"].to_list() == [f"graph with {expected[i].num_nodes} nodes" for i in wrong]
    both = sum(int((e.kept[0] & e.kept[1]).sum()) for e in expected)
    assert names["both"] == both > 0
    shown = expected[wrong[0]]
    shown.info = {"name": names["wrong"]["name"][0]}
    assert equal(names["explanation"], shown)
    assert names["faithful"] == sum(e.faithful for e in expected)
    assert names["wrong"]["name"][0] in (tmp_path / "wrong.html").read_text()
