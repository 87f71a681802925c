"""`graphmask compare`: the paper's ordering on star graphs, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from graphmask import GraphMaskError, cli, experiments, methods
from graphmask.experiments import runner
from graphmask.experiments.bench import compare
from graphmask.fitting import training
from reference.trained import trained

invoke = CliRunner().invoke
SIZES = {"FIT": 128, "CALIBRATION": 64, "THRESHOLD": 64, "TEST": 64, "SINGLE": 2}


@pytest.fixture(scope="module")
def star() -> tuple[nn.Module, compare.Data]:
    with pytest.MonkeyPatch.context() as patch, runner.one_thread():
        for name, size in SIZES.items():
            patch.setattr(compare, name, size)
        return trained("star")[0], compare.Data.of(experiments.get("star"), 0)


@pytest.mark.parametrize(
    ("name", "precision", "recall", "f1"),
    [
        ("erasure_search", (100, 100), (5, 35), (10, 45)),
        ("gnn_explainer", (95, 100), (5, 40), (10, 55)),
        ("unamortised", (75, 100), (15, 45), (25, 58)),
        ("integrated_gradients", (80, 100), (90, 100), (85, 99)),
        ("occlusion", (70, 100), (30, 75), (45, 80)),
        ("random", (20, 50), (35, 65), (25, 55)),
    ],
)
def test_the_papers_ordering(
    star: tuple[nn.Module, compare.Data], name: str, precision: Any, recall: Any, f1: Any
) -> None:
    """Hindsight finds few edges, all of them gold; gradients find most."""
    with runner.one_thread():
        figures, alone = compare._run(methods.get(name)(star[0]), star[1])
    assert precision[0] <= figures["precision"] <= precision[1]
    assert recall[0] <= figures["recall"] <= recall[1]
    assert f1[0] <= figures["f1"] <= f1[1]
    assert sum(figures["layer_share"]) == pytest.approx(1)
    assert len(alone) == SIZES["SINGLE"]
    if name in {"erasure_search", "unamortised"}:  # the answer is what they hold on to
        assert figures["flips"] == 0


def test_thresholds_are_the_best_on_validation() -> None:
    task = experiments.get("star")
    data = task.generate(8, seed=0)
    explanations = list(methods.get("random")(task.make(seed=0)).explain_all(data))
    gold = torch.cat([batch.gold for batch in data]).t()
    position = 0
    for explanation in explanations:  # scores that tell gold apart between .3 and .4 alone
        count = explanation.scores.shape[1]
        here = gold[:, position : position + count]
        explanation.scores = torch.where(here, 0.38, 0.32)
        position += count
    # Nine thresholds are tried; .3 lets everything through, .4 nothing.
    assert compare.best_threshold(explanations, data) in (0.1, 0.2, 0.3)
    for explanation in explanations:
        explanation.scores = torch.where(explanation.scores > 0.35, 0.45, 0.35)
    assert compare.best_threshold(explanations, data) == 0.4


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SIZES.items():
        monkeypatch.setattr(compare, name, size)
    monkeypatch.setattr(runner, "train_model", lambda name, seed: (experiments.get(name).make(seed=seed), {}))
    monkeypatch.setitem(training.RECIPES, "noisy", training.Recipe(steps=20))
    chosen = "graphmask,occlusion,random,integrated_gradients"
    arguments = ["compare", "relay", "--methods", chosen, "--seeds", "2", "--out", str(tmp_path)]
    result = invoke(cli.app, [*arguments, "--json", str(tmp_path / "f.json")])
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "f.json").read_text())
    assert list(figures["methods"]) == chosen.split(",")
    wanted = {"precision", "recall", "f1", "retained", "divergence", "flips", "layer_share", "ms_per_explanation"}
    for found in figures["methods"].values():
        assert wanted | {f"{key}_std" for key in wanted} | {"fit_seconds", "fit_seconds_std"} <= found.keys()
        assert len(found["layer_share"]) == 2
    assert figures["methods"]["random"]["retained"] == pytest.approx(0.5, abs=0.06)
    table = (tmp_path / "relay.md").read_text()
    assert all(f"| {name} |" in table for name in chosen.split(","))
    assert "±" in table
    alone = compare.markdown({**figures, "seeds": [0]})  # one seed has no spread
    assert "±" not in alone
    assert "relay, seed 0.\n" in alone
    for picture in ("relay_example.png", "relay_methods.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_means_and_deviations() -> None:
    runs = [{"f1": 90.0, "layer_share": [0.2, 0.8]}, {"f1": 94.0, "layer_share": [0.4, 0.6]}]
    found = compare._summary(runs)
    assert found["f1"] == 92
    assert found["f1_std"] == pytest.approx(8**0.5)
    assert found["layer_share"] == pytest.approx([0.3, 0.7])
    assert found["layer_share_std"] == pytest.approx([0.02**0.5] * 2)


def test_what_does_not_apply_is_known_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(name: str, seed: int) -> Any:
        raise AssertionError("trained a model")

    monkeypatch.setattr(runner, "train_model", work)
    with pytest.raises(GraphMaskError, match=r"among graphmask, erasure_search.*got 'magic'"):
        compare.measure("star", ["graphmask", "magic"])
    with pytest.raises(GraphMaskError, match=r"gate_scores cannot be compared here. Expected attention weights"):
        compare.measure("star", ["gate_scores"])
    with pytest.raises(GraphMaskError, match=r"among star, relay"):
        compare.measure("stars")
    names, unfit = compare.choose([], experiments.get("star"))
    assert list(unfit) == ["gate_scores", "attention_weights", "attention_rollout"]
    costly = [name for name, method in methods.METHODS.items() if method.costly]
    assert costly == ["subgraphx"]
    assert {*names, *costly, *unfit} == set(methods.METHODS)
    assert len(names) == len(methods.METHODS) - len(costly) - len(unfit)
