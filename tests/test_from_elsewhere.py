"""Files from elsewhere: truncated, altered, of a wrong version, bombs, paths that lead out, pickles: all are refused.

Of what is refused nothing is run, nothing large is decoded, and nothing outside the folder is read.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

import graphmask
from graphmask import Explanation, GraphMask, GraphMaskError, load, store
from graphmask import files as storage
from graphmask.experiments import folder as folders
from graphmask.experiments.bench import resident
from graphmask.experiments.bench import store as bench
from graphmask.experiments.vectors import Vectors
from graphmask.store import columns, files, safety
from reference import toy
from reference.trap import Trap


def zipped(size: int = 1 << 24) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../evil", bytes(size))
    return buffer.getvalue()


def torched() -> bytes:
    buffer = io.BytesIO()
    torch.save({"trap": Trap()}, buffer)
    return buffer.getvalue()


def safetensor(shape: list[int], nbytes: int, **metadata: str) -> bytes:
    header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]}, "__metadata__": metadata}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


FOREIGN = {
    "a pickle": lambda: pickle.dumps(Trap()),
    "torch.save": torched,
    "a zip bomb": zipped,
    "a deep list": lambda: b"[" * 200_000,
    "a tensor of an exabyte": lambda: safetensor([1 << 58], 1 << 60, graphmask="explainer", version="1"),
    "a shape that overflows": lambda: safetensor([1 << 62, 1 << 62], 0, graphmask="explainer", version="1"),
    "a header of an exabyte": lambda: struct.pack("<Q", 1 << 60) + b"{}",
    "Parquet": lambda: parquet({"a": [1]}),
    "nothing": lambda: b"",
}


def parquet(table: Any, **options: Any) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), buffer, **options)
    return buffer.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind of file, and a store."""
    path = tmp_path_factory.mktemp("originals")
    explainer = GraphMask(toy.Toy(), divergence="kl")
    explainer.fit(toy.loader(2, 8), epochs=1, progress=False, checkpoint=path / "checkpoint")
    explainer.save(path / "explainer")
    explainer.explain(toy.graph(1), allow_infeasible=True).save(path / "explanation")
    np.savez(path / "vectors.npz", words=np.array(["a", "b"]), vectors=np.ones((2, 3), "f4"))
    bench.Drawn().explain_all(bench.Random(40, 0, 20), out=path / "store", progress=False, shard_rows=100)
    assert len(store.open(path / "store").shards) == 2
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "explainer": lambda path: load(path, toy.Toy()),
    "explanation": Explanation.load,
    "checkpoint": lambda path: storage.read(path, "checkpoint"),
    "vectors.npz": lambda path: Vectors.open(path),
}


@pytest.mark.parametrize("kind", READERS)
def test_single_files(kind: str, originals: Path, tmp_path: Path) -> None:
    path = tmp_path / kind
    content = (originals / kind).read_bytes()
    read = READERS[kind]
    shutil.copy(originals / kind, path)
    read(path)
    for name, foreign in FOREIGN.items():
        path.write_bytes(foreign())
        with pytest.raises(GraphMaskError, match="Expected"):
            read(path)
        assert not Trap.sprung, name
    for place in {*range(0, len(content), len(content) // 12), len(content) - 1}:
        path.write_bytes(content[:place])
        with pytest.raises(GraphMaskError, match="Expected"):
            read(path)
    for place in {*range(8, len(content), len(content) // 40), len(content) - 1}:
        if kind == "vectors.npz":
            break  # a zip has sums of its own, but not over every byte of its directory
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x11]) + content[place + 1 :])
        with pytest.raises(GraphMaskError, match="Expected"):
            read(path)


def test_one_number_altered(originals: Path, tmp_path: Path) -> None:
    """Within a header that is whole."""
    tensors, description = storage.read(originals / "explanation", "explanation")
    header = {"graphmask": "explanation", "version": "1", "description": json.dumps(description)}
    header["hash"] = storage._hash(tensors, header["description"])
    path = tmp_path / "x"
    safetensors.torch.save_file(tensors, path, metadata=header)
    Explanation.load(path)
    for changed in ({**tensors, "scores": tensors["scores"] + 1e-6}, {**tensors, "masked": tensors["original"] * 2}):
        safetensors.torch.save_file(changed, path, metadata=header)
        with pytest.raises(GraphMaskError, match=r"as it was written, found it altered: its hash is another"):
            Explanation.load(path)
    other = json.dumps({**description, "divergence": 0.123})
    safetensors.torch.save_file(tensors, path, metadata=header | {"description": other})
    with pytest.raises(GraphMaskError, match="found it altered"):
        Explanation.load(path)
    del header["hash"]
    safetensors.torch.save_file(tensors, path, metadata=header)
    with pytest.raises(GraphMaskError, match="found it altered"):
        Explanation.load(path)


def test_every_byte_of_a_header_counts(originals: Path, tmp_path: Path) -> None:
    """The order of what is in it is another in every file."""
    content, path = (originals / "explanation").read_bytes(), tmp_path / "x"
    end = 8 + struct.unpack("<Q", content[:8])[0]
    for place in range(8, end):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x11]) + content[place + 1 :])
        with pytest.raises(GraphMaskError, match="Expected"):
            Explanation.load(path)


