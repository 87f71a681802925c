"""`graphmask analyse`: several fits, samples, and folders that are none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graphmask import Explanation, GraphMask, GraphMaskError, analysis, cli, experiments
from graphmask.analysis import everything
from graphmask.experiments import folder as folders
from graphmask.experiments import runner
from graphmask.experiments.bench import store as bench
from laws.support import QUICK
from reference.hasty import halve

invoke = CliRunner().invoke


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of star with an untrained model and a few steps of fitting, which shut about half of the gates."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FIT", 640), ("VALIDATION", 128), ("TEST", 256)):
            patch.setattr(runner, name, value)
        patch.setattr(everything, "BATCHES", 2)
        model = experiments.get("star").make(seed=0).eval()
        trained = model, {"accuracy": 0.5, "train_cpu_seconds": 0.0}
        run = runner.run("star", 0, recipe=QUICK, trained=trained, progress=False)
        halve(run.explainer, run.test)
        path = tmp_path_factory.mktemp("star")
        folders.write(path, run, progress=False)
        yield path


def tables_of(folder: Path, *options: str) -> dict[str, Any]:
    result = invoke(cli.app, ["analyse", str(folder), *options, "--json", str(folder / "figures.json")])
    assert result.exit_code == 0, result.output
    return json.loads((folder / "figures.json").read_text())


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_fits_that_are_the_same_agree_fully(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folders.read(small)
    seen: list[tuple[int, int, int]] = []

    def same(self: GraphMask, loader: Any, validation: Any, *, progress: bool) -> None:
        seen.append((self.seed, sum(b.num_graphs for b in loader), sum(b.num_graphs for b in validation)))
        self.probe, self.history, self.subject = run.explainer.probe, run.explainer.history, run.explainer.subject

    monkeypatch.setattr(GraphMask, "fit", same)
    tables = tables_of(small, "--fits", "3")
    assert seen == [(1, 640, 128), (2, 640, 128)]
    some, note = everything.sample(run.test)
    found = list(run.explainer.explain_all(some, allow_infeasible=True, repair=False))
    kept, gates = (sum(int(getattr(e, name).sum()) for e in found) for name in ("kept", "carried"))
    assert [row["layer"] for row in rows_of(tables["stability"])] == [0, None]
    for row in rows_of(tables["stability"]):
        assert row["kappa"] == row["agreement"] == row["jaccard"] == 1.0
        assert row["retained"] == pytest.approx(kept / gates, abs=1e-12)
        assert row["gates"] == gates
    assert note == "128 of 256 graphs, drawn with seed 0"
    assert tables["stability"]["title"] == "Agreement of 3 fits"
    assert tables["stability"]["note"] == tables["erosion"]["note"] == note
    assert tables["layers"]["note"] == ""  # a sum over all


def test_fits_are_compared_as_they_are(small: Path) -> None:
    """Fitted again with the next seed, on the same graphs, by the same recipe."""
    tables = tables_of(small, "--fits", "2")
    run = folders.read(small)
    again = GraphMask(run.model, tolerance=run.explainer.tolerance, seed=1, recipe=run.explainer.recipe)
    again.fit(runner.draw("star", 0, 0), runner.draw("star", 0, 1), progress=False)
    some, _ = everything.sample(run.test)
    several = [list(method.explain_all(some, allow_infeasible=True, repair=False)) for method in (run.explainer, again)]
    assert tables["stability"]["rows"] == [list(row) for row in analysis.stability(several).rows()]
    both, either = (sum(int(op(a.kept, b.kept).sum()) for a, b in zip(*several, strict=True)) for op in (_and, _or))
    assert both < either
    assert rows_of(tables["stability"])[-1]["jaccard"] == pytest.approx(both / either, abs=1e-12)


def _and(a: Any, b: Any) -> Any:
    return a & b


def _or(a: Any, b: Any) -> Any:
    return a | b


def test_one_fit_has_no_stability(small: Path) -> None:
    assert "stability" not in tables_of(small)


@pytest.mark.parametrize("fits", ["0", "-1"])
def test_fits_must_be_one_or_more(small: Path, fits: str) -> None:
    result = invoke(cli.app, ["analyse", str(small), "--fits", fits])
    assert isinstance(result.exception, GraphMaskError)
    assert str(result.exception) == f"Expected --fits to be 1 or more, got {fits}."


def test_fits_of_a_store_have_no_model(small: Path) -> None:
    result = invoke(cli.app, ["analyse", str(small / folders.EXPLANATIONS), "--fits", "2"])
    assert isinstance(result.exception, GraphMaskError)
    assert "Expected the folder of a run for --fits" in str(result.exception)
    assert "found no run.json" in str(result.exception)


def test_wrong_folders(small: Path, tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        result = invoke(cli.app, ["analyse", str(folder), "--fits", "1"])
        assert isinstance(result.exception, GraphMaskError), result.output
        return str(result.exception)

    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "without store.json" in refused(tmp_path)
    without = shutil.copytree(small, tmp_path / "without explanations")
    shutil.rmtree(without / folders.EXPLANATIONS)
    assert "Expected a store of explanations" in refused(without)
    foreign = shutil.copytree(small, tmp_path / "foreign")
    (foreign / folders.MODEL).write_bytes(b"not a model")
    assert folders.MODEL in refused(foreign)


class Nodes(bench.Drawn):
    """A model that classifies three nodes of every graph."""

    def _explain(self, batch: Any, repair: bool, where: str) -> list[Explanation]:
        found = super()._explain(batch, repair, where)
        return [replace(e, original=e.original.repeat(3, 1), masked=e.masked.repeat(3, 1)) for e in found]


def test_a_store_without_one_class_per_graph_has_all_other_tables(tmp_path: Path) -> None:
    """There is no one prediction to be read off a mask, nor from fewer than ten."""
    for name, method, graphs, applies in (
        ("nodes", Nodes(), 30, False),
        ("few", bench.Drawn(), 9, False),
        ("enough", bench.Drawn(), 10, True),
    ):
        opened = method.explain_all(bench.Random(graphs, seed=0), out=tmp_path / name, progress=False)
        assert everything.has_one_class_each(opened) is applies
        extra = {"mask_leakage"} if applies else set()
        assert tables_of(tmp_path / name).keys() == everything.STREAMED.keys() | extra
