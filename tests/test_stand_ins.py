"""Stand-ins behind a layer, arguments that edges are compared by, and where stand-ins start: by their formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch

from graphmask import GraphMask
from graphmask.graphs.sites import ABSENT, Site, StandIn
from graphmask.tapping import behind, edge_arguments
from graphmask.tapping.stand_ins import contributions, observe, see
from graphmask.tapping.subject import Subject
from laws.cases import Net, random_graph
from laws.support import QUICK

MEAN, SUM = pyg.RGCNConv(4, 4, 3), pyg.RGCNConv(4, 4, 3, aggr="add")
TARGET = torch.tensor([0, 0, 0, 1, 1, 3])


def gates(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


# Behind ------------------------------------------------------------------------------------------------------


def test_the_mean_is_that_of_the_kept() -> None:
    """Node 0 keeps two of three, node 1 none of two, node 3 its only one."""
    found = behind.weights(gates(1, 0, 1, 0, 0, 1), MEAN, TARGET, None)
    assert found.tolist() == [1.5, 0, 1.5, 0, 0, 1]
    assert behind.weights(gates(1, 0, 1, 0, 0, 1), SUM, TARGET, None).tolist() == [1, 0, 1, 0, 0, 1]


def test_half_open_gates_do_not_make_up_for_each_other() -> None:
    """Two thirds of a mean are two thirds, though relative to each other the gates are all the same."""
    z = gates(0.6, 0.6, 0.6, 0.9, 0.2, 0.5)
    gone = [(1 - gate) ** 8 for gate in z.tolist()]
    left = [3 - sum(gone[:3])] * 3 + [2 - sum(gone[3:5])] * 2 + [1]
    expected = [gate * n / rest for gate, n, rest in zip(z.tolist(), [3, 3, 3, 2, 2, 1], left, strict=True)]
    assert behind.weights(z, MEAN, TARGET, None).tolist() == pytest.approx(expected)
    assert expected[0] == pytest.approx(0.6, abs=1e-3)
    assert torch.autograd.gradcheck(lambda z: behind.weights(z, MEAN, TARGET, None), (z.requires_grad_(),))


def test_relations_of_one_call_are_apart() -> None:
    layer = pyg.FastRGCNConv(4, 4, 3)
    relation = torch.tensor([0, 0, 1, 2, 2, 2])
    assert behind.weights(gates(1, 0, 1, 0, 1, 1), layer, TARGET, relation).tolist() == [2, 0, 1, 0, 2, 1]


@pytest.mark.parametrize(("layer", "shares"), [(MEAN, [1 / 3, 1, 0, 0]), (SUM, [1, 2, 0, 0])], ids=["mean", "sum"])
def test_what_is_added_behind(layer: pyg.RGCNConv, shares: list[float]) -> None:
    output, baseline = torch.ones(4, 2, dtype=torch.double), torch.tensor([1.0, -3.0], dtype=torch.double)
    z = gates(1, 0, 1, 0, 0, 1)
    calls = [behind.Dropped(z[:4], TARGET[:4], baseline), behind.Dropped(z[4:], TARGET[4:], baseline)]
    found = behind.add(output, layer, calls)
    for row, share in zip(found.tolist(), shares, strict=True):
        assert row == pytest.approx([1 + share, 1 - 3 * share])
    each = [replace(call, baseline=baseline.expand(len(call.gate), -1)) for call in calls]
    assert torch.allclose(behind.add(output, layer, each), found)


def test_who_is_behind() -> None:
    one, several = Site("conv", "conv", (0,)), Site("conv", "conv", (0, 1))
    kinds = ((("a", "to", "b"),), (("b", "to", "a"),))
    out = torch.zeros(3, 4)
    assert behind.is_behind(MEAN, one, out)
    assert not behind.is_behind(pyg.SAGEConv(4, 4), one, out)
    assert behind.is_behind(pyg.SAGEConv(4, 4), several, out)
    assert not behind.is_behind(pyg.SAGEConv(4, 4), replace(several, types=kinds), out)
    assert not behind.is_behind(pyg.RGCNConv(4, 4, 3, aggr="max"), one, out)
    assert not behind.is_behind(MEAN, one, (out, out))


# Arguments ---------------------------------------------------------------------------------------------------


class Weighted(pyg.MessagePassing):
    """``share`` divides by the sum of the weights at the target; names are the user's own."""

    def __init__(self, share: bool) -> None:
        super().__init__(aggr="add")
        self.share = share

    def forward(self, nodes: Tensor, links: Tensor, strength: Tensor) -> Tensor:
        if self.share:
            total = torch.zeros(len(nodes)).index_add(0, links[1], strength)
            strength = strength / total[links[1]]
        return self.propagate(links, x=nodes, strength=strength)

    def message(self, x_j: Tensor, strength: Tensor) -> Tensor:
        return strength[:, None] * x_j


GRAPH = random_graph(1)


def compared(layer: nn.Module, *args: Tensor) -> list[str]:
    assert isinstance(layer, pyg.MessagePassing)
    return list(edge_arguments.compared(layer, args, {}))