def test_claims_of_a_description(originals: Path, tmp_path: Path) -> None:
    """A few bytes that say how large everything is: nothing of that size is made."""
    tensors, description = storage.read(originals / "explainer", "explainer")
    path, before = tmp_path / "x", resident.now()
    for change in (
        {"hidden": 10**7},
        {"hidden": -1},
        {"hidden": "x"},
        {"specs": [{"message": 10**12}] * 2},
        {"seed": "x"},
    ):
        storage.write(path, "explainer", tensors, description | change)
        with pytest.raises(GraphMaskError, match="Expected"):
            load(path, toy.Toy())
    assert resident.now() - before < 1e8
    tensors, description = storage.read(originals / "explanation", "explanation")
    for name, value in (("kept", torch.ones(1, 1)), ("edge_index", torch.ones(3, 2)), ("edge_type", torch.ones(1))):
        storage.write(path, "explanation", {**tensors, name: value}, description)
        with pytest.raises(GraphMaskError, match="do not fit"):
            Explanation.load(path)


def test_word_vectors_that_claim_much(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    np.savez_compressed(path, words=np.array(["a"] * 3), vectors=np.zeros((3, 10_000_000), "f4"))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(GraphMaskError, match=r"bytes that claim to be 120000128 of vectors\.npy\. It is not read"):
        Vectors.open(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)})
    words = io.BytesIO()
    np.save(words, np.array(["a"]))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("words.npy", words.getvalue())
        archive.writestr("vectors.npy", header.getvalue() + bytes(100))
    with pytest.raises(GraphMaskError, match=r"bytes that claim to be 4000000000000128 of vectors\.npy"):
        Vectors.open(path)
    np.savez(path, words=np.array([Trap()], dtype=object), vectors=np.ones((1, 2)))
    with pytest.raises(GraphMaskError, match="words as text and not as objects"):
        Vectors.open(path)
    assert not Trap.sprung


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"3", b'{"task": 3}', b"[" * 100_000, b'{"task": "../../x"}', b'{"task": "star"}', b"\xff"],
)
def test_folders_of_runs(content: bytes, originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / folders.FIGURES).write_bytes(content)
    shutil.copy(originals / "explainer", tmp_path / folders.MODEL)
    with pytest.raises(GraphMaskError, match="Expected"):
        folders.read(tmp_path)
    storage.write(tmp_path / folders.MODEL, "model", {"a": torch.ones(1)}, {})
    with pytest.raises(GraphMaskError, match="Expected"):
        folders.read(tmp_path)
    monkeypatch.setattr(storage, "JSON_BYTES_AT_MOST", 3)
    (tmp_path / folders.FIGURES).write_bytes(b'{"task": "star", "seed": 0}')
    with pytest.raises(GraphMaskError, match="at most 3 bytes of JSON"):
        folders.task_of(tmp_path)


# Stores ------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "store", tmp_path / "store")


def rewrite(folder: Path, kind: str, content: bytes, **changes: Any) -> None:
    """A shard of the forger's own, with a manifest that says it is right."""
    path = folder / f"{kind}-000000.parquet"
    path.write_bytes(content)
    piece = json.loads((folder / "shard-000000.json").read_text())
    digest = safety.hashlib.blake2b(content, digest_size=16).hexdigest()
    piece[kind] |= {"bytes": len(content), "hash": digest} | changes
    (folder / "shard-000000.json").write_text(json.dumps(piece))


