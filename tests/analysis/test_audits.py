"""Frontier, tolerance curve, baseline swap and leakage: literal loops, and leaks that are known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphmask import Explanation, GraphMaskError, analysis
from graphmask.analysis import leakage
from graphmask.explaining.method import Method
from methods.common import case_of
from reference.divergence import kl
from reference.small import Small, answer, graph, messages

from . import literal
from .support import BASELINES, Fixed, explanation_of

GRAPHS = [graph(seed, nodes=4, edges=3 + seed) for seed in range(4)]
LOADERS = {
    "together": [Batch.from_data_list(GRAPHS)],
    "apart": GRAPHS,
    "mixed": [Batch.from_data_list(GRAPHS[:3]), GRAPHS[3]],
}
LEVELS = [0.0, 0.2, 0.35, 0.5, 0.8, 1.0]
TOLERANCE = 0.1


@pytest.fixture(scope="module")
def method() -> Method:
    return Fixed(Small(), divergence="kl", tolerance=TOLERANCE)


def scores_of(data: Data) -> Tensor:
    return case_of(Small(), data).uniform(7)


def figures(data: Data, kept: Tensor, baselines: Any) -> tuple[int, float, float]:
    """Gates kept, divergence, flipped."""
    original = answer(Small(), data, torch.ones(kept.shape))
    output = answer(Small(), data, kept.double(), baselines)
    return int(kept.sum()), kl(original.tolist(), output.tolist()), float(original.argmax() != output.argmax())


def cut(data: Data, by: str, level: float) -> Tensor:
    scores = scores_of(data)
    if by == "threshold":
        return scores > level
    kept = torch.zeros(scores.shape, dtype=torch.bool)
    best = sorted(np.ndindex(*scores.shape), key=lambda place: -float(scores[place]))
    for place in best[: math.ceil(level * scores.numel() - 1e-9)]:
        kept[place] = True
    return kept


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("by", ["threshold", "fraction"])
def test_frontier_and_tolerance_edge_by_edge(loader: str, by: str, method: Method) -> None:
    gates = sum(2 * data.num_edges for data in GRAPHS)
    each = [[figures(data, cut(data, by, level), BASELINES) for data in GRAPHS] for level in LEVELS]
    found = analysis.frontier(method, LOADERS[loader], by=by, levels=LEVELS)
    for row, level, graphs in zip(found.rows(), LEVELS, each, strict=True):
        kept, divergence, flips = (sum(column) for column in zip(*graphs, strict=True))
        faithful = sum(d <= TOLERANCE for _, d, _ in graphs)
        expected = (level, kept / gates, divergence / 4, flips / 4, faithful / 4)
        assert row == pytest.approx(expected, abs=1e-9)
    assert found["flips"].max() > 0
    assert found["retained"].n_unique() == len(LEVELS)
    tolerances = [0.01, 0.1, 0.5, 100.0]
    curve = analysis.tolerance_curve(method, LOADERS[loader], tolerances, by=by, levels=LEVELS)
    for row, tolerance in zip(curve.rows(), tolerances, strict=True):
        best = []
        for number, data in enumerate(GRAPHS):
            options = [(2 * data.num_edges, 0.0, 0.0), *(graphs[number] for graphs in each)]
            best.append(min((o for o in options if o[1] <= tolerance), key=lambda o: o[0]))
        kept, divergence, flips = (sum(column) for column in zip(*best, strict=True))
        assert row == pytest.approx((tolerance, kept / gates, divergence / 4, flips / 4), abs=1e-9)
    assert curve["retained"].to_list() == sorted(curve["retained"], reverse=True)
    assert curve["retained"].n_unique() > 2


def test_bad_sweeps(method: Method) -> None:
    with pytest.raises(GraphMaskError, match="Expected by to be 'threshold' or 'fraction', got 'rank'"):
        analysis.frontier(method, GRAPHS, by="rank")
    with pytest.raises(GraphMaskError, match="fractions from 0 to 1"):
        analysis.frontier(method, GRAPHS, by="fraction", levels=[2.0])
    with pytest.raises(GraphMaskError, match="Expected tolerances above 0"):
        analysis.tolerance_curve(method, GRAPHS, [0.0])


@pytest.mark.parametrize("loader", LOADERS)
def test_baseline_swap_edge_by_edge(loader: str, method: Method) -> None:
    sent = [messages(Small(), data) for data in GRAPHS]
    means = [torch.stack([m for layers in sent for m in layers[site]]).mean(0) for site in range(2)]
    for fresh in (method, Fixed(Small(), divergence="kl")):  # also where no batch has shown the sites yet
        for found_mean, mean in zip(analysis.mean_messages(fresh, LOADERS[loader]), means, strict=True):
            assert torch.allclose(found_mean, mean)
    found = analysis.baseline_swap(method, LOADERS[loader])
    for row, baselines in zip(found.rows(), (BASELINES, means, None), strict=True):
        each = [figures(data, scores_of(data) > 0.5, baselines) for data in GRAPHS]
        divergence, flips = sum(e[1] for e in each) / 4, sum(e[2] for e in each) / 4
        assert row[1:] == pytest.approx((divergence, flips, sum(e[1] <= TOLERANCE for e in each) / 4), abs=1e-9)
    assert found["baseline"].to_list() == ["own", "mean", "zero"]
    assert found["divergence"].n_unique() == 3
    with pytest.raises(GraphMaskError, match="iterable again and again"):
        analysis.baseline_swap(method, iter(GRAPHS))


# Leakage -----------------------------------------------------------------------------------------------------------


def explained(count: int, leaky: bool) -> list[Explanation]:
    """Eight edges of two types in random order, four kept. A leaky mask keeps type 0 where the answer is yes."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        types = torch.arange(8)[torch.randperm(8, generator=generator)] % 2
        label = int(torch.randint(2, (), generator=generator))
        keep = types == 1 - label if leaky else torch.randperm(8, generator=generator) < 4
        output = torch.tensor([[0.0, 2.0 * label - 1]])
        found.append(
            explanation_of(
                [(n, 8) for n in range(8)],
                [keep.nonzero().view(-1).tolist()],
                nodes=9,
                types=types.tolist(),
                original=output,
            )
        )
    return found


