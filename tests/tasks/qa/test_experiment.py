"""From files to the study, on questions that the graph alone can answer."""

from __future__ import annotations

import json
from dataclasses import replace

import polars
import pytest
import torch
from typer.testing import CliRunner

from graphmask import GraphMaskError, masked
from graphmask.cli import app
from graphmask.experiments.buckets import in_order
from graphmask.experiments.qa import experiment, learning, study
from graphmask.experiments.qa.examples import Examples, Words
from graphmask.experiments.qa.learning import Schedule
from graphmask.experiments.qa.mentions import RELATIONS
from graphmask.experiments.qa.model import Sizes, forward, make
from graphmask.experiments.qa.questions import Caps
from graphmask.experiments.vectors import Vectors
from graphmask.fitting.training import Recipe

TINY = experiment.Preset(
    Sizes(query=8, hidden=16, first=16, scorer=(8, 8), dropout=0.0),
    Schedule(epochs=25, learning_rate=1e-2, size=16),
    recipe=Recipe(steps=60),
    gate_epochs=15,
    gate_size=16,
    tolerance=0.1,
)


@pytest.fixture(scope="module", autouse=True)
def tiny(glove):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiment.PRESETS, "tiny", TINY)
        patch.setattr(experiment.data, "glove", lambda: glove)
        patch.setattr(study, "SAMPLE", 6)
        yield


@pytest.fixture(scope="module")
def run(corpus_folder, tmp_path_factory, tiny):
    out = tmp_path_factory.mktemp("run")
    return experiment.run(out, folder=corpus_folder, preset="tiny", progress=False)


def test_the_model_beats_the_rules(run):
    """The answer stands in the subject's own sentence: one message along DOC-BASED tells it."""
    found = run.figures
    assert found["accuracy"] > found["prior"] + 10
    assert found["prior"] == max(found["rules"].values())
    assert found["rules"]["random candidate"] == pytest.approx(25, abs=1)


def test_figures_are_those_of_the_explanations(run):
    found, explanations, test = run.figures, list(run.store), run.corpus.parts["test"]
    assert len(explanations) == len(test) == found["examples"]["test"]
    kept = sum(int(e.kept.sum()) for e in explanations)
    assert found["retained"] == pytest.approx(kept / sum(e.kept.numel() for e in explanations))
    assert found["divergence"] == pytest.approx(sum(e.divergence for e in explanations) / len(test))
    assert found["accuracy"] == learning.accuracy(learning.predict(run.model, test), test)
    right = sum(int(e.masked.argmax()) == q.answer for e, q in zip(explanations, test.questions, strict=True))
    assert found["masked_accuracy"] == pytest.approx(100 * right / len(test))


def test_each_explanation_knows_its_question(run):
    test = run.corpus.parts["test"]
    explanation = list(run.store)[2]
    info, question = explanation.info, test.questions[2]
    assert info["id"] == question.id
    assert info["documents"] == [list(document) for document in question.documents]
    assert info["predicted"] == int(explanation.original.argmax())
    assert [RELATIONS[kind] for kind in explanation.edge_type.tolist()] == info["edge_labels"]
    assert info["node_labels"][info["subject_nodes"][0]] == " ".join(question.subject)
    for node in info["predicted_nodes"]:
        assert question.mentions[node].entity == info["predicted"]
    with torch.no_grad(), masked(run.model, explanation):
        again = forward(run.model, test.batch([2]))
    assert torch.allclose(again, explanation.masked, atol=1e-5)


def test_a_run_comes_back_from_its_folder(run):
    again = experiment.read(run.path)
    assert again.figures == json.loads((run.path / "run.json").read_text())
    assert again.study.preset == TINY
    for name, value in run.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    with pytest.raises(GraphMaskError, match=r"found no run.json"):
        experiment.read(run.path / "nowhere")


def _reached_literally(explanation):
    """Breadth first, message by message."""
    holds = {(node, -1) for node in explanation.info["subject_nodes"]}
    ends = set()
    for site in range(len(explanation.sites)):
        for edge in explanation.kept[site].nonzero().flatten().tolist():
            sender, receiver = explanation.edge_index[:, edge].tolist()
            if any((sender, before) in holds for before in range(-1, site)):
                holds.add((receiver, site))
                ends.add(receiver)
    return ends


def test_candidates_that_are_reached(run):
    explanations = list(run.store)[:40]
    counts = {"predicted": [], "right": [], "other": []}
    for explanation in explanations:
        ends, info = _reached_literally(explanation), explanation.info
        for entity in range(len(info["candidates"])):
            nodes = {node for node, (*_, whose) in enumerate(info["mentions"]) if whose == entity}
            names = [name for name in ("predicted", "right") if entity == info["answer" if name == "right" else name]]
            for name in names or ["other"]:
                counts[name].append(bool(nodes & ends))
    found = study.candidates_connected(explanations)
    for name, values in counts.items():
        assert found[name] == pytest.approx(sum(values) / len(values))


def test_shapes_add_up_to_patterns(run):
    explanations = list(run.store)
    shapes, patterns = study.shapes(explanations), study.patterns(explanations, rows=10_000)
    assert shapes["share"].sum() == pytest.approx(1)
    one = "COMPLEMENT > MATCH or DOC-BASED"
    alike = patterns.filter(patterns["path"].is_in(["COMPLEMENT > MATCH", "COMPLEMENT > DOC-BASED"]))["share"].sum()
    assert shapes.filter(shapes["path"] == one)["share"].sum() == pytest.approx(alike)


