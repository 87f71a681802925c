"""The control: it keeps at its rate, whatever the graph."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch

from graphmask.methods.random_choice import RandomChoice
from reference.small import Small, graph

GRAPHS = [graph(seed, nodes=5, edges=10) for seed in range(300)]
BATCH = Batch.from_data_list(GRAPHS)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_the_share_kept_is_the_rate(rate: float) -> None:
    found = list(RandomChoice(Small(), rate=rate, seed=2).explain_all([BATCH], repair=False))
    kept = torch.cat([explanation.kept for explanation in found], 1).double()
    error = 3.5 * (rate * (1 - rate) / 3000) ** 0.5
    for site in range(2):
        assert float(kept[site].mean()) == pytest.approx(rate, abs=error)
    # One site says nothing of the other.
    assert float((kept[0] * kept[1]).mean()) == pytest.approx(rate**2, abs=0.03)
    per_graph = torch.tensor([explanation.retained for explanation in found]).double()
    assert float(per_graph.std()) == pytest.approx((rate * (1 - rate) / 20) ** 0.5, rel=0.2)


@pytest.mark.parametrize("rate", [0, 1])
def test_nothing_and_everything(rate: int) -> None:
    for explanation in RandomChoice(Small(), rate=rate).explain_all([Batch.from_data_list(GRAPHS[:5])], repair=False):
        assert explanation.retained == rate


def test_another_seed_is_another_choice() -> None:
    found = [RandomChoice(Small(), seed=seed).explain_all([BATCH], repair=False) for seed in (0, 0, 1)]
    kept = [torch.cat([e.kept for e in explanations], 1) for explanations in found]
    assert torch.equal(kept[0], kept[1])
    assert float((kept[0] == kept[2]).double().mean()) == pytest.approx(0.5, abs=0.03)
