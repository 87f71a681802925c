"""Law 4: permuting nodes or edges permutes the explanation; batching graphs together changes none."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from graphmask import Explanation

from .cases import CASES, Case, permuted
from .support import columns, fitted

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_agree(
    a: Explanation, b: Explanation, case: Case, graphs: tuple[Data, Data], order: torch.Tensor | None = None
) -> None:
    """Edge ``order[i]`` of the first graph is edge i of the second."""
    at, bt = (columns(e, case, graph) for e, graph in zip((a, b), graphs, strict=True))
    at = at if order is None else at[order]
    assert torch.equal(a.kept[:, at], b.kept[:, bt])
    assert float((a.scores[:, at] - b.scores[:, bt]).abs().max()) <= 1e-5
    assert torch.equal(a.carried[:, at], b.carried[:, bt])
    assert abs(a.divergence - b.divergence) <= 1e-5
    assert a.flips == b.flips


@every_case
def test_permuting_nodes_and_edges_permutes_the_explanation(case: Case) -> None:
    known = fitted(case.name)
    generator = torch.Generator().manual_seed(11)
    dropped = 0
    for graph in case.graphs():
        nodes = torch.randperm(graph.num_nodes, generator=generator)
        edges = torch.randperm(graph.num_edges, generator=generator)
        other = permuted(graph, nodes, edges)
        a, b = known.explain(case.one(graph)), known.explain(case.one(other))
        assert_agree(a, b, case, (graph, other), edges)
        dropped += int((~a.kept).sum())
    assert dropped > 0


def distinct(graph: Data) -> Data:
    """Of an edge that is there twice, one may have to be reopened: whichever comes first. So of equal neighbours."""
    seen = graph.edge_index.t().tolist()
    first = torch.tensor([number for number, edge in enumerate(seen) if edge not in seen[:number]])
    other = graph.clone()
    for key in ("edge_type", "edge_attr", "edge_weight"):
        if key in other:
            other[key] = other[key][first]
    other.edge_index = other.edge_index[:, first]
    return other


@every_case
def test_permuting_permutes_what_is_repaired(case: Case) -> None:
    known = fitted(case.name)
    generator = torch.Generator().manual_seed(12)
    with known.strict():
        for graph in map(distinct, case.graphs()):
            nodes = torch.randperm(graph.num_nodes, generator=generator)
            edges = torch.randperm(graph.num_edges, generator=generator)
            other = permuted(graph, nodes, edges)
            a, b = known.explain(case.one(graph), repair=True), known.explain(case.one(other), repair=True)
            assert a.reopened == b.reopened
            assert a.kept.sum(1).tolist() == b.kept.sum(1).tolist()
            assert a.divergence == pytest.approx(b.divergence, abs=1e-6)


batchable = pytest.mark.parametrize("case", [case for case in CASES if case.batchable], ids=lambda case: case.name)


@batchable
def test_what_is_repaired_is_the_same_in_every_batch(case: Case) -> None:
    """Alone, with one other, with many; whether these need repair or not."""
    known = fitted(case.name)
    graphs = case.graphs(5)
    with known.strict():
        alone = [known.explain(case.one(graph), repair=True) for graph in graphs]
        for sizes in ((2, 3), (5,), (1, 4)):
            parts = torch.arange(5).split(list(sizes))
            loader = [case.batch([graphs[number] for number in part.tolist()]) for part in parts]
            for a, b, graph in zip(alone, known.explain_all(loader, repair=True), graphs, strict=True):
                assert_agree(a, b, case, (graph, graph))
                assert a.reopened == b.reopened
    assert all(explanation.faithful and explanation.same_prediction for explanation in alone)


@batchable
def test_batching_changes_no_explanation(case: Case) -> None:
    known = fitted(case.name)
    graphs = case.graphs(4)
    together = known.explain_all([case.batch(graphs[:1]), case.batch(graphs[1:])])
    assert len(together) == 4
    for explanation, graph in zip(together, graphs, strict=True):
        alone = known.explain(case.one(graph))
        assert_agree(alone, explanation, case, (graph, graph))
        assert sorted(explanation.edge_index.t().tolist()) == sorted(graph.edge_index.t().tolist())
        assert float((alone.original - explanation.original).abs().max()) <= 1e-5
        assert float((alone.masked - explanation.masked).abs().max()) <= 1e-5
