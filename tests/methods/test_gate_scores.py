"""Attention and gate scores against what the layers themselves return, and the cut against the data's moments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from graphmask import MessageTap
from graphmask.methods.gate_scores import GateScores
from laws.cases import BY_NAME, WIDTH, Net, random_graph

LAYERS = {
    "GAT": lambda: GATConv(WIDTH, WIDTH // 2, heads=2),
    "GATv2": lambda: GATv2Conv(WIDTH, WIDTH // 2, heads=2, add_self_loops=False),
    "Transformer": lambda: TransformerConv(WIDTH, WIDTH // 4, heads=4),
}


def without_loops(seed: int) -> Data:
    """Then layers append theirs, and the first columns are the user's."""
    graph = random_graph(seed)
    return Data(x=3 * graph.x, edge_index=graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]])


GRAPHS = [without_loops(seed) for seed in range(9)]
LOADER = [Batch.from_data_list(GRAPHS[start : start + 3]) for start in (0, 3, 6)]


def net(name: str) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Net([LAYERS[name]() for _ in range(2)]).eval()


@torch.no_grad()
def attention(model: Net, graph: Data) -> Tensor:
    """[L, E] mean over heads, as the layers return it."""
    x, found = graph.x, []
    for conv in model.convs:
        x, (_, alpha) = conv(x, graph.edge_index, return_attention_weights=True)
        x = torch.tanh(x)
        found.append(alpha[: graph.num_edges].mean(1))
    return torch.stack(found)


@pytest.mark.parametrize("name", LAYERS)
def test_scores_are_the_layers_attention_and_the_cut_is_the_datas(name: str) -> None:
    model = net(name)
    method = GateScores(model)
    method.fit(LOADER, progress=False)
    everything = torch.cat([attention(model, graph) for graph in GRAPHS], 1).double()
    cut = everything.mean(1, keepdim=True) - everything.std(1, unbiased=False, keepdim=True)
    assert method.cuts is not None
    assert torch.allclose(method.cuts.double(), cut, atol=1e-6)
    dropped = 0
    for graph, found in zip(GRAPHS, method.explain_all(LOADER, repair=False), strict=True):
        expected = attention(model, graph)
        assert torch.allclose(found.scores, expected, atol=1e-6)
        assert torch.equal(found.kept, expected >= cut)
        dropped += int((~found.kept).sum())
    assert 0 < dropped < everything.numel() / 2


class Gated(nn.Module):
    """Not PyTorch Geometric: a gate of its own on every message, one per head or one in all."""

    def __init__(self, heads: int | None) -> None:
        super().__init__()
        self.heads, self.tap = heads, MessageTap()

    def gate(self, x: Tensor, edge_index: Tensor) -> Tensor:
        gates = torch.sigmoid(3 * x[edge_index[0]] * x[edge_index[1]])
        return gates[:, 0] if self.heads is None else gates[:, : self.heads]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        gate = self.gate(x, edge_index)
        weight = gate if gate.dim() == 1 else gate.mean(1)
        messages = self.tap(weight[:, None] * x[edge_index[0]], edge_index, x, gate=gate)
        return torch.zeros_like(x).index_add(0, edge_index[1], messages)[:, :3]


@pytest.mark.parametrize("heads", [None, 1, 4])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_a_tap_that_is_told_the_gate(heads: int | None, dtype: torch.dtype) -> None:
    model, graphs = Gated(heads), [graph.clone() for graph in GRAPHS[:3]]
    for graph in graphs:
        graph.x = graph.x.to(dtype)
    method = GateScores(model)
    method.fit(graphs, progress=False)
    gates = [model.gate(graph.x, graph.edge_index).view(graph.num_edges, -1).mean(1) for graph in graphs]
    together = torch.cat(gates)
    cut = float(together.mean() - together.std(unbiased=False))
    for graph, expected in zip(graphs, gates, strict=True):
        found = method.explain(graph, repair=False)
        assert torch.allclose(found.scores[0].to(dtype), expected, atol=1e-6)
        assert torch.equal(found.kept[0], expected >= cut)
    assert bool((together < cut).any())


@pytest.mark.parametrize("name", ["GAT", "FA", "RGAT"])
def test_a_model_in_double_precision(name: str) -> None:
    case = BY_NAME[name]

    def double(data: Data) -> Data:
        return data.apply(lambda value: value.double() if value.is_floating_point() else value)

    single, twice = GateScores(case.model()), GateScores(case.model().double())
    single.fit(case.loader(), progress=False)
    twice.fit([double(batch) for batch in case.loader()], progress=False)
    data = case.graphs(1)[0]
    a, b = single.explain(data, repair=False), twice.explain(double(data.clone()), repair=False)
    assert torch.allclose(a.scores, b.scores, atol=1e-5)
    assert float(a.scores.std()) > 1e-3


def test_does_it_apply() -> None:
    for name, applies in (("GAT", True), ("Transformer", True), ("FA", True), ("GCN", False), ("RGCN", False)):
        case = BY_NAME[name]
        reason = GateScores.why_not(case.model(), case.loader(1)[0])
        assert (reason is None) == applies
        if reason is not None:
            assert "'convs.0'" in reason
