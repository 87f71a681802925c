"""A store holds exactly what `explain_all` would have yielded, whatever happened while it was written."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import graphmask
from graphmask import Explanation, GraphMask, GraphMaskError, methods, storage, store
from graphmask.store import columns, files, identity, reading, writing
from laws.cases import BY_NAME, CLASSES, RELATIONS, WIDTH, random_graph
from laws.support import QUICK, fitted, same
from laws.untouched import assert_same, snapshot, unsettle

DOCS = Path(__file__).parents[1] / "docs" / "store.md"


def equal(a: Explanation, b: Explanation) -> bool:
    """Bit for bit, in every field."""
    types = (a.edge_type is None) == (b.edge_type is None)
    if types and a.edge_type is not None and b.edge_type is not None:
        types = a.edge_type.dtype == b.edge_type.dtype and torch.equal(a.edge_type, b.edge_type)
    tensors = ("edge_index", "kept", "scores", "carried", "original", "masked")
    return (
        same(a, b)
        and types
        and all(getattr(a, name).dtype == getattr(b, name).dtype for name in tensors)
        and [x.dtype for x in a.baselines] == [x.dtype for x in b.baselines]
        and (a.structure, a.reopened, a.method, a.info) == (b.structure, b.reopened, b.method, b.info)
    )


def labelled(graph: Data, y: int) -> Data:
    graph.y = torch.tensor([y])
    return graph


def without_edges(seed: int) -> Data:
    graph = random_graph(seed)
    nothing = {name: graph[name][:0] for name in ("edge_type", "edge_attr", "edge_weight")}
    return Data(x=graph.x, edge_index=graph.edge_index[:, :0], **nothing)


def some_batches(count: int = 5) -> list[Batch]:
    """Three graphs each, the second of every other batch without edges, labels 0 to 2."""
    graphs = [
        labelled(without_edges(i) if i % 6 == 1 else random_graph(i), (i * i) % CLASSES) for i in range(3 * count)
    ]
    return [Batch.from_data_list(graphs[3 * i : 3 * i + 3]) for i in range(count)]


def explain(explainer: Any, loader: Any, out: Path, **options: Any) -> store.Store:
    options = {"allow_infeasible": True, "progress": False, "shard_rows": 150} | options
    return explainer.explain_all(loader, out=out, **options)


def tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    opened = store.open(folder)
    return opened.graphs.collect(), opened.edges.collect()


def assert_tables(folder: Path, other: Path) -> None:
    for a, b in zip(tables(folder), tables(other), strict=True):
        assert len(a) > 0
        assert a.equals(b)


def gcn() -> GraphMask:
    return fitted("GCN").explainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never interrupted."""
    path = tmp_path_factory.mktemp("whole")
    assert len(explain(gcn(), some_batches(), path).shards) == 2
    return path


# There and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN", "RGCN", "GAT backwards", "AdjacencyTap sparse", "adj_t SAGE csr", "pair SAGE"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    """Duplicate edges and self-loops are in every graph of the first three."""
    known = fitted(name)
    loader = some_batches() if known.case.graph is random_graph and known.case.batchable else known.case.loader(5)
    opened = explain(known.explainer, loader, tmp_path, shard_rows=60)
    expected = known.explain_all(loader)
    assert len(opened.shards) > 1
    assert len(opened) == len(expected)
    assert 0 < sum(int(e.kept.sum()) for e in expected) < sum(int(e.carried.sum()) for e in expected)
    for i, (explanation, read) in enumerate(zip(expected, opened, strict=True)):
        assert equal(explanation, read)
        assert equal(explanation, opened[i])
        assert equal(explanation, opened[i - len(expected)])
    assert opened.sites == known.case.sites
    assert opened.complete


@pytest.mark.parametrize("name", ["GCN", "RGCN"])
def test_the_certificate_can_be_checked_from_the_store(name: str, tmp_path: Path) -> None:
    known, batches = fitted(name), some_batches(2)
    opened = explain(known.explainer, batches, tmp_path)
    for i, graph in enumerate(graph for batch in batches for graph in batch.to_data_list()):
        graph.batch = torch.zeros(graph.num_nodes, dtype=torch.long)
        with torch.no_grad(), graphmask.masked(known.model, opened[i]):
            output = graphmask.batches.default_forward(known.model, graph)
        divergence = known.explainer.divergence(opened[i].original, output)
        assert float(divergence.mean()) == pytest.approx(opened[i].divergence, abs=1e-6)
        torch.testing.assert_close(output, opened[i].masked, rtol=1e-4, atol=1e-6)


