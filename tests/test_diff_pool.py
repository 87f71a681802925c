"""DiffPool in its dense form: both products with the adjacency matrix go through taps (docs/other_models.md)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import dense_diff_pool

from graphmask import AdjacencyTap, GraphMask, masked
from laws.untouched import assert_same, snapshot
from reference.hasty import HASTY


class Pooled(nn.Module):
    """One layer, DiffPool, and a layer on clusters; ``plain`` pools with PyTorch Geometric's own function."""

    def __init__(self, size: int = 5, clusters: int = 3) -> None:
        super().__init__()
        self.embed, self.assign = nn.Linear(size, size), nn.Linear(size, clusters)
        self.layer, self.coarsen = AdjacencyTap(), AdjacencyTap()
        self.above, self.out = nn.Linear(size, size), nn.Linear(size, 2)

    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        x = torch.relu(x + self.layer(adjacency, self.embed(x)[:, None], x)[:, 0])
        s = self.assign(x).softmax(-1)
        return self.rest(s.mT @ self.coarsen(adjacency, s[:, None], x)[:, 0], s.mT @ x)

    def plain(self, adjacency: Tensor, x: Tensor) -> Tensor:
        x = torch.relu(x + adjacency[:, 0] @ self.embed(x))
        pooled, coarse, _, _ = dense_diff_pool(x, adjacency[:, 0], self.assign(x))
        return self.rest(coarse, pooled)

    def rest(self, coarse: Tensor, pooled: Tensor) -> Tensor:
        return self.out(torch.relu(self.above(coarse @ pooled)).mean(1))


def batch(seed: int, graphs: int = 3) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    adjacency = (torch.rand(graphs, 1, 6, 6, generator=draw) < 0.4).float()
    return {"adjacency": adjacency, "x": torch.randn(graphs, 6, 5, generator=draw)}


@pytest.fixture(scope="module")
def explainer() -> GraphMask:
    torch.manual_seed(0)
    found = GraphMask(Pooled().eval(), divergence="mse", tolerance=0.01, recipe=HASTY)
    found.fit([batch(0), batch(1)], progress=False)
    return found


def test_it_is_pygs_diff_pool() -> None:
    torch.manual_seed(1)
    model = Pooled().double()
    given = {name: value.double() for name, value in batch(2).items()}
    assert torch.allclose(model(**given), model.plain(**given), atol=1e-12)


def test_both_products_are_gated_and_the_claim_can_be_checked(explainer: GraphMask) -> None:
    data, before = batch(3), snapshot(explainer.model)
    found = list(explainer.explain_all([data], allow_infeasible=True))
    for number, explanation in enumerate(found):
        alone = {name: value[number : number + 1] for name, value in data.items()}
        assert explanation.sites == ("layer", "coarsen")
        assert explanation.carried.all()
        assert explanation.kept.shape[1] == int(alone["adjacency"].sum())
        assert explanation.faithful
        with masked(explainer.model, explanation) as model:
            output = model(**alone)
        assert torch.allclose(output, explanation.masked, atol=1e-5)
    assert_same(before, snapshot(explainer.model))


@pytest.mark.parametrize("site", [0, 1])
def test_a_dropped_entry_of_either_product_is_silent(explainer: GraphMask, site: int) -> None:
    """With all of a product dropped, the edges may be any others of the same receivers."""
    data = batch(4, graphs=1)
    with explainer.subject.frozen():
        case = explainer.case(data)
        gates = torch.ones_like(case.trace.carried)
        gates[site] = False
        without = case.run(gates, case.zeros())
    x = torch.relu(data["x"] + (0 if site == 0 else data["adjacency"][:, 0] @ explainer.model.embed(data["x"])))
    s = explainer.model.assign(x).softmax(-1)
    coarse = s.mT @ (data["adjacency"][:, 0] if site == 0 else torch.zeros(1, 6, 6)) @ s
    expected = explainer.model.rest(coarse, s.mT @ x)
    assert torch.allclose(without, expected, atol=1e-5)
