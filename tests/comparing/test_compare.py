"""`graphmask.compare` on models of every kind, and what its result can do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import graphmask
from graphmask import Comparison, GraphMaskError, methods
from graphmask.analysis.audits import frontier
from graphmask.comparing import metrics, running
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from hetero.support import Stack
from hetero.support import batch as hetero_batch
from laws.untouched import assert_same, snapshot

from .support import AsMany, Known, white_box

CHEAP = {
    name: {"f_fidelity": {"steps": 2, "samples": 2, "sizes": (0.3,)}, "r_fidelity": {"samples": 2}}.get(name, {})
    for name in metrics.ALL
}
SOME = {
    "graphmask": methods.get("graphmask"),
    "gradients": partial(methods.get("integrated_gradients"), steps=5),
    "random": methods.get("random"),
}


class Conv(nn.Module):
    """Two layers; one row per node, per graph, or per candidate edge."""

    def __init__(self, rows: str) -> None:
        super().__init__()
        self.first, self.second = pyg.GCNConv(4, 8), pyg.GCNConv(8, 3)
        self.rows = rows

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, edge_label_index: Tensor | None = None) -> Tensor:
        x = self.second(self.first(x, edge_index).relu(), edge_index)
        if self.rows == "graphs":
            return pyg.global_add_pool(x, batch)
        if self.rows == "links":
            assert edge_label_index is not None
            source, target = edge_label_index
            return (x[source] * x[target]).sum(-1)
        return x


def graph(seed: int, rows: str) -> Data:
    draw = torch.Generator().manual_seed(seed)
    data = Data(x=torch.randn(6, 4, generator=draw), edge_index=torch.randint(6, (2, 14), generator=draw))
    data.gold = torch.rand(14, generator=draw) < 0.4
    if rows == "links":
        data.edge_label_index = torch.randint(6, (2, 5), generator=draw)
    return data


def made(kind: str) -> tuple[nn.Module, list[Any], dict[str, Any]]:
    torch.manual_seed(0)
    if kind == "hetero":
        model = Stack(lambda _: pyg.SAGEConv((-1, -1), 8))
        loader = [hetero_batch(0, 1), hetero_batch(2)]
        with torch.no_grad():
            model(loader[0].x_dict, loader[0].edge_index_dict)
        for batch in loader:
            for edges in batch.edge_types:
                batch[edges].gold = batch[edges].edge_index[0] % 2 == 0
        return model.eval(), loader, {}
    if kind == "transformer":
        rows = pytest.importorskip("attention.models")
        return rows.BY_NAME["distilbert"].model(), [rows.batch()], {}
    loader = [Batch.from_data_list([graph(seed, kind) for seed in seeds]) for seeds in ((0, 1), (2, 3))]
    return Conv(kind).eval(), loader, {"divergence": "bernoulli"} if kind == "links" else {}


@pytest.mark.parametrize("kind", ["graphs", "nodes", "links", "hetero", "transformer"])
def test_every_kind_of_model(kind: str) -> None:
    model, loader, options = made(kind)
    before = snapshot(model)
    gold = None if kind == "transformer" else "gold"
    found = graphmask.compare(
        model, loader, gold=gold, methods=SOME, metrics=CHEAP, seeds=2, epochs=2, progress=False, **options
    )
    assert_same(before, snapshot(model))
    assert found.methods == tuple(SOME), found.not_applicable
    assert len(found.rows) == 2 * len(SOME)
    assert found.about["explanations"] == (3 if kind == "hetero" else 4)
    assert ("f1" in found.columns) == (gold is not None)
    without = {"noise_kappa"} if kind == "transformer" else set()  # word numbers take no noise
    without |= {"precision", "precision_graph"}  # nothing may be kept after so few steps
    for name in SOME:
        for column in set(found.columns) - without:
            assert found.figure(name, column) is not None, (name, column)
    assert found.figure("gradients", "kappa") == 1  # nothing random in it
    assert found.figure("random", "kappa") < 0.5
    said = " ".join(found.notes)
    assert "No validation data were given" in said
    assert "No test data were given" in said
    assert ("noise was not measured. Expected batches with node features x" in said) == (kind == "transformer")


def test_figures_are_those_of_the_explanations() -> None:
    model, data = white_box("two_hops", 8)
    found = graphmask.compare(
        model, data, divergence="mse", gold="gold", methods=["occlusion"], metrics=CHEAP, seeds=[4], progress=False
    )
    explanations = found.explanations("occlusion", 4)
    assert found.fitted("occlusion").seed == 4
    kept = torch.cat([e.kept.flatten() for e in explanations])
    truth = torch.cat([g.t().flatten() for g in data[0].gold.split([e.kept.shape[1] for e in explanations])])
    both, row = int((kept & truth).sum()), found.rows[0]
    assert row["precision"] == pytest.approx(both / int(kept.sum()))
    assert row["recall"] == pytest.approx(both / int(truth.sum()))
    assert row["retained"] == pytest.approx(int(kept.sum()) / int(sum(e.carried.sum() for e in explanations)))
    assert row["divergence"] == pytest.approx(sum(e.divergence for e in explanations) / 8)
    assert row["within"] == pytest.approx(sum(e.divergence <= 0.03 for e in explanations) / 8)
    assert row["ms"] > 0
    shares = [(e.kept & g.t()).sum() / e.kept.sum() for e, g in zip(explanations, _gold(data[0]), strict=True)]
    assert row["precision_graph"] == pytest.approx(float(torch.stack(shares).nanmean()))


def _gold(batch: Batch) -> Iterator[Tensor]:
    for data in batch.to_data_list():
        yield data.gold


# Thresholds ------------------------------------------------------------------------------------------------


class Soft(Method):
    """Scores each message by a number of its batch, so that a threshold decides."""

    name = "soft"
    soft = True

    def choose(self, case: Case) -> Choice:
        scores = torch.where(case.batch.gold.t(), case.batch.high, case.batch.high - 0.1)
        return case.cut(scores, self.threshold)


def shifted(graphs: int, high: float) -> Batch:
    batch = white_box("count", graphs)[1][0]
    batch.high = high
    return batch


def test_thresholds_are_chosen_on_validation_data_alone() -> None:
    model, _ = white_box("count", 4)
    fit, validation, test = shifted(4, 0.25), shifted(6, 0.85), shifted(5, 0.45)
    given: dict[str, Any] = {"methods": [Soft], "metrics": ("gold", "sparsity"), "seeds": 1, "progress": False}
    given |= {"divergence": "mse", "test": [test]}

    def threshold(**more: Any) -> float:
        return graphmask.compare(model, [fit], **given, **more).rows[0]["threshold"]

    assert threshold(gold="gold", validation=[validation]) == 0.8  # between .75 and .85
    assert threshold(gold="gold") == 0.2  # between .15 and .25, of the loader
    assert threshold(gold="gold", validation=[fit], thresholds=[validation]) == 0.8
    # Without gold the sparsest that is still faithful: the same, for these messages are all that is needed.
    assert threshold(validation=[validation]) == 0.8
    found = graphmask.compare(model, [fit], **given, validation=[validation])
    assert "f1" not in found.columns
    assert found.figure("soft", "retained") == 0  # nothing of test scores above that
    notes = " ".join(found.notes)
    assert "the sparsest that is within tolerance" in notes
    assert "No validation data" not in notes
    assert "No test data" not in notes


def test_where_no_threshold_is_faithful_a_share_of_each_graph_is_kept() -> None:
    model, (data,) = white_box("count", 4)
    data.high = 0.0  # every score is 0 or below
    method = Soft(model, divergence="mse")
    parts = running.Parts([data], None, [data], [data])
    assert running.choose_cut(method, parts) == (None, 0.1)  # the order of the scores is right


def test_scores_without_a_common_scale_are_cut_by_a_share_of_each_graph() -> None:
    """Every graph's scores are those of its needed messages times a number of its own."""
    model, (data,) = white_box("count", 12)

    class Unscaled(Method):
        name, soft = "unscaled", True

        def choose(self, case: Case) -> Choice:
            scale = 10.0 ** -(case.split.edge_graph % 4).to(case.trace.output.dtype)
            noise = 0.5 * case.uniform(0)
            return case.cut((case.batch.gold.t() + noise) * scale, self.threshold)

    method = Unscaled(model, divergence="mse")
    parts = running.Parts([data], None, [data], [data])
    threshold, share = running.choose_cut(method, parts)
    assert threshold is None
    method.fraction = share
    found = list(method.explain_all([data], repair=False))
    assert sum(e.divergence for e in found) / len(found) <= method.tolerance
    for explanation in found:
        assert int(explanation.kept.sum()) == math.ceil(share * int(explanation.carried.sum()) - 1e-9)
        assert explanation.scores[explanation.kept].min() >= explanation.scores[~explanation.kept].max()
    # By thresholds alone nearly everything would have to be kept.
    rows = frontier(method, [data], levels=running.FINE).to_dicts()
    within = [row["retained"] for row in rows if row["divergence"] <= method.tolerance]
    assert min(within, default=1.0) > sum(e.retained for e in found) / len(found) + 0.1