class Partial(nn.Module):
    """The first layer sends along relation 0 alone, the second along all but relation 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = torch.tanh(self.first(x, edge_index[:, edge_type == 0]))
        return self.head(torch.tanh(self.second(x, edge_index[:, edge_type != RELATIONS - 1])))


def simple(seed: int) -> Data:
    return BY_NAME["AdjacencyTap dense"].graph(seed)


def test_edges_that_a_layer_does_not_carry(tmp_path: Path) -> None:
    """They are no rows of the frame, and yet come back in the explanation."""
    torch.manual_seed(0)
    loader = [Batch.from_data_list([simple(2 * i), simple(2 * i + 1)]) for i in range(3)]
    explainer = methods.get("random")(Partial().eval())
    opened = explain(explainer, loader, tmp_path)
    types = torch.cat([batch.edge_type for batch in loader])
    for expected, read in zip(explainer.explain_all(loader), opened, strict=True):
        assert equal(expected, read)
        assert expected.edge_type is not None
        assert torch.equal(read.carried[0], expected.edge_type == 0)
        assert not bool(read.carried[:, expected.edge_type == 2].any())
    rows = opened.edges.group_by("layer", "type").len().sort("layer", "type").collect()
    zero, one = int((types == 0).sum()), int((types == 1).sum())
    assert rows.rows() == [(0, 0, zero), (1, 0, zero), (1, 1, one)]
    assert "carried" not in opened.edges.collect_schema()


def test_nodes_doubles_and_small_integers(tmp_path: Path) -> None:
    """Outputs by node, of 64 bits; edge_index and edge_type of 32 bits; a single graph without a batch vector."""
    torch.manual_seed(0)
    net = Partial().double().eval()
    graphs = [simple(i) for i in range(4)]
    for graph in graphs:
        graph.x, graph.edge_index = graph.x.double(), graph.edge_index.int()
        graph.edge_type, graph.y = graph.edge_type.int(), torch.arange(graph.num_nodes)
    explainer = methods.get("random")(net)
    opened = explain(explainer, [*graphs[:2], Batch.from_data_list(graphs[2:])], tmp_path)
    for expected, read in zip(
        explainer.explain_all([*graphs[:2], Batch.from_data_list(graphs[2:])]), opened, strict=True
    ):
        assert read.original.dtype == torch.double
        assert read.edge_index.dtype == torch.int32
        assert torch.equal(read.scores, expected.scores.float())
        expected.scores = expected.scores.float()
        assert equal(expected, read)
    labels = opened.graphs.select("label", "prediction", "original").collect()
    for graph, expected, (label, prediction, original) in zip(graphs, opened, labels.rows(), strict=True):
        assert label == list(range(graph.num_nodes))
        assert prediction == expected.original.argmax(-1).tolist()
        assert original == expected.original.flatten().tolist()


def test_types_of_numbers_may_change_on_the_way(tmp_path: Path) -> None:
    batches = some_batches(4)
    del batches[1].edge_type
    batches[2].edge_type = batches[2].edge_type.to(torch.uint8)
    batches[3].edge_index = batches[3].edge_index.int()
    explainer = methods.get("random")(fitted("SAGE").model)
    opened = explain(explainer, batches, tmp_path, shard_rows=None)
    assert len(opened.shards) == 4
    expected = list(explainer.explain_all(batches))
    assert {None if e.edge_type is None else e.edge_type.dtype for e in opened} == {None, torch.uint8, torch.int64}
    assert all(equal(a, b) for a, b in zip(expected, opened, strict=True))
    assert opened.edges.filter(pl.col("graph").is_between(3, 5)).collect()["type"].is_null().all()


def test_a_graph_s_own_baselines(tmp_path: Path) -> None:
    loader = some_batches(2)
    explainer = methods.get("unamortised")(fitted("GCN").model, steps=6, free_baselines=True, learning_rate=1.0)
    opened = explain(explainer, loader, tmp_path)
    found = list(explainer.explain_all(loader))
    assert len({tuple(e.baselines[0].tolist()) for e in found}) > 3
    for expected, read in zip(found, opened, strict=True):
        assert equal(expected, read)


def test_repair_is_kept(tmp_path: Path) -> None:
    explainer = methods.get("random")(fitted("GCN").model, tolerance=1e-5)
    opened = explain(explainer, some_batches(2), tmp_path, repair=True)
    expected = list(explainer.explain_all(some_batches(2), repair=True))
    assert sum(e.reopened for e in expected) > 0
    assert opened.graphs.collect()["reopened"].to_list() == [e.reopened for e in expected]
    assert all(equal(a, b) for a, b in zip(expected, opened, strict=True))


def test_shards_of_many_row_groups_in_a_folder_with_any_name(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One explanation is read from the row groups it lies in; a name that looks like a pattern is just a name."""
    monkeypatch.setattr(files, "ROWS_AT_ONCE", {"graphs": 2, "edges": 7})
    out = tmp_path / "[a]*{b} c=1"
    opened = explain(gcn(), some_batches(), out)
    assert pq.read_metadata(opened.shards[0].edges).num_row_groups > 10
    monkeypatch.undo()
    expected = list(gcn().explain_all(some_batches(), allow_infeasible=True))
    assert all(equal(explanation, opened[i]) for i, explanation in enumerate(expected))
    monkeypatch.setattr(files, "ROWS_AT_ONCE", {"graphs": 4})
    assert all(equal(a, b) for a, b in zip(expected, opened, strict=True))
    assert_tables(out, whole)


