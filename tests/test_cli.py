"""The commands, run as a user runs them; star and relay against their gold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from graphmask import GraphMaskError, cli, experiments
from graphmask.experiments import folder as folders
from graphmask.experiments import runner

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
    _paths_are_the_gold_paths(tmp_path)
    _analysed_and_reported(tmp_path)


def _paths_are_the_gold_paths(folder: Path) -> None:
    """Leaf to mid at the first layer, that mid to the root at the second."""
    same = []
    run = folders.read(folder)
    for explanation in run.store:
        gold = torch.tensor(explanation.info["gold"])
        source, target = explanation.edge_index
        wanted = {(int(a), int(b)) for a in gold[0].nonzero() for b in gold[1].nonzero() if target[a] == source[b]}
        found = {tuple(hop.edge for hop in path) for path in explanation.paths(0, persist=False) if len(path) == 2}
        same.append(found == wanted)
    assert len(same) == runner.TEST
    assert sum(same) / len(same) >= 0.98


def _analysed_and_reported(folder: Path) -> None:
    result = invoke(cli.app, ["analyse", str(folder), "--json", str(folder / "tables.json")])
    assert result.exit_code == 0, result.output
    tables = json.loads((folder / "tables.json").read_text())
    types = [dict(zip(tables["edge_types"]["columns"], row, strict=True)) for row in tables["edge_types"]["rows"]]
    kept = {(row["layer"], row["type"]): row["kept"] for row in types}
    # Leaves talk at the first layer, mids at the second: type 0 is leaf to mid, type 1 mid to root.
    assert kept[0, 1] == 0
    assert kept[1, 0] == 0
    assert min(kept[0, 0], kept[1, 1]) > 1000
    erosion = [dict(zip(tables["erosion"]["columns"], row, strict=True)) for row in tables["erosion"]["rows"]]
    agreement = {(r["dropped"], r["fraction"]): r["mean"] for r in erosion if r["measure"] == "agreement"}
    assert agreement["superfluous", 1.0] > 0.99
    assert agreement["retained", 0.0] == agreement["superfluous", 1.0] > agreement["retained", 0.25] > 0.6
    assert {path.stem for path in (folder / "analysis").glob("*.csv")} == tables.keys()
    result = invoke(cli.app, ["report", str(folder), "--examples", "20"])
    assert result.exit_code == 0, result.output
    page = (folder / "report.html").read_text()
    assert "The model without a random part of its messages" in page
    assert {path.name for path in (folder / "figures").iterdir()} == {"edge_types.svg", "erosion.svg", "frontier.svg"}


def test_a_folder_with_another_run_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the model was trained")

    monkeypatch.setattr(runner, "train_model", never)
    before = {"task": "star", "seed": 0, "recipe": "noisy", "tolerance": 0.03, "precision": None}
    (tmp_path / "run.json").write_text(json.dumps(before))
    for options, wrong in ((["--seed", "3"], "seed 0"), (["--recipe", "paper"], "recipe 'noisy'")):
        result = invoke(cli.app, ["run", "star", "--out", str(tmp_path), *options])
        assert isinstance(result.exception, GraphMaskError)
        assert f"found one with {wrong}. Pass another folder" in str(result.exception)
    assert json.loads((tmp_path / "run.json").read_text()) == before
    with pytest.raises(AssertionError, match="was trained"):  # the same run may go on
        invoke(cli.app, ["run", "star", "--out", str(tmp_path)], catch_exceptions=False)


def test_report_of_what_is_no_run(tmp_path: Path) -> None:
    for command in ("analyse", "report"):
        result = invoke(cli.app, [command, str(tmp_path)])
        assert isinstance(result.exception, GraphMaskError)


def test_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(GraphMaskError, match=r"among star, relay, got 'stars'"):
        experiments.get("stars")
    result = invoke(cli.app, ["run", "stars"])
    assert isinstance(result.exception, GraphMaskError)


def test_every_command_has_help() -> None:
    for command in (
        ["demo"],
        ["run"],
        ["bench", "core"],
        ["bench", "gold"],
        ["bench", "ablation"],
        ["bench", "store"],
        ["compare"],
        ["analyse"],
    ):
        result = invoke(cli.app, [*command, "--help"])
        assert result.exit_code == 0
        assert "--json" in result.output


def test_bench_gold_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and its summary, on a fit too short to be good."""
    for name, value in (("FIT", 640), ("VALIDATION", 128), ("TEST", 128)):
        monkeypatch.setattr(runner, name, value)
    model = experiments.get("star").StarModel().eval()
    monkeypatch.setattr(runner, "train_model", lambda *_: (model, {"accuracy": 0.5, "train_cpu_seconds": 0.0}))
    figures = tmp_path / "gold.json"
    result = invoke(cli.app, ["bench", "gold", "--seeds", "1", "--tasks", "star", "--json", str(figures)])
    assert result.exit_code == 0, result.output
    assert "of 1 seeds" in result.output.replace("\n", " ")
    assert len(json.loads(figures.read_text())["tasks"]["star"]) == 1