# Methods ---------------------------------------------------------------------------------------------------


def test_methods_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))

    class Own(Known):
        pass

    with pytest.raises(GraphMaskError, match="the name that the class has, 'known', got 'own'"):
        methods.register("own", Own)
    Own.name = "own"
    assert methods.register("own", Own) is Own
    assert methods.get("own") is Own
    methods.register("own", Own)  # again is fine
    with pytest.raises(GraphMaskError, match="a name that no other method has, got 'random'"):
        methods.register("random", Known)
    with pytest.raises(GraphMaskError, match=r"Expected a subclass of .*Method, got 3"):
        methods.register("three", 3)  # type: ignore[arg-type]
    model, data = white_box("count", 4)
    found = graphmask.compare(
        model, data, divergence="mse", gold="gold", methods=["own", AsMany], metrics=["gold"], seeds=1, progress=False
    )
    assert found.methods == ("own", "as_many")
    assert found.figure("own", "f1") == 1


class Breaks(Method):
    name = "breaks"

    def choose(self, case: Case) -> Choice:
        if self.seed:
            raise ValueError("out of luck")
        return case.cut(case.uniform(0), 0.5)


def test_what_does_not_apply_is_listed_with_the_reason() -> None:
    model, data = white_box("count", 4)
    given: dict[str, Any] = {"divergence": "mse", "metrics": ["sparsity", "stability"], "progress": False}
    found = graphmask.compare(model, data, methods=["gate_scores", "random", Breaks], seeds=2, **given)
    assert found.methods == ("random",)
    assert found.not_applicable["breaks"] == "ValueError: out of luck"
    assert "Expected attention weights or message gates" in found.not_applicable["gate_scores"]
    assert "gate_scores was not compared. Expected attention" in repr(found)
    with pytest.raises(GraphMaskError, match="Expected a method that applies to this model, got none"):
        graphmask.compare(model, data, methods=["gate_scores"], **given)


