"""Erosion and dropped layers against a model written out message by message; attribution by loops."""

from __future__ import annotations

import math
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphmask import Explanation, GraphMaskError, analysis
from graphmask.analysis.erosion import FIRST_SEED
from graphmask.analysis.tables import mean_interval, share_interval, student_quantile
from graphmask.explaining.method import Method
from graphmask.methods.random_choice import RandomChoice
from methods.common import case_of
from reference.divergence import kl
from reference.small import Small, answer, graph

from . import literal
from .support import BASELINES, Fixed, explanation_of, explanations

GRAPHS = [graph(seed, nodes=4, edges=3 + seed) for seed in range(4)]
for number, data in enumerate(GRAPHS):
    data.y = torch.tensor([number % 3])
#: However they are batched: graphs alone go through the model as copies, others as they are.
LOADERS = {
    "together": [Batch.from_data_list(GRAPHS)],
    "apart": GRAPHS,
    "mixed": [Batch.from_data_list(GRAPHS[:3]), GRAPHS[3]],
}


@pytest.fixture(scope="module")
def method() -> Method:
    return Fixed(Small(), divergence="kl", tolerance=0.1)


def kept_of(data: Data) -> Tensor:
    return case_of(Small(), data).uniform(7) > 0.5


def scores(outputs: list[Tensor]) -> dict[str, float]:
    """Means over the graphs."""
    originals = [answer(Small(), data, torch.ones(2, data.num_edges)) for data in GRAPHS]
    both = list(zip(originals, outputs, strict=True))
    return {
        "agreement": sum(int(a.argmax()) == int(b.argmax()) for a, b in both) / len(both),
        "accuracy": sum(int(b.argmax()) == int(d.y) for b, d in zip(outputs, GRAPHS, strict=True)) / len(both),
        "divergence": sum(kl(a.tolist(), b.tolist()) for a, b in both) / len(both),
    }


# Erosion -----------------------------------------------------------------------------------------------------------


@cache
def eroded(part: str, fraction: float, seed: int) -> tuple[dict[str, float], float]:
    """One draw, edge by edge: the scores, and the share of open gates."""
    outputs, open_, total = [], 0, 0
    for data in GRAPHS:
        kept, random = kept_of(data), case_of(Small(), data).uniform(seed)
        gates = torch.zeros(kept.shape)
        for site in range(2):
            for edge in range(data.num_edges):
                dropped = fraction == 1 or float(random[site, edge]) < fraction
                if part == "superfluous":
                    gates[site, edge] = float(kept[site, edge] or not dropped)
                else:
                    gates[site, edge] = float(kept[site, edge] and not dropped)
        open_, total = open_ + int(gates.sum()), total + gates.numel()
        outputs.append(answer(Small(), data, gates, BASELINES))
    return scores(outputs), open_ / total


@pytest.mark.parametrize("loader", LOADERS)
def test_erosion_edge_by_edge(loader: str, method: Method) -> None:
    found = analysis.erosion(method, LOADERS[loader], draws=3, seed=5)
    assert len(found) == 2 * 5 * 3
    seen = set()
    for row in found.to_dicts():
        random = 0 < row["fraction"] < 1
        draws = range(3 if random else 1)
        each = [eroded(row["dropped"], row["fraction"], FIRST_SEED + 5 * 1_000_003 + draw) for draw in draws]
        values = [values[row["measure"]] for values, _ in each]
        assert row["draws"] == len(values)
        assert row["mean"] == pytest.approx(sum(values) / len(values), abs=1e-9)
        assert row["open"] == pytest.approx(sum(share for _, share in each) / len(each))
        if random and max(values) > min(values):
            low, high = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
            assert (row["low"], row["high"]) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))
            seen.add(row["measure"])
        else:
            assert row["low"] == row["high"] == pytest.approx(row["mean"])
    assert "divergence" in seen
    curve = {(r["dropped"], r["fraction"]): r for r in found.to_dicts() if r["measure"] == "divergence"}
    assert curve["superfluous", 0.0]["mean"] == pytest.approx(0, abs=1e-9)  # the original
    assert curve["superfluous", 0.0]["open"] == 1
    assert curve["superfluous", 1.0] | {"dropped": "", "fraction": 0} == curve["retained", 0.0] | {
        "dropped": "",
        "fraction": 0,
    }
    certificate = [e.divergence for e in method.explain_all(LOADERS[loader], repair=False)]
    assert curve["retained", 0.0]["mean"] == pytest.approx(sum(certificate) / len(certificate))
    assert curve["retained", 1.0]["open"] == 0
    assert analysis.erosion(method, LOADERS[loader], draws=3, seed=5).equals(found)
    assert not analysis.erosion(method, LOADERS[loader], draws=3, seed=6).equals(found)


