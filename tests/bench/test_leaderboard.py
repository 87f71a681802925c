"""The leaderboard on boards so small that every figure can be worked out by hand or by the slow way."""

from __future__ import annotations

import copy
import functools
import json

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import graphmask
from graphmask.cli import app
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.leaderboard import figures, models, ours, pages, run, sets, shipped
from graphmask.fitting.training import Recipe
from graphmask.graphs.retained_paths import passed_on


def board(of_nodes: bool, recipe: models.Recipe | None = None) -> sets.Board:
    """Untrained, four small random graphs, or one whose nodes are asked about."""
    torch.manual_seed(0)
    recipe = recipe or models.Recipe("gcn", 2, 8, None if of_nodes else "mean")
    graphs = []
    for number in range(4):
        pairs = torch.tensor(list(nx.gnm_random_graph(7, 10, seed=number).edges)).t()
        edge_index = torch.cat([pairs, pairs.flip(0)], 1)
        graphs.append(Data(x=torch.randn(7, 3), edge_index=edge_index, gold=torch.rand(20) < 0.4, y=torch.tensor([0])))
    model = models.Network(3, 3, recipe).eval()
    questions = [sets._whole(graph) for graph in graphs]
    if of_nodes:
        graph = Data(x=graphs[0].x, edge_index=graphs[0].edge_index)
        asked = torch.ones(20, dtype=torch.bool)
        questions = [sets.Question(graph, node, asked, graphs[node].gold) for node in range(4)]
    return sets.Board("small", model, 50.0, graphs, graphs, questions[:2], questions, recipe.layers, 3)


def test_dropping_what_does_not_lead_to_a_node_leaves_it_alone() -> None:
    one = board(True)
    explanation = graphmask.methods.get("random")(one.model).explain(one.questions[0].graph)
    for question, answer in zip(one.questions, ours.answer_nodes(explanation, one.questions), strict=True):
        node = torch.arange(7) == question.node
        paths = passed_on(explanation.edge_index, explanation.kept.float(), explanation.structure, node) > 0
        mine = copy.copy(explanation)
        mine.kept = paths
        with torch.no_grad(), graphmask.masked(one.model, mine) as model:
            output = model(question.graph.x, question.graph.edge_index)[question.node]
        torch.testing.assert_close(output, explanation.masked[question.node])
        assert torch.equal(answer.kept, paths.any(0))
        p, q = explanation.original[question.node].softmax(0), output.softmax(0)
        assert answer.sufficiency == pytest.approx(float(p.max() - q[p.argmax()]), abs=1e-6)
        assert answer.flipped == bool(p.argmax() != q.argmax())


def test_figures_against_the_slow_way() -> None:
    one = board(False)
    generator = torch.Generator().manual_seed(3)
    scores = [[torch.rand(20, generator=generator) for _ in one.questions] for _ in range(3)]
    runs = [shipped.judge(one, one.questions, some) for some in scores]
    line = figures.summary(one.questions, runs, [1.0, 2.0, 3.0])
    gold = torch.cat([question.gold for question in one.questions])
    wins = []
    for some in scores:
        values = torch.cat(some)
        wins.append((values[gold][:, None] > values[~gold][None]).double().mean())
    assert line["auc"] == pytest.approx(100 * float(torch.stack(wins).mean()))
    assert line["ms"] == 2.0
    kept = torch.stack([torch.cat([answer.kept for answer in some]) for some in runs])
    assert kept.sum(1).tolist() == [int(gold.sum())] * 3  # as many as the gold has
    f1 = [float((k & gold).sum() / gold.sum()) for k in kept]  # then precision = recall = F1
    assert line["f1"] == pytest.approx(100 * sum(f1) / 3)
    pairs = [(kept[a] == kept[b]).double().mean() for a, b in ((0, 1), (0, 2), (1, 2))]
    share = kept.double().mean()
    chance = share**2 + (1 - share) ** 2
    assert line["kappa"] == pytest.approx(float((sum(pairs) / 3 - chance) / (1 - chance)))


def test_soft_methods_are_judged_by_the_model_without_the_other_messages() -> None:
    """GIN adds up messages: leaving them out is leaving out the edges."""
    one = board(False, models.Recipe("gin", 2, 8, "mean"))
    for question, answer in zip(
        one.questions, shipped.judge(one, one.questions, [torch.rand(20) for _ in one.questions]), strict=True
    ):
        graph = question.graph
        with torch.no_grad():
            p = one.model(graph.x, graph.edge_index, torch.zeros(7, dtype=torch.long)).softmax(-1)[0]
            q = one.model(graph.x, graph.edge_index[:, answer.kept], torch.zeros(7, dtype=torch.long)).softmax(-1)[0]
        assert answer.sufficiency == pytest.approx(float(p.max() - q[p.argmax()]), abs=1e-6)


