"""Erasure search against all subsets and against a literal greedy loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphmask.methods.erasure_search import ErasureSearch, _subsets_by_size
from reference import methods as literal
from reference.small import Small, answer, constant, graph

from .common import gates

GRAPHS = [graph(seed, nodes=4, edges=3 + seed % 3) for seed in range(14)]


def classes(model: Small, data: Data) -> Callable[[Tensor], bool]:
    prediction = int(answer(model, data, constant(data, 1.0)).argmax())
    return lambda output: int(output.argmax()) == prediction


def within(model: Small, data: Data, tolerance: float) -> Callable[[Tensor], bool]:
    original = answer(model, data, constant(data, 1.0))
    return lambda output: literal.mse(original, output) <= tolerance


def test_subsets_come_smallest_first() -> None:
    rows = _subsets_by_size(4).tolist()
    for things, row in enumerate(rows):
        real = row[: 2**things]
        assert sorted(real) == list(range(2**things))
        assert [code.bit_count() for code in real] == sorted(code.bit_count() for code in real)
        assert row[2**things :] == [-1] * (16 - 2**things)


def test_exact_search_finds_the_smallest_set() -> None:
    model = Small()
    loader = [Batch.from_data_list(GRAPHS[:7]), Batch.from_data_list(GRAPHS[7:])]
    found = list(ErasureSearch(model).explain_all(loader, repair=False))
    sizes = []
    for data, explanation in zip(GRAPHS, found, strict=True):
        same = classes(model, data)
        sizes.append(literal.fewest(lambda z, d=data: answer(model, d, z), same, 2, data.num_edges))
        assert int(explanation.kept.sum()) == sizes[-1]
        assert same(answer(model, data, explanation.kept.double()))
        assert explanation.same_prediction
        assert torch.equal(explanation.scores, explanation.kept.double())
    assert len(set(sizes)) >= 3  # an easy task would be answered with nothing at all


def test_exact_search_of_a_regression_uses_the_tolerance() -> None:
    model = Small(outputs=1)
    for tolerance in (0.02, 0.5):
        sizes = []
        for data in GRAPHS[:5]:
            explanation = ErasureSearch(model, divergence="mse", tolerance=tolerance).explain(data, repair=False)
            same = within(model, data, tolerance)
            sizes.append(literal.fewest(lambda z, d=data: answer(model, d, z), same, 2, data.num_edges))
            assert int(explanation.kept.sum()) == sizes[-1]
            assert explanation.faithful
        assert max(sizes) > 2


def distinct(seed: int, edges: int) -> Data:
    """No edge twice: the order of two that matter alike is nobody's business."""
    data = graph(seed, nodes=4, edges=20)
    data.edge_index = torch.unique(data.edge_index[:, :12], dim=1)
    keep = torch.randperm(data.num_edges, generator=torch.Generator().manual_seed(seed))[:edges]
    data.edge_index = data.edge_index[:, keep]
    return data


LARGER = [distinct(seed, 4 + seed % 4) for seed in range(10)]


def test_greedy_search_one_at_a_time() -> None:
    model, kept = Small(), 0
    for data in LARGER:
        count = 2 * data.num_edges
        method = ErasureSearch(model, budget=count * (count + 1) // 2)
        found = method.explain(data, repair=False)
        assert method.budget < 2**count  # else all subsets would be tried
        original = answer(model, data, constant(data, 1.0))
        expected = literal.greedy(
            lambda z, d=data: answer(model, d, z),
            classes(model, data),
            lambda output, o=original: literal.kl(o, output),
            2,
            data.num_edges,
        )
        assert torch.equal(found.kept, gates(expected, found.kept))
        kept += len(expected)
    assert kept > 5


@pytest.mark.parametrize("budget", [1, 9, 15])
def test_greedy_search_erases_several_at_a_turn_when_the_budget_is_small(budget: int) -> None:
    """In one batch: what is erased at once goes by a graph's own size, not by its neighbours'."""
    model = Small()
    found = ErasureSearch(model, budget=budget).explain_all([Batch.from_data_list(LARGER)], repair=False)
    turns = set()
    for data, explanation in zip(LARGER, found, strict=True):
        count = 2 * data.num_edges
        at_once = -(-count * (count + 1) // (2 * budget))
        turns.add(at_once)
        original = answer(model, data, constant(data, 1.0))
        expected = literal.greedy(
            lambda z, d=data: answer(model, d, z),
            classes(model, data),
            lambda output, o=original: literal.kl(o, output),
            2,
            data.num_edges,
            at_once,
            budget,
        )
        assert torch.equal(explanation.kept, gates(expected, explanation.kept))
        assert explanation.same_prediction
    assert min(turns) > 1
    assert len(turns) == 4


def test_greedy_search_of_a_regression() -> None:
    model, tolerance = Small(outputs=1), 0.1
    for data in LARGER[:5]:
        count = 2 * data.num_edges
        found = ErasureSearch(model, divergence="mse", tolerance=tolerance, budget=count * (count + 1) // 2).explain(
            data, repair=False
        )
        original = answer(model, data, constant(data, 1.0))
        expected = literal.greedy(
            lambda z, d=data: answer(model, d, z),
            within(model, data, tolerance),
            lambda output, o=original: literal.mse(o, output),
            2,
            data.num_edges,
        )
        assert torch.equal(found.kept, gates(expected, found.kept))
        assert found.faithful
        assert 0 < len(expected) < count


@pytest.mark.parametrize("budget", [40, 5000])
def test_many_candidates_of_one_graph_at_once_or_one_of_many_graphs(budget: int) -> None:
    """Alone, copies of the graph fill a pass; in a batch the graphs do. Small ones are searched exactly, others not."""
    model = Small()
    graphs = [*GRAPHS[:4], *LARGER[:4], graph(3, edges=0), graph(3, edges=1)]
    together = list(ErasureSearch(model, budget=budget).explain_all([Batch.from_data_list(graphs)], repair=False))
    for data, found in zip(graphs, together, strict=True):
        alone = ErasureSearch(model, budget=budget).explain(data, repair=False)
        assert torch.equal(alone.kept, found.kept)
        assert alone.divergence == pytest.approx(found.divergence, abs=1e-12)
    assert sum(int(e.kept.sum()) for e in together) > 5


def test_a_progress_bar_changes_nothing() -> None:
    model = Small()
    for budget in (40, 5000):
        plain = ErasureSearch(model, budget=budget).explain(LARGER[3], repair=False)
        shown = ErasureSearch(model, budget=budget, progress=True).explain(LARGER[3], repair=False)
        assert torch.equal(plain.kept, shown.kept)
