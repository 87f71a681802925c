"""Gates on input features: known answers, the laws of messages, files, pages, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from graphmask import Explanation, GraphMask, GraphMaskError, load, masked
from graphmask.fitting.recipe import RECIPES
from graphmask.tapping.features import KINDS, FeatureTap, put_baseline
from laws.untouched import assert_same, snapshot
from reference import columns
from reference.hasty import HASTY

GRAPHS = [columns.graph(90_000 + number) for number in range(12)]
TOGETHER = Batch.from_data_list(GRAPHS)


def fitted(kind: str, recipe: Any = HASTY, seed: int = 0) -> GraphMask:
    explainer = GraphMask(
        columns.model_of(kind), divergence="mse", tolerance=0.05, recipe=recipe, seed=seed, features=kind
    )
    explainer.fit(columns.loader(), progress=False)
    return explainer


def alone(data: Data) -> Data:
    """With what the model's signature asks for."""
    data = data.clone()
    data.batch = torch.zeros(data.num_nodes, dtype=torch.long)
    return data


def arguments(kind: str, data: Data) -> dict[str, Tensor]:
    names = ("x", "edge_index", "batch", *(("edge_attr",) if kind == "edges" else ()))
    return {name: alone(data)[name] for name in names}


@pytest.fixture(scope="module", params=list(KINDS))
def hasty(request: pytest.FixtureRequest) -> GraphMask:
    """Fitted for six steps: what it keeps is arbitrary, and all laws hold of it."""
    return fitted(request.param)


# Known answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_model_cannot_read_is_dropped_and_the_rest_kept(kind: str) -> None:
    explainer = fitted(kind, replace(RECIPES["noisy"], steps=300))
    for data, found in zip(GRAPHS, explainer.explain_all([TOGETHER], repair=False), strict=True):
        assert found.features is not None
        assert torch.equal(found.features.kept, columns.used(kind, data))
        assert found.faithful


def test_the_definition() -> None:
    x, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([-1.0, -2.0])
    rows = put_baseline("nodes", x, torch.tensor([True, False]), b)
    assert rows.tolist() == [[1.0, 2.0], [-1.0, -2.0]]
    numbers = put_baseline("each", x, torch.tensor([True, False, False, True]), b)
    assert numbers.tolist() == [[1.0, -2.0], [-1.0, 4.0]]
    soft = put_baseline("each", x, torch.tensor([1.0, 0.5, 0.25, 0.0]), b)
    assert soft.tolist() == [[1.0, 0.0], [0.0, -2.0]]
    assert put_baseline("nodes", x, torch.tensor([0.5, 0.0]), b).tolist() == [[0.0, 0.0], [-1.0, -2.0]]


# Laws ----------------------------------------------------------------------------------------------------------


def test_the_user_gets_the_same_by_running_the_masked_model(hasty: GraphMask) -> None:
    for repair in (False, True):
        for data, found in zip(
            GRAPHS[:4], hasty.explain_all([TOGETHER], repair=repair, allow_infeasible=True), strict=False
        ):
            kind = found.features.kind
            with masked(hasty.model, found):
                output = hasty.model(**arguments(kind, data))
                inputs = arguments(kind, found.features.masked(alone(data)))
                again = hasty.model(**inputs)
            torch.testing.assert_close(output, found.masked, rtol=1e-5, atol=1e-5)
            assert torch.equal(again, output)
            value, before = inputs[found.features.attribute], alone(data)[found.features.attribute]
            shut = ~found.features.kept if kind == "each" else (~found.features.kept)[:, None].expand_as(before)
            assert torch.equal(value[~shut], before[~shut])
            assert torch.equal(value[shut], found.features.baseline.expand_as(before)[shut])
            if repair:
                assert found.faithful


def test_with_all_gates_open_nothing_changes(hasty: GraphMask) -> None:
    with hasty.subject.frozen():
        case = hasty.case(TOGETHER)
        output = case.run(torch.ones_like(case.trace.carried), case.zeros())
    assert torch.equal(output, case.trace.output)


def test_batching_graphs_together_changes_no_explanation(hasty: GraphMask) -> None:
    together = hasty.explain_all([TOGETHER], repair=False, allow_infeasible=True)
    for data, found in zip(GRAPHS, together, strict=True):
        one = hasty.explain(alone(data), repair=False, allow_infeasible=True)
        assert torch.equal(one.features.kept, found.features.kept)
        assert torch.equal(one.kept, found.kept)
        torch.testing.assert_close(one.features.scores, found.features.scores)
        assert one.kept.shape == (1, data.num_edges)
        assert one.sites == ("layer",)


def test_the_model_and_the_data_leave_as_they_came(hasty: GraphMask) -> None:
    data = alone(GRAPHS[0])
    before, numbers = snapshot(hasty.model), data.clone()
    found = hasty.explain(data, allow_infeasible=True)
    with masked(hasty.model, found):
        pass
    assert_same(before, snapshot(hasty.model))
    assert data.keys() == numbers.keys()
    assert all(torch.equal(data[key], numbers[key]) for key in numbers.keys())  # noqa: SIM118
    assert hasty.subject.features.handler is None


def test_gates_see_the_features_and_nothing_else(hasty: GraphMask) -> None:
    """No look-ahead: other edges, and other weights above, leave them alone."""
    data = alone(GRAPHS[1])
    before = hasty.explain(data, repair=False, allow_infeasible=True).features.scores
    with torch.no_grad():
        hasty.model.scale.mul_(3.0)
        with pytest.warns(UserWarning, match="weights have changed"):
            after = hasty.explain(data, repair=False, allow_infeasible=True).features.scores
        hasty.model.scale.div_(3.0)
    assert torch.equal(before, after)