def look(folder: Path, kind: str) -> None:
    """Whatever is asked of it, the store refuses."""
    opened = store.open(folder)
    for ask in (list, store.Store.verify, bench.everything.STREAMED["layers"][1], lambda o: getattr(o, kind)):
        with pytest.raises(GraphMaskError, match="Expected"):
            ask(opened)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("file", ["store.json", "shard-000001.json", "graphs-000000.parquet", "edges-000001.parquet"])
def test_foreign_files_in_a_store(name: str, file: str, copy: Path) -> None:
    (copy / file).write_bytes(FOREIGN[name]())
    with pytest.raises(GraphMaskError, match="Expected"):
        store.open(copy)
    if file == "graphs-000000.parquet":
        rewrite(copy, "graphs", FOREIGN[name]())
        look(copy, "graphs")
    assert not Trap.sprung


@pytest.mark.parametrize("file", ["store.json", "shard-000000.json", "graphs-000000.parquet", "edges-000000.parquet"])
def test_links_out_of_the_folder_and_pipes(file: str, copy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.move(copy / file, secret)
    (copy / file).symlink_to(secret)
    with pytest.raises(GraphMaskError, match="found a link or a special file"):
        store.open(copy)
    (copy / file).unlink()
    os.mkfifo(copy / file)
    with pytest.raises(GraphMaskError, match=r"found a link or a special file|found a folder without store\.json"):
        store.open(copy)


def test_names_in_a_manifest_lead_nowhere(copy: Path, tmp_path: Path) -> None:
    """Paths are made from the names of files in the folder, whatever the manifest says beside its numbers."""
    piece = json.loads((copy / "shard-000000.json").read_text())
    for name in ("../../x.parquet", "/etc/passwd"):
        piece["graphs"] |= {"path": name, "file": name}
        (copy / "shard-000000.json").write_text(json.dumps(piece | {"path": name, "name": name, "files": [name]}))
        opened = store.open(copy)
        assert {shard.graphs.parent for shard in opened.shards} == {copy}
        assert len(list(opened)) == 40
    for name in (
        "shard-..-000000.json",
        "shard-r1-000000.json.pq",
        "shard-r01-000009.json",
        "shard-g0-000009.json",
    ):
        (copy / name).write_text("{")  # no names of ours
    assert len(store.open(copy)) == 40


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [[0, 1, 10**12]]},
        {"runs": [[0, 10**12, 20]]},
        {"runs": []},
        {"runs": [[0, 1, 20], [-1, 1, 0]]},
        {"runs": [[0, 1, 20.0]]},
        {"runs": "abc"},
        {"batches": []},
        {"first": -1},
        {"first": True},
        {"dtypes": None},
        {"graphs": {}},
        {"edges": {"rows": 10**15, "bytes": 1, "hash": ""}},
        {"schema_version": 9},
        {"graphmask": "explainer"},
    ],
)
def test_a_manifest_that_does_not_fit(change: dict[str, Any], copy: Path) -> None:
    piece = json.loads((copy / "shard-000000.json").read_text())
    (copy / "shard-000000.json").write_text(json.dumps(piece | change))
    with pytest.raises(GraphMaskError, match=r"Expected .*shard-000000\.json|Expected .*edges-000000\.parquet"):
        store.open(copy)


