"""The commands carry out any study: a small one of the test's own goes through all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from torch import nn
from typer.testing import CliRunner

from graphmask import GraphMask, GraphMaskError, cli
from graphmask.analysis import everything
from graphmask.analysis.everything import Named, Planned
from graphmask.analysis.tables import table
from graphmask.analysis.tally import Tally
from graphmask.cli import run as commands
from graphmask.cli.tables import collect
from graphmask.experiments import data
from graphmask.experiments import folder as folders
from graphmask.experiments import study as studies
from graphmask.experiments.settings import STUDIES, KnownAnswer, Qa, Relay, Settings, Srl, Star, option
from graphmask.experiments.study import Context, Explanations, Run, Shown, Study
from reference import toy

invoke = CliRunner().invoke


@dataclass(frozen=True, kw_only=True)
class Chain(Settings):
    task = "chain"
    about = "A task of the test's own."
    kind = "Tests"
    implementation = f"{__name__}:ChainStudy"
    recorded = ("seed", "graphs")
    graphs: int = field(default=6, metadata=option("Graphs of a batch."))

    @classmethod
    def of_run(cls, figures: Mapping[str, Any]) -> Chain:
        return cls(seed=figures["seed"], graphs=figures["graphs"])


class ChainStudy(Study[list[Any], nn.Module]):
    analyse_with = "--rows 3"
    temporary = (Study.checkpoint,)

    def __init__(self, settings: Chain) -> None:
        self._settings = settings
        self.called: list[str] = []

    @property
    def settings(self) -> Chain:
        return self._settings

    def record(self) -> dict[str, Any]:
        return {"seed": self.settings.seed, "graphs": self.settings.graphs}

    def prepare(self, context: Context, finished: Path | None = None) -> list[Any]:
        self.called.append("prepare")
        return toy.loader(3, self.settings.graphs, seed=self.settings.seed)

    def make(self, corpus: list[Any]) -> nn.Module:
        return toy.Toy()

    def train(self, corpus: list[Any], context: Context) -> tuple[nn.Module, dict[str, Any]]:
        self.called.append("train")
        context.say("nothing to train")
        return self.make(corpus), {"trained": True}

    def fit(
        self, corpus: list[Any], model: nn.Module, *, seed: int, checkpoint: Path | None = None, progress: bool = True
    ) -> GraphMask:
        self.called.append("fit")
        explainer = GraphMask(model, divergence="kl", seed=seed)
        explainer.fit(corpus, corpus, epochs=1, checkpoint=checkpoint, progress=False)
        return explainer

    def test(self, corpus: list[Any]) -> list[Any]:
        return corpus

    def describe(self, corpus: list[Any], model: nn.Module) -> Callable[[Any], list[dict[str, Any]]]:
        return lambda batch: [{"title": "a chain"}] * batch.num_graphs

    def measure(
        self, corpus: list[Any], model: nn.Module, explainer: GraphMask, explanations: Explanations
    ) -> dict[str, Any]:
        self.called.append("measure")
        return Tally.of(explanations).means

    def shown(self, figures: Mapping[str, Any]) -> list[Shown]:
        return [Shown("what came out", ["figure", "value"], [["retained", figures["retained"]]])]

    def tables(self, run: Run[list[Any], nn.Module], fits: int) -> list[Planned]:
        return [Planned("sizes", "Edges per graph", lambda: _sizes(run), f"{fits} fits")]

    def summary(self, run: Run[list[Any], nn.Module], tables: Sequence[Named]) -> dict[str, Any]:
        return {"names": [found.name for found in tables], "graphs": tables[0].frame.height}

    def pages(self, run: Run[list[Any], nn.Module]) -> list[Path]:
        path = run.folder / "page.txt"
        path.write_text(f"{run.figures['retained']}")
        return [path]


def _sizes(run: Run[list[Any], nn.Module]) -> Any:
    return table({"edges": int}, [(e.edge_index.shape[1],) for e in run.store])


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setitem(STUDIES, "chain", Chain)
    app = typer.Typer()
    app.command("chain")(commands._command(Chain))
    app.command("other")(lambda: None)
    return app


def test_a_study_that_no_command_knows(chain: typer.Typer, tmp_path: Path) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    done = invoke(chain, ["chain", "--graphs", "4", "--out", str(out), "--json", str(figures)], catch_exceptions=False)
    assert done.exit_code == 0
    for words in ("nothing to train", "fitting GraphMask", "what came out", "page.txt", f"analyse {out} --rows 3 &&"):
        assert words in done.output.replace("\n", " ")
    found = json.loads((out / folders.FIGURES).read_text())
    assert found == json.loads(figures.read_text())
    assert (found["task"], found["graphs"], found["trained"]) == ("chain", 4, True)
    assert found["fit_steps"] > 0
    assert (out / "page.txt").read_text() == str(found["retained"])
    assert not (out / Study.checkpoint).exists()
    run = folders.read(out)
    assert run.study.called == ["prepare"]  # type: ignore[attr-defined]
    explanations = list(run.store)
    assert len(explanations) == 12
    assert explanations[0].info["title"] == "a chain"
    assert found["retained"] == sum(int(e.kept.sum()) for e in explanations) / sum(e.kept.numel() for e in explanations)

    done = invoke(cli.app, ["analyse", str(out), "--fits", "2", "--json", str(figures)], catch_exceptions=False)
    assert json.loads(figures.read_text()) == {"names": ["sizes"], "graphs": 12}
    tables = json.loads((out / "analysis" / "tables.json").read_text())
    assert tables["sizes"]["rows"] == [[e.edge_index.shape[1]] for e in explanations]
    assert tables["sizes"]["note"] == "2 fits"
    done = invoke(cli.app, ["report", str(out)], catch_exceptions=False)
    page = (out / "report.html").read_text()
    assert "What the chain model used" in page
    assert "Edges per graph" in page


def test_options_are_the_fields_of_the_settings(chain: typer.Typer) -> None:
    shown = invoke(chain, ["chain", "--help"]).output
    assert "--graphs" in shown
    assert "Graphs of a batch." in shown
    assert "--again" not in shown  # it has no figures by which a finished run is known to be the same
    assert "--limit" not in invoke(cli.app, ["run", "srl", "--help"]).output  # for programs only


def test_the_bar_has_a_step_for_every_table() -> None:
    """Counts follow from the plan: nobody types them."""
    done: list[str] = []

    def work(name: str) -> Any:
        done.append(name)
        return table({"a": int}, [(1,)])

    plan = [Planned(name, name, lambda name=name: work(name)) for name in ("one", "two")]
    assert done == []
    assert [found.name for found in collect(plan)] == done == ["one", "two"]
    assert everything.Named("x", "X", work("x"), "n").for_json() == {
        "title": "X",
        "note": "n",
        "columns": ["a"],
        "rows": [[1]],
    }


@pytest.mark.parametrize("name", STUDIES)
def test_each_study_is_whole_and_comes_back_from_its_record(name: str) -> None:
    """A study with an abstract method left could not be made."""
    kind = STUDIES[name]
    assert kind.task == name
    made = studies.of(kind(seed=3, tolerance=0.01))
    record = {"task": name, **made.record()}
    assert record.keys() >= {*kind.recorded, *kind.identity}
    assert (record["seed"], record["tolerance"]) == (3, 0.01)
    again = studies.of(kind.of_run(record))
    assert {"task": name, **again.record()} == record


@pytest.mark.parametrize(
    ("settings", "command", "folder"),
    [
        (Star(), "graphmask run star --seed 0", "star"),
        (Relay(seed=2, recipe="paper", tolerance=0.1), "run relay --seed 2 --tolerance 0.1 --recipe paper", "relay-2"),
        (Srl(model="gnn", gold_trees=True, limit=3), "graphmask run srl --seed 0 --model gnn --gold-trees", "srl-gnn"),
        (Qa(data=Path("a")), "graphmask run qa --seed 0 --data a", "qa"),
    ],
)
def test_the_command_that_asks_for_a_run(settings: Settings, command: str, folder: str) -> None:
    assert settings.command.endswith(command)
    assert settings.folder == folder


def test_known_answers_name_their_module() -> None:
    for name, kind in STUDIES.items():
        assert issubclass(kind, KnownAnswer) == (name in ("star", "relay"))


def test_other_word_vectors_than_the_runs_own_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with word vectors is not read back without them: the model would be another one."""
    study = studies.of(Qa())
    for then, now in (("glove.npz", None), (None, tmp_path / "other.npz")):
        (tmp_path / folders.FIGURES).write_text(json.dumps({"task": "qa", "word_vectors": then}))
        monkeypatch.setattr(data, "glove", lambda now=now: now)
        with pytest.raises(GraphMaskError, match=f"Expected the word vectors .* {then or 'none'}; found"):
            study.prepare(Context(tmp_path), finished=tmp_path)
