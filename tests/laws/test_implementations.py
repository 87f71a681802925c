"""Law 7: two implementations of the same function get the same explanation, up to training noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

from graphmask import Explanation, GraphMask
from graphmask.fitting.training import Recipe

from .cases import RELATIONS, WIDTH, Net, SumLayer, TapLayer, random_graph
from .support import run


def graph(seed: int) -> Data:
    """All messages are of one size, so that none can be dropped for being small."""
    data = random_graph(seed)
    data.x = data.x.sign()
    return data


def network(layer: Callable[[], nn.Module], layers: int) -> Net:
    """Relation 1 alone matters in every layer: what must be kept is known."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Net([layer() for _ in range(layers)], ["edge_type"], pooled=False).eval()
    with torch.no_grad():
        for conv in model.convs:
            conv.weight *= 2.0 * (torch.arange(RELATIONS) == 1)[:, None, None]
        model.head.weight *= 4
    return model


def explained(model: nn.Module) -> list[Explanation]:
    loader = [Batch.from_data_list([graph(8 * b + i) for i in range(8)]) for b in range(8)]
    explainer = GraphMask(model, recipe=Recipe(steps=200), tolerance=0.01)
    assert explainer.fit(loader, progress=False).feasible
    return list(explainer.explain_all([Batch.from_data_list([graph(5000 + i) for i in range(16)])]))


def agreement(a: list[Explanation], b: list[Explanation]) -> float:
    same = torch.cat([(x.kept == y.kept).flatten() for x, y in zip(a, b, strict=True)])
    return float(same.float().mean())


def test_relation_by_relation_or_all_at_once() -> None:
    """RGCNConv sends raw states, relation by relation; FastRGCNConv sends transformed ones, together."""
    slow = network(lambda: pyg.RGCNConv(WIDTH, WIDTH, RELATIONS, aggr="add"), 1)
    fast = network(lambda: pyg.FastRGCNConv(WIDTH, WIDTH, RELATIONS, aggr="add"), 1)
    fast.load_state_dict(slow.state_dict())
    assert torch.allclose(run(slow, graph(0)), run(fast, graph(0)), atol=1e-5)
    a, b = explained(slow), explained(fast)
    assert agreement(a, b) >= 0.99
    kept = torch.cat([explanation.kept[0] for explanation in (*a, *b)])
    gold = torch.cat([explanation.edge_type == 1 for explanation in (*a, *b)])
    assert float((kept == gold).float().mean()) >= 0.99


def test_message_passing_or_a_tap() -> None:
    theirs = network(SumLayer, 2)
    ours = network(TapLayer, 2)
    ours.load_state_dict(theirs.state_dict())
    assert torch.allclose(run(theirs, graph(0)), run(ours, graph(0)), atol=1e-6)
    a, b = explained(theirs), explained(ours)
    assert agreement(a, b) >= 0.99
    assert [x.divergence for x in a] == pytest.approx([y.divergence for y in b], abs=1e-3)
    kept = torch.cat([explanation.kept for explanation in a], 1)
    assert 0.1 < float(kept.float().mean()) < 0.9
