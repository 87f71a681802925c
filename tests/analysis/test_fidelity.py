"""Sufficiency, complement and characterisation against a model that is written out message by message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, ModelConfig
from torch_geometric.explain.metric import characterization_score, fidelity, groundtruth_metrics
from torch_geometric.nn import GCN, RGCNConv

from analysis.support import BASELINES, Fixed, explanation_of
from graphmask import Explanation, GraphMaskError, methods
from graphmask.analysis import characterisation, complement, ground_truth, pyg_metrics, sufficiency
from graphmask.divergence import NAMED
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.integrations.pyg import GraphMaskAlgorithm
from reference import small

GRAPHS = [small.graph(seed, nodes=3 + seed % 3, edges=4 + seed % 4) for seed in range(6)]
TOLERANCE = 0.2


def literal(method: Method, explanations: list[Explanation], kept_side: bool, zero: bool, layer: int | None) -> Any:
    """Row by row: divergence, changed prediction, beyond tolerance; means of each."""
    model, rows = method.model, []
    for data, explanation in zip(GRAPHS, explanations, strict=True):
        gates = []
        for site in range(2):
            alone = explanation.kept[site] if kept_side else ~explanation.kept[site]
            gates.append((alone if layer in (None, site) else torch.ones_like(alone)).tolist())
        gates = [[float(z) for z in row] for row in gates]
        full = small.answer(model, data, small.constant(data, 1.0))
        output = small.answer(model, data, gates, None if zero else BASELINES)
        name = method.divergence.name
        d = float(NAMED[name](full[None], output[None]))
        changed = (full > 0) != (output > 0) if name == "bernoulli" else full.argmax() != output.argmax()
        rows.append((d, float(bool(changed.any())), float(d > TOLERANCE)))
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def value(frame: pl.DataFrame, layer: int | None, replaced_by: str, measure: str, column: str = "value") -> float:
    at = pl.col("layer").is_null() if layer is None else pl.col("layer") == layer
    found = frame.filter(at & (pl.col("replaced_by") == replaced_by) & (pl.col("measure") == measure))
    return float(found[column].item())


@pytest.mark.parametrize(("name", "outputs"), [("kl", 3), ("bernoulli", 1), ("mse", 2)])
def test_by_hand(name: str, outputs: int) -> None:
    method = Fixed(small.Small(outputs), divergence=name, tolerance=TOLERANCE)
    loader = [Batch.from_data_list(GRAPHS[:3]), Batch.from_data_list(GRAPHS[3:5]), GRAPHS[5]]
    explanations = list(method.explain_all(loader, repair=False))
    enough, needed, both = (f(method, loader) for f in (sufficiency, complement, characterisation))
    given = [f(method, loader, explanations) for f in (sufficiency, complement, characterisation)]
    for a, b in zip((enough, needed, both), given, strict=True):
        assert a.drop("value").equals(b.drop("value"))
        assert a["value"].to_list() == pytest.approx(b["value"].to_list(), abs=1e-12)
    for replaced_by in ("baseline", "zero"):
        for layer in (None, 0, 1):
            side = {
                True: literal(method, explanations, True, replaced_by == "zero", layer),
                False: literal(method, explanations, False, replaced_by == "zero", layer),
            }
            for kept, frame in ((True, enough), (False, needed)):
                distance, flips, beyond = side[kept]
                assert value(frame, layer, replaced_by, "divergence") == pytest.approx(distance, rel=1e-9)
                assert value(frame, layer, replaced_by, "beyond") == pytest.approx(beyond)
                if name != "mse":
                    assert value(frame, layer, replaced_by, "flips") == pytest.approx(flips)
            plus, minus = side[False][2], side[True][2]
            expected = 1 / (0.5 / plus + 0.5 / (1 - minus)) if plus and minus < 1 else 0.0
            assert value(both, layer, replaced_by, "beyond") == pytest.approx(expected)
            assert value(both, layer, replaced_by, "beyond", "complement") == pytest.approx(plus)
    assert ("flips" in enough["measure"].to_list()) == (name != "mse")  # a regression has no prediction to change
    # All layers masked, dropped messages replaced by the baseline: that is what the explanations themselves measured.
    certificate = sum(explanation.divergence for explanation in explanations) / len(explanations)
    assert value(enough, None, "baseline", "divergence") == pytest.approx(certificate, rel=1e-9)


def test_of_a_store(tmp_path: Path) -> None:
    method = Fixed(small.Small(), divergence="kl", tolerance=TOLERANCE)
    loader = [Batch.from_data_list(GRAPHS[:4]), Batch.from_data_list(GRAPHS[4:])]
    written = method.explain_all(loader, out=tmp_path / "store", progress=False, repair=False)
    assert sufficiency(method, loader, written).equals(sufficiency(method, loader))
    assert characterisation(method, loader, written).equals(characterisation(method, loader))
    gold = [explanation.kept.any(0) for explanation in written]
    perfect = ground_truth(written, gold)
    assert perfect["f1"].to_list() == [1.0, 1.0]
    assert perfect["auc"].to_list() == [1.0, 1.0]


def test_bad_input() -> None:
    method = Fixed(small.Small(), divergence="kl")
    explanations = list(method.explain_all(GRAPHS))
    with pytest.raises(GraphMaskError, match="replaced_by"):
        sufficiency(method, GRAPHS, replaced_by=("mean",))
    with pytest.raises(GraphMaskError, match="replaced_by"):
        complement(method, GRAPHS, replaced_by="zero")
    with pytest.raises(GraphMaskError, match="weight from 0 to 1"):
        characterisation(method, GRAPHS, weight=2)
    with pytest.raises(GraphMaskError, match="of batch 5, with its edges"):
        sufficiency(method, GRAPHS, explanations[:-1])
    with pytest.raises(GraphMaskError, match="of batch 0, with its edges"):
        sufficiency(method, GRAPHS, explanations[::-1])
    with pytest.raises(GraphMaskError, match="as many explanations"):
        sufficiency(method, GRAPHS[:-1], explanations)
    with pytest.raises(GraphMaskError, match="spent iterator"):
        complement(method, [])


# Beside PyG ------------------------------------------------------------------------------------------------------


class Alike(Method):
    """The same edges at both layers, zero in place of the rest: what PyG's metrics can measure."""

    name = "alike"

    def choose(self, case: Case) -> Choice:
        return case.cut(case.uniform(1)[:1].expand(2, -1), 0.5)


