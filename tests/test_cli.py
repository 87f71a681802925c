"""The commands, run as a user runs them; star and relay against their gold."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import graphmask
from graphmask import GraphMaskError, cli, experiments, methods
from graphmask.cli import names
from graphmask.experiments import folder as folders
from graphmask.experiments import runner, settings
from graphmask.fitting import recipe
from graphmask.graphs import forwards
from graphmask.ops import fused
from reference.trained import trained

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


def test_run_relay_keeps_the_gold_at_both_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training itself is that of tests/tasks/test_relay.py; how a run asks for one, the demo shows."""

    def known(name: str, seed: int, progress: bool = False) -> runner.Trained:
        model, accuracy = trained(name, seed)
        return model, {"accuracy": accuracy, "train_cpu_seconds": 0.0}

    monkeypatch.setattr(runner, "train_model", known)
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
    # The same run is finished: it is not trained over unless that is asked for.
    result = invoke(cli.app, ["run", "star", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Nothing was done; --again repeats it" in " ".join(result.output.split())
    with pytest.raises(AssertionError, match="was trained"):
        invoke(cli.app, ["run", "star", "--out", str(tmp_path), "--again"], catch_exceptions=False)


def test_report_of_what_is_no_run(tmp_path: Path) -> None:
    for command in ("analyse", "report"):
        result = invoke(cli.app, [command, str(tmp_path)])
        assert isinstance(result.exception, GraphMaskError)


@pytest.mark.parametrize("command", ["analyse", "report", "store verify", "store compact"])
def test_a_folder_that_is_not_there_is_said_without_loading_torch(command: str, tmp_path: Path) -> None:
    code = (
        "import sys; from graphmask.cli import main; import atexit\n"
        "atexit.register(lambda: print('heavy:', [m for m in ('torch', 'torch_geometric') if m in sys.modules]))\n"
        f"sys.argv = ['graphmask', *{command.split()!r}, {str(tmp_path / 'none')!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"wrote at {tmp_path / 'none'}, found no such folder" in " ".join(done.stderr.split())
    assert "heavy: []" in done.stdout


def test_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(GraphMaskError, match=r"among star, relay, got 'stars'"):
        experiments.get("stars")
    for typo, meant in ((["run", "rely"], "relay"), (["rnu"], "run"), (["compare", "sta"], "star")):
        result = invoke(cli.app, typo)
        assert isinstance(result.exception, GraphMaskError)
        assert str(result.exception).endswith(f"Did you mean {meant}?")
    assert "among star, relay, srl, qa, got" in str(invoke(cli.app, ["run", "rely"]).exception)


def test_every_command_has_help() -> None:
    for command in (
        ["demo"],
        ["run", "star"],
        ["run", "relay"],
        ["run", "srl"],
        ["run", "qa"],
        ["bench", "core"],
        ["bench", "gold"],
        ["bench", "ablation"],
        ["bench", "store"],
        ["bench", "pages"],
        ["compare"],
        ["analyse"],
    ):
        result = invoke(cli.app, [*command, "--help"])
        assert result.exit_code == 0
        assert "--json" in result.output


def test_names_for_help_are_those_there_are() -> None:
    assert (*experiments.TASKS,) == names.TASKS
    assert (*methods.METHODS,) == names.METHODS
    assert (*forwards.PRECISIONS,) == names.PRECISIONS


@pytest.mark.parametrize("arguments", ["--help", "--version", "run --help", "run srl --help", "rnu", "run rely"])
def test_help_and_typos_do_not_wait_for_torch(arguments: str) -> None:
    code = (
        "import sys; from graphmask.cli import main; import atexit\n"
        "atexit.register(lambda: print('heavy:', [m for m in ('torch', 'torch_geometric') if m in sys.modules]))\n"
        f"sys.argv = ['graphmask', *{arguments.split()!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "heavy: []" in done.stdout, done.stderr
    if arguments == "--version":
        assert done.stdout.startswith(f"graphmask {graphmask.__version__}\n")
        assert f"\ntorch {metadata.version('torch')}\n" in done.stdout
        assert ("\nkernels C\n" in done.stdout) == (fused._fused is not None)


def test_each_task_shows_its_own_options() -> None:
    shown = {task: invoke(cli.app, ["run", task, "--help"]).output for task in settings.STUDIES}
    assert [*shown] == ["star", "relay", "srl", "qa"]
    assert [task for task in shown if "--gold-trees" in shown[task]] == ["srl"]
    assert [task for task in shown if "--recipe" in shown[task]] == ["star", "relay"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["star", "--recipe", "papr"], "a recipe among noisy, concave, paper, got 'papr'. Did you mean paper?"),
        (["star", "--precision", "fp16"], "a precision among bf16"),
        (["star", "--tolerance", "0"], "--tolerance to be above 0, got 0"),
        (["relay", "--accumulate", "0"], "--accumulate to be 1 or more, got 0"),
        (["srl", "--model", "lstn"], "Did you mean lstm?"),
        (["qa", "--data", "/nowhere"], "--data to be a folder, found none at /nowhere"),
    ],
)
def test_options_are_checked_before_any_work(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "train_model", lambda *_: pytest.fail("the model was trained"))
    result = invoke(cli.app, ["run", *options, "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, GraphMaskError)
    assert words in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_missing_data_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMASK_DATA", str(tmp_path))
    result = invoke(cli.app, ["run", "srl", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, GraphMaskError)
    for word in ("GRAPHMASK_DATA", "--data DIR", "graphmask data build-ewt", "docs/studies/srl.md"):
        assert word in str(result.exception)


def test_a_run_that_was_stopped_goes_on_without_training_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIT", 640), ("VALIDATION", 128), ("TEST", 128)):
        monkeypatch.setattr(runner, name, value)
    monkeypatch.setitem(recipe.RECIPES, "noisy", recipe.Recipe(steps=20))
    trained: list[int] = []

    def train(name: str, seed: int, progress: bool = False) -> tuple[torch.nn.Module, dict[str, float]]:
        trained.append(seed)
        return experiments.get(name).make(seed=seed).eval(), {"accuracy": 0.5, "train_cpu_seconds": 0.0}

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train_model", train)
    with monkeypatch.context() as patch:
        patch.setattr(runner.KnownAnswerStudy, "fit", stop)
        result = invoke(cli.app, ["run", "star", "--out", str(tmp_path)])
    assert result.exit_code == 130
    said = " ".join(result.output.split())
    assert f"Saved in {tmp_path}: unfinished-model.safetensors." in said
    assert f"goes on from there: graphmask run star --seed 0 --out {tmp_path}" in said
    result = invoke(cli.app, ["run", "star", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "the star model was trained before" in result.output
    assert trained == [0]
    assert (tmp_path / "run.json").exists()
    assert not list(tmp_path.glob("unfinished*"))


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