def test_ranks():
    frame = polars.DataFrame(
        {
            "method": ["graphmask"] * 3 + ["gnn_explainer"] * 3,
            "layer": [0, 1, 2] * 2,
            "kept_share": [0.5, 0.3, 0.2] * 2,  # hard gates
            "score_share": [0.1, 0.3, 0.6] * 2,
        }
    )
    assert study.ranks_agree(frame, [0.3, 0.4, 0.5]) == {"graphmask": True, "gnn_explainer": False}
    assert study.ranks_agree(frame, [0.5, 0.4, 0.3]) == {"graphmask": False, "gnn_explainer": True}


def test_all_tables_and_the_commands(run, tmp_path):
    figures = tmp_path / "qa.json"
    done = CliRunner().invoke(app, ["analyse", str(run.path), "--fits", "2", "--json", str(figures)])
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text())
    assert found["accuracy"] == run.figures["accuracy"]
    assert [*found["tables"]] == [planned.name for planned in run.study.tables(run, 2)]
    assert len(found["tables"]) == len(run.study.tables(run, 1)) + 3 == 17
    by_form = {row["form"]: row for row in found["tables"]["forms"]}
    assert by_form["matrix"]["retained"] == run.figures["retained"]
    assert by_form["edges"]["output"] < 1e-5
    assert sum(found["retained_by_layer"]) == pytest.approx(1)
    assert len(found["knockout"]) == len(found["knockout_agreement"]) == 3
    full = {row["measure"]: row["value"] for row in found["tables"]["dropped"] if row["layer"] is None}
    assert full == {"score": pytest.approx(found["accuracy"]), "agreement": 1.0}
    assert -1 <= found["kappa"] <= 1
    assert found["fits"] == 2
    by_seed = [row["masked_accuracy"] for row in found["tables"]["seeds"]]
    assert found["masked_accuracy"] == pytest.approx(sum(by_seed) / 2)
    eroded = {(row["dropped"], row["fraction"]): row["mean"] for row in found["tables"]["erosion"]}
    assert eroded["superfluous", 0] == pytest.approx(found["accuracy"])
    assert eroded["superfluous", 1] == eroded["retained", 0] == pytest.approx(run.figures["masked_accuracy"])
    assert set(found["evidence"]) >= {"auc", "random", "integrated_gradients"}
    done = CliRunner().invoke(app, ["report", str(run.path)])
    assert done.exit_code == 0, done.output
    page = (run.path / "report.html").read_text()
    # Tables without a row are left out.
    assert ("Commonest kept paths from the query" in page) == bool(found["tables"]["patterns"])
    drawn = {path.name for path in (run.path / "figures").iterdir()}
    assert drawn == {"erosion.svg", "types.svg", "levels_0.svg", "levels_1.svg", "levels_2.svg"}


def test_run_on_the_command_line(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(experiment.PRESETS, "tiny", replace(TINY, schedule=Schedule(epochs=2), gate_epochs=2))
    options = ["--preset", "tiny", "--data", str(corpus_folder), "--out", str(tmp_path / "out"), "--tolerance", "0.5"]
    done = CliRunner().invoke(app, ["run", "qa", *options, "--json", str(tmp_path / "run.json")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run.json").read_text())
    assert (found["task"], found["tolerance"]) == ("qa", 0.5)
    assert "several answers" in done.output


def test_presets_and_folders_that_are_none(tmp_path):
    with pytest.raises(GraphMaskError, match="a preset among small, paper, tiny, got 'huge'"):
        experiment.get("huge")
    with pytest.raises(GraphMaskError, match=r"Expected Re-DocRED .* or WikiHop .* found neither"):
        experiment.load(tmp_path, vectors=None)


def test_all_of_the_wikihop_sample(real):
    """Every one of the fifty goes through the model, in both forms, and gets a score for its answer."""
    folder = real("qa-wikihop-sample")
    corpus = experiment.load(folder, vectors=None)
    assert {split: len(part) for split, part in corpus.parts.items()} == {"train": 20, "dev": 2, "test": 28}
    sizes = Sizes(query=4, hidden=6, first=5, scorer=(4, 3))
    table = torch.randn(corpus.words.table.shape, generator=torch.Generator().manual_seed(0))
    matrix, edges = (make(form, table, sizes, corpus.candidates, seed=0).eval() for form in ("matrix", "edges"))
    edges.load_state_dict(matrix.state_dict())
    with torch.no_grad():
        for part in corpus.parts.values():
            one = torch.cat([forward(matrix, batch) for batch in in_order(part, 4)])
            other = torch.cat([forward(edges, batch) for batch in in_order(part, 4, "edges")])
            assert (one - other).abs().max() < 1e-5
            answers = one[torch.arange(len(part)), part.answer]
            assert (answers[part.answerable] > -100).all()
            assert part.answerable.all()


def test_a_question_without_an_answer_in_the_text_counts_as_wrong(glove, corpus_folder):
    from graphmask.experiments.qa import redocred

    questions = redocred.read(corpus_folder, limit=3).questions
    gone = [
        replace(q, mentions=tuple(mention for mention in q.mentions if mention.entity != q.answer)) for q in questions
    ]
    examples = Examples([*questions, *gone], Words(questions, Vectors.open(glove)), 6)
    assert examples.answerable.tolist() == [True] * len(questions) + [False] * len(questions)
    assert learning.accuracy(examples.answer, examples) == 50


def test_caps_reach_the_reader(real):
    folder = real("qa-wikihop-sample")
    cut = experiment.load(folder, vectors=None, caps=Caps(nodes=20))
    assert max(int(part.sizes.max()) for part in cut.parts.values()) == 20
    assert cut.lost["test"]["nodes cut"] > 5