def test_a_leaky_mask_is_found_out() -> None:
    found = analysis.mask_leakage(iter(explained(200, leaky=True)))
    assert found["features"].to_list() == ["mask", "shuffled mask", "none"]
    accuracy, low, high = (found[name].to_list() for name in ("accuracy", "low", "high"))
    assert accuracy[0] == 1.0
    assert accuracy[1] < 0.65
    assert low[0] > 0.95 > high[1]
    assert found["examples"].to_list() == [200] * 3
    assert analysis.mask_leakage(explained(200, leaky=True)).equals(found)  # the same seed


def test_an_honest_mask_is_not() -> None:
    honest = analysis.mask_leakage(explained(200, leaky=False), most=150)
    assert honest["accuracy"].max() < 0.65
    assert honest["low"][0] < honest["accuracy"][2]
    assert honest["examples"].to_list() == [150] * 3


def test_what_the_probe_sees() -> None:
    """Per layer and type, then all types: kept, of the edges of the type, of the kept."""
    one = explanation_of([(0, 1), (0, 1), (1, 0)], [[0, 2], []], types=[5, 5, 6])
    two = explanation_of([(0, 1)], [[0], [0]], types=[6])
    features = leakage._Features()
    for e in (one, two):
        features.add(analysis.side_by_side.Block.of([e]), e.kept)
    layer = [1, 1 / 2, 1 / 2, 1, 1, 1 / 2, 2, 2 / 3, 1]
    assert features.matrix().tolist() == [pytest.approx([*layer, *[0] * 9]), [0, 0, 0, 1, 1, 1, 1, 1, 1] * 2]