def test_arguments_that_edges_are_compared_by() -> None:
    x, edges, weight, attr = GRAPH.x, GRAPH.edge_index, GRAPH.edge_weight, GRAPH.edge_attr
    assert compared(pyg.GCNConv(8, 8), x, edges, weight) == ["edge_weight"]
    assert compared(pyg.GraphConv(8, 8), x, edges, weight) == []
    assert compared(Weighted(True), x, edges, weight) == ["strength"]
    assert compared(Weighted(False), x, edges, weight) == []
    assert compared(pyg.GATConv(8, 8, edge_dim=4), x, edges, attr) == ["edge_attr"]
    assert compared(pyg.GINEConv(nn.Linear(8, 8), edge_dim=4), x, edges, attr) == []
    assert compared(pyg.GatedGraphConv(8, num_layers=2), x, edges, weight) == []
    assert compared(pyg.GCNConv(8, 8), x, edges) == []
    assert compared(pyg.RGCNConv(8, 8, 3), x, edges, GRAPH.edge_type) == []


def test_as_many_nodes_as_edges() -> None:
    """Then the name must tell: what belongs to nodes is not taken for edges'."""

    class Moving(pyg.MessagePassing):
        def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor, edge_attr: Tensor) -> Tensor:
            raise NotImplementedError

    square = torch.arange(4), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    bound = edge_arguments.bind(Moving(), (torch.ones(4, 2), square[1], torch.ones(4, 3), torch.ones(4)), {})
    assert bound is not None
    assert list(edge_arguments.per_edge(bound)) == ["edge_attr"]
    bound = edge_arguments.bind(Moving(), (torch.ones(5, 2), square[1], torch.ones(4, 3), torch.ones(4)), {})
    assert bound is not None
    assert list(edge_arguments.per_edge(bound)) == ["pos", "edge_attr"]
    assert edge_arguments.bind(Moving(), (square[1],), {}) is None


# Where stand-ins start ---------------------------------------------------------------------------------------


def test_parts_of_a_baseline() -> None:
    stand_in = StandIn(2, logits=3, inputs=(("edge_weight", 1), ("edge_attr", 2)))
    flat = torch.arange(8.0)
    assert stand_in.message_of(flat).tolist() == [0, 1]
    assert stand_in.logits_of(flat).tolist() == [2, 3, 4]
    assert {name: part.tolist() for name, part in stand_in.inputs_of(flat).items()} == {
        "edge_weight": [5],
        "edge_attr": [6, 7],
    }
    assert stand_in.left_out(flat).tolist() == pytest.approx([0, 0, ABSENT, ABSENT, ABSENT, 0, 0, 0])
    assert stand_in.message_of(flat.expand(4, -1)).shape == (4, 2)
    again = Site.from_json(Site("a", "a", (0,), stand_in=stand_in).to_json())
    assert again.stand_in == stand_in
    assert again.stand_in.message == 2
    assert "stand_in" not in Site("a", "a", (0,), stand_in=StandIn(2)).to_json()


def test_means_of_logits_and_arguments() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv = pyg.GATConv(8, 4, heads=2, edge_dim=4, add_self_loops=False)
    model = Net([conv], ["edge_attr"]).eval()
    loader = [Batch.from_data_list([random_graph(1), random_graph(2)]), random_graph(3)]
    subject = Subject(model)
    subject = subject.at(observe(subject, loader[0])[0])
    with torch.no_grad():
        (seen,) = see(subject, loader)
        x, attr = (torch.cat([b[key] for b in loader]) for key in ("x", "edge_attr"))
        source, target = torch.cat([loader[0].edge_index, loader[1].edge_index + len(loader[0].x)], 1)
        h = conv.lin(x).view(-1, 2, 4)
        logits = (h * conv.att_src).sum(-1)[source] + (h * conv.att_dst).sum(-1)[target]
        logits = logits + (conv.lin_edge(attr).view(-1, 2, 4) * conv.att_edge).sum(-1)
        wanted = torch.cat([torch.nn.functional.leaky_relu(logits, 0.2).mean(0), attr.mean(0)])
    assert torch.allclose(seen.mean()[8:], wanted, atol=1e-5)
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit(loader[:1], progress=False)
    assert explainer.probe is not None
    assert torch.allclose(explainer.probe.stand_in(0)[10:], loader[0].edge_attr.mean(0), atol=1e-6)


@pytest.mark.parametrize("aggr", ["mean", "add"])
def test_what_relational_messages_add_to_the_output(aggr: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv = pyg.RGCNConv(8, 8, 3, aggr=aggr)
    model, data = Net([conv], ["edge_type"], pooled=False).eval(), random_graph(2)
    subject = Subject(model)
    subject = subject.at(observe(subject, data)[0])
    with torch.no_grad():
        found = contributions(subject, data, 0)
        added = conv(data.x, data.edge_index, data.edge_type) - data.x @ conv.root - conv.bias
    degree = torch.bincount(data.edge_index[1], minlength=len(data.x))
    rows = added[degree > 0]
    assert torch.allclose(found, rows if aggr == "mean" else rows / degree[degree > 0][:, None], atol=1e-6)
