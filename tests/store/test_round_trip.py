"""A store holds exactly what `explain_all` would have yielded, and the user's notes beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch

import graphmask
from graphmask import GraphMaskError, methods, store
from graphmask.store import files
from laws.cases import CLASSES, random_graph
from laws.support import fitted

from .support import (
    Partial,
    assert_tables,
    equal,
    explain,
    gcn,
    simple,
    some_batches,
    words,
)

# There and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN", "RGCN", "GAT backwards", "AdjacencyTap sparse", "adj_t SAGE csr", "pair SAGE"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    """Duplicate edges and self-loops are in every graph of the first three."""
    known = fitted(name)
    loader = some_batches() if known.case.graph is random_graph and known.case.batchable else known.case.loader(5)
    opened = explain(known.explainer, loader, tmp_path, shard_rows=60)
    expected = known.explain_all(loader, repair=True)
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
            output = graphmask.graphs.batches.default_forward(known.model, graph)
        divergence = known.explainer.divergence(opened[i].original, output)
        assert float(divergence.mean()) == pytest.approx(opened[i].divergence, abs=1e-6)
        torch.testing.assert_close(output, opened[i].masked, rtol=1e-4, atol=1e-6)


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


def _takes_int32() -> bool:
    """Can this PyTorch add up messages by edges of 32 bits? 2.6 cannot, with or without graphmask."""
    try:
        torch.zeros(2).scatter_add_(0, torch.zeros(1, dtype=torch.int32), torch.ones(1))
    except RuntimeError:
        return False
    return True


needs_int32 = pytest.mark.skipif(not _takes_int32(), reason="this PyTorch has no sums by indices of 32 bits")


@needs_int32
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


@needs_int32
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
