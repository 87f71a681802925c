"""The commands, run as a user runs them; star and relay against their gold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphmask import GraphMaskError, cli, tasks
from graphmask.tasks import runner

invoke = CliRunner().invoke


def test_demo_finds_every_edge_and_writes_a_page(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    result = invoke(cli.app, ["demo", "--out", str(tmp_path), "--json", str(figures)])
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())
    assert found["gold"]["precision"] == found["gold"]["recall"] == found["gold"]["f1"] == 100.0
    assert found["flips"] == 0
    assert found["divergence"] <= 0.03
    assert found["gold_check"]["sufficient"]["flips"] == 0
    assert min(found["gold_check"]["necessary"]["smallest_margin_change"]) > 1
    assert found["gold_check"]["necessary"]["flips_without_half"] > 0.1
    page = (tmp_path / "star.html").read_text()
    assert "<svg" in page or "application/json" in page
    assert (tmp_path / "star.graphmask").exists()


def test_run_relay_keeps_the_gold_at_both_sites(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    result = invoke(cli.app, ["run", "relay", "--out", str(tmp_path), "--json", str(figures)])
    assert result.exit_code == 0, result.output
    found = json.loads(figures.read_text())
    assert [site["site"] for site in found["gold"]["per_site"]] == ["conv1", "conv2"]
    assert min(site["f1"] for site in found["gold"]["per_site"]) >= 99.0
    assert found["model"]["accuracy"] >= 0.995
    assert found["divergence"] <= 0.03
    assert {"retained", "flips", "fit_seconds", "fit_cpu_seconds", "feasible"} <= found.keys()


def test_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(GraphMaskError, match=r"among star, relay, got 'stars'"):
        tasks.get("stars")
    result = invoke(cli.app, ["run", "stars"])
    assert isinstance(result.exception, GraphMaskError)


def test_every_command_has_help() -> None:
    for command in (["demo"], ["run"], ["bench", "core"], ["bench", "gold"], ["bench", "ablation"]):
        result = invoke(cli.app, [*command, "--help"])
        assert result.exit_code == 0
        assert "--json" in result.output


def test_bench_gold_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and its summary, on a fit too short to be good."""
    for name, value in (("FIT", 640), ("VALIDATION", 128), ("TEST", 128)):
        monkeypatch.setattr(runner, name, value)
    model = tasks.get("star").StarModel().eval()
    monkeypatch.setattr(runner, "train_model", lambda *_: (model, {"accuracy": 0.5, "train_cpu_seconds": 0.0}))
    figures = tmp_path / "gold.json"
    result = invoke(cli.app, ["bench", "gold", "--seeds", "1", "--tasks", "star", "--json", str(figures)])
    assert result.exit_code == 0, result.output
    assert "of 1 seeds" in result.output.replace("\n", " ")
    assert len(json.loads(figures.read_text())["tasks"]["star"]) == 1