def test_files_keep_it(hasty: GraphMask, tmp_path: Path) -> None:
    data = alone(GRAPHS[2])
    found = hasty.explain(data, counterfactual=True, allow_infeasible=True)
    found.save(tmp_path / "one")
    again = Explanation.load(tmp_path / "one")
    hasty.save(tmp_path / "fit")
    loaded = load(tmp_path / "fit", hasty.model).explain(data, allow_infeasible=True)
    for other in (again, loaded):
        assert other.features.kind == found.features.kind
        for name in ("kept", "scores", "carried", "baseline"):
            assert torch.equal(getattr(other.features, name), getattr(found.features, name))
    assert repr(again) == repr(found)
    mine, theirs = found.features.counterfactual, again.features.counterfactual
    assert (mine is None) == (theirs is None)
    assert mine is None or torch.equal(mine, theirs)


def test_one_row_alone() -> None:
    """Of a node model, features of nodes from which the row cannot be reached are neither kept nor counted."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = columns.Sum(), nn.Parameter(torch.ones(columns.COLUMNS))
            self.eval()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.layer(x * self.scale, edge_index)

    data = Data(x=columns.graph(5, nodes=5).x, edge_index=torch.tensor([[0, 1, 3], [1, 2, 4]]))
    explainer = GraphMask(Rows(), divergence="mse", recipe=HASTY, features="nodes")
    explainer.fit([data], progress=False)
    found = explainer.explain(data, index=2, allow_infeasible=True)
    assert found.features.carried.tolist() == [False, True, True, False, False]
    assert not (found.features.kept & ~found.features.carried).any()
    assert found.carried.tolist() == [[False, True, False]]


# Shown -----------------------------------------------------------------------------------------------------------


def test_it_is_shown(hasty: GraphMask, tmp_path: Path) -> None:
    found = hasty.explain(alone(GRAPHS[3]), allow_infeasible=True)
    features = found.features
    kept, carried = int(features.kept.sum()), int(features.carried.sum())
    of = {"nodes": "nodes", "each": "numbers", "edges": "edges"}[features.kind]
    assert f"kept {features.attribute} {kept}/{carried} {of}, layer " in repr(found)
    assert f"{kept:,} of {carried:,}" in found._repr_html_()
    page = found.to_html(tmp_path / "page.html").read_text()
    assert f"{features.attribute}: {kept:,} of {carried:,} {of} kept" in page
    frame = features.to_pandas()
    assert len(frame) == features.kept.numel()
    assert frame["kept"].tolist() == features.kept.flatten().tolist()
    last = frame.iloc[-1]
    if features.kind == "each":
        assert (last["node"], last["column"]) == (GRAPHS[3].num_nodes - 1, columns.COLUMNS - 1)
    if features.attribute == "x":
        assert torch.equal(found.to_pyg().node_mask.flatten(), features.scores.flatten())


# Batches that are not Data, and what is refused ------------------------------------------------------------------


def test_other_kinds_of_batches_are_copied_not_changed() -> None:
    tap, data = FeatureTap("nodes"), alone(GRAPHS[0])
    tap.handler = torch.zeros_like

    class Plain:
        def __init__(self) -> None:
            self.x, self.edge_index = data.x, data.edge_index

    mapping, pair, other = {"x": data.x, "edge_index": data.edge_index}, (data.x, data.edge_index), Plain()
    before = data.x.clone()
    assert not tap(mapping)["x"].any()
    assert not tap(pair)[0].any()
    assert tap(pair)[1] is data.edge_index
    assert not tap(other).x.any()
    assert not tap(data).x.any()
    for kept in (mapping["x"], pair[0], other.x, data.x):
        assert torch.equal(kept, before)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphMaskError, match="Expected features to be 'nodes', 'each', 'edges' or None, got 'columns'"):
        GraphMask(columns.NodeColumns(), features="columns")
    explainer = GraphMask(columns.NodeColumns(), divergence="mse", features="nodes")
    data = alone(GRAPHS[0])
    data.x = torch.ones(data.num_nodes, 5, dtype=torch.long)
    with pytest.raises(GraphMaskError, match=r"floating point 'x' with a row per node .* got torch.int64"):
        explainer.fit([data], progress=False)
    typed = HeteroData()
    typed["a"].x = torch.randn(3, 2)
    typed["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(GraphMaskError, match="one type of nodes"):
        explainer.fit([typed], progress=False)
    bare = GraphMask(columns.EdgeColumns(), divergence="mse", features="edges")
    with pytest.raises(GraphMaskError, match=r"'edge_attr' with a row per edge .* got none"):
        bare.fit([Data(x=data.x.float(), edge_index=data.edge_index)], progress=False)
    ready = fitted("nodes")
    with pytest.raises(GraphMaskError, match="a store does not keep them"):
        ready.explain_all([TOGETHER], out=tmp_path / "store", allow_infeasible=True)
    found = ready.explain(alone(GRAPHS[0]), allow_infeasible=True)
    with masked(ready.model, found), pytest.raises(GraphMaskError, match="'x' with 7 rows, as explained, got"):
        ready.model(**arguments("nodes", columns.graph(3, nodes=4)))
