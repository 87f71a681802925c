"""PGExplainer: its loss by hand, one mask for all sites, and training that gets somewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.methods.pg_explainer import PGExplainer
from laws.cases import BY_NAME
from laws.support import discover
from reference import toy
from reference.small import Small, answer, constant, graph

from .common import training

GRAPHS = [graph(seed, nodes=4, edges=5 + seed % 3) for seed in range(3)]
BATCH = Batch.from_data_list(GRAPHS)


def fitted(model: torch.nn.Module, loader: list[Batch], **options: object) -> PGExplainer:
    method = PGExplainer(model, **options)
    method.fit(loader, progress=False)
    return method


def locations(method: PGExplainer, batch: Batch) -> Tensor:
    """[E] of the last site, from the original run."""
    assert method.probe is not None
    seen = discover(method.model.eval(), batch)[1]
    return method.probe.gate(len(seen) - 1)(seen[-1]).detach()


def test_the_score_is_the_same_at_all_sites_and_comes_from_the_last() -> None:
    model = Small(layers=3)
    method = fitted(model, [BATCH], steps=30, learning_rate=0.03)
    found = list(method.explain_all([BATCH], repair=False))
    scores = torch.cat([explanation.scores for explanation in found], 1)
    assert scores.shape[0] == 3
    for site in range(3):
        assert torch.allclose(scores[site], torch.sigmoid(locations(method, BATCH)))
    assert float(scores.std()) > 0.01
    for explanation in found:
        assert torch.equal(explanation.kept, explanation.scores > 0.5)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_the_loss_by_hand(progress: float) -> None:
    model = Small()
    method = fitted(model, [BATCH], steps=2, size=0.7, entropy=0.2, temperature=(4.0, 0.5))
    assert method.probe is not None
    gamma = locations(method, BATCH).double().tolist()
    warmth = {0.0: 4.0, 0.5: math.sqrt(4.0 * 0.5), 1.0: 0.5}[progress]
    u = torch.rand(len(gamma), generator=torch.Generator().manual_seed(3)).double().tolist()
    z = [1 / (1 + math.exp(-(math.log(x) - math.log(1 - x) + g) / warmth)) for x, g in zip(u, gamma, strict=True)]
    first, loss = 0, 0.0
    for data in GRAPHS:
        mine = z[first : first + data.num_edges]
        first += data.num_edges
        pair = answer(model, data, constant(data, 1.0))[None], answer(model, data, [mine, mine])[None]
        loss += float(method.divergence.own_loss(*pair)) / len(GRAPHS)
    soft = [1 / (1 + math.exp(-g)) for g in gamma]
    for s in soft:
        loss += (0.7 * s - 0.2 * (s * math.log(s) + (1 - s) * math.log(1 - s))) / len(soft)
    method.generator.manual_seed(3)
    with training(method), torch.no_grad():
        assert float(method.loss(method.probe, method.subject, BATCH, progress)) == pytest.approx(loss, rel=1e-5)
        # As published the price is summed over the edges of each graph: every output row here is a graph.
        method.summed = True
        method.generator.manual_seed(3)
        loss += 0.7 * sum(soft) / len(GRAPHS) - 0.7 * sum(soft) / len(soft)
        assert float(method.loss(method.probe, method.subject, BATCH, progress)) == pytest.approx(loss, rel=1e-5)


def test_it_looks_at_nodes_not_at_messages() -> None:
    method = fitted(Small(), [BATCH], steps=1)
    assert method.probe is not None
    assert sorted(method.probe.gate(1).weights) == ["source", "target"]


def test_two_relations_between_the_same_nodes_are_told_apart() -> None:
    case = BY_NAME["RGCN"]
    method = fitted(case.model(), case.loader(), steps=20)
    data = case.graphs(1)[0]
    assert data.edge_index[:, 0].tolist() == data.edge_index[:, -2].tolist()
    assert int(data.edge_type[0]) != int(data.edge_type[-2])
    scores = method.explain(data, repair=False).scores[0]
    assert abs(float(scores[0] - scores[-2])) > 1e-3


def test_training_lowers_the_loss_and_finds_what_matters() -> None:
    loader = toy.loader(2, 16)

    def trained(steps: int) -> tuple[float, PGExplainer]:
        method = fitted(toy.Toy(), loader, steps=steps, learning_rate=1e-2)
        assert method.probe is not None
        method.generator.manual_seed(9)
        with training(method), torch.no_grad():
            return sum(
                float(method.loss(method.probe, method.subject, batch, 1.0)) for batch in loader * 10
            ) / 20, method

    (before, _), (after, method) = trained(0), trained(200)
    assert before > 1.1 * after
    needed, free = [], []
    for seed in range(500, 512):
        data = toy.graph(seed)
        explanation = method.explain(data, repair=False)
        # An edge is of use if a colour that counts is sent, or passed on by one that heard of it.
        source, target = data.edge_index
        coloured = (data.x[:, :2].sum(1) > 0).float()
        heard = torch.zeros_like(coloured).index_add(0, target, coloured[source])
        useful = (coloured[source] + heard[source]) > 0
        needed += explanation.scores[0][useful].tolist()
        free += explanation.scores[0][~useful].tolist()
    assert sum(needed) / len(needed) > 0.15 + sum(free) / len(free)