def test_draws_are_not_those_of_the_method() -> None:
    """Of what a random method dropped, a quarter is dropped: seeds that are alike draw other numbers."""
    graphs = [Batch.from_data_list([graph(seed, edges=40) for seed in range(40)])]
    found = analysis.erosion(RandomChoice(Small(), divergence="kl", seed=0), graphs, fractions=[0, 0.25, 1], draws=4)
    shares = dict(zip(zip(found["dropped"], found["fraction"], strict=True), found["open"], strict=True))
    kept = shares["retained", 0.0]
    assert shares["superfluous", 0.25] == pytest.approx(1 - 0.25 * (1 - kept), abs=0.01)
    assert shares["retained", 0.25] == pytest.approx(0.75 * kept, abs=0.01)


def test_scores_of_ones_own(method: Method) -> None:
    def rows(output: Tensor, batch: Any) -> Tensor:
        assert len(batch.y) == len(output)
        return output[:, 0]

    def mean(output: Tensor, batch: Any) -> float:
        return float(output[:, 0].mean())

    for loader in LOADERS.values():
        by_row, by_batch = (
            analysis.erosion(method, loader, score, fractions=[0, 1], draws=1) for score in (rows, mean)
        )
        original = sum(float(answer(Small(), d, torch.ones(2, d.num_edges))[0]) for d in GRAPHS) / len(GRAPHS)
        nothing = sum(float(answer(Small(), d, torch.zeros(2, d.num_edges), BASELINES)[0]) for d in GRAPHS) / len(
            GRAPHS
        )
        for found in (by_row, by_batch):
            assert found["measure"].unique().to_list() == ["score"]
            assert found["mean"][0] == pytest.approx(original)
            assert found["mean"][3] == pytest.approx(nothing)
    with pytest.raises(GraphMaskError, match=r"one number or one per output row \(4\), got shape \(3,\)"):
        analysis.erosion(method, LOADERS["together"], lambda output, batch: output[0])


def test_measures_by_default() -> None:
    """No accuracy without labels that fit; a regression has no prediction to agree with; a yes/no answer has."""
    unlabelled = [Data(x=data.x, edge_index=data.edge_index) for data in GRAPHS]
    options: dict[str, Any] = {"fractions": [0], "draws": 1}
    found = analysis.erosion(Fixed(Small(), divergence="kl"), unlabelled, **options)
    assert found["measure"].unique(maintain_order=True).to_list() == ["agreement", "divergence"]
    found = analysis.erosion(Fixed(Small(), divergence="mse"), GRAPHS, **options)
    assert found["measure"].unique().to_list() == ["divergence"]
    single = Small(outputs=1)
    found = analysis.erosion(Fixed(single, divergence="bernoulli"), GRAPHS, **options)
    right = [(float(answer(single, d, torch.ones(2, d.num_edges))[0]) > 0) == bool(d.y > 0) for d in GRAPHS]
    assert found.filter(measure="accuracy")["mean"].to_list() == [sum(right) / 4] * 2
    assert 0 < sum(right) < 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": [0.5, 1.5]}, "Expected fractions from 0 to 1"),
        ({"fractions": []}, "Expected fractions from 0 to 1"),
        ({"draws": 0}, "Expected at least one draw"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str, method: Method) -> None:
    with pytest.raises(GraphMaskError, match=message):
        analysis.erosion(method, GRAPHS, **options)


def test_bad_loaders(method: Method) -> None:
    with pytest.raises(GraphMaskError, match="Expected the loader to hold at least one batch"):
        analysis.erosion(method, [])
    with pytest.raises(GraphMaskError, match="Expected the loader to be an iterable of batches"):
        analysis.layers_dropped(method, GRAPHS[0])  # type: ignore[arg-type]