def test_frames_count_as_python_does(whole: Path) -> None:
    expected, opened = list(gcn().explain_all(some_batches(), allow_infeasible=True)), store.open(whole)
    graphs, edges = opened.graphs.collect(), opened.edges.collect(engine="streaming")
    assert len(edges) == sum(int(e.carried.sum()) for e in expected)
    for layer in (0, 1):
        kept = edges.filter(pl.col("layer") == layer, pl.col("kept"))
        assert len(kept) == sum(int(e.kept[layer].sum()) for e in expected)
    per_graph = dict(edges.group_by("graph").agg(pl.col("kept").sum()).rows())
    assert per_graph == {i: int(e.kept.sum()) for i, e in enumerate(expected) if e.edge_index.numel()}
    rows = [
        (i, layer, edge, *e.edge_index[:, edge].tolist(), int(e.edge_type[edge]), float(e.scores[layer, edge]))
        for i, e in enumerate(expected)
        if e.edge_type is not None
        for layer in (0, 1)
        for edge in range(e.edge_index.shape[1])
    ]
    assert edges.drop("kept").rows() == rows
    for name in ("num_nodes", "divergence", "flips", "tolerance", "faithful", "retained", "method"):
        assert graphs[name].to_list() == [getattr(e, name) for e in expected], name
    assert graphs["num_edges"].to_list() == [e.edge_index.shape[1] for e in expected]
    assert graphs["prediction"].to_list() == [[int(e.original.argmax())] for e in expected]
    assert graphs["label"].to_list() == [[float((i * i) % CLASSES)] for i in range(15)]
    assert graphs["masked"].to_list() == [e.masked.flatten().tolist() for e in expected]


@pytest.mark.parametrize(
    ("divergence", "prediction"),
    [("kl", lambda o: [int(o.argmax())]), ("mse", lambda o: None), ("bernoulli", lambda o: (o[0] > 0).int().tolist())],
)
def test_predictions_are_those_of_the_divergence(
    divergence: str, prediction: Callable[[Tensor], Any], tmp_path: Path
) -> None:
    opened = explain(methods.get("random")(fitted("GCN").model, divergence=divergence), some_batches(1), tmp_path)
    found = opened.graphs.collect()["prediction"].to_list()
    assert found == [prediction(explanation.original) for explanation in opened]