def test_the_probe_is_a_logistic_regression() -> None:
    """The held-out predictions are those of a minimiser from elsewhere, on columns scaled by the others."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 3, generator=generator, dtype=torch.double) * torch.tensor([1.0, 5.0, 0.1]) + 2
    features[:, 2] = 4.0  # tells nothing
    noise = torch.randn(60, generator=generator)
    labels = torch.bucketize(features[:, 0] - features[:, 1] / 5 + noise / 2, torch.tensor([1.0, 2.0]))
    out = torch.arange(60) % 3 == 0
    x, y = features[~out, :2].numpy(), labels[~out].numpy()
    mean, deviation = x.mean(0), x.std(0, ddof=1)
    x = (x - mean) / deviation

    def loss(flat: Any) -> float:
        weight, bias = flat[:6].reshape(2, 3), flat[6:]
        logits = x @ weight + bias
        likelihood = logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(1))
        return float(-likelihood.mean() + 0.5 / len(y) * (weight**2).sum())

    best = optimize.minimize(loss, np.zeros(9)).x
    held_out = (features[out, :2].numpy() - mean) / deviation
    expected = (held_out @ best[:6].reshape(2, 3) + best[6:]).argmax(1)
    assert leakage._predict(features, labels, 3, out).tolist() == expected.tolist()
    assert len(set(expected.tolist())) == 3


def test_shuffling_keeps_how_many() -> None:
    generator = torch.Generator().manual_seed(0)
    graph_of_edge = torch.tensor([1, 0, 1, 0, 1, 1, 0])  # in any order
    carried = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0]], dtype=torch.bool)
    kept = torch.tensor([[1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 1, 0]], dtype=torch.bool)
    total = torch.zeros(2, 7)
    for _ in range(400):
        mixed = leakage.shuffle(kept, carried, graph_of_edge, generator)
        assert not (mixed & ~carried).any()
        for owner in (0, 1):
            mine = graph_of_edge == owner
            assert torch.equal(mixed[:, mine].sum(1), kept[:, mine].sum(1))
        total += mixed
    # Each place as often as any other: a quarter, a third; then two of three, one of two.
    share = torch.tensor([[1 / 4, 1 / 3, 1 / 4, 1 / 3, 1 / 4, 1 / 4, 1 / 3], [2 / 3, 1 / 2, 0, 1 / 2, 2 / 3, 2 / 3, 0]])
    assert torch.allclose(total / 400, share, atol=0.08)


@pytest.mark.parametrize("loader", LOADERS)
def test_only_baselines_edge_by_edge(loader: str, method: Method) -> None:
    outputs = []
    with analysis.scoring.studied(method, LOADERS[loader]) as cases:
        for case, choice in cases:
            outputs.append(leakage._only_baselines(case, choice, choice.kept))
    expected = [literal.only_baselines(Small(), d, scores_of(d) > 0.5, BASELINES) for d in GRAPHS]
    assert torch.allclose(torch.cat(outputs), torch.stack(expected))


def test_baseline_leakage_of_a_mask_that_tells() -> None:
    """Masks that drop more where the answer is yes tell it by their baselines; shuffling does not change how many,
    so that both tell it here: the comparison is what convicts, not the accuracy alone."""

    class Telling(Fixed):
        def choose(self, case: Any) -> Any:
            answers = case.trace.output.argmax(1)[case.split.edge_graph] > 0
            kept = case.trace.carried & answers
            return replace(super().choose(case), kept=kept)

    loader = [Batch.from_data_list([graph(seed, edges=6) for seed in range(60)])]
    found = analysis.baseline_leakage(Telling(Small(outputs=2), divergence="kl"), loader, shuffles=2)
    accuracy = dict(zip(found["features"], found["accuracy"], strict=True))
    assert found["examples"].to_list() == [60] * 3
    assert accuracy["mask"] > accuracy["none"] + 0.1
    assert accuracy["shuffled mask"] == accuracy["mask"]  # all or nothing is kept: there is nothing to shuffle
    fewer = analysis.baseline_leakage(Telling(Small(outputs=2), divergence="kl"), loader, shuffles=0, most=20)
    assert fewer["examples"].to_list() == [20] * 2
    with pytest.raises(GraphMaskError, match="Expected a model that predicts classes"):
        analysis.baseline_leakage(Fixed(Small(), divergence="mse"), loader)


def test_leakage_of_too_little() -> None:
    with pytest.raises(GraphMaskError, match="Expected at least 10 examples"):
        analysis.mask_leakage(explained(9, leaky=True))
    rows = [replace(e, original=torch.zeros(3, 2)) for e in explained(12, leaky=True)]
    with pytest.raises(GraphMaskError, match="Expected one output row per graph"):
        analysis.mask_leakage(rows)
    found = analysis.mask_leakage(rows, label=lambda e: 1)  # one class only
    assert found["accuracy"].to_list() == [1.0] * 3
