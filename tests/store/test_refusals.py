"""A store is not mixed with another run's, and bad folders and files are told."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

import graphmask
from graphmask import GraphMask, GraphMaskError, methods, store
from graphmask.store import files, identity, safety
from laws.cases import BY_NAME
from laws.support import QUICK, fitted
from laws.untouched import assert_same, snapshot
from reference.hasty import halve

from .support import (
    Partial,
    assert_tables,
    begun,
    counted,
    explain,
    gcn,
    simple,
    some_batches,
    words,
)

# Of another run ----------------------------------------------------------------------------------------------


def refuse(message: str, explainer: Any, loader: Any, out: Path, **options: Any) -> None:
    """The error, and nothing of the store is changed."""
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(GraphMaskError, match=message):
        explain(explainer, loader, out, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_another_order_is_refused(tmp_path: Path) -> None:
    begun(gcn(), tmp_path)
    batches = some_batches()
    message = r"in the same order, got another batch {}\. Use a loader that does not shuffle"
    refuse(message.format(1), gcn(), [batches[0], batches[2], batches[1], *batches[3:]], tmp_path)
    batches[0].x[0, 0] += 1  # the same edges
    refuse(message.format(0), gcn(), batches, tmp_path)
    graphs = [graph for batch in some_batches() for graph in batch.to_data_list()]
    torch.manual_seed(0)
    refuse(message.format(0), gcn(), DataLoader(graphs, batch_size=3, shuffle=True), tmp_path)
    explain(gcn(), DataLoader(graphs, batch_size=3), tmp_path)


@pytest.mark.parametrize("name", ["AdjacencyTap sparse", "adj_t SAGE csr", "pair SAGE", "sorted EdgeIndex"])
def test_another_order_is_seen_in_any_kind_of_batch(name: str, tmp_path: Path) -> None:
    known = fitted(name)
    batches = known.case.loader(3)
    explain(known.explainer, batches[:2], tmp_path, shard_rows=1)
    refuse("got another batch 0", known.explainer, [batches[1], batches[0], batches[2]], tmp_path)
    assert len(explain(known.explainer, known.case.loader(3), tmp_path)) == (9 if known.case.batchable else 3)


def test_a_batch_is_known_by_each_of_its_tensors() -> None:
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "dense": lambda x: x,
        "one number": lambda x: x[0, 0],
        "half": lambda x: x.to(torch.bfloat16),
        "yes or no": lambda x: x > 0,
        "sparse": lambda x: x.to_sparse(),
        "two in a list": lambda x: [torch.ones(2), x],
        "in a dictionary": lambda x: {"inner": {"x": x}},
        "not in order": lambda x: x.t(),
    }
    for name, kind in kinds.items():
        a, b, c = (
            identity.content_of({"edge_index": torch.zeros(2, 0, dtype=torch.long), "x": kind(torch.eye(2) * number)})
            for number in (1, 1, -2)
        )
        assert a == b, name
        assert a != c, name
    x = torch.arange(4.0)
    contents = [{"x": x}, {"y": x}, {"x": x.double()}, {"x": x.view(2, 2)}, {"x": x[:2], "y": x[2:]}, (x,), {}]
    assert len({identity.content_of(batch) for batch in contents}) == len(contents)
    assert identity.content_of({"x": x, "y": 2 * x}) == identity.content_of({"y": 2 * x, "x": x})


def test_a_threshold_of_one_s_own_is_another(tmp_path: Path) -> None:
    made = methods.get("occlusion")(fitted("GCN").model)
    begun(made, tmp_path)
    made.threshold = 0.25
    refuse("found one with another threshold", made, iter([]), tmp_path)


def test_fewer_batches_are_refused(tmp_path: Path) -> None:
    begun(gcn(), tmp_path)
    refuse(r"at least 2 batches, which .* has, in the loader, found 1\.", gcn(), some_batches()[:1], tmp_path)
    refuse(r"at least 2 batches, which .* has, in the loader, found none\.", gcn(), iter([]), tmp_path)
    with pytest.raises(GraphMaskError, match=r"at least one batch in the loader, found none\. Is it a spent iterator"):
        explain(gcn(), [], tmp_path / "new")


def other_model() -> nn.Module:
    model = BY_NAME["GCN"].model()
    with torch.no_grad():
        model.head.bias[0] += 1  # type: ignore[union-attr, operator]
    return model


def refitted(**changes: Any) -> GraphMask:
    explainer = GraphMask(**{"model": BY_NAME["GCN"].model(), "recipe": QUICK} | changes)
    explainer.fit(BY_NAME["GCN"].loader(), progress=False)
    halve(explainer, BY_NAME["GCN"].loader())
    return explainer


@pytest.mark.parametrize(
    ("what", "explainer", "options"),
    [
        ("model", lambda: methods.get("random")(other_model()), {}),
        ("seed", lambda: methods.get("random")(fitted("GCN").model, seed=1), {}),
        ("tolerance", lambda: methods.get("random")(fitted("GCN").model, tolerance=0.04), {}),
        ("threshold", lambda: methods.get("random")(fitted("GCN").model, rate=0.25), {}),
        ("divergence", lambda: methods.get("random")(fitted("GCN").model, divergence="js"), {}),
        ("custom_forward", lambda: methods.get("random")(fitted("GCN").model, lambda m, b: m(b.x, b.edge_index)), {}),
        ("method", lambda: methods.get("occlusion")(fitted("GCN").model), {}),
        ("repair", lambda: methods.get("random")(fitted("GCN").model), {"repair": False}),
        ("metadata", lambda: methods.get("random")(fitted("GCN").model), {"metadata": words}),
    ],
)
def test_another_explainer_is_refused(what: str, explainer: Any, options: dict[str, Any], tmp_path: Path) -> None:
    begun(methods.get("random")(fitted("GCN").model), tmp_path)
    made = explainer()
    before = snapshot(made.model)
    message = rf"Expected a store of this explainer at .*, found one with another [a-z_, ]*{what}.* Write to another"
    refuse(message, made, iter([]), tmp_path, **options)
    assert_same(before, snapshot(made.model))


def test_another_fit_is_refused_and_the_same_one_loaded_is_not(whole: Path, tmp_path: Path) -> None:
    begun(gcn(), tmp_path / "out")
    other = refitted()
    assert counted(other, tmp_path / "out") == ["batch 2", "batch 3", "batch 4"]  # the same fit, made again
    with torch.no_grad():
        other.probe.baselines[0][0] += 1  # type: ignore[union-attr]
    refuse("found one with another probe", other, some_batches(), tmp_path / "out")
    gcn().save(tmp_path / "x")
    loaded = graphmask.load(tmp_path / "x", fitted("GCN").model)
    assert counted(loaded, tmp_path / "out") == []
    assert_tables(tmp_path / "out", whole)


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        refuse("alone, found another process at it", gcn(), some_batches(), tmp_path)
    finally:
        os.close(handle)
    assert len(explain(gcn(), some_batches(1), tmp_path)) == 3


# Bad folders and files ---------------------------------------------------------------------------------------


def copied(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def test_folders_that_are_no_store(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(GraphMaskError, match="found no such folder"):
        store.open(tmp_path / "nowhere")
    with pytest.raises(GraphMaskError, match=r"found a folder without store\.json"):
        store.open(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(GraphMaskError, match=r"Expected a folder to write to at .*, found a file"):
        explain(gcn(), some_batches(1), tmp_path / "file")
    for content in ("", "{", "[]", '{"graphmask": "explainer"}'):
        (tmp_path / "store.json").write_text(content)
        with pytest.raises(GraphMaskError, match="foreign file"):
            store.open(tmp_path)
        refuse("foreign file", gcn(), some_batches(1), tmp_path)
    copy = copied(whole, tmp_path)
    (copy / "store.json").unlink()
    refuse(r"found edges-000000\.parquet without store\.json\. Write to another", gcn(), some_batches(), copy)


@pytest.mark.parametrize("name", ["graphs-000001.parquet", "edges-000000.parquet"])
def test_damaged_shards(name: str, whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path) / name
    content = path.read_bytes()
    for damaged in (b"", b"PAR1", content[:-1], content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(GraphMaskError, match=rf"{name}, found a truncated or foreign file"):
            store.open(path.parent)
        refuse("truncated or foreign", gcn(), some_batches(), path.parent)
    for place in (4, len(content) // 2, len(content) - 5):  # a bit of the data, and of the footer
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        opened = store.open(path.parent)
        for look in (lambda: list(opened), opened.verify, lambda: getattr(opened, name.split("-")[0])):  # noqa: B023
            with pytest.raises(GraphMaskError, match=rf"{name} as it was written, found it altered"):
                look()
    path.write_bytes(content)
    store.open(path.parent).verify()


def test_shards_that_are_missing_or_another_s(whole: Path, tmp_path: Path) -> None:
    copy = copied(whole, tmp_path)
    (copy / "edges-000000.parquet").unlink()
    with pytest.raises(GraphMaskError, match=r"Expected all files of a store in .*, found no edges-000000\.parquet"):
        store.open(copy)
    shutil.copy(whole / "edges-000001.parquet", copy / "edges-000000.parquet")
    with pytest.raises(GraphMaskError, match=r"bytes in the shard of a store at .*edges-000000\.parquet"):
        store.open(copy)
    shutil.copy(whole / "edges-000000.parquet", copy)
    for kind in ("graphs", "edges"):
        shutil.copy(copy / f"{kind}-000001.parquet", copy / f"{kind}-000002.parquet")
    assert len(store.open(copy)) == 15  # without its piece of the manifest it is none
    shutil.copy(copy / "shard-000001.json", copy / "shard-000002.json")
    with pytest.raises(GraphMaskError, match=r"Expected every batch once in .*, found batch 2 twice, again in graphs-"):
        store.open(copy)


def test_a_description_that_does_not_fit(whole: Path, tmp_path: Path) -> None:
    copy = copied(whole, tmp_path)
    description = json.loads((copy / "store.json").read_text())
    for key, value in (("sites", [{}]), ("baselines", [{"dtype": "sum", "values": [1.0]}]), ("sites", None)):
        (copy / "store.json").write_text(json.dumps({**description, key: value}))
        with pytest.raises(GraphMaskError, match="contents that do not fit"):
            store.open(copy)


@pytest.mark.parametrize(
    ("kind", "column", "value", "told"),
    [
        ("edges", "source", -1, "edges of nodes that are not there"),
        ("edges", "target", 2**31 - 1, "edges of nodes that are not there"),
        ("graphs", "metadata", "[]", "no attribute"),
        ("graphs", "metadata", '{"graphmask.unseen": 5}', "must be an iterable"),
        ("graphs", "metadata", '{"graphmask.asked": [1000]}', "rows or nodes that are not there"),
    ],
)
def test_contents_that_cannot_be_under_a_right_hash(
    kind: str, column: str, value: Any, told: str, whole: Path, tmp_path: Path
) -> None:
    copy = copied(whole, tmp_path)
    path, manifest = copy / f"{kind}-000000.parquet", copy / "shard-000000.json"
    table = pyarrow.parquet.read_table(path)
    values = [value, *table[column].to_pylist()[1:]]
    at = table.column_names.index(column)
    table = table.set_column(at, table.field(at), pyarrow.array(values, table.field(at).type))
    pyarrow.parquet.write_table(table, path)
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    piece = json.loads(manifest.read_text())
    piece[kind] |= {"bytes": path.stat().st_size, "hash": digest}
    manifest.write_text(json.dumps(piece))
    with pytest.raises(GraphMaskError, match=rf"-000000\.parquet, found contents that do not fit.*{told}"):
        store.open(copy)[0]


@pytest.mark.parametrize("name", ["edge_index", "edge_type", "output"])
def test_a_shard_that_does_not_say_its_types(name: str, whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path) / "shard-000001.json"
    piece = json.loads(path.read_text())
    del piece["dtypes"][name]
    path.write_text(json.dumps(piece))
    with pytest.raises(GraphMaskError, match=rf"{path.name}, found contents that do not fit.*{name}"):
        store.open(path.parent)


def test_a_newer_schema_is_refused(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copied(whole, tmp_path)
    for module in (files, safety):
        monkeypatch.setattr(module, "VERSION", 3)
    explain(gcn(), some_batches(), tmp_path / "newer")
    monkeypatch.undo()
    for place in (tmp_path / "newer", copy):
        with pytest.raises(
            GraphMaskError, match=r"Expected version 1 or 2 of the store's schema at .*, found '?3'?\. Install"
        ):
            store.open(place)
        shutil.copy(tmp_path / "newer" / "shard-000001.json", copy)
        refuse("Expected version 1 or 2 of the store's schema", gcn(), some_batches(), place)


def test_indices(whole: Path) -> None:
    opened = store.open(whole)
    for wrong in (15, -16):
        with pytest.raises(IndexError, match=rf"Expected a graph from 0 to 14, got {wrong}"):
            opened[wrong]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, whole: Path, tmp_path: Path) -> None:
    for name in ("polars", "pyarrow.parquet"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            for call in (lambda: store.open(whole), lambda: explain(gcn(), some_batches(1), tmp_path / "x")):
                with pytest.raises(GraphMaskError, match=r"Try: pip install graphmask\[store\]"):
                    call()
    assert not (tmp_path / "x").exists()


def test_without_a_folder_it_is_lazy_as_ever() -> None:
    drawn = []

    def batches() -> Iterator[Batch]:
        for batch in some_batches():
            drawn.append(batch)
            yield batch

    found = gcn().explain_all(batches(), allow_infeasible=True)
    assert drawn == []
    next(found)
    assert len(drawn) == 1
    with pytest.raises(GraphMaskError, match="Expected out=DIR together with metadata"):
        gcn().explain_all(batches(), allow_infeasible=True, metadata=words)  # type: ignore[call-overload]
    with pytest.raises(GraphMaskError, match="at least one row per shard, got 0"):
        gcn().explain_all(batches(), allow_infeasible=True, out="x", shard_rows=0)


def test_values_that_no_column_holds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    explainer = methods.get("random")(Partial().eval())
    for value in (2**31, -(2**31) - 1):
        graph = simple(0)
        graph.edge_type[1] = value
        with pytest.raises(GraphMaskError, match=r"edge_type of batch 0 to be integers of 32 bits, got torch\.int64"):
            explain(explainer, [graph], tmp_path / "types")
    numbers = iter([torch.float, torch.double])
    model = fitted("GCN").model
    mixed = methods.get("random")(model, lambda m, b: graphmask.graphs.batches.default_forward(m, b).to(b.kind))
    batches = some_batches(2)
    for batch, kind in zip(batches, numbers, strict=True):
        batch.kind = kind
    with pytest.raises(
        GraphMaskError, match="Expected outputs of float32 as on the first batch, got float64 on batch 1"
    ):
        explain(mixed, batches, tmp_path / "outputs")
