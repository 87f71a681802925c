"""A task whose answer is known: of three edge types, one decides."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, HeteroData

from graphmask import GraphMask, HeteroExplanation, methods

WRITES, PRINTS, CITES = ("author", "writes", "paper"), ("venue", "prints", "paper"), ("paper", "cites", "paper")
RED, BLUE, GREY = range(3)


def citations(seed: int, papers: int = 6) -> HeteroData:
    """Has a paper more red authors than blue? All nodes have colours; those of venues and cited papers mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind, count in (("paper", papers), ("author", 12), ("venue", 5)):
        data[kind].x = torch.eye(3)[torch.randint(3, (count,), generator=generator)]
    for kind, count in ((WRITES, 24), (PRINTS, 18), (CITES, 18)):
        sizes = len(data[kind[0]].x), papers
        data[kind].edge_index = torch.stack([torch.randint(size, (count,), generator=generator) for size in sizes])
    author, paper = data[WRITES].edge_index
    colour = data["author"].x[author]
    data["paper"].y = (torch.zeros(papers).index_add(0, paper, colour[:, RED] - colour[:, BLUE]) > 0).long()
    return data


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.HeteroConv({kind: pyg.SAGEConv((3, 3), 16, aggr="sum") for kind in (WRITES, PRINTS, CITES)})
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.out(self.conv(x_dict, edge_index_dict)["paper"])


@cache
def trained() -> tuple[Reader, list[HeteroData]]:
    torch.manual_seed(0)
    train = [Batch.from_data_list([citations(32 * b + g) for g in range(32)]) for b in range(10)]
    with pytest.warns(UserWarning, match="do not get updated"):  # PyG: authors and venues receive nothing
        model = Reader()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        for batch in train:
            loss = F.cross_entropy(model(batch.x_dict, batch.edge_index_dict), batch["paper"].y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval(), train


GRAPHS = [citations(10_000 + number) for number in range(50)]


def gold(data: HeteroData) -> Tensor:
    """bool [E]: written by a red or a blue author."""
    colour = data["author"].x.argmax(1)[data[WRITES].edge_index[0]]
    return torch.cat([colour != GREY, torch.zeros(data[PRINTS].num_edges + data[CITES].num_edges, dtype=torch.bool)])


def figures(explanations: list[HeteroExplanation]) -> tuple[float, float]:
    kept = torch.cat([explanation.kept.any(0) for explanation in explanations])
    right = torch.cat([gold(data) for data in GRAPHS])
    return float((kept & right).sum() / kept.sum()), float((kept & right).sum() / right.sum())


def test_the_type_that_decides_is_kept_and_the_others_are_dropped() -> None:
    model, train = trained()
    test = Batch.from_data_list(GRAPHS)
    assert float((model(test.x_dict, test.edge_index_dict).argmax(1) == test["paper"].y).float().mean()) >= 0.99
    explainer = GraphMask(model)
    history = explainer.fit(train, epochs=20, progress=False)
    assert history.feasible
    found = list(explainer.explain_all([test]))
    assert figures(found) == (1.0, 1.0)
    assert [explanation.retained_by_type[PRINTS] for explanation in found] == [0.0] * 50
    assert [explanation.retained_by_type[CITES] for explanation in found] == [0.0] * 50
    assert all(explanation.faithful and explanation.same_prediction for explanation in found)
    assert float(torch.cat([explanation[WRITES].kept[0] for explanation in found]).float().mean()) == pytest.approx(
        float(torch.cat([gold(data)[:24] for data in GRAPHS]).float().mean())
    )


def test_the_model_needs_that_type_and_no_other() -> None:
    """The gold, by running the model: without the others nothing changes, without it the answer is lost."""
    model = copy.deepcopy(trained()[0]).requires_grad_(False)
    lost = 0
    for data in GRAPHS[:10]:
        original = model(data.x_dict, data.edge_index_dict).log_softmax(-1)

        def moved(*kinds: Any, data: HeteroData = data, original: Tensor = original) -> float:
            some = {k: v if k in kinds else v[:, :0] for k, v in data.edge_index_dict.items()}
            other = model(data.x_dict, some).log_softmax(-1)
            return float((original.exp() * (original - other)).sum(-1).mean())

        assert moved(WRITES) < 0.01
        lost += moved(PRINTS, CITES) > 1  # not where few papers have more red authors: no author looks the same
    assert lost >= 7


def test_integrated_gradients_and_random() -> None:
    model, _ = trained()
    batch = Batch.from_data_list(GRAPHS)
    gradients = methods.get("integrated_gradients")(model, steps=8).explain_all([batch], repair=False)
    precision, recall = figures(list(gradients))
    assert precision > 0.9
    assert recall > 0.9
    chance = list(methods.get("random")(model, rate=0.5).explain_all([batch], repair=False))
    share = float(torch.cat([gold(data) for data in GRAPHS]).float().mean())
    assert figures(chance) == (pytest.approx(share, abs=0.05), pytest.approx(0.5, abs=0.05))
    assert sum(explanation.faithful for explanation in chance) <= 25
