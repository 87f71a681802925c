"""Sparsity curves and stability under noise, against loops over single graphs."""

from __future__ import annotations

import math

import pytest
import torch
from torch_geometric.data import Batch, HeteroData

from analysis.support import BASELINES, Fixed, scores_of
from graphmask import GraphMaskError
from graphmask.analysis import area_under, noise_stability, sparsity_curve
from graphmask.analysis.noise import with_noise
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from methods.common import case_of
from reference import methods as literal
from reference.small import Small, answer, constant, graph

GRAPHS = [graph(seed, nodes=4, edges=4 + seed % 4) for seed in range(5)]
LOADER = [Batch.from_data_list(GRAPHS[:3]), GRAPHS[3], GRAPHS[4]]
LEVELS = (0.0, 0.25, 0.7, 1.0)


@pytest.mark.parametrize("replaced_by", ["baseline", "zero"])
@pytest.mark.parametrize("side", ["kept", "dropped"])
def test_a_curve_by_hand(side: str, replaced_by: str) -> None:
    model = Small()
    expected = torch.zeros(len(LEVELS), 2, dtype=torch.double)
    for data in GRAPHS:
        scores = scores_of(case_of(model, data))
        order = sorted(literal.places(2, data.num_edges), key=lambda at: -float(scores[at]))
        original = answer(model, data, constant(data, 1.0))
        for row, level in enumerate(LEVELS):
            first = set(order[: math.ceil(level * len(order) - 1e-9)])
            kept = first if side == "kept" else set(order) - first
            gates = literal.gates_of(kept, 2, data.num_edges)
            output = answer(model, data, gates, BASELINES if replaced_by == "baseline" else None)
            moved = literal.kl(original, output), float(original.argmax() != output.argmax())
            expected[row] += torch.tensor(moved, dtype=torch.double) / len(GRAPHS)
    curve = sparsity_curve(Fixed(model), LOADER, side=side, levels=LEVELS, replaced_by=replaced_by)
    assert curve["level"].to_list() == list(LEVELS)
    found = torch.tensor([curve["divergence"].to_list(), curve["flips"].to_list()], dtype=torch.double).t()
    assert torch.allclose(found, expected, atol=1e-6)
    assert float(expected[:, 0].max()) > 0.2
    steps = zip(LEVELS, LEVELS[1:], expected[:, 0].tolist(), expected[1:, 0].tolist(), strict=False)
    assert area_under(curve) == pytest.approx(sum((b - a) * (x + y) / 2 for a, b, x, y in steps), abs=1e-6)


def test_what_a_curve_is_asked_for_is_checked() -> None:
    for given, words in (
        ({"side": "both"}, "'kept' or 'dropped', got 'both'"),
        ({"levels": (0.5, 2.0)}, "levels from 0 to 1"),
        ({"replaced_by": "mean"}, "'baseline' or 'zero', got 'mean'"),
    ):
        with pytest.raises(GraphMaskError, match=words):
            sparsity_curve(Fixed(Small()), LOADER, **given)


class Fickle(Method):
    """Keeps the messages of nodes whose first feature has an odd last digit: any noise is another explanation."""

    name = "fickle"

    def choose(self, case: Case) -> Choice:
        odd = (case.batch.x[:, 0] * 1e6).long() % 2 == 1
        scores = odd[case.trace.edge_index[0]].double().expand_as(case.trace.carried)
        return case.cut(scores, 0.5)


def test_a_fickle_method_is_found_out() -> None:
    model = Small()
    data = [graph(seed, nodes=80, edges=100) for seed in range(6)]
    loader = [Batch.from_data_list(data)]
    figures = {}
    for kind in (Fixed, Fickle):
        method = kind(model)
        before = loader[0].x.clone()
        (row,) = noise_stability(method, loader, list(method.explain_all(loader, repair=False))).to_dicts()
        assert torch.equal(loader[0].x, before)
        figures[kind] = row
    assert figures[Fixed]["kappa"] == figures[Fixed]["agreement"] == figures[Fixed]["jaccard"] == 1
    assert abs(figures[Fickle]["kappa"]) < 0.2
    assert 0.4 < figures[Fickle]["agreement"] < 0.6
    assert figures[Fixed]["same"] > 0.8


def test_noise_has_its_scale_column_by_column() -> None:
    data = graph(0, nodes=4000)
    data.x = data.x * torch.tensor([1.0, 100.0, 0.0]) + torch.tensor([0.0, 0.0, 3.0])
    other = with_noise(data, 0.01, torch.Generator().manual_seed(0))
    moved = (other.x - data.x).std(0)
    assert moved.tolist() == pytest.approx([0.01, 1.0, 0.03], rel=0.05)
    assert other.edge_index is data.edge_index
    hetero = HeteroData({"a": {"x": torch.ones(50, 2)}, "b": {"x": torch.arange(3)}})
    moved = with_noise(hetero, 0.01, torch.Generator().manual_seed(0))
    assert float((moved["a"].x - 1).std()) == pytest.approx(0.01, rel=0.3)
    assert torch.equal(moved["b"].x, torch.arange(3))
    assert torch.equal(hetero["a"].x, torch.ones(50, 2))
    with pytest.raises(GraphMaskError, match="node features x of real numbers"):
        with_noise({"input_ids": torch.ones(2, 3)}, 0.01, torch.Generator())
