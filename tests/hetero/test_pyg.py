"""Heterogeneous graphs through PyG's own Explainer."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.explain import Explainer, HeteroExplanation, ModelConfig

from graphmask import GraphMask, GraphMaskError, methods
from graphmask.integrations.pyg import GraphMaskAlgorithm

from .test_known_answer import CITES, GRAPHS, PRINTS, WRITES, trained

CONFIG = ModelConfig(mode="multiclass_classification", task_level="node", return_type="raw")


@pytest.mark.parametrize("index", [None, 2])
def test_explainer(index: int | None) -> None:
    model, _ = trained()
    method = methods.get("integrated_gradients")(model)
    explainer = Explainer(model, GraphMaskAlgorithm(method), "model", CONFIG, edge_mask_type="object")
    data = GRAPHS[0]
    found = explainer(data.x_dict, data.edge_index_dict, index=index)
    assert isinstance(found, HeteroExplanation)
    own = method.explain(data, index=index)
    for kind in (WRITES, PRINTS, CITES):
        assert torch.equal(found[kind].edge_index, data[kind].edge_index)
        part = own[kind]  # type: ignore[index]
        assert torch.equal(found[kind].site_mask, part.scores.t())
        assert torch.equal(found[kind].edge_mask > 0, part.kept.any(0))
        if index is not None:  # one layer: only what arrives there
            assert bool((data[kind].edge_index[1][part.carried.any(0)] == index).all())
    assert found.divergence == pytest.approx(own.divergence)
    assert found.validate()
    assert found.get_explanation_subgraph()[CITES].edge_index.shape[1] == int((found[CITES].edge_mask > 0).sum())


def test_types_that_were_not_there() -> None:
    model, train = trained()
    method = GraphMask(model)
    method.fit(train[:2], epochs=1, progress=False)
    explainer = Explainer(
        model, GraphMaskAlgorithm(method, allow_infeasible=True), "model", CONFIG, edge_mask_type="object"
    )
    data = GRAPHS[0]
    with pytest.raises(GraphMaskError, match="sells"):
        explainer(data.x_dict, {**data.edge_index_dict, ("venue", "sells", "paper"): data[PRINTS].edge_index})
