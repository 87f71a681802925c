"""Layers above TopKPooling and SAGPooling: their edges are the user's, told by position, in every run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, GraphConv, global_mean_pool
from torch_geometric.nn.pool import ASAPooling, SAGPooling, TopKPooling
from torch_geometric.utils import subgraph

import graphmask
from graphmask import GraphMask, GraphMaskError
from graphmask.tapping import capture
from graphmask.tapping.masking import by_user_edges
from graphmask.tapping.messages import Messages


class Net(nn.Module):
    """Four sites: three layers, and the one inside SAGPooling; ``perms`` are those of the last run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.top, self.second = GraphConv(4, 8), TopKPooling(8, 0.7), GCNConv(8, 8)
        self.sag, self.third, self.out = SAGPooling(8, 0.7), GATConv(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x, edge_index).tanh()
        x, edge_index, _, batch, top, _ = self.top(x, edge_index, None, batch)
        x = self.second(x, edge_index).tanh()
        x, edge_index, _, batch, sag, _ = self.sag(x, edge_index, None, batch)
        self.perms = top.tolist(), sag.tolist()
        return self.out(global_mean_pool(self.third(x, edge_index).tanh(), batch))


def graphs(count: int = 6, nodes: int = 9) -> list[Data]:
    """With edges twice and self-loops among them."""
    draw = torch.Generator().manual_seed(1)
    return [
        Data(x=torch.randn(nodes, 4, generator=draw), edge_index=torch.randint(nodes, (2, 40), generator=draw))
        for _ in range(count)
    ]


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def seen_by(model: nn.Module, batch: Batch) -> tuple[capture.Tap, dict[str, list[int]]]:
    found: dict[str, list[int]] = {}

    def visit(messages: Messages) -> None:
        edges = range(batch.num_edges) if messages.edges is None else messages.edges.tolist()
        found[state.sites[messages.site].name] = list(edges)

    with torch.no_grad(), capture.tap(model, visit, batch.edge_index) as state:
        model(batch.x, batch.edge_index, batch.batch)
    return state, found


def test_positions_are_those_of_a_literal_renumbering() -> None:
    model, batch = net(), Batch.from_data_list(graphs(3))
    _, found = seen_by(model, batch)
    edges = batch.edge_index.t().tolist()
    top, sag = model.perms
    kept = [e for e, (u, v) in enumerate(edges) if u in top and v in top]
    last = [top[k] for k in sag]
    deeper = [e for e in kept if edges[e][0] in last and edges[e][1] in last]
    loops = {v: e for e, (u, v) in reversed(list(enumerate(edges))) if u == v}  # GCN and GAT keep one loop at a node
    assert found["first"] == list(range(len(edges)))
    assert found["sag.gnn"] == kept
    assert found["second"] == [e for e in kept if edges[e][0] != edges[e][1]] + [loops.get(v, -1) for v in top]
    assert found["third"] == [e for e in deeper if edges[e][0] != edges[e][1]] + [loops.get(v, -1) for v in last]
    assert 0 < len(deeper) < len(kept) < len(edges)


def test_open_gates_change_nothing_and_other_nodes_may_be_kept() -> None:
    model, batch = net(), Batch.from_data_list(graphs(3))
    state, _ = seen_by(model, batch)
    before, original = model.perms, model(batch.x, batch.edge_index, batch.batch)
    baselines = [site.stand_in.left_out(torch.zeros(())) for site in state.sites]
    gates = torch.ones(len(state.sites), batch.num_edges, dtype=torch.bool)
    for value in (True, False):
        gates[0] = value
        with capture.tap(model, by_user_edges(gates, baselines), batch.edge_index, tuple(state.sites)):
            output = model(batch.x, batch.edge_index, batch.batch)
        assert (model.perms == before) is value
        assert torch.allclose(output, original, atol=1e-6) is value


@pytest.mark.filterwarnings("ignore")
def test_explanations_are_what_masked_gives_alone_and_in_batches() -> None:
    model, data = net(), graphs(8)
    explainer = GraphMask(model)
    explainer.fit(data, epochs=4, progress=False)
    alone = [explainer.explain(graph, repair=False, allow_infeasible=True) for graph in data]
    together = explainer.explain_all(DataLoader(data, batch_size=3), repair=False, allow_infeasible=True)
    for graph, one, other in zip(data, alone, together, strict=True):
        with torch.no_grad(), graphmask.masked(model, one):
            output = model(graph.x, graph.edge_index, torch.zeros(graph.num_nodes, dtype=torch.long))
        assert torch.allclose(output, one.masked, atol=1e-6)
        assert torch.equal(one.kept, other.kept)
        assert torch.equal(one.carried, other.carried)
        assert not bool((one.kept & ~one.carried).any())
    assert not any(module._forward_hooks for module in model.modules())


def test_no_hook_is_left_after_an_error() -> None:
    model, batch = net(), Batch.from_data_list(graphs(1))
    with pytest.raises(RuntimeError), capture.tap(model, lambda _: None, batch.edge_index):
        model(batch.x[:, :2], batch.edge_index, batch.batch)
    assert not any(module._forward_hooks for module in model.modules())


class Other(nn.Module):
    """Pools in a way that cannot be followed."""

    def __init__(self, pool: nn.Module | None) -> None:
        super().__init__()
        self.first, self.pool, self.second = GraphConv(4, 8), pool, GraphConv(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index)
        if self.pool is not None:
            x, edge_index, *_ = self.pool(x, edge_index)
        else:
            some = torch.arange(1, len(x))
            x, edge_index = x[some], subgraph(some, edge_index, relabel_nodes=True, num_nodes=len(x))[0]
        return self.second(x, edge_index).mean(0, keepdim=True)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (None, "9 nodes .* got 8"),
        pytest.param(
            ASAPooling(8, 0.5),
            "'pool' has merged",
            marks=pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="ASAPooling needs PyTorch with MKL"),
        ),
    ],
)
def test_other_poolings_are_refused_even_where_numbers_fit(pool: nn.Module | None, said: str) -> None:
    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9)).t()  # complete: any numbers fit
    data = Data(x=torch.randn(9, 4), edge_index=pairs[:, pairs[0] != pairs[1]])
    with pytest.raises(GraphMaskError, match=said):
        GraphMask(Other(pool).eval()).fit([data], epochs=1, progress=False)


def test_edges_cut_from_the_users_own_are_no_pooling() -> None:
    class Trimmed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GraphConv(4, 8), GraphConv(8, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.first(x, edge_index)[:5]
            return self.second(x, edge_index[:, :6])

    edge_index = torch.cat([torch.randint(5, (2, 6)), torch.randint(9, (2, 10))], 1)
    data = Data(x=torch.randn(9, 4), edge_index=edge_index)
    GraphMask(Trimmed().eval()).fit([data], epochs=1, progress=False)
