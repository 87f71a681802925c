"""`repair=True`: a graph whose gates were shut too far gets the fewest back that make its explanation faithful."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphmask import Explanation, GraphMask, masked
from reference import toy

GRAPHS = [toy.graph(seed, nodes=4 + seed % 5, edges=6 + 3 * (seed % 4)) for seed in range(100, 124)]


@pytest.fixture(scope="module")
def pruned() -> GraphMask:
    """Gates that drop far more than the tolerance allows."""
    explainer = GraphMask(toy.Toy(), divergence="kl", tolerance=0.02)
    explainer.fit(toy.loader(6, 16), epochs=10, progress=False)
    assert explainer.probe is not None
    for site in range(2):
        locations = explainer.probe.original(explainer.model.eval(), explainer.forward, toy.loader(1, 64)[0]).values
        # Only the top tenth of the edges stays above the threshold.
        explainer.probe.gate(site).shift += float(locations[site].quantile(0.9)) - -0.597
    return explainer


@pytest.fixture(scope="module")
def plain(pruned: GraphMask) -> list[Explanation]:
    return [pruned.explain(graph, allow_infeasible=True) for graph in GRAPHS]


@pytest.fixture(scope="module")
def repaired(pruned: GraphMask) -> list[Explanation]:
    return [pruned.explain(graph, repair=True, allow_infeasible=True) for graph in GRAPHS]


def rerun(explainer: GraphMask, graph: Data, explanation: Explanation, kept: Tensor) -> float:
    """The divergence of one graph with these gates, measured from outside."""
    with masked(explainer.model, replace(explanation, kept=kept)), torch.no_grad():
        output = explainer.forward(explainer.model, graph)
    return float(explainer.divergence(explanation.original, output).mean())


def test_the_gates_are_indeed_shut_too_far(plain: list[Explanation]) -> None:
    assert sum(not explanation.faithful for explanation in plain) >= 10
    assert all(explanation.reopened == 0 for explanation in plain)


def test_every_repaired_explanation_is_faithful(pruned: GraphMask, repaired: list[Explanation]) -> None:
    for graph, explanation in zip(GRAPHS, repaired, strict=True):
        assert explanation.faithful
        assert explanation.divergence <= pruned.tolerance
        assert rerun(pruned, graph, explanation, explanation.kept) == pytest.approx(explanation.divergence, abs=1e-6)


def test_repair_only_opens_gates_and_counts_them(plain: list[Explanation], repaired: list[Explanation]) -> None:
    for before, after in zip(plain, repaired, strict=True):
        assert bool((after.kept | ~before.kept).all())
        assert int((after.kept & ~before.kept).sum()) == after.reopened
        assert torch.equal(before.scores, after.scores)
        assert torch.equal(before.original, after.original)
        assert (after.reopened == 0) == before.faithful
        if before.faithful:
            assert torch.equal(before.masked, after.masked)
    assert sum(explanation.reopened for explanation in repaired) > 20


def ordered(explanation: Explanation) -> list[tuple[int, int]]:
    """Dropped gates, best scores first; ties by site and edge."""
    dropped = (explanation.carried & ~explanation.kept).nonzero().tolist()
    return [(site, edge) for site, edge in sorted(dropped, key=lambda at: -float(explanation.scores[at[0], at[1]]))]


def test_the_fewest_gates_by_score_are_reopened(
    pruned: GraphMask, plain: list[Explanation], repaired: list[Explanation]
) -> None:
    """Literally: reopen one after the other. Where the damage only shrinks, bisection stops at the first that fits."""
    checked = 0
    for graph, before, after in zip(GRAPHS, plain, repaired, strict=True):
        kept, order = before.kept.clone(), ordered(before)
        faithful = [before.faithful]
        states = [kept.clone()]
        for site, edge in order:
            kept[site, edge] = True
            states.append(kept.clone())
            faithful.append(rerun(pruned, graph, before, kept) <= pruned.tolerance)
        assert torch.equal(after.kept, states[after.reopened])
        assert faithful[after.reopened]
        if after.reopened:
            assert not faithful[after.reopened - 1]
        if all(a <= b for a, b in pairwise(faithful)):  # monotone
            checked += 1
            assert after.reopened == faithful.index(True)
    assert checked >= 5


@pytest.mark.parametrize("size", [5, len(GRAPHS)])
def test_batching_repairs_every_graph_as_if_alone(pruned: GraphMask, repaired: list[Explanation], size: int) -> None:
    loader = [Batch.from_data_list(GRAPHS[start : start + size]) for start in range(0, len(GRAPHS), size)]
    together = list(pruned.explain_all(loader, repair=True, allow_infeasible=True))
    assert len(together) == len(repaired)
    for a, b in zip(together, repaired, strict=True):
        assert torch.equal(a.kept, b.kept)
        assert a.reopened == b.reopened
        assert torch.equal(a.edge_index, b.edge_index)
        assert torch.allclose(a.scores, b.scores, atol=1e-6)
        assert torch.allclose(a.masked, b.masked, atol=1e-5)
        assert a.divergence == pytest.approx(b.divergence, abs=1e-6)


def test_graphs_without_edges_need_no_repair(pruned: GraphMask) -> None:
    graph = toy.graph(0, edges=0)
    explanation = pruned.explain(graph, repair=True, allow_infeasible=True)
    assert explanation.faithful
    assert (explanation.reopened, explanation.divergence, explanation.retained) == (0, 0.0, 0.0)
    both = list(pruned.explain_all([Batch.from_data_list([graph, GRAPHS[0]])], repair=True, allow_infeasible=True))
    assert [e.edge_index.shape[1] for e in both] == [0, GRAPHS[0].num_edges]