def pyg(model: torch.nn.Module, mode: str = "multiclass_classification", method: Method | None = None) -> Explainer:
    method = method or Alike(model, divergence="auto", tolerance=0.1)
    config = ModelConfig(mode=mode, task_level="node", return_type="raw")
    return Explainer(model, GraphMaskAlgorithm(method, repair=False), "model", config, edge_mask_type="object")


def gcn(outputs: int = 3) -> GCN:
    torch.manual_seed(4)
    # Of self-loops PyG masks none that it adds by itself; nor do we.
    return GCN(5, 8, num_layers=2, out_channels=outputs).double().eval()


def nodes(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(20, (2, 60), generator=generator)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    return Data(x=3 * torch.randn(20, 5, generator=generator, dtype=torch.double), edge_index=edge_index)


def test_fidelity_coincides_with_pygs_on_a_gcn() -> None:
    model = gcn()
    explainer = pyg(model)
    method = explainer.algorithm.method
    found = []
    for seed in range(3):
        data = nodes(seed)
        explanation = explainer(data.x, data.edge_index).threshold("hard", 0.0)
        found.append(explanation)
        plus, minus = fidelity(explainer, explanation)
        assert value(complement(method, [data]), None, "zero", "flips") == pytest.approx(plus)
        assert value(sufficiency(method, [data]), None, "zero", "flips") == pytest.approx(minus)
        score = characterization_score(torch.tensor(plus), torch.tensor(minus), 0.75, 0.25)
        mine = characterisation(method, [data], weight=0.75)
        assert value(mine, None, "zero", "flips") == pytest.approx(float(score), abs=1e-6)
        assert 0 < plus < 1
    rows = pyg_metrics(explainer, found)
    plus, minus = (sum(column) / 3 for column in zip(*(fidelity(explainer, e) for e in found), strict=True))
    assert rows["metric"].to_list() == ["fidelity+", "fidelity-", "characterisation", "unfaithfulness"]
    assert rows["value"].to_list()[:2] == pytest.approx([plus, minus])
    assert rows["note"].to_list() == [""] * 4
    asked = explainer(data.x, data.edge_index, index=3).threshold("hard", 0.0)
    plus, minus = fidelity(explainer, asked)
    of_row = method.explain(data, index=3, repair=False)
    assert value(complement(method, [data], [of_row]), None, "zero", "flips") == plus
    assert value(sufficiency(method, [data], [of_row]), None, "zero", "flips") == minus


def test_where_pygs_metrics_do_not_apply_a_note_says_so() -> None:
    data = nodes()
    model = gcn(1)
    explainer = pyg(model, "regression", Alike(model, divergence="mse", tolerance=0.1))
    rows = pyg_metrics(explainer, [explainer(data.x, data.edge_index)])
    assert rows["value"].to_list() == [None] * 4
    assert "classes only" in rows["note"][0]
    explainer = pyg(model, "binary_classification")
    rows = pyg_metrics(explainer, [explainer(data.x, data.edge_index)])
    assert rows["value"].to_list()[3] is None
    assert "one logit" in rows["note"][3]
    assert rows["value"].to_list()[0] is not None

    class Relational(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = RGCNConv(5, 8, 2), RGCNConv(8, 3, 2)

        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)

    torch.manual_seed(0)
    data.edge_type = torch.arange(data.num_edges) % 2
    relational = Relational().double().eval()
    explainer = pyg(relational)
    explanation = explainer(data.x, data.edge_index, edge_type=data.edge_type)
    rows = pyg_metrics(explainer, [explanation])
    assert "relation by relation" in rows["note"][0]
    method = explainer.algorithm.method
    assert value(complement(method, [data]), None, "zero", "divergence") > 0
    with pytest.raises(AssertionError):
        fidelity(explainer, explanation)  # which leaves the model masked


# Against the truth -----------------------------------------------------------------------------------------------


def test_ground_truth_by_hand() -> None:
    explanations = [
        explanation_of([(0, 1), (1, 2), (2, 3), (3, 4)], [[0, 1], [1]]),
        explanation_of([(0, 1), (1, 0)], [[], []]),
    ]
    gold = [torch.tensor([True, False, True, False]), torch.tensor([False, False])]
    frame = ground_truth(explanations, gold)
    assert frame["average"].to_list() == ["micro", "mean"]
    # Kept anywhere: edges 0 and 1; true: 0 and 2. Scores .875 and .875 against .25, ..: 2.5 of 8 pairs are lost.
    micro = frame.row(0, named=True)
    assert (micro["precision"], micro["recall"], micro["f1"]) == pytest.approx((0.5, 0.5, 0.5))
    pairs = [(r > w) + 0.5 * (r == w) for r in (0.875, 0.25) for w in (0.875, 0.25, 0.25, 0.25)]
    assert micro["auc"] == pytest.approx(sum(pairs) / 8)
    mean = frame.row(1, named=True)
    assert (mean["precision"], mean["recall"], mean["f1"]) == pytest.approx((0.5, 0.5, 0.5))
    assert mean["auc"] == pytest.approx(0.5)
    layered = ground_truth(explanations[:1], [torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]]).bool()])
    assert layered["layer"].to_list() == [None, None, 0, 0, 1, 1]
    assert layered.filter(average="micro")["precision"].to_list() == pytest.approx([2 / 3, 0.5, 1.0])
    assert layered.filter(average="micro")["recall"].to_list() == pytest.approx([0.5, 0.5, 0.5])