# Layers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("replaced_by", ["zero", "baseline"])
def test_layers_dropped_edge_by_edge(loader: str, replaced_by: str, method: Method) -> None:
    found = analysis.layers_dropped(method, LOADERS[loader], replaced_by=replaced_by)
    assert found["layer"].unique(maintain_order=True).to_list() == [None, 0, 1]
    assert found["site"].unique(maintain_order=True).to_list() == [None, "sends.0", "sends.1"]
    full: dict[str, float] = {}
    for dropped in (None, 0, 1):
        gates = torch.ones(2, 1)
        if dropped is not None:
            gates[dropped] = 0
        baselines = BASELINES if replaced_by == "baseline" else None
        expected = scores([answer(Small(), d, gates.expand(-1, d.num_edges), baselines) for d in GRAPHS])
        full = full or expected
        rows = found.filter(layer=dropped) if dropped is not None else found.filter(found["layer"].is_null())
        assert dict(zip(rows["measure"], rows["value"], strict=True)) == pytest.approx(expected, abs=1e-9)
        change = {name: value - full[name] for name, value in expected.items()}
        assert dict(zip(rows["measure"], rows["change"], strict=True)) == pytest.approx(change, abs=1e-9)
    with pytest.raises(GraphMaskError, match="Expected replaced_by to be 'zero' or 'baseline', got 'mean'"):
        analysis.layers_dropped(method, GRAPHS, replaced_by="mean")


def test_attribution_by_hand() -> None:
    one = explanation_of([(0, 1), (1, 2)], [[0, 1], [0]])  # scores .875 .875 / .875 .25
    two = explanation_of([(0, 1)], [[], []])  # scores .25 / .25
    found = analysis.attribution_by_layer({"a": [one, two], "b": [two]})
    assert found["method"].to_list() == ["a", "a", "b", "b"]
    assert found["kept"].to_list() == [2, 1, 0, 0]
    assert found["kept_share"].to_list() == [pytest.approx(2 / 3), pytest.approx(1 / 3), None, None]
    assert found["mean_kept_share"].to_list() == [pytest.approx(2 / 3), pytest.approx(1 / 3), None, None]
    assert found["score_share"].to_list() == pytest.approx([2 / 3.375, 1.375 / 3.375, 0.5, 0.5])
    assert found["mean_score_share"].to_list()[0] == pytest.approx((1.75 / 2.875 + 0.5) / 2)
    levels = analysis.attribution_levels({"a": [one, two]}, levels=[0.2, 0.5])
    assert levels.rows() == [
        ("a", 0, 0.2, 3, 3, 1.0, 1.0),
        ("a", 0, 0.5, 2, 3, pytest.approx(2 / 3), 0.5),
        ("a", 1, 0.2, 3, 3, 1.0, 1.0),
        ("a", 1, 0.5, 1, 3, pytest.approx(1 / 3), 0.25),
    ]


@settings(max_examples=50)
@given(found=explanations(), at_once=st.sampled_from([1, 1000]))
def test_attribution_by_loops(found: list[Explanation], at_once: int) -> None:
    with mock.patch("graphmask.analysis.side_by_side.EDGES_AT_ONCE", at_once):
        shares = analysis.attribution_by_layer({"one": iter(found)})
        levels = analysis.attribution_levels({"one": iter(found)}, [0.125, 0.5, 0.9])
    for table, expected in (
        (shares, literal.attribution_by_layer(found)),
        (levels, literal.attribution_levels(found, [0.125, 0.5, 0.9])),
    ):
        assert len(table) == len(expected)
        for row, wanted in zip(table.to_dicts(), expected, strict=True):
            assert row.pop("method") == "one"
            assert row == {name: pytest.approx(v) if isinstance(v, float) else v for name, v in wanted.items()}


# Intervals ---------------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_scipy() -> None:
    for freedom in (1, 2, 4, 9, 30, 200):
        assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    assert mean_interval([1.0]) == (1.0, None, None)
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0, 2.0)
    for right, count in ((0, 10), (3, 10), (10, 10), (700, 1000)):
        wilson = stats.binomtest(right, count).proportion_ci(method="wilson")
        assert share_interval(right / count, count) == (pytest.approx(wilson.low, abs=1e-9), pytest.approx(wilson.high))
    assert not math.isnan(student_quantile(1000))
