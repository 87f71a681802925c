"""The measuring tools: they must count right before their figures are quoted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphmask.experiments.bench import ablation, core, first, pages, scale, small
from graphmask.experiments.bench.battery.models import ENTRIES
from graphmask.experiments.bench.memory import peak_bytes
from graphmask.fitting.recipe import Recipe
from graphmask.fitting.training import LOGITS_EVERY

MEGA = 1 << 20


def test_peak_counts_what_is_alive_at_once() -> None:
    def one_after_another() -> None:
        for _ in range(5):
            torch.zeros(MEGA)

    def together() -> None:
        kept = [torch.zeros(MEGA) for _ in range(5)]
        del kept

    assert peak_bytes(one_after_another) == 4 * MEGA
    assert peak_bytes(together) == 20 * MEGA


def test_views_and_inputs_are_not_counted() -> None:
    x = torch.zeros(MEGA)
    assert peak_bytes(lambda: x.view(2, -1).t()) == 0
    assert peak_bytes(lambda: x.add_(1)) == 0


def test_ratio_of_a_job_to_itself_is_one() -> None:
    x = torch.ones(1 << 16)
    assert 0.2 < core.ratio(lambda: x.exp(), lambda: x.exp(), 20) < 5


def test_fit_steps_are_counted_in_whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth step may cost more: the mean shows it, a median would not; so as many of each kind as in a fit."""
    clock, ran = [0.0], [0]

    def fit() -> None:
        clock[0] += 7.0 if ran[0] % LOGITS_EVERY == 0 else 1.0
        ran[0] += 1

    def train() -> None:
        clock[0] += 2.0

    monkeypatch.setattr(core.time, "thread_time", lambda: clock[0])
    for repeats in (1, LOGITS_EVERY, LOGITS_EVERY + 1, 3 * LOGITS_EVERY):
        ran[0] = 0
        assert core.step_means(fit, train, repeats) == ((6.0 + LOGITS_EVERY) / LOGITS_EVERY, 2.0)
        assert repeats <= ran[0] - 1 < repeats + LOGITS_EVERY  # one more to warm up


def test_cost_has_all_ratios() -> None:
    found = core.cost("GCN", 2000)
    assert found.keys() == {"explain", "explain_memory", "fit_step"}
    # The memory of explaining is exact: two messages and a gate's block beside what the forward holds.
    assert 1 <= found["explain_memory"] < 6


def test_scale_has_all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SIZES", (1000, 10_000))
    monkeypatch.setattr(scale, "FIT_EDGES", 500)
    found = scale.measure(1000, sections=("cost", "peers"))
    for key in ("explain_ratio", "fit_step_ratio", "explain_memory_ratio", "fit_memory_ratio"):
        assert found[key].keys() == {"1e3"}  # larger sizes were not asked for
        assert 0.5 < found[key]["1e3"] < 100
    assert found["peers"]["GNNExplainer"]["1e3"]["epochs"] == 100
    optimised, amortised = (found["peers"][name]["1e3"]["explain_ratio"] for name in ("GNNExplainer", "PGExplainer"))
    assert optimised > amortised > 0
    assert [row[0] for row in scale.rows(found)] == ["GCN, 1e3"]
    assert [row[0] for row in scale.peer_rows(found)] == ["GNNExplainer, 1e3", "PGExplainer, 1e3"]


def test_one_small_graph_is_of_the_size_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = core.Subject("GIN", small.EDGES, degree=small.EDGES // small.NODES, layers=small.LAYERS)
    assert (subject.data.num_nodes, subject.data.num_edges) == (20, 60)
    assert subject.explain().kept.shape == (3, 60)
    for name, value in {"GRAPHS": 4, "BATCH": 2, "PG_EPOCHS": 1, "PG_GRAPHS": 2, "EXPLAINED": 2}.items():
        monkeypatch.setattr(first, name, value)
    monkeypatch.setattr(first, "RECIPE", Recipe(steps=3))
    found = small.measure(repeats=1)
    assert (found["nodes"], found["edges"], found["layers"]) == (20, 60, 3)
    for cost in found["models"].values():
        assert cost["explain_ratio"] == pytest.approx(cost["explain_ms"] / cost["forward_ms"])
        assert cost["explain_ratio"] > 1.5  # two runs of the model, at least
        assert cost["fit_step_ratio"] > 0
    waiting = found["first"]
    assert [row[0] for row in first.rows(waiting)] == list(first.METHODS)
    for method in first.METHODS:  # what comes first has an explanation in it; GNNExplainer has nothing else to do
        assert 1000 * waiting[method]["first_seconds"] > 0.5 * waiting[method]["each_ms"] > 0
    assert waiting["GNNExplainer"]["each_ms"] > waiting["GraphMask"]["each_ms"]  # 100 epochs against two runs


def test_pages_grow_as_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts edges and a half, growth is exactly one and the least of the rounds counts."""
    assert pages.sizes(1000) == [1000]
    assert pages.sizes(1_000_000) == [1000, 10_000, 100_000, 1_000_000]
    clock, calls = [0.0], [0]

    def write(self: pages.Explanation, path: Path) -> Path:
        calls[0] += 1
        edges = self.edge_index.shape[1]
        clock[0] += edges * (0.5 if calls[0] % 2 else 0.75)
        path.write_bytes(b"x" * (edges // 10))
        return path

    monkeypatch.setattr(pages.Explanation, "to_html", write)
    monkeypatch.setattr(pages.time, "thread_time", lambda: clock[0])
    found = pages.measure(10_000, rounds=2, progress=False)
    assert [row["graph"] for row in found["sizes"]] == [
        {"cpu_seconds": 500.0, "bytes": 100}, {"cpu_seconds": 5000.0, "bytes": 1000},
    ]  # fmt: skip
    assert found["growth"] == [{"graph": 1.0, "node": 1.0}]
    header, table = pages.rows(found)
    assert len(header) == len(table[0]) == 7
    assert table[1][3] == "1.00"


def test_the_ablation_has_a_row_per_variant_and_a_column_per_model() -> None:
    def model(kept: float, kappa: float | None, *divergences: float) -> dict[str, object]:
        runs = [{"divergence": d, "tolerance": 0.03, "fit_cpu_seconds": 100 * d} for d in divergences]
        return {"figures": {"kept": {"mean": kept}}, "kappa": kappa, "runs": runs}

    one = {"star": model(0.334, 1.0, 0.01, 0.05), "regression": model(0.124, None, 0.03, 0.031)}
    failed = {"star": {**model(0.0, None), "figures": {"kept": None}}, "regression": model(0.5, 0.25, 0.02)}
    header, table = ablation.rows({"seeds": 2, "variants": {"default": one, "paper": failed}})
    assert header == ["variant", "`star`", "`regression`", "within tolerance on test", "CPU s per fit"]
    assert table == [
        ["default", "33.4%, 1.00", "12.4%", "2 of 4", "3.0"],
        ["paper", "-", "50.0%, 0.25", "1 of 1", "2.0"],
    ]


def test_the_ablation_is_on_the_design_half_and_measures_the_default_as_the_battery_does() -> None:
    assert {ENTRIES[name].half for name in ablation.MODELS} == {"design"}
    assert ablation.VARIANTS["default"] == ("fits", None)
    assert len({folder for folder, _ in ablation.VARIANTS.values()}) == len(ablation.VARIANTS)
    assert len({recipe for _, recipe in ablation.VARIANTS.values()}) == len(ablation.VARIANTS)