def test_costly_methods_are_compared_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: methods.get(name) for name in ("random", "subgraphx")}
    monkeypatch.setattr(methods, "METHODS", some)
    model, data = white_box("count", 2)
    given: dict[str, Any] = {"divergence": "mse", "metrics": ["sparsity"], "seeds": 1, "progress": False}
    found = graphmask.compare(model, data, **given)
    assert found.methods == ("random",)
    assert "subgraphx was left out: each explanation takes thousands of runs" in repr(found)
    quick = partial(methods.get("subgraphx"), rollouts=1, children=2, samples=2)
    named = graphmask.compare(model, data, methods={"subgraphx": quick}, **given)
    assert named.methods == ("subgraphx",)
    assert "left out" not in repr(named)


def test_options_of_methods() -> None:
    model, data = white_box("count", 6)
    kinds = {f"rate {rate}": partial(methods.get("random"), rate=rate) for rate in (0.1, 0.9)}
    found = graphmask.compare(
        model, data, divergence="mse", methods=kinds, metrics=["sparsity"], seeds=1, progress=False
    )
    assert found.figure("rate 0.1", "retained") == pytest.approx(0.1, abs=0.05)
    assert found.figure("rate 0.9", "retained") == pytest.approx(0.9, abs=0.05)


def test_rows_of_one_graph() -> None:
    torch.manual_seed(0)
    model, data = Conv("nodes").eval(), graph(5, "nodes")
    data.batch = torch.zeros(6, dtype=torch.long)
    rows = [1, 4]
    found = graphmask.compare(
        model,
        [data],
        gold=[data.gold, None],
        index=rows,
        methods=["occlusion", "random"],
        metrics=CHEAP,
        seeds=1,
        progress=False,
    )
    assert [e.index for e in found.explanations("random")] == [(1,), (4,)]
    method = methods.get("occlusion")(model)
    method.threshold = found.fitted("occlusion").threshold
    alone = [method.explain(data, index=row, repair=False) for row in rows]
    assert found.figure("occlusion", "divergence") == pytest.approx(sum(e.divergence for e in alone) / 2, abs=1e-6)
    assert found.figure("occlusion", "r_delta") is not None


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"methods": ["magic"]}, "among graphmask, .*got 'magic'"),
        ({"methods": "random"}, "a list of methods"),
        ({"metrics": ["beauty"]}, "metrics among sparsity, .*got 'beauty'"),
        ({"metrics": {"r_fidelity": {"draws": 3}}}, "options of r_fidelity among samples, sizes, got 'draws'"),
        ({"seeds": 0}, "at least one seed"),
        ({"gold": "truth"}, "an attribute 'truth' that marks true edges, found none"),
        ({"gold": lambda batch: batch.x[:, 0] > 0}, "gold of a batch to be bool"),
        ({"index": [0, 1]}, "one graph to explain rows of"),
        ({"test": []}, "at least one batch"),
    ],
)
def test_bad_input_is_told_before_any_work(given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader, _ = made("graphs")
    monkeypatch.setattr("graphmask.comparing.all_methods.run", lambda *_, **__: pytest.fail("work was begun"))
    with pytest.raises(GraphMaskError, match=words):
        graphmask.compare(model, loader, **{"methods": ["random"], "progress": False, **given})


# The result ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Comparison:
    model, data = white_box("count", 6)
    return graphmask.compare(
        model,
        data,
        divergence="mse",
        gold="gold",
        methods={"<b>known</b>": Known, "as_many": AsMany, "gate_scores": methods.get("gate_scores")},
        metrics=CHEAP,
        seeds=2,
        progress=False,
    )


def test_frames_json_and_words(small: Comparison, tmp_path: Path) -> None:
    frame = small.to_pandas()
    assert frame.loc["<b>known</b>", "f1"] == 1
    assert frame.loc["as_many", "f1"] == pytest.approx(small.figure("as_many", "f1"))
    values = small.to_pandas(per_seed=True).query("method == 'as_many'")["f1"]
    assert frame.loc["as_many", "f1_std"] == pytest.approx(values.std())
    assert len(small.to_pandas(per_seed=True)) == 4
    written = json.loads(json.dumps(small.to_json(tmp_path / "c.json")))
    assert json.loads((tmp_path / "c.json").read_text()) == written
    assert written["methods"]["<b>known</b>"]["auc"] == 1
    assert written["rows"][0]["method"] == "<b>known</b>"
    assert [point["level"] for point in written["curves"]["as_many"][0]] == [n / 10 for n in range(11)]
    lines = repr(small).splitlines()
    assert lines[0] == "Comparison of 2 methods on Count, 2 seed(s)"
    assert lines[1].split()[:3] == ["method", "kept", "divergence"]
    assert lines[2].startswith("<b>known</b>")
    assert small.best("f1") == {"<b>known</b>"}
    assert small.best("retained") == set()
    assert small.text("<b>known</b>", "f1") == "100%"
    assert small.text("<b>known</b>", "flips") == "n/a"


def test_the_page_is_complete_and_escaped(small: Comparison, tmp_path: Path) -> None:
    page = small.to_html(tmp_path / "c.html", title="Which <one>?").read_text()
    assert "Which &lt;one&gt;?" in page
    assert "<b>known</b>" not in page
    assert "&lt;b&gt;known&lt;/b&gt;" in page
    for words in ("gate_scores applies to layers such as GATConv", "No validation data", "It cannot show sufficiency"):
        assert words in page
    assert page.count("<svg") == 7
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert small.to_html(tmp_path / "d.html", title="Which <one>?").read_text() == page
    card = small._repr_html_()
    assert "&lt;b&gt;known&lt;/b&gt;" in card
    assert "<b>100%</b>" in card


def test_the_chart(small: Comparison) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = small.plot("auc")
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == pytest.approx([1.0, small.figure("as_many", "auc")])
    lines = small.plot("curves").get_lines()
    assert lines[0].get_ydata()[-1] == pytest.approx(0, abs=1e-9)
    with pytest.raises(GraphMaskError, match="Expected a column among"):
        small.plot("beauty")
    pyplot.close("all")
