"""EiG-Search against a loop over edges and prefixes."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch

from graphmask import GraphMaskError
from graphmask.explaining import case as module
from graphmask.methods.eig_search import EiGSearch
from reference import methods as literal
from reference.small import Small, answer, constant, graph

GRAPHS = [graph(seed, nodes=5, edges=6 + seed) for seed in range(5)]


@pytest.mark.parametrize("at_once", [256, 3])
@pytest.mark.parametrize(("sparsity", "least"), [(0.7, 2), (0.0, 1), (0.3, 3)])
def test_every_edge_and_every_prefix(
    sparsity: float, least: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COPIES", at_once)
    model = Small()
    method = EiGSearch(model, sparsity=sparsity, least=least)
    found = list(method.explain_all([Batch.from_data_list(GRAPHS[:3])], repair=False))
    found += [method.explain(data, repair=False) for data in GRAPHS[3:]]
    sizes = set()
    for data, explanation in zip(GRAPHS, found, strict=True):
        column = int(answer(model, data, constant(data, 1.0)).argmax())
        slopes, best = literal.eig_search(
            lambda z, d=data: answer(model, d, z),
            lambda y, c=column: float(torch.log_softmax(y, 0)[c]),
            2,
            data.num_edges,
            sparsity,
            least,
        )
        positive = torch.tensor(slopes).clamp_min(0)
        expected = (positive / positive.max()).double().expand(2, -1)
        assert torch.allclose(explanation.scores.double(), expected, atol=1e-5)
        assert [set(row.nonzero().view(-1).tolist()) for row in explanation.kept] == [best, best]
        sizes.add(len(best))
    assert len(sizes) > 1 or sparsity == 0.7


def test_settings_are_checked() -> None:
    with pytest.raises(GraphMaskError, match="a sparsity from 0 to below 1, got 1"):
        EiGSearch(Small(), sparsity=1)
    with pytest.raises(GraphMaskError, match="at least one edge, got 0"):
        EiGSearch(Small(), least=0)
