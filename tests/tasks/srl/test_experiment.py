"""From files to the study, on a few hand-written sentences."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from graphmask import GraphMaskError, masked
from graphmask.cli import app
from graphmask.experiments import fits
from graphmask.experiments.srl import conll09, experiment, learning, study
from graphmask.experiments.srl.learning import Schedule
from graphmask.experiments.srl.model import Sizes
from graphmask.fitting.training import Recipe

from .test_examples import ALL

TINY = experiment.Preset(
    Sizes(lstm=1, layers=1, tag=3, lemma=4, flag=2, frame=5, role=4, hidden=6, width=8, dropout=0.1),
    Sizes(lstm=0, layers=2, tag=3, lemma=4, flag=2, frame=5, role=4, hidden=6, width=8, dropout=0.1),
    Schedule(epochs=6, learning_rate=1e-2, tokens=20),
    minimum=1,
    recipe=Recipe(steps=60),
    gate_epochs=15,
    tolerance={"lstm": 0.05, "gnn": 0.05},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus")
    for split, copies in (("train", 8), ("dev", 2), ("test", 2)):
        conll09.write(path / f"{split}.conll09", ALL * copies)
    return path


@pytest.fixture(scope="module", autouse=True)
def tiny():
    before = dict(experiment.PRESETS)
    experiment.PRESETS["tiny"] = TINY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "SAMPLE", 2)  # each costs the methods that search per example seconds
        yield
    experiment.PRESETS.clear()
    experiment.PRESETS.update(before)


@pytest.fixture(scope="module", params=["lstm", "gnn"])
def run(request, folder, tmp_path_factory, tiny):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment.data, "glove", lambda: None)
        out = tmp_path_factory.mktemp(request.param)
        yield experiment.run(request.param, out, folder=folder, preset="tiny", progress=False)


def test_figures_are_those_of_the_explanations(run):
    found = run.figures
    explanations = list(run.store)
    assert len(explanations) == len(run.corpus.parts["test"]) == 6
    kept = sum(int(e.kept.sum()) for e in explanations)
    assert found["retained"] == pytest.approx(kept / sum(e.kept.numel() for e in explanations))
    assert found["divergence"] == pytest.approx(sum(e.divergence for e in explanations) / 6)
    test = run.corpus.parts["test"]
    assert found["f1"] == learning.arguments(run.model, test).f1
    assert found["masked_f1"] == learning.count([e.masked.argmax(1) for e in explanations], test).f1
    assert found["by_kind"]["V"]["examples"] == 4
    assert found["by_kind"]["N"]["examples"] == 2


def test_each_explanation_knows_its_sentence(run):
    explanation = list(run.store)[1]
    info = explanation.info
    assert info["tokens"] == ["The", "cat", "saw", "a", "fall"]
    assert (info["predicate"], info["sense"], info["kind"]) == (4, "fall.01", "N")
    assert info["gold_roles"] == ["_", "A1", "_", "_", "_"]
    assert info["other_arguments"] == [1, 4]
    roles = run.corpus.vocabularies.roles.words
    predicted = explanation.original.argmax(1).tolist()
    assert info["roles"] == [roles[role] if role else "_" for role in predicted]
    assert info["edge_labels"][:4] == ["det -->", "det <--", "nsubj -->", "nsubj <--"]
    with masked(run.model, explanation):
        again = learning.forward(run.model, run.corpus.parts["test"].batch([1]))
    assert torch.allclose(again, explanation.masked, atol=1e-6)


def test_a_run_comes_back_from_its_folder(run):
    again = experiment.read(run.path)
    assert again.figures == json.loads((run.path / "run.json").read_text())
    for name, value in run.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    batch = run.corpus.parts["test"].batch([0])
    assert torch.equal(
        again.explainer.explain(batch, allow_infeasible=True).kept,
        run.explainer.explain(batch, allow_infeasible=True).kept,
    )


def test_what_kept_edges_point_to_counted_by_hand(run):
    explanations = list(run.store)
    for explanation in explanations:  # keep the edges to nodes 1 and 2 alone
        explanation.kept = (explanation.edge_index[1] == 1).expand_as(explanation.kept) | (
            explanation.edge_index[1] == 2
        ).expand_as(explanation.kept)
        explanation.info["roles"] = ["_", "A0", *["_"] * (len(explanation.info["tokens"]) - 2)]
    found = study.aims(explanations)
    expected: Counter[str] = Counter()
    for explanation in explanations:
        for target in explanation.edge_index[1].tolist() * len(explanation.sites):
            if target == 1:
                expected["predicted role"] += 1
            elif target == 2:
                expected["predicate" if explanation.info["predicate"] == 2 else "other"] += 1
    assert found == {name: count / expected.total() for name, count in expected.most_common()}


def test_soft_gates_are_the_layers_own(run):
    dev, test = (experiment.in_order(run.corpus.parts[part]) for part in ("dev", "test"))
    found = study.soft_gates(run.explainer, dev, test)
    gates = []
    for conv in run.model.convs:
        conv.register_message_forward_pre_hook(lambda _, inputs: gates.append(inputs[0]["alpha"]))
    with torch.no_grad():
        for batch in dev:
            learning.forward(run.model, batch)
        for conv in run.model.convs:
            conv._message_forward_pre_hooks.clear()
    values = torch.cat(gates)
    assert found["mean"] == pytest.approx(float(values.mean()), rel=1e-5)
    assert found["deviation"] == pytest.approx(float(values.std()), rel=1e-5)
    assert 0 < found["dropped"] < 0.6
    assert found["f1"] - found["f1_change"] == pytest.approx(run.figures["f1"])


def test_all_tables_and_the_file_of_figures(run):
    found = [planned.work_out() for planned in run.study.tables(run, 2)]
    names = [named.name for named in found]
    assert next(named for named in found if named.name == "attribution").note == "2 test examples, drawn with seed 0"
    assert names[:5] == ["labels", "superfluous", "aims", "paths", "distances"]
    assert names[5:] == ["soft_gates", "erosion", "dropped", "attribution", "stability", "seeds"]
    assert [planned.name for planned in run.study.tables(run, 1)] == names[:-2]
    figures = json.loads(json.dumps(study.figures(run, found)))
    assert figures["erosion"]["superfluous"]["0"][0] == pytest.approx(run.figures["f1"])
    assert figures["erosion"]["superfluous"]["1"][0] == pytest.approx(run.figures["masked_f1"])
    assert figures["erosion"]["retained"]["0"][0] == pytest.approx(run.figures["masked_f1"])
    assert -1 <= figures["kappa"] <= 1
    assert [row["seed"] for row in figures["seeds"]] == [0, 1]
    assert figures["fits"] == 2
    for key in ("masked_f1", "retained"):
        assert figures[key] == pytest.approx(sum(row[key] for row in figures["seeds"]) / 2)
    paths = sum(row["paths"] for row in figures["paths"])
    assert paths == sum(row["paths"] for row in figures["distances"])
    # A fit that is there is not made again.
    written = (run.path / "fits" / "1.graphmask").stat().st_mtime_ns
    again, _ = fits.compared(run, 2)
    assert (run.path / "fits" / "1.graphmask").stat().st_mtime_ns == written
    assert again.equals(next(named.frame for named in found if named.name == "stability"))


def test_official_names_and_wrong_folders(folder, tmp_path):
    with pytest.raises(GraphMaskError, match=r"Expected a train file in .*, found none"):
        experiment.find(tmp_path, "train")
    names = {
        "train": "CoNLL2009-ST-English-train.txt",
        "dev": "CoNLL2009-ST-English-development.txt",
        "test": "CoNLL2009-ST-evaluation-English.txt",
    }
    for name in [*names.values(), "CoNLL2009-ST-evaluation-English-ood.txt"]:
        (tmp_path / name).write_bytes((folder / "dev.conll09").read_bytes())
    assert {split: experiment.find(tmp_path, split).name for split in names} == names
    (tmp_path / "other-train.txt").touch()
    with pytest.raises(GraphMaskError, match="Expected one train file"):
        experiment.find(tmp_path, "train")


def test_presets_and_models_that_are_none():
    with pytest.raises(GraphMaskError, match="a preset among small, paper, tiny, got 'huge'"):
        experiment.get("huge")
    with pytest.raises(GraphMaskError, match="a model among lstm, gnn, got 'cnn'"):
        TINY.sizes("cnn")
    assert experiment.get("tiny", tolerance=0.2, epochs=3) == replace(
        TINY, tolerance={"lstm": 0.2, "gnn": 0.2}, schedule=replace(TINY.schedule, epochs=3)
    )


def test_analyse_and_report_on_the_command_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.data, "glove", lambda: None)
    figures = tmp_path / "srl.json"
    figures.write_text('{"other": {"f1": 1.0}}')
    done = CliRunner().invoke(app, ["analyse", str(run.path), "--fits", "2", "--json", str(figures)])
    assert done.exit_code == 0, done.output
    written = json.loads(figures.read_text())
    assert written["other"] == {"f1": 1.0}
    assert written[run.figures["model"]]["f1"] == run.figures["f1"]
    done = CliRunner().invoke(app, ["report", str(run.path)])
    assert done.exit_code == 0, done.output
    page = (run.path / "report.html").read_text()
    assert "fall.01 in sentence 1" in page
    assert "Paths from predicate to predicted role" in page


def test_run_on_the_command_line(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.data, "glove", lambda: None)
    options = ["--model", "gnn", "--preset", "tiny", "--data", str(folder), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["run", "srl", *options, "--json", str(tmp_path / "run.json")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run.json").read_text())
    assert (found["task"], found["model"], found["tolerance"]) == ("srl", "gnn", 0.05)
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == found