def test_labels_that_fit_nothing_are_left_out(tmp_path: Path) -> None:
    (batch,) = some_batches(1)
    batch.y = torch.zeros(7)
    assert explain(gcn(), [batch], tmp_path).graphs.collect()["label"].to_list() == [None] * 3


# The user's notes --------------------------------------------------------------------------------------------


def words(batch: Batch) -> list[dict[str, Any]]:
    return [
        {
            "tokens": ["naïve", "日本語", "🕸", '"<b>'],
            "nodes": int((batch.batch == i).sum()),
            "deep": {"a": [1, None, 0.1]},
        }
        for i in range(batch.num_graphs)
    ]


def test_metadata_comes_back(tmp_path: Path) -> None:
    opened = explain(gcn(), some_batches(2), tmp_path, metadata=words)
    expected = [note for batch in some_batches(2) for note in words(batch)]
    assert [explanation.info for explanation in opened] == expected
    assert opened[4].info == expected[4]
    nodes = opened.graphs.select(pl.col("metadata").str.json_path_match("$.nodes").cast(pl.Int64)).collect()
    assert nodes["metadata"].to_list() == [explanation.num_nodes for explanation in opened]


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ([{}], r"a list of 3 dictionaries, one per graph of batch 0, got 1\."),
        ({"a": 1}, r"a list of 3 dictionaries, one per graph of batch 0, got dict\."),
        ("abc", r"a list of 3 dictionaries, one per graph of batch 0, got str\."),
        ([{}, "b", {}], r"metadata of graph 1 of batch 0 to be a dictionary with text as keys, got 'b'\."),
        ([{}, {}, {1: 2}], r"metadata of graph 2 of batch 0 to be a dictionary with text as keys"),
        ([{}, {}, {"x": torch.ones(1)}], r"metadata of graph 2 of batch 0 to be what JSON can hold"),
        ([{"x": float("nan")}, {}, {}], r"metadata of graph 0 of batch 0 to be what JSON can hold"),
        ([{"x": "\ud800"}, {}, {}], r"metadata of graph 0 of batch 0 to be what JSON can hold"),
    ],
)
def test_metadata_that_cannot_be_kept(notes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphMaskError, match=message):
        explain(gcn(), some_batches(1), tmp_path, metadata=lambda batch: notes)


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
import test_store
from graphmask import load, storage
from laws.cases import BY_NAME

real = storage.{module}{function}
def stopping(*arguments):
    if {at!r} in str(arguments[-1 if {last} else 0]):
        print("now", flush=True)
        time.sleep(60)
    return real(*arguments)
