"""Law 7: dropped means silent. Nothing about a dropped edge reaches the masked output, but that it exists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch

from graphmask import batches, masking
from graphmask.capture import Tap
from graphmask.sites import Site, StandIn

from .cases import BY_NAME, CASES, RELATIONS, Case, Net
from .support import discover, drawn, run

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def masked(model: nn.Module, batch: Any, state: Tap, gates: Tensor, baselines: list[Tensor], **options: Any) -> Tensor:
    sites: tuple[Site, ...] = options.pop("sites", tuple(state.sites))
    edges = batches.edge_index_of(batch)
    edges = state.edge_map.edge_index if edges is None else edges
    with torch.no_grad():
        return masking.run(model, batches.default_forward, batch, edges, sites, gates, baselines, **options)


def heard(model: nn.Module, batch: Any, state: Tap, baselines: list[Tensor], sites: tuple[Site, ...]) -> float:
    """How far the output moves when dropped edges exchange what every layer sees of them."""
    generator = torch.Generator().manual_seed(1)
    gates = torch.rand(len(sites), state.edge_map.count, generator=generator) < 0.5
    alone = masked(model, batch, state, gates, baselines, sites=sites)
    moved = [
        masked(model, batch, state, gates, baselines, sites=sites, exchange=torch.Generator().manual_seed(seed)) - alone
        for seed in range(3)
    ]
    return float(torch.stack(moved).abs().max())


@every_case
def test_dropped_edges_exchange_their_content_and_nothing_happens(case: Case) -> None:
    model, batch = case.model(), case.loader()[0]
    state, _ = discover(model, batch)
    assert heard(model, batch, state, drawn(state, torch.Generator().manual_seed(0)), tuple(state.sites)) <= 1e-6


@pytest.mark.parametrize(
    "name", ["RGCN", "RGCN blocks", "FastRGCN", "FiLM relations", "GAT", "GATv2", "Transformer", "AGNN", "RGAT", "GCN"]
)
def test_constants_in_place_of_messages_alone_are_not_silence(name: str) -> None:
    """As it once was: the same check fails, so it can."""
    model, batch = BY_NAME[name].model(), BY_NAME[name].loader()[0]
    state, seen = discover(model, batch)
    widths = {messages.site: messages.flat().shape[1] for messages in seen}
    sites = tuple(replace(site, stand_in=StandIn(widths[number])) for number, site in enumerate(state.sites))
    baselines = [torch.ones(widths[number]) for number in range(len(sites))]
    assert heard(model, batch, state, baselines, sites) > 1e-3


def other_content(batch: Any, dropped: Tensor) -> Any:
    """Other relations, attributes and weights at these edges."""
    other = batch.clone()
    other.edge_type = torch.where(dropped, (batch.edge_type + 1) % RELATIONS, batch.edge_type)
    other.edge_attr = torch.where(dropped[:, None], batch.edge_attr.flip(0) + 1, batch.edge_attr)
    other.edge_weight = torch.where(dropped, batch.edge_weight.flip(0) + 1, batch.edge_weight)
    return other


@pytest.mark.parametrize("case", [c for c in CASES if c.batch == Batch.from_data_list], ids=lambda case: case.name)
def test_attributes_of_edges_that_no_layer_keeps(case: Case) -> None:
    """The data themselves are changed, nothing inside the model."""
    model, batch = case.model(), case.loader()[0]
    if "edge_type" not in batch or "edge_attr" not in batch:
        pytest.skip("graphs without attributes")
    state, _ = discover(model, batch)
    generator = torch.Generator().manual_seed(0)
    baselines = drawn(state, generator)
    dropped = torch.rand(state.edge_map.count, generator=generator) < 0.5
    gates = (~dropped).expand(len(state.sites), -1)
    before = masked(model, batch, state, gates, baselines)
    after = masked(model, other_content(batch, dropped), state, gates, baselines)
    assert float((after - before).abs().max()) <= 1e-6
    if set(getattr(model, "uses", ())) & {"edge_type", "edge_attr", "edge_weight"}:
        everything = torch.ones_like(gates)
        moved = masked(model, other_content(batch, dropped), state, everything, baselines) - run(model, batch)
        assert float(moved.abs().max()) > 1e-3


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name not in ("GPS", "AntiSymmetric") and isinstance(case.model(), Net)],
    ids=lambda case: case.name,
)
def test_a_sender_all_of_whose_messages_are_dropped(case: Case) -> None:
    """One layer: another state of a node that sends nothing is noticed by that node alone."""
    if case.batch != Batch.from_data_list:
        pytest.skip("not a list of edges")
    model = case.model()
    assert isinstance(model, Net)
    model.convs, model.pooled = model.convs[:1], False
    batch = case.loader()[0]
    state, _ = discover(model, batch)
    baselines = drawn(state, torch.Generator().manual_seed(0))
    assert state.edge_map.edge_index is not None
    source, target = state.edge_map.edge_index
    loudest = 0.0
    for node in range(len(batch.x)):
        sends = torch.zeros_like(source, dtype=torch.bool)
        for site in state.sites:
            sends |= (target if site.reverse else source) == node
        other = batch.clone()
        other.x = batch.x.clone()
        other.x[node] = -2 * batch.x[node] + 1
        others = torch.arange(len(batch.x)) != node
        gates = (~sends).expand(len(state.sites), -1)
        moved = masked(model, other, state, gates, baselines) - masked(model, batch, state, gates, baselines)
        assert float(moved[others].abs().max()) <= 1e-6
        loudest = max(loudest, float((run(model, other) - run(model, batch))[others].abs().max()))
    assert loudest > 1e-3


def test_layers_that_compute_a_softmax_elsewhere_are_left_alone() -> None:
    """The name is restored, also after an error, and other models run as before while one is tapped."""
    from torch_geometric.nn.conv import gat_conv
    from torch_geometric.utils import softmax

    case, other = BY_NAME["GAT"], pyg.GATConv(8, 8)
    model, batch = case.model(), case.loader()[0]
    state, _ = discover(model, batch)
    alone = other(batch.x, batch.edge_index)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            assert gat_conv.softmax is not softmax
            assert torch.equal(other(x, edge_index), alone)
            raise ArithmeticError

    gates = torch.zeros(len(state.sites), state.edge_map.count, dtype=torch.bool)
    sites = tuple(replace(site, module=f"model.{site.module}") for site in state.sites)
    with pytest.raises(ArithmeticError):
        masked(Both(), batch, state, gates, drawn(state, torch.Generator()), sites=sites)
    assert gat_conv.softmax is softmax
