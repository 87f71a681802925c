"""The laws on graphs nobody would think of: no edges, one node, edges many times over, only self-loops."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import graphmask
from graphmask import GraphMask
from graphmask.graphs import edges
from reference.hasty import halve

from .cases import EDGE_WIDTH, RELATIONS, WIDTH, Net, TapLayer, mlp, random_graph
from .support import QUICK, discover, run, run_masked

MODELS: dict[str, Any] = {
    "SAGE": lambda: Net([pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)]),
    "GIN": lambda: Net([pyg.GINConv(mlp()), pyg.GINConv(mlp())], pooled=False),
    "GCN": lambda: Net([pyg.GCNConv(WIDTH, WIDTH), pyg.GCNConv(WIDTH, WIDTH)], ["edge_weight"]),
    "GAT": lambda: Net([pyg.GATConv(WIDTH, WIDTH, edge_dim=EDGE_WIDTH)] * 2, ["edge_attr"]),
    "RGCN": lambda: Net([pyg.RGCNConv(WIDTH, WIDTH, RELATIONS) for _ in range(2)], ["edge_type"]),
    "DirGNN": lambda: Net([pyg.DirGNNConv(pyg.GraphConv(WIDTH, WIDTH))], pooled=False),
    "TAG": lambda: Net([pyg.TAGConv(WIDTH, WIDTH, K=2)]),
    "MessageTap": lambda: Net([TapLayer(), TapLayer()], ["edge_type"]),
}
every_model = pytest.mark.parametrize("name", MODELS)


@cache
def model_of(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return MODELS[name]().eval()


@cache
def explainer_of(name: str) -> GraphMask:
    explainer = GraphMask(model_of(name), recipe=QUICK)
    loader = [Batch.from_data_list([random_graph(3 * b + i) for i in range(3)]) for b in range(2)]
    explainer.fit(loader, progress=False)
    halve(explainer, loader)
    return explainer


@st.composite
def graphs(draw: st.DrawFn) -> Data:
    """At most one self-loop per node: layers that take self-loops out and put them back know only one."""
    nodes = draw(st.integers(1, 5))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=10))
    pairs = [pair for number, pair in enumerate(pairs) if pair[0] != pair[1] or pair not in pairs[:number]]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 3)))
    count = len(pairs)
    return Data(
        x=torch.randn(nodes, WIDTH, generator=generator),
        edge_index=torch.tensor(pairs, dtype=torch.long).view(-1, 2).t().contiguous(),
        edge_type=torch.randint(RELATIONS, (count,), generator=generator),
        edge_attr=torch.randn(count, EDGE_WIDTH, generator=generator),
        edge_weight=torch.rand(count, generator=generator) + 0.5,
    )


@every_model
@given(graph=graphs())
@settings(max_examples=25)
def test_open_gates_give_the_original(name: str, graph: Data) -> None:
    model = model_of(name)
    state, seen = discover(model, graph)
    for messages in seen:
        positions = torch.arange(graph.num_edges) if messages.edges is None else messages.edges
        mine = positions >= 0
        source, target = graph.edge_index.flip(0) if state.sites[messages.site].reverse else graph.edge_index
        assert torch.equal(source[positions[mine]], messages.source[mine])
        assert torch.equal(target[positions[mine]], messages.target[mine])
    original = run(model, graph)
    gates = torch.ones(len(state.sites), graph.num_edges)
    assert torch.equal(run_masked(model, graph, state, gates > 0), original)
    assert torch.equal(run_masked(model, graph, state, gates), original)


@every_model
@given(graph=graphs())
@settings(max_examples=25)
def test_explanations_are_consistent(name: str, graph: Data) -> None:
    explainer = explainer_of(name)
    explanation = explainer.explain(graph, repair=False, allow_infeasible=True)
    sites = len(explanation.sites)
    for value in (explanation.kept, explanation.scores, explanation.carried):
        assert value.shape == (sites, graph.num_edges)
    assert torch.equal(explanation.edge_index, graph.edge_index)
    assert explanation.num_nodes == graph.num_nodes
    assert bool(explanation.carried.all())
    assert torch.equal(explanation.kept, explanation.scores > 0.5)
    assert 0 <= explanation.retained <= 1
    assert torch.allclose(explanation.original, run(explainer.model, graph), atol=1e-6)
    with graphmask.masked(explainer.model, explanation):
        assert torch.equal(run(explainer.model, graph), explanation.masked)
    divergence = float(graphmask.divergence.kl(explanation.original, explanation.masked).mean())
    assert explanation.divergence == pytest.approx(divergence, abs=1e-6)
    assert explanation.faithful == (explanation.divergence <= explanation.tolerance)
    if bool(explanation.kept.all()):
        assert torch.equal(explanation.masked, explanation.original)
        assert explanation.divergence == pytest.approx(0, abs=1e-6)
    # The kept messages are the last hops of paths, and the other way round.
    for node in range(graph.num_nodes):
        for path in explanation.paths(node):
            assert path[-1].target == node
            assert all(bool(explanation.kept[hop.site, hop.edge]) for hop in path)
            assert all(a.target == b.source and a.site < b.site for a, b in pairwise(path))


@every_model
def test_a_graph_without_edges(name: str) -> None:
    explainer = explainer_of(name)
    for nodes in (1, 4):
        graph = random_graph(0)
        none = {key: graph[key][:0] for key in ("edge_type", "edge_attr", "edge_weight")}
        data = Data(x=graph.x[:nodes], edge_index=torch.empty(2, 0, dtype=torch.long), **none)
        explanation = explainer.explain(data, allow_infeasible=True)
        assert explanation.kept.shape == (len(explanation.sites), 0)
        assert torch.equal(explanation.masked, explanation.original)
        assert explanation.divergence == pytest.approx(0, abs=1e-7)
        assert explanation.faithful
        assert explanation.retained == 0
        assert explanation.paths(0) == []
        with graphmask.masked(explainer.model, explanation):
            assert torch.equal(run(explainer.model, data), explanation.original)


@every_model
@given(parts=st.lists(graphs(), min_size=1, max_size=4))
@settings(max_examples=8)
def test_batching_changes_no_explanation(name: str, parts: list[Data]) -> None:
    explainer = explainer_of(name)
    together = list(explainer.explain_all([Batch.from_data_list(parts)], allow_infeasible=True))
    assert len(together) == len(parts)
    for explanation, graph in zip(together, parts, strict=True):
        alone = explainer.explain(graph, allow_infeasible=True)
        assert torch.equal(alone.edge_index, explanation.edge_index)
        sure = (alone.scores - 0.5).abs() > 1e-4
        assert torch.equal(alone.kept & sure, explanation.kept & sure)
        assert torch.allclose(alone.scores, explanation.scores, atol=1e-5)
        assert alone.num_nodes == explanation.num_nodes


# The mapping of edges, against a version that is too simple to be wrong --------------------------------------

_pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


def tensor(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.long).view(-1, 2).t()


def by_hand(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[int]:
    """The n-th edge from u to v is the n-th edge from u to v."""
    free = list(enumerate(mine))
    found = []
    for pair in theirs:
        position = next((n for n, candidate in free if candidate == pair), -1)
        if position >= 0:
            free.remove((position, pair))
        found.append(position)
    return found


@given(mine=_pairs, theirs=_pairs)
@settings(max_examples=200)
def test_match(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    assert edges.match(tensor(mine), tensor(theirs)).tolist() == by_hand(mine, theirs)


@given(mine=_pairs, data=st.data())
@settings(max_examples=100)
def test_any_rearrangement_that_layers_make(mine: list[tuple[int, int]], data: st.DataObject) -> None:
    """Shuffled, with self-loops taken out and appended, or turned around: positions are those found by hand."""
    loops_out = data.draw(st.booleans())
    theirs = [pair for pair in mine if not loops_out or pair[0] != pair[1]]
    if data.draw(st.booleans()):
        theirs = data.draw(st.permutations(theirs))
    theirs = [*theirs, *((v, v) for v in range(4))] if data.draw(st.booleans()) else theirs
    found = edges.EdgeMap(tensor(mine))(tensor(list(theirs)), (), 0, "conv")
    positions = list(range(len(mine))) if found.edges is None else found.edges.tolist()
    others = [n for n, (u, v) in enumerate(theirs) if u != v]
    straight, turned = by_hand(mine, list(theirs)), by_hand(mine, [(v, u) for u, v in theirs])
    expected = turned if found.flipped else straight
    assert [positions[n] for n in others] == [expected[n] for n in others]
    # Self-loops: each of the user's is found, once, and only at its node.
    loops = [positions[n] for n in range(len(theirs)) if n not in others and positions[n] >= 0]
    assert len(loops) == len(set(loops))
    assert all(mine[positions[n]] == theirs[n] for n in range(len(theirs)) if n not in others and positions[n] >= 0)
    appended = {v for v, w in theirs if v == w}
    assert {mine[n][0] for n in loops} == {u for u, v in mine if u == v} & appended
