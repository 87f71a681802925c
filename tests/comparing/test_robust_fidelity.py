"""R- and F-Fidelity against slow references in float64, to 1e-6."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data

from analysis.support import Fixed, scores_of
from graphmask import GraphMaskError
from graphmask.analysis import fine_tuned, finetuned_fidelity, robust_fidelity
from laws.untouched import assert_same, snapshot
from methods.common import case_of
from reference import robust_fidelity as literal
from reference.small import Small, answer, constant, graph

GRAPHS = [graph(seed, nodes=4, edges=4 + seed % 4) for seed in range(5)]
for number, data in enumerate(GRAPHS):
    data.y = torch.tensor([number % 3])
LOADER = [Batch.from_data_list(GRAPHS[:3]), Batch.from_data_list(GRAPHS[3:])]
SAMPLES = 7


def uniform(model: Small, data: Data, samples: int, seed: int) -> list[list[float]]:
    case = case_of(model, data)
    return [case.uniform(seed * 1_000_003 + 7919 * sample)[0].tolist() for sample in range(samples)]


def explained(model: Small, data: Data, size: float | None = None) -> list[bool]:
    """Edges that `Fixed` keeps at any layer, or so many with the highest scores."""
    scores = scores_of(case_of(model, data)).amax(0).tolist()
    if size is None:
        return [score > 0.5 for score in scores]
    order = sorted(range(len(scores)), key=lambda e: -scores[e])
    best = set(order[: math.ceil(size * len(scores) - 1e-9)])
    return [e in best for e in range(len(scores))]


def means(rows: Iterator[tuple[dict[str, float], dict[str, float]]]) -> dict[str, tuple[float, float, float]]:
    found = list(rows)
    result = {}
    for name in literal.MEASURES:
        plus, minus = (sum(pair[side][name] for pair in found) / len(found) for side in (0, 1))
        result[name] = plus, minus, plus - minus
    return result


def assert_agree(frame: Any, expected: dict[str, tuple[float, float, float]]) -> None:
    rows = {row["measure"]: row for row in frame.to_dicts()}
    assert set(rows) == set(literal.MEASURES)
    for name, values in expected.items():
        for side, value in zip(("plus", "minus", "delta"), values, strict=True):
            assert rows[name][side] == pytest.approx(value, abs=1e-6)
    assert max(abs(value) for values in expected.values() for value in values) > 0.05


@pytest.mark.parametrize("sizes", [None, (0.3, 0.8)])
@pytest.mark.parametrize(("plus", "minus"), [(0.1, 0.9), (0.6, 0.3), (1.0, 0.0)])
def test_r_fidelity_by_hand(plus: float, minus: float, sizes: tuple[float, ...] | None) -> None:
    model = Small()

    def rows() -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        for data in GRAPHS:
            run = lambda z, d=data: answer(model, d, z)  # noqa: E731
            target, numbers = run(constant(data, 1.0)), uniform(model, data, SAMPLES, 3)
            for size in sizes or (None,):
                marks = explained(model, data, size)
                removals = [plus if e else 0.0 for e in marks], [0.0 if e else 1 - minus for e in marks]
                a, b = (literal.fidelity(run, target, data.num_edges, r, numbers, 2) for r in removals)
                yield a, b

    found = robust_fidelity(
        Fixed(model), LOADER, alpha_plus=plus, alpha_minus=minus, samples=SAMPLES, sizes=sizes, seed=3
    )
    assert_agree(found, means(rows()))


def test_draws_have_the_expectation_of_the_definition() -> None:
    model, data = Small(), GRAPHS[1]
    marks = explained(model, data, 0.5)
    run = lambda z: answer(model, data, z)  # noqa: E731
    target, samples = run(constant(data, 1.0)), 2000
    frame = robust_fidelity(Fixed(model), [data], samples=samples, sizes=(0.5,))
    found = {row["measure"]: row for row in frame.to_dicts()}
    moved = 0.0
    for side, removal in (("plus", [0.1 * e for e in marks]), ("minus", [0.1 * (not e) for e in marks])):
        expected = literal.expected(run, target, data.num_edges, removal, 2)
        for name, four_errors in (("accuracy", 0.045), ("probability", 0.005), ("divergence", 0.005)):
            assert found[name][side] == pytest.approx(expected[name], abs=four_errors)
        moved += expected["accuracy"]
    assert moved > 0.25


@pytest.mark.parametrize("sizes", [None, (0.3, 0.8)])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.1), (0.5, 0.4), (0.2, 1.0)])
def test_f_fidelity_by_hand(alpha: float, beta: float, sizes: tuple[float, ...] | None) -> None:
    model, tuned = Small(), Small(seed=1)

    def rows() -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        for data in GRAPHS:
            run = lambda z, d=data: answer(tuned, d, z)  # noqa: E731
            target, numbers = answer(model, data, constant(data, 1.0)), uniform(model, data, SAMPLES, 0)
            for size in sizes or (None,):
                removals = literal.f_removal(explained(model, data, size), alpha, beta)
                a, b = (literal.fidelity(run, target, data.num_edges, r, numbers, 2) for r in removals)
                yield a, b

    found = finetuned_fidelity(Fixed(model), LOADER, tuned=tuned, alpha=alpha, beta=beta, samples=SAMPLES, sizes=sizes)
    assert_agree(found, means(rows()))


def test_fine_tuning_by_hand() -> None:
    model = Small()
    before = snapshot(model)
    given = {"beta": 0.4, "steps": 5}
    tuned = fine_tuned(Fixed(model), LOADER, **given, learning_rate=0.01, weight_decay=0.1, seed=2)
    assert_same(before, snapshot(model))
    expected = literal.fine_tune(model, [GRAPHS[:3], GRAPHS[3:]], **given, rate=0.01, decay=0.1, seed=2)
    for name, value in expected.state_dict().items():
        assert torch.allclose(tuned.state_dict()[name], value, atol=1e-6, rtol=0)
        assert float((value - model.state_dict()[name]).abs().max()) > 0.01
    assert not any(parameter.requires_grad for parameter in tuned.parameters())
    assert not tuned.training


def test_fine_tuning_without_labels_learns_the_models_own_answers() -> None:
    model = Small()
    bare = [Batch.from_data_list([Data(x=d.x, edge_index=d.edge_index) for d in GRAPHS])]
    tuned = fine_tuned(Fixed(model), bare, steps=60, learning_rate=0.05, weight_decay=0.0)
    for data in GRAPHS:
        whole = constant(data, 1.0)
        choice = int(answer(model, data, whole).argmax())
        now, then = (answer(some, data, whole).softmax(0)[choice] for some in (tuned, model))
        assert float(now) > float(then) - 1e-6
    with pytest.raises(GraphMaskError, match="one per output row"):
        fine_tuned(Fixed(model), bare, labels=True, steps=1)


def test_nothing_removed_changes_nothing() -> None:
    model = Small()
    for row in robust_fidelity(Fixed(model), LOADER, alpha_plus=0.0, alpha_minus=1.0, samples=2).to_dicts():
        assert row["plus"] == row["minus"] == row["delta"] == pytest.approx(0, abs=1e-12)


def test_shares_are_checked() -> None:
    with pytest.raises(GraphMaskError, match="alpha_plus to be a share from 0 to 1, got 2"):
        robust_fidelity(Fixed(Small()), LOADER, alpha_plus=2)
    with pytest.raises(GraphMaskError, match="at least one sample"):
        robust_fidelity(Fixed(Small()), LOADER, samples=0)
    with pytest.raises(GraphMaskError, match="each of sizes"):
        finetuned_fidelity(Fixed(Small()), LOADER, tuned=Small(), sizes=(1.5,))