storage.{module}{function} = stopping
explainer = load({fit!r}, BY_NAME["GCN"].model())
explainer.explain_all(test_store.some_batches(), out={out!r}, allow_infeasible=True, shard_rows=60)
"""
STOPS = {
    "between its two files": ("", "write_bytes", "graphs-000001", False, ["edges-000001.parquet"]),
    "before a file is renamed": ("os.", "replace", "edges-000001", True, [".edges-000001.parquet.tmp"]),
}


@pytest.mark.parametrize("stop", list(STOPS))
def test_killed_and_resumed_is_never_killed(stop: str, whole: Path, tmp_path: Path) -> None:
    module, function, at, last, left = STOPS[stop]
    fit, out = tmp_path / "x.graphmask", tmp_path / "out"
    gcn().save(fit)
    script = SCRIPT.format(
        tests=str(Path(__file__).parent),
        module=module,
        function=function,
        at=at,
        last=last,
        fit=str(fit),
        out=str(out),
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    names = [re.sub(r"(?<=parquet\.).*", "tmp", path.name) for path in out.iterdir()]
    assert sorted(names) == sorted([*left, "store.json", "graphs-000000.parquet", "edges-000000.parquet"])

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


def counted(explainer: GraphMask, out: Path, loader: Any = None) -> list[str]:
    """Which batches are explained by going on with a store."""
    seen = []

    def watched(batch: Any, repair: bool, where: str) -> list[Explanation]:
        seen.append(where)
        return type(explainer)._explain(explainer, batch, repair, where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explainer, "_explain", watched)
        explain(explainer, loader or some_batches(), out)
    return seen


def begun(explainer: Any, out: Path, batches: int = 2, **options: Any) -> None:
    """A store that was cut short after some batches, a shard each."""

    class Unplugged(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from list(super().__iter__())[:batches]
            raise ConnectionError

    with pytest.raises(ConnectionError):
        explain(explainer, Unplugged(some_batches()), out, **{"shard_rows": 1} | options)
    assert [len(shard.batches) for shard in store.open(out).shards] == [1] * batches


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
        ("repair", lambda: methods.get("random")(fitted("GCN").model), {"repair": True}),
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
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(GraphMaskError, match=rf"{name}, found a Parquet file of another kind"):
        store.open(path.parent)
    path.write_bytes(content[:4] + bytes(len(content) // 3) + content[4 + len(content) // 3 :])
    with pytest.raises(GraphMaskError, match="truncated or foreign"):
        list(store.open(path.parent))  # a whole footer, but nothing above it


def test_shards_that_are_missing_or_another_s(whole: Path, tmp_path: Path) -> None:
    copy = copied(whole, tmp_path)
    (copy / "edges-000000.parquet").unlink()
    with pytest.raises(GraphMaskError, match=r"Expected 2 shards in .*, found no edges-000000\.parquet"):
        store.open(copy)
    shutil.copy(whole / "edges-000001.parquet", copy / "edges-000000.parquet")
    with pytest.raises(GraphMaskError, match=r"Expected shard 0 of .* to begin at graph 0, found one of another store"):
        store.open(copy)
    (copy / "graphs-000000.parquet").unlink()
    with pytest.raises(GraphMaskError, match=r"Expected 1 shards in .*, found no graphs-000000\.parquet"):
        store.open(copy)


def test_a_description_that_does_not_fit(whole: Path, tmp_path: Path) -> None:
    copy = copied(whole, tmp_path)
    description = json.loads((copy / "store.json").read_text())
    for key, value in (("sites", [{}]), ("baselines", [{"dtype": "sum", "values": [1.0]}]), ("sites", None)):
        (copy / "store.json").write_text(json.dumps({**description, key: value}))
        with pytest.raises(GraphMaskError, match="contents that do not fit"):
            store.open(copy)


def test_a_newer_schema_is_refused(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copied(whole, tmp_path)
    monkeypatch.setattr(files, "VERSION", 2)
    explain(gcn(), some_batches(), tmp_path / "newer")
    monkeypatch.undo()
    for place in (tmp_path / "newer", copy):
        with pytest.raises(
            GraphMaskError, match=r"Expected version 1 of the store's schema at .*, found '?2'?\. Install"
        ):
            store.open(place)
        shutil.copy(tmp_path / "newer" / "graphs-000001.parquet", copy)
        refuse("Expected version 1 of the store's schema", gcn(), some_batches(), place)


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
    mixed = methods.get("random")(model, lambda m, b: graphmask.batches.default_forward(m, b).to(b.kind))
    batches = some_batches(2)
    for batch, kind in zip(batches, numbers, strict=True):
        batch.kind = kind
    with pytest.raises(
        GraphMaskError, match="Expected outputs of float32 as on the first batch, got float64 on batch 1"
    ):
        explain(mixed, batches, tmp_path / "outputs")


# Laws --------------------------------------------------------------------------------------------------------


def test_the_model_is_untouched_whatever_the_writer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    explainer = graphmask.GraphMask(BY_NAME["GCN"].model(), recipe=QUICK)
    explainer.fit(BY_NAME["GCN"].loader(), progress=False)
    unsettle(explainer.model)
    graphs = [graph for batch in some_batches() for graph in batch.to_data_list()]
    before = snapshot(explainer.model)
    real, calls = storage.write_bytes, []

    def full(path: Path, content: bytes) -> None:
        calls.append(path.name)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(storage, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        explain(explainer, DataLoader(graphs, batch_size=3), tmp_path, shard_rows=1)
    monkeypatch.undo()
    assert calls == ["store.json", *(f"{kind}-00000{i}.parquet" for i in (0, 1) for kind in ("edges", "graphs"))]
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
        assert found.metadata[b"graphmask_schema_version"] == b"1"
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
    expected = known.explain_all(some_batches())
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
