"""`graphmask bench peers`: every method on models that nobody chose for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch

from graphmask import methods
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.battery import white_boxes
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.bench.peers import ranks, run
from graphmask.experiments.bench.peers.models import MODELS, OTHERS, PLAIN, WHITE, Model, first_graphs


def line(seeds: int = 2, **figures: float | None) -> Any:
    return {
        "about": {"seeds": list(range(seeds))},
        "methods": {"x": figures},
        "not_applicable": {},
    }


def lines(**by_method: dict[str, float | None]) -> Any:
    return {
        name: {"about": {"seeds": [0, 1]}, "methods": {name: figures}, "not_applicable": {}}
        for name, figures in by_method.items()
    }


def test_ranks_are_means_over_models_with_ties_shared() -> None:
    found = {
        "frozen_ba_shapes": lines(a={"auc": 0.9, "ms": 1.0}, b={"auc": 0.8, "ms": 3.0}, c={"auc": 0.80001, "ms": 2.0}),
        "white_count": lines(a={"auc": 0.5, "ms": 1.0}, b={"auc": 1.0, "ms": None}),
    }
    of = ranks.summary(found, 2)
    assert of["ranks"]["a"] == {"auc": pytest.approx((1 + 2) / 2), "ms": 1.0}
    assert of["ranks"]["b"] == {"auc": pytest.approx((2.5 + 1) / 2), "ms": 3.0}  # no figure, no rank
    assert of["ranks"]["c"] == {"auc": 2.5, "ms": 2.0}
    assert [row[0] for row in ranks.rank_rows(of)[1]] == ["a", "c", "b"]  # 1.25, 2.25, 2.375
    header, rows = ranks.figure_rows(of, "auc")
    assert header == ["model", "a", "b", "c"]
    assert rows == [["frozen_ba_shapes", "90.0", "80.0", "80.0"], ["white_count", "50.0", "100.0", ""]]


def test_a_method_without_seeds_agrees_with_itself() -> None:
    drawn, fixed = line(2, kappa=0.4), line(1, kappa=None)
    of = ranks.summary({"white_count": {"x": drawn}}, 2)["models"]["white_count"]["methods"]["x"]
    assert of["kappa"] == 0.4
    of = ranks.summary({"white_count": {"x": fixed}}, 2)["models"]["white_count"]["methods"]["x"]
    assert of["kappa"] == 1.0


def test_the_models_are_those_that_the_page_names() -> None:
    kinds = [model.kind for model in MODELS.values()]
    assert (kinds.count(OTHERS), kinds.count(PLAIN), kinds.count(WHITE)) == (5, 12, 3)
    assert MODELS["ba2motifs_gin_2"].seed == 2
    # A run that is stopped has measured the models of others, white boxes and one of each plain kind first.
    assert [model.kind for model in MODELS.values()][:8] == [OTHERS] * 5 + [WHITE] * 3
    assert [model.seed for model in MODELS.values()][8:] == [0] * 4 + [1] * 4 + [2] * 4


def test_competitors_come_before_graphmask_and_have_their_published_settings() -> None:
    names = run.method_names()
    assert names[-1] == "graphmask"
    assert len(set(names)) == len(names) >= 12
    kind, settings = run._made("gnn_explainer_published")
    assert kind is methods.get("gnn_explainer")
    assert settings["size"] == 0.005
    assert run._made("gnn_explainer") == (kind, {})


def test_as_many_graphs_as_the_protocol_says() -> None:
    parts = [Batch.from_data_list(white_boxes.draw("count", 3, seed)) for seed in range(3)]
    found = first_graphs(parts, 5)
    assert [part.num_graphs for part in found] == [3, 2]
    assert torch.equal(found[0].x, parts[0].x)
    assert torch.equal(found[1][1].gold, parts[1][1].gold)
    single = parts[0].to_data_list()[0]
    assert first_graphs([single], 5) == [single]


def small() -> Prepared:
    """The white box that counts, with few graphs."""
    parts = [Batch.from_data_list(white_boxes.draw("count", 3, seed)) for seed in range(3)]
    whole = white_boxes.Count().eval()
    gold = [graph.gold.t() for graph in parts[2].to_data_list()]
    fit, validation, test = ([part] for part in parts)
    return Prepared(whole, fit, validation, test, dict, divergence="mse", gold=gold)


@pytest.fixture
def white(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One small white box in place of all models; counts how often it is made."""
    made = []

    def prepare(self: Model, out: Path) -> Prepared:
        made.append(1)
        return small()

    monkeypatch.setattr(Model, "prepare", prepare)
    return made


def test_pairs_are_measured_once_and_figures_are_those_of_compare(white: list[int], tmp_path: Path) -> None:
    names = ["gradient_message", "random", "attention_weights", "grad_cam"]
    names = [name for name in names if name in methods.METHODS]
    found = run.measure(["white_count"], names, 2, tmp_path, progress=False)
    assert len(white) == 1
    again = run.measure(["white_count"], names, 2, tmp_path, progress=False)
    assert len(white) == 1
    assert again == found
    line = found["white_count"]
    assert line["gradient_message"]["about"]["seeds"] == [0]
    assert line["random"]["about"]["seeds"] == [0, 1]
    assert line["random"]["methods"]["random"]["auc"] == pytest.approx(0.5, abs=0.15)
    # The count is linear in its messages: their gradients find exactly what is needed.
    assert line["gradient_message"]["methods"]["gradient_message"]["auc"] == pytest.approx(1.0)
    of = ranks.summary(found, 2)
    assert of["ranks"]["gradient_message"]["auc"] == 1.0
    assert "| gradient_message | 1.0 |" in ranks.markdown(of)
    names = [*names, "occlusion"]  # which was not measured yet
    assert run.collect(["white_count", "white_relations"], names, 2, tmp_path) == found
    run.measure(["white_count"], ["random"], 3, tmp_path, progress=False)  # another number of seeds is measured again
    assert len(white) == 2


def test_a_method_that_does_not_apply_is_listed_with_the_reason(white: list[int], tmp_path: Path) -> None:
    class Refuses(methods.get("random")):  # type: ignore[misc]
        name = "refuses"

        @classmethod
        def why_not(cls, *_: Any) -> str:
            return "It refuses everything."

    methods.register("refuses", Refuses)
    try:
        found = run.measure(["white_count"], ["refuses", "random"], 1, tmp_path, progress=False)
    finally:
        del methods.METHODS["refuses"]
    about = ranks.summary(found, 1)["models"]["white_count"]
    assert list(about["methods"]) == ["random"]
    assert "It refuses everything." in about["not_applicable"]["refuses"]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(GraphMaskError, match=r"Expected models among .* got 'nothing'"):
        run.chosen(["nothing"], list(MODELS), "models")
    assert run.chosen(None, ["a", "b"], "models") == ["a", "b"]


@pytest.mark.parametrize("name", [name for name, method in methods.METHODS.items() if not method.seeded])
def test_methods_that_say_so_depend_on_no_seed(name: str) -> None:
    whole = small()
    batch = whole.test[0]
    kind = methods.get(name)
    if kind.why_not(whole.model, batch, whole.forward):
        pytest.skip("does not apply")
    found = []
    for seed in (0, 1):
        method = kind(whole.model, whole.forward, whole.divergence, whole.tolerance, seed)
        method.fit(whole.fit[:1], progress=False)
        found.append(next(iter(method.explain_all([batch], repair=False, allow_infeasible=True))))
    assert torch.equal(found[0].scores, found[1].scores)
    assert torch.equal(found[0].kept, found[1].kept)
