"""Modules that exchange values between nodes where GraphMask does not look are named when a fit begins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import DenseGCNConv, GCNConv

from graphmask import GraphMask, MessageTap, load
from graphmask.fitting.history import History
from graphmask.tapping.unseen import unseen
from reference.hasty import HASTY


class Mixed(nn.Module):
    """One layer that is seen, one that is not run, a dense one, attention over all nodes, a tap that is not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.seen, self.idle = GCNConv(4, 4), GCNConv(4, 4)
        self.dense, self.attention = DenseGCNConv(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.tap, self.out = MessageTap(), nn.Linear(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.seen(x, edge_index).relu()
        matrix = torch.ones(1, len(x), len(x))
        h = h + self.dense(h[None], matrix)[0]
        return self.out(h + self.attention(h[None], h[None], h[None], need_weights=False)[0][0])


UNSEEN = ("dense (DenseGCNConv)", "attention (MultiheadAttention)")


def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(x=torch.randn(6, 4, generator=generator), edge_index=torch.randint(6, (2, 12), generator=generator))


def test_they_are_named(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    explainer = GraphMask(Mixed().eval(), recipe=HASTY)
    history = explainer.fit([data()])
    assert history.sites == ("seen",)
    assert history.unseen == UNSEEN
    words = f"Not seen: what goes through {', '.join(UNSEEN)}. It passes as it is and is not explained"
    assert words in str(history)
    assert words in " ".join(capsys.readouterr().err.split())
    explainer.save(f"{tmp_path}/mixed.graphmask")
    assert load(f"{tmp_path}/mixed.graphmask", Mixed().eval()).history.unseen == UNSEEN


def test_where_all_are_seen_nothing_is_said() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(4, 2)

    assert unseen(Plain()) == ()
    assert History().not_seen == ""
    assert " and 2 more. It passes" in History(unseen=tuple("abcdefg")).not_seen
