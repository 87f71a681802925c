"""Occlusion against a loop that leaves out one message at a time."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch

from graphmask.explaining import case as module
from graphmask.methods.occlusion import Occlusion
from reference import methods as literal
from reference.small import Small, answer, constant, graph

GRAPHS = [graph(seed, nodes=4, edges=4 + seed % 4) for seed in range(5)]


@pytest.mark.parametrize("divergence", ["kl", "mse"])
@pytest.mark.parametrize("at_once", [256, 3, 1])
def test_one_message_at_a_time(divergence: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many candidates go through the model in one pass."""
    monkeypatch.setattr(module, "MOST_COPIES", at_once)
    model = Small()
    method = Occlusion(model, divergence=divergence)
    found = list(method.explain_all([Batch.from_data_list(GRAPHS[:3])], repair=False))
    found += [method.explain(data, repair=False) for data in GRAPHS[3:]]
    dropped, distance = 0, getattr(literal, divergence)
    for data, explanation in zip(GRAPHS, found, strict=True):
        original = answer(model, data, constant(data, 1.0))
        moved = torch.tensor(
            literal.occlusion(
                lambda z, d=data: answer(model, d, z), lambda y, o=original: distance(o, y), 2, data.num_edges
            )
        )
        expected = moved.double() / float(moved.max())
        assert torch.allclose(explanation.scores.double(), expected, atol=1e-5)
        assert torch.equal(explanation.kept, expected > 0.1)
        dropped += int((~explanation.kept).sum())
    assert 0 < dropped < 2 * sum(data.num_edges for data in GRAPHS)
