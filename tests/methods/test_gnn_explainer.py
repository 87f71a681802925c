"""GNNExplainer against PyTorch Geometric's on one layer, and against a loop over single gates on two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer
from torch_geometric.explain import GNNExplainer as PygGNNExplainer

from graphmask.methods.gnn_explainer import GNNExplainer
from reference import methods as literal
from reference.small import Small, answer, constant, graph

from .common import case_of

GRAPHS = [graph(seed, nodes=4, edges=5 + seed % 3) for seed in range(29)]


class FromHere(PygGNNExplainer):
    """PyG's, from a given start; the regularisation holds from the first step, as it does in the paper."""

    def __init__(self, start: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.start = start

    def _initialize_masks(self, x: Tensor, edge_index: Tensor) -> None:
        super()._initialize_masks(x, edge_index)
        self.edge_mask = torch.nn.Parameter(self.start.clone())
        self.hard_edge_mask = torch.ones_like(self.start, dtype=torch.bool)


def pyg(model: Small, data: Data, start: Tensor, steps: int, rate: float, size: float, entropy: float) -> Tensor:
    explainer = Explainer(
        model,
        FromHere(start, epochs=steps, lr=rate, edge_size=size, edge_ent=entropy),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"},
    )
    nobody = torch.zeros(data.num_nodes, dtype=torch.long)
    return explainer(data.x, data.edge_index, batch=nobody).edge_mask


#: Graphs of which half-open masks make the model surer of its answer than all messages do, and others.
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 9, 10, 13])
def test_one_layer_is_what_pyg_does(seed: int) -> None:
    model, data = Small(layers=1, seed=seed), GRAPHS[seed]
    method = GNNExplainer(model, steps=60, learning_rate=0.1, size=0.02, entropy=0.5)
    start = method.start(case_of(model, data))
    expected = pyg(model, data, start[0], 60, 0.1, 0.02, 0.5)
    assert torch.allclose(method.explain(data, repair=False).scores[0], expected, atol=1e-3)
    assert bool((expected > 0.5).any() and (expected < 0.5).any())


@pytest.mark.parametrize(("size", "entropy"), [(0.1, 1.0), (0.01, 0.1), (0.0, 0.0)])
@pytest.mark.parametrize("graphs", [(27, 28), (2, 3, 5)], ids=["as sure", "surer"])
def test_every_graph_as_if_alone(graphs: tuple[int, ...], size: float, entropy: float) -> None:
    model = Small()
    method = GNNExplainer(model, steps=25, learning_rate=0.1, size=size, entropy=entropy)
    some = [GRAPHS[number] for number in graphs]
    batch = Batch.from_data_list(some)
    start = method.start(case_of(model, batch))
    assert 0.02 < float(start.std()) < 0.3
    first = 0
    for data, found in zip(some, method.explain_all([batch], repair=False), strict=True):
        mine = start[:, first : first + data.num_edges]
        first += data.num_edges
        column = int(answer(model, data, constant(data, 1.0)).argmax())
        expected = literal.gnn_explainer(lambda z, d=data: answer(model, d, z), mine, column, 25, 0.1, size, entropy)
        assert torch.allclose(found.scores, expected, atol=1e-6)
        assert torch.equal(found.kept, expected > 0.5)
    assert first == start.shape[1]


def test_a_higher_price_closes_masks() -> None:
    sums = []
    for size in (0.0, 0.05, 1.0):
        method = GNNExplainer(Small(), steps=60, size=size)
        found = method.explain_all([Batch.from_data_list(GRAPHS[:8])], repair=False)
        sums.append(sum(float(e.scores.sum()) for e in found))
    assert sums[0] > 1.1 * sums[1] > 1.2 * sums[2]


def test_a_regression_keeps_its_value() -> None:
    """Without a price the masks go where the output is the original's."""
    method = GNNExplainer(Small(outputs=1), divergence="mse", steps=100, size=0.0, entropy=0.0)
    model = Small(outputs=1)
    for data in GRAPHS[:2]:
        found = method.explain(data, repair=False)
        original, soft = answer(model, data, constant(data, 1.0)), answer(model, data, found.scores)
        half = answer(model, data, constant(data, 0.5))
        assert literal.mse(original, soft) < 0.05 * literal.mse(original, half)
