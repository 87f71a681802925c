"""SubgraphX against Shapley values over all orders of the players, and against all subgraphs it could find."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphmask import GraphMaskError
from graphmask.methods.subgraphx import SubgraphX
from reference.small import WIDTH, Small, answer, constant, graph, pairs

from .common import case_of

GRAPHS = [graph(seed, nodes=6, edges=9) for seed in (0, 1, 4)]


def worth(model: Small, data: Data, nodes: frozenset[int]) -> float:
    """The probability of the predicted class with only the messages between these nodes."""
    column = int(answer(model, data, constant(data, 1.0)).argmax())
    inside = [float(u in nodes and v in nodes) for u, v in pairs(data)]
    return float(answer(model, data, [inside, inside]).softmax(0)[column])


def near(data: Data, node: int) -> set[int]:
    return {v for u, v in pairs(data) if u == node} | {u for u, v in pairs(data) if v == node}


def shapley(model: Small, data: Data, nodes: frozenset[int]) -> float:
    """The mean over all orders of the players of what the subgraph adds when its turn comes."""
    reached = set(nodes)
    for _ in range(2):
        reached |= {other for node in reached for other in near(data, node)}
    players = [frozenset({node}) for node in sorted(reached - nodes)] + [nodes]
    total = 0.0
    for order in itertools.permutations(range(len(players))):
        before = frozenset().union(*(players[p] for p in itertools.takewhile(lambda p: p != len(players) - 1, order)))
        total += worth(model, data, before | nodes) - worth(model, data, before)
    return total / math.factorial(len(players))


def leaves(data: Data, nodes: frozenset[int], least: int) -> set[frozenset[int]]:
    """All that can be reached by taking out nodes one by one and going on with the largest connected part."""
    if len(nodes) <= least:
        return {nodes}
    found = set()
    for gone in nodes:
        left, parts = set(nodes - {gone}), []
        while left:
            part, waiting = set(), [min(left)]
            while waiting:
                node = waiting.pop()
                part.add(node)
                waiting += [other for other in near(data, node) if other in left - part]
            parts.append(frozenset(part))
            left -= part
        found |= leaves(data, max(parts, key=len), least)
    return found


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_the_best_of_all_subgraphs_by_exact_values(number: int) -> None:
    model, data = Small(), GRAPHS[number]
    ends = frozenset(node for pair in pairs(data) for node in pair)
    values = {nodes: shapley(model, data, nodes) for nodes in leaves(data, ends, 3)}
    best = max(values, key=lambda nodes: values[nodes])
    assert len(values) > 2
    method = SubgraphX(model, rollouts=300, children=6, least=3, exploration=50.0)
    explanation = method.explain(data, repair=False)
    inside = [u in best and v in best for u, v in pairs(data)]
    assert explanation.kept.tolist() == [inside, inside]
    tops = [
        max([0.0, *(value for nodes, value in values.items() if u in nodes and v in nodes)]) for u, v in pairs(data)
    ]
    expected = torch.tensor(tops, dtype=torch.double) / max(tops)
    assert torch.allclose(explanation.scores, expected.expand(2, -1), atol=1e-6)


def test_drawn_values_have_the_exact_ones_as_their_mean() -> None:
    model = Small()
    data = graph(2, nodes=8, edges=14)
    nodes = frozenset(pairs(data)[0])
    exact = shapley(model, data, nodes)
    (found,) = SubgraphX(model)._graphs(case_of(model, data))
    method = SubgraphX(model, samples=15)
    assert 1 << len(found.around(nodes, 2) - nodes) > 15
    drawn = [
        weight * (worth(model, data, a) - worth(model, data, b))
        for _ in range(100)
        for weight, a, b in method.coalitions(found, nodes, 2)
    ]
    assert sum(drawn) / 100 == pytest.approx(exact, abs=0.01)
    assert abs(exact) > 0.02


def test_a_graph_that_is_small_enough_already_is_kept() -> None:
    data = graph(0, nodes=3, edges=4)
    assert bool(SubgraphX(Small()).explain(data, repair=False).kept.all())


def test_it_has_its_limits() -> None:
    nodes = 400
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    data = Data(x=torch.ones(nodes, WIDTH, dtype=torch.double), edge_index=ring)
    with pytest.raises(GraphMaskError, match="at most 300 nodes for subgraphx, got one of 400"):
        SubgraphX(Small()).explain(data)
    with pytest.raises(GraphMaskError, match="of at least 1"):
        SubgraphX(Small(), rollouts=0)


def test_graphs_in_one_batch_are_searched_side_by_side() -> None:
    model = Small()
    method = SubgraphX(model, rollouts=4, children=3, samples=3, least=3)
    together = list(method.explain_all([Batch.from_data_list(GRAPHS)], repair=False))
    for data, explanation in zip(GRAPHS, together, strict=True):
        alone = method.explain(data, repair=False)
        assert torch.equal(alone.kept, explanation.kept)
        assert torch.allclose(alone.scores, explanation.scores, atol=1e-6)