def test_ground_truth_coincides_with_pygs() -> None:
    model = gcn()
    explainer = pyg(model, method=methods.get("occlusion")(model, divergence="kl"))
    data = nodes(2)
    explanation = explainer(data.x, data.edge_index)
    gold = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(0)) < 0.4
    own = explainer.algorithm.method.explain(data, repair=False)
    row = ground_truth([own], [gold]).row(0, named=True)
    kept = own.kept.any(0).float()
    names = ["recall", "precision", "f1_score"]
    assert [row["recall"], row["precision"], row["f1"]] == pytest.approx(
        list(groundtruth_metrics(kept, gold.long(), names)), abs=1e-6
    )
    area = groundtruth_metrics(own.scores.amax(0), gold.long(), "auroc")
    assert row["auc"] == pytest.approx(area, abs=1e-6)
    rows = pyg_metrics(explainer, [explanation], [gold])
    expected = groundtruth_metrics(explanation.edge_mask, gold.long())
    assert rows["value"].to_list()[4:] == pytest.approx(list(expected))


def test_ground_truth_bad_input() -> None:
    explanation = explanation_of([(0, 1), (1, 2)], [[0], [1]])
    right = torch.tensor([True, False])
    for gold, message in (
        ([right.long()], "bool of shape"),
        ([right[:1]], r"bool of shape \[2\] or \[2, 2\]"),
        ([right, right], "one gold per explanation"),
        ([], "one gold per explanation"),
    ):
        with pytest.raises(GraphMaskError, match=message):
            ground_truth([explanation], gold)
    with pytest.raises(GraphMaskError, match="found both"):
        ground_truth([explanation, explanation], [right, torch.ones(2, 2, dtype=torch.bool)])
    with pytest.raises(GraphMaskError, match="spent iterator"):
        ground_truth([], [])