@pytest.mark.parametrize("of_nodes", [False, True])
@pytest.mark.parametrize("name", ["pyg_gnn_explainer", "pyg_pg_explainer", "pyg_captum_explainer"])
def test_shipped_explainers_run_and_leave_the_board_alone(name: str, of_nodes: bool) -> None:
    one = board(of_nodes)
    before = copy.deepcopy(one.model.state_dict())
    found = shipped.run(name, one, 0, one.questions[:2])
    assert [len(score) for score in found.scores] == [20, 20]
    assert found.ms > 0
    for key, value in one.model.state_dict().items():
        assert torch.equal(value, before[key])
    again = shipped.run(name, one, 0, one.questions[:2])
    assert all(torch.equal(a, b) for a, b in zip(found.scores, again.scores, strict=True))


def test_what_a_shipped_explainer_raises_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    line = run._line("pyg_graphmask_explainer", board(False, models.Recipe("gin", 2, 8, "mean")), 1)
    assert line["auc"] is None
    assert "in_channels" in line["error"]  # GINConv has none

    def broken(*_: object) -> shipped.Explain:
        return lambda *_: torch.full((20,), torch.nan)

    monkeypatch.setitem(shipped.METHODS, "pyg_gnn_explainer", broken)
    assert "NaN" in run._line("pyg_gnn_explainer", board(False), 1)["error"]

    def spoils(_: sets.Board, model: torch.nn.Module) -> shipped.Explain:
        with torch.no_grad():
            model.out.bias[2] += 100
        return lambda *_: torch.rand(20)

    monkeypatch.setitem(shipped.METHODS, "pyg_gnn_explainer", spoils)
    assert "altered" in run._line("pyg_gnn_explainer", board(False), 1)["notes"][0]


def test_one_command_writes_everything_and_goes_on_where_it_was(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make() -> sets.Board:
        made.append(1)
        return board(False)

    def quick(one: sets.Board, seed: int, questions: list[sets.Question]) -> ours.Fit:
        explainer = graphmask.methods.get("random")(one.model, seed=seed)
        found = [explainer.explain(question.graph) for question in questions]
        return ours.Fit(ours.answer_graphs(found), 1.0, 1.0, 2.0, [0.5, 0.5], True)

    monkeypatch.setitem(run.SETS, "star", make)
    monkeypatch.setattr(ours, "run", quick)
    arguments = ["bench", "leaderboard", "--sets", "star", "--methods", "graphmask,random", "--seeds", "2"]
    for _ in range(2):
        found = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path), "--json", str(tmp_path / "x.json")])
        assert found.exit_code == 0, found.output
    assert len(made) == 1
    written = json.loads((tmp_path / "x.json").read_text())
    assert set(written) == {"accuracy", "sets"}
    six = {"auc", "f1", "flips", "kappa", "ms", "sufficiency"}
    assert {name: set(line) for name, line in written["sets"]["star"].items()} == {
        "graphmask": six | {"ms_alone", "retained", "feasible", "fit_seconds"},
        "random": six,
    }
    assert written["accuracy"] == {"star": 50.0}
    # The page can be made from that file alone.
    assert pages.markdown(pages.of_file(written)) == (tmp_path / "leaderboard.md").read_text()
    assert "| star |" in (tmp_path / "leaderboard.md").read_text()
    assert (tmp_path / "leaderboard.svg").stat().st_size > 1000
    assert pages.collapsed({"retained": [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.3]]}) == 3


def test_unknown_names_are_refused_before_any_work(tmp_path) -> None:
    with pytest.raises(GraphMaskError, match="Expected a set among ba_shapes"):
        run.measure(["mnist"], ["random"], 1, tmp_path)
    with pytest.raises(GraphMaskError, match="Expected a method among graphmask"):
        run.measure(["star"], ["lime"], 1, tmp_path)


def test_training_learns() -> None:
    graphs = []
    for number in range(60):
        x = torch.zeros(4, 2)
        x[:, number % 2] = 1
        edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        graphs.append(Data(x=x, edge_index=edge_index, y=torch.tensor([number % 2])))
    state = torch.random.get_rng_state()
    model = models.train(models.Recipe("gin", 2, 8, "mean", epochs=20, rate=1e-2), graphs, 2, seed=0)
    assert models.accuracy(model, graphs) == 100
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("of_nodes", [False, True])
def test_ours_is_graphmask_as_everybody_gets_it(of_nodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(graphmask.GraphMask, recipe=Recipe(steps=20))
    monkeypatch.setattr(ours, "GraphMask", quick)
    one = board(of_nodes)
    found = ours.run(one, 1, one.questions)
    explainer = quick(one.model, seed=1)
    explainer.fit(one.fit, one.calibration, progress=False)
    for question, answer in zip(one.questions, found.answers, strict=True):
        wanted = explainer.explain(question.graph, allow_infeasible=True)
        if of_nodes:
            alone = explainer.explain(question.graph, index=question.node, repair=False, allow_infeasible=True)
            scores = alone.scores.mean(0)
            assert torch.equal(answer.kept, alone.kept.any(0))
        else:
            scores = wanted.scores.mean(0)
        torch.testing.assert_close(answer.scores, scores)
    assert len(found.retained) == 2
    assert found.ms > 0
    assert found.ms_alone > 0
