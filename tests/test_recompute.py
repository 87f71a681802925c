"""Fitting in less memory: what is overwritten or computed again gives the same gradients, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, RGCNConv, SAGEConv

from graphmask import GraphMask
from graphmask.experiments.bench.memory import peak_bytes
from graphmask.gates import networks as gates
from graphmask.gates.passes import Passes
from graphmask.gates.probe import Probe
from graphmask.tapping import layers
from graphmask.tapping.subject import Subject

WIDTH = 6


def layer(kind: str) -> nn.Module:
    if kind == "GAT":
        return GATConv(WIDTH, WIDTH // 2, heads=2, dropout=0.3)
    if kind == "RGCN":
        return RGCNConv(WIDTH, WIDTH, num_relations=3)
    if kind in ("GIN", "GINE"):
        inner = nn.Linear(WIDTH, WIDTH)
        return GINConv(inner) if kind == "GIN" else GINEConv(inner, edge_dim=2)
    return {"GCN": GCNConv, "SAGE": SAGEConv}[kind](WIDTH, WIDTH)


class Net(nn.Module):
    """Three runs of message passing; the middle layer is used twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.second = kind, layer(kind), layer(kind)
        self.dropout = nn.Dropout(0.2)
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
        extra = {"RGCN": (edge_type,), "GINE": (edge_attr,)}.get(self.kind, ())
        for conv in (self.first, self.second, self.second):
            x = self.dropout(conv(x, edge_index, *extra)).tanh()
        return x


def graph(nodes: int = 15, edges: int = 70) -> Data:
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(nodes, WIDTH, generator=g, dtype=torch.double),
        edge_index=torch.randint(nodes, (2, edges), generator=g),
        edge_type=torch.randint(3, (edges,), generator=g),
        edge_attr=torch.randn(edges, 2, generator=g, dtype=torch.double),
    )


def gradients(model: Net, data: Data, *, recompute: bool) -> list[Tensor]:
    """Of a step's masked output, by every parameter of gates and baselines."""
    subject = Subject(model)

    def check_nobody_is_told() -> None:
        assert subject.hooks.known is not None
        assert subject.hooks.known.tap is None
        assert not any("forward" in vars(module) for module in model.modules())
        assert len(model.first._forward_pre_hooks) == 1  # which stays for the next tap

    with subject.frozen(training=True):
        torch.manual_seed(2)
        probe, _ = Probe.discover(subject, data, 8, 0)
        probe.double()
        torch.manual_seed(3)
        passes = Passes(probe, subject, recompute=recompute)
        _, masked, _ = passes.both(data, lambda location, _: location.sigmoid())
        check_nobody_is_told()
        (masked * torch.arange(masked.numel()).view_as(masked)).sum().backward()
        check_nobody_is_told()
        found = [p.grad for p in probe.parameters() if p.grad is not None]
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert len(found) > 10
    return found


@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GIN", "GINE", "GAT", "RGCN"])
def test_gradients_are_those_of_a_run_that_keeps_everything(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "TRAIN_EDGES", 16)  # some edges are trained: the messages of others may be overwritten
    model, data = Net(kind), graph()
    thrifty, again = gradients(model, data, recompute=False), gradients(model, data, recompute=True)
    monkeypatch.setattr(layers, "is_fresh", lambda *_: False)
    plain = gradients(model, data, recompute=False)
    for ours, theirs, expected in zip(thrifty, again, plain, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-12)
        assert torch.allclose(theirs, expected, rtol=1e-9, atol=1e-12)


def test_a_fit_that_recomputes_is_the_same_fit_in_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "TRAIN_EDGES", 256)
    model, data = Net("GAT"), graph(50, 2000)
    fits = [GraphMask(model, divergence="mse", hidden=4, recompute=recompute) for recompute in (False, True)]
    for explainer in fits:
        explainer.fit([data], epochs=3, progress=False)
    kept, again = (explainer.probe.state_dict() for explainer in fits)  # type: ignore[union-attr]
    assert kept.keys() == again.keys()
    assert all(torch.allclose(kept[key], again[key], rtol=1e-6, atol=1e-9) for key in kept)

    def step(explainer: GraphMask) -> None:
        assert explainer.probe is not None
        with explainer.subject.frozen(training=True):
            passes = Passes(explainer.probe, explainer.subject, recompute=explainer.recompute)
            passes.both(data, lambda at, _: at.sigmoid())[1].sum().backward()

    assert peak_bytes(lambda: step(fits[1])) < 0.8 * peak_bytes(lambda: step(fits[0]))
