"""Law 7: dropped means silent. Nothing about a dropped edge reaches the masked output, but that it exists."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch

from graphmask import GraphMask
from graphmask.graphs import batches
from graphmask.graphs.sites import ABSENT, Site, StandIn
from graphmask.tapping import masking
from graphmask.tapping.edge_softmax import mixed
from graphmask.tapping.subject import Subject
from graphmask.tapping.tapped import Tap

from .cases import BY_NAME, CASES, RELATIONS, Case, Net, simple_graph
from .support import QUICK, discover, drawn, run

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def masked(model: nn.Module, batch: Any, state: Tap, gates: Tensor, baselines: list[Tensor], **options: Any) -> Tensor:
    sites: tuple[Site, ...] = options.pop("sites", tuple(state.sites))
    edges = batches.edge_index_of(batch)
    edges = state.edge_map.edge_index if edges is None else edges
    with torch.no_grad():
        return masking.run(Subject(model, sites=sites), batch, edges, gates, baselines, **options)


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


class Library:
    """What pyg-lib would do for RGCNConv: all relations at once, sorted by relation."""

    class ops:
        @staticmethod
        def segment_matmul(rows: Tensor, ptr: Tensor, weight: Tensor) -> Tensor:
            parts = rows.split((ptr[1:] - ptr[:-1]).tolist())
            return torch.cat([part @ one for part, one in zip(parts, weight, strict=True)])


@pytest.fixture
def pyg_lib(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_geometric.backend
    import torch_geometric.typing
    from torch_geometric.nn.conv import rgcn_conv

    monkeypatch.setattr(torch_geometric.typing, "WITH_SEGMM", True)
    monkeypatch.setattr(torch_geometric.backend, "use_segment_matmul", True)
    monkeypatch.setattr(rgcn_conv, "pyg_lib", Library)


def relational(aggr: str) -> tuple[nn.Module, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net([pyg.RGCNConv(8, 8, RELATIONS, aggr=aggr) for _ in range(2)], ["edge_type"]).eval()
    graphs = [simple_graph(seed) for seed in range(3)]
    return model, Batch.from_data_list(graphs)


def test_the_same_explanation_with_and_without_pyg_lib(request: pytest.FixtureRequest) -> None:
    model, batch = relational("add")
    found = []
    for library in (False, True):
        if library:
            request.getfixturevalue("pyg_lib")
        explainer = GraphMask(model, recipe=QUICK)
        explainer.fit([batch], progress=False)
        found.append((run(model, batch), list(explainer.explain_all([batch], allow_infeasible=True))))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    assert 0 < sum(float(e.kept.sum()) for e in found[0][1]) < sum(float(e.kept.numel()) for e in found[0][1])
    for without, with_library in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(without.kept, with_library.kept)
        assert torch.equal(without.scores, with_library.scores)
        assert without.divergence == pytest.approx(with_library.divergence, abs=1e-6)


def test_a_mean_over_all_relations_at_once(pyg_lib: None) -> None:
    """Another function than without pyg-lib: explained as it is, and silent."""
    model, batch = relational("mean")
    state, seen = discover(model, batch)
    assert [site.calls for site in state.sites] == [(0,), (0,)]
    assert seen[0].flat().shape[1] == 8
    generator = torch.Generator().manual_seed(0)
    baselines = drawn(state, generator)
    open_gates = torch.ones(2, state.edge_map.count, dtype=torch.bool)
    assert torch.equal(masked(model, batch, state, open_gates, baselines), run(model, batch))
    assert heard(model, batch, state, baselines, tuple(state.sites)) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["GAT", "SuperGAT", "Transformer"])
def test_in_other_precisions(name: str, dtype: torch.dtype) -> None:
    """Also where every edge of a node is dropped, and where what stands in is no part of the softmax at all."""
    model, batch = BY_NAME[name].model().to(dtype), BY_NAME[name].loader()[0]
    for key in ("x", "edge_attr", "edge_weight"):
        batch[key] = batch[key].to(dtype)
    state, _ = discover(model, batch)
    left_out = [site.stand_in.left_out(torch.zeros((), dtype=dtype)) for site in state.sites]
    for share in (0.0, 0.5):
        gates = torch.rand(len(left_out), state.edge_map.count, generator=torch.Generator().manual_seed(0)) < share
        for form in (gates, gates.to(dtype)):
            found = masked(model, batch, state, form, left_out)
            assert found.dtype == dtype
            assert bool(torch.isfinite(found).all())
    open_gates = torch.ones(len(left_out), state.edge_map.count, dtype=torch.bool)
    assert torch.equal(masked(model, batch, state, open_gates, left_out), run(model, batch))


@pytest.mark.parametrize("open_share", [0.25, 0.5, 0.9])
def test_between_open_and_shut_the_logit_is_between(open_share: float) -> None:
    """z l + (1 - z) c by the formula, in double precision, and its gradients by finite differences."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 2, generator=generator, dtype=torch.double, requires_grad=True)
    constant = torch.randn(2, generator=generator, dtype=torch.double, requires_grad=True)
    gate = torch.full((5,), open_share, dtype=torch.double, requires_grad=True)
    found = mixed(logits, gate, constant, 0)
    for row, value in zip(logits.tolist(), found.tolist(), strict=True):
        for logit, other, between in zip(row, constant.tolist(), value, strict=True):
            assert between == pytest.approx(open_share * logit + (1 - open_share) * other, abs=1e-12)
    assert torch.autograd.gradcheck(lambda *given: mixed(*given, 0), (logits, gate, constant))


@pytest.mark.parametrize("open_share", [0.25, 0.5, 0.9])
def test_the_mass_of_an_edge_that_would_be_absent_is_its_share(open_share: float) -> None:
    """A logit without a stand-in is l + log z: e^l falls to z e^l. Of several heads, each for itself."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 2, generator=generator, dtype=torch.double, requires_grad=True)
    gate = torch.full((5,), open_share, dtype=torch.double, requires_grad=True)
    absent = torch.full((2,), ABSENT, dtype=torch.double)
    assert torch.allclose(mixed(logits, gate, absent, 0), logits + math.log(open_share), rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *given: mixed(*given, absent, 0), (logits, gate))
    found = mixed(logits, gate, torch.tensor([ABSENT, 0.0], dtype=torch.double), 0)
    assert torch.allclose(found[:, 0], logits[:, 0] + math.log(open_share), rtol=0, atol=1e-12)
    assert torch.allclose(found[:, 1], logits[:, 1] * open_share, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, -1])
def test_logits_of_open_and_shut_edges_are_exact(dtype: torch.dtype, dim: int) -> None:
    """Soft gates at 0 and 1 give, bit for bit, what hard ones give: also where the constant is far, or absent."""
    generator = torch.Generator().manual_seed(0)
    logits = (100 * torch.randn(64, 2, generator=generator)).to(dtype)
    logits = logits if dim == 0 else logits.t()
    gate = torch.rand(64, generator=generator) < 0.5
    for constant in (torch.tensor([0.1, -7.3]), torch.tensor([1e4, -1e-4]), torch.full((2,), ABSENT)):
        for given in (constant, constant.repeat(64, 1)):
            found = mixed(logits, gate.to(dtype), given, dim)
            assert found.dtype == dtype
            assert bool(torch.isfinite(found).all())
            assert torch.equal(found, mixed(logits, gate, given, dim))
            assert torch.equal(found.movedim(dim, 0)[gate], logits.movedim(dim, 0)[gate])


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