def test_parquet_bombs_are_not_decoded(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of equal rows in a few kilobytes, in one group of rows or in what the manifest does not say."""
    _, schema = columns.schemas("float32")
    count = 4 << 20
    zeros = {field.name: pa.array(np.zeros(1), field.type) for field in schema if field.type != pa.bool_()}
    zeros |= {field.name: pa.array([True]) for field in schema if field.type == pa.bool_()}
    one = pa.table([zeros[field.name] for field in schema], schema=schema)
    header = {"graphmask_table": "edges", "graphmask_schema_version": "2"}
    few = pa.table([pa.repeat(column[0], count) for column in one.columns], schema=schema)
    bomb = parquet(few.replace_schema_metadata(header), row_group_size=1 << 22, compression="zstd")
    rows = few.num_rows
    del few
    assert len(bomb) < 1 << 20
    read: list[Any] = []
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", lambda *a, **k: read.append(a))
    before = resident.now()
    for claimed in (rows, 400):
        rewrite(copy, "edges", bomb, rows=claimed)
        opened = store.open(copy)
        with pytest.raises(GraphMaskError, match=r"Expected .* rows .*edges-000000\.parquet, found"):
            opened.verify()
        for ask in (lambda o: o.edges, lambda o: o.rows(0, "edges", 0, 1)):
            with pytest.raises(GraphMaskError, match="Expected"):
                ask(opened)
    assert read == []
    assert resident.now() - before < 1e8


def test_other_columns_and_kinds(copy: Path) -> None:
    for kind in ("graphs", "edges"):
        content = (copy / f"{kind}-000000.parquet").read_bytes()
        table = pq.read_table(pa.BufferReader(content))
        header = table.schema.metadata
        other = "edges" if kind == "graphs" else "graphs"
        wrong = [
            table.drop_columns(["graph"]),
            table.append_column("more", table["graph"]),
            table.set_column(0, "graph", table["graph"].cast(pa.string())),
            table.slice(1),
            table.replace_schema_metadata({**header, b"graphmask_schema_version": b"9"}),
            table.replace_schema_metadata({**header, b"graphmask_table": other.encode()}),
        ]
        for changed in wrong:
            rewrite(copy, kind, parquet(changed))
            look(copy, kind)
        rewrite(copy, kind, content)
        list(store.open(copy))


@pytest.mark.parametrize(("column", "value"), [("num_edges", -1), ("num_edges", 1 << 60), ("num_nodes", 1 << 40)])
def test_sizes_of_graphs_that_cannot_be(column: str, value: int, copy: Path) -> None:
    table = pq.read_table(copy / "graphs-000000.parquet")
    at = table.column_names.index(column)
    numbers = table[column].to_numpy().copy()
    numbers[3] = value
    rewrite(copy, "graphs", parquet(table.set_column(at, table.schema.field(column), pa.array(numbers))))
    for call in (lambda o: list(o), lambda o: o[3], bench.everything.STREAMED["layers"][1]):
        with pytest.raises(GraphMaskError, match="Expected"):
            call(store.open(copy))


def test_the_same_long_note_a_thousand_times(copy: Path) -> None:
    """In the file it is there once; so it is in memory until a graph is looked at."""
    table = pq.read_table(copy / "graphs-000000.parquet")
    note = json.dumps({"note": "x" * 20_000_000})
    at = table.column_names.index("metadata")
    notes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20, "i4")), pa.array([note]))
    header, table = table.schema.metadata, table.set_column(at, pa.field("metadata", notes.type), notes)
    buffer = pa.BufferOutputStream()
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    with pq.ParquetWriter(buffer, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(header)
    content = buffer.getvalue().to_pybytes()
    assert pq.read_schema(pa.BufferReader(content)).field("metadata").type == pa.string()
    assert len(content) < 100_000
    rewrite(copy, "graphs", content)
    before = resident.now()
    found = store.open(copy).rows(0, "graphs", 0, 20)
    assert resident.now() - before < 2e8
    assert found["metadata"].nbytes < 3e7
    assert len(store.open(copy)[4].info["note"]) == 20_000_000


# Pickles -----------------------------------------------------------------------------------------------------


def test_nothing_can_unpickle() -> None:
    """No module of ours has anything that could; `multiprocessing` moves figures between benchmark processes.

    Weights of a package that others made are read by PyTorch's restricted reader, which knows tensors alone.
    """
    source = Path(graphmask.__file__).parent
    forbidden = re.compile(
        r"\b(import (pickle|marshal|shelve|dill|joblib)|from (pickle|marshal|shelve|dill|joblib)\b|"
        r"(?<!safetensors\.)torch\.load\((?!.*weights_only=True)|"
        r"allow_pickle=True|read_pickle|(?<!\.)\beval\(|(?<!\.)\bexec\(|yaml\.(unsafe_)?load\()"
    )
    found = [
        f"{path.relative_to(source)}:{number}"
        for path in source.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_nothing_is_unpickled_by_reading(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    for kind, read in READERS.items():
        read(originals / kind)
    opened = store.open(originals / "store")
    assert len(list(opened)) == len(opened.graphs.collect()) == 40
    assert files.VERSION == 2
