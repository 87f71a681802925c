"""Messages as a user's model sends them: whose edge is whose, what gates see, and what cannot be seen into."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from graphmask import GraphMask, GraphMaskError
from graphmask.fitting.training import Recipe
from graphmask.gates import SiteSpec, build
from graphmask.graphs.edges import effective_edges
from graphmask.graphs.sites import Site, StandIn
from graphmask.tapping import capture
from graphmask.tapping.masking import by_user_edges
from graphmask.tapping.messages import Messages

QUICK = Recipe(steps=4)


def messages_of(model: nn.Module, *args: Tensor, edge_index: Tensor | None = None) -> tuple[list[Site], list[Messages]]:
    seen: list[Messages] = []

    def visit(messages: Messages) -> None:
        seen.append(messages)

    edges = edge_index if edge_index is not None else next(a for a in args if a.dtype == torch.long and a.dim() == 2)
    with torch.no_grad(), capture.tap(model, visit, edges) as state:
        model(*args)
    return state.sites, seen


def masked_output(model: nn.Module, gates: Tensor, *args: Tensor, edge_index: Tensor) -> Tensor:
    sites, _ = messages_of(model, *args, edge_index=edge_index)
    baselines = [site.stand_in.left_out(torch.zeros(())) for site in sites]
    with torch.no_grad(), capture.tap(model, by_user_edges(gates, baselines), edge_index, tuple(sites)):
        return model(*args)


# Relations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"num_blocks": 2}, {"aggr": "add"}])
@pytest.mark.parametrize("dropped", range(6))
def test_one_of_two_edges_between_the_same_nodes(options: dict[str, object], dropped: int) -> None:
    """The relation of a dropped edge is the right one: compared with the formula of the layer."""
    torch.manual_seed(0)
    conv = pyg.RGCNConv(4, 4, 3, **options).eval()
    x = torch.randn(4, 4)
    edges = torch.tensor([[0, 0, 0, 1, 1, 3], [1, 1, 1, 2, 2, 3]])
    types = torch.tensor([2, 0, 1, 1, 0, 2])
    gates = torch.ones(1, 6, dtype=torch.bool)
    gates[0, dropped] = False
    masked = masked_output(conv, gates, x, edges, types, edge_index=edges)

    weight = conv.weight
    if options.get("num_bases"):
        weight = (conv.comp @ conv.weight.view(2, -1)).view(3, 4, 4)
    if options.get("num_blocks"):
        weight = torch.stack([torch.block_diag(*blocks) for blocks in conv.weight])
    expected = x @ conv.root + conv.bias
    for relation in range(3):
        for node in range(4):
            arriving = [e for e in range(6) if edges[1, e] == node and types[e] == relation]
            left = [e for e in arriving if e != dropped]  # the mean is theirs
            total = sum((x[edges[0, e]] for e in left), torch.zeros(4))
            mean = total / max(len(left), 1) if options.get("aggr") != "add" else total
            expected[node] += mean @ weight[relation]
    assert torch.allclose(masked, expected, atol=1e-6)


def test_relations_are_one_site_with_a_piece_each() -> None:
    conv = pyg.RGCNConv(4, 4, 5)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    sites, seen = messages_of(conv, torch.randn(3, 4), edges, torch.tensor([3, 1, 3]))
    assert sites == [Site("model", "model", (0, 1, 2, 3, 4), stand_in=StandIn(4, behind=True))]
    assert [m.edges.tolist() for m in seen] == [[], [1], [], [0, 2], []]
    assert [m.piece for m in seen] == [0, 1, 2, 3, 4]


class Inverse(nn.Module):
    """Relations are also sent backwards, as knowledge graph models do."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = pyg.RGCNConv(4, 4, 3), pyg.RGCNConv(4, 4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.there(x, edge_index, edge_type) + self.back(x, edge_index.flip(0), edge_type)


@pytest.mark.parametrize("types", [[2, 0, 1, 1], [0, 1, 1, 2], [2, 1, 1, 2]])
def test_inverse_relations(types: list[int]) -> None:
    """Relation 1 holds (1, 2) and its reverse: only the order of edges tells which is which."""
    edges = torch.tensor([[0, 0, 1, 2], [1, 1, 2, 1]])
    kinds = torch.tensor(types)
    sites, seen = messages_of(Inverse(), torch.randn(3, 4), edges, kinds)
    assert [(site.name, site.reverse) for site in sites] == [("there", False), ("back", True)]
    for messages in seen:
        mine = (kinds == messages.piece).nonzero().view(-1)
        positions = torch.arange(4) if messages.edges is None else messages.edges
        assert torch.equal(positions, mine)


def test_gates_tell_relations_apart_where_messages_do_not() -> None:
    """Two edges with the same ends and states, and raw states as messages: only the relation differs."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 0, 0], [1, 1, 1]])
    types = torch.tensor([0, 1, 1])
    x = torch.randn(2, 4)
    for conv in (pyg.RGCNConv(4, 4, 2), pyg.FastRGCNConv(4, 4, 2), pyg.RGATConv(4, 4, 2)):
        _, seen = messages_of(conv, x, edges, types)
        gate = build(SiteSpec.of(seen), 16, torch.Generator().manual_seed(0))
        location = torch.empty(3)
        for messages in seen:
            positions = slice(None) if messages.edges is None else messages.edges
            location[positions] = gate(messages).detach()
        assert abs(float(location[0] - location[1])) > 1e-3
        assert float(location[1]) == float(location[2])
    flat = torch.cat([m.flat() for m in messages_of(pyg.RGCNConv(4, 4, 2), x, edges, types)[1]])
    assert torch.equal(flat[0], flat[1])  # the messages alone are the same


@pytest.mark.parametrize(
    ("conv", "key"),
    [
        (pyg.GraphConv(4, 4), "edge_weight"),
        (pyg.GINEConv(nn.Linear(4, 4), edge_dim=2), "edge_attr"),
        (pyg.GATConv(4, 4, edge_dim=2), "alpha"),
        (pyg.GCNConv(4, 4), "edge_weight"),
    ],
    ids=["GraphConv", "GINE", "GAT", "GCN"],
)
def test_gates_see_attributes_of_edges(conv: nn.Module, key: str) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    attribute = torch.rand(3, 2) if key != "edge_weight" else torch.rand(3)
    _, (messages,) = messages_of(conv, torch.randn(3, 4), edges, attribute)
    assert key in messages.features
    assert messages.features[key].shape[0] == messages.source.shape[0]


# Directions and self-loops ---------------------------------------------------------------------------------


def test_against_the_edges_paths_run_from_target_to_source() -> None:
    torch.manual_seed(0)
    model = pyg.Sequential(
        "x, edge_index",
        [(pyg.SAGEConv(4, 4, flow="target_to_source"), "x, edge_index -> x") for _ in range(2)],
    )
    data = Data(x=torch.randn(3, 4), edge_index=torch.tensor([[2, 1], [1, 0]]))  # messages travel 0 -> 1 -> 2
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit([data], progress=False)
    explanation = explainer.explain(data, allow_infeasible=True)
    assert [site.reverse for site in explanation.structure] == [True, True]
    explanation.kept[:] = True
    paths = [[(hop.source, hop.target) for hop in path] for path in explanation.paths(2)]
    assert [(0, 1), (1, 2)] in paths
    assert explanation.paths(0) == []
    with torch.no_grad():
        before = model(data.x, data.edge_index)
        data.x[0] += 1
        assert not torch.equal(model(data.x, data.edge_index)[2], before[2])  # node 2 does hear of node 0


@pytest.mark.parametrize("loops", [False, True])
def test_turned_edges_of_an_undirected_graph(loops: bool) -> None:
    """Every edge has its reverse, so endpoints fit both ways; the order of edges tells."""
    conv = pyg.DirGNNConv(pyg.GCNConv(4, 4))
    conv.conv_out.add_self_loops = conv.conv_in.add_self_loops = loops
    edges = to_undirected(torch.tensor([[0, 1, 2], [1, 2, 3]]))
    if loops:
        edges = torch.cat([edges[:, :2], torch.tensor([[1], [1]]), edges[:, 2:]], 1)
    sites, seen = messages_of(conv, torch.randn(4, 4), edges)
    assert [(site.name, site.reverse) for site in sites] == [("conv_in", False), ("conv_out", True)]
    for messages, site in zip(seen, sites, strict=True):
        positions = torch.arange(edges.shape[1]) if messages.edges is None else messages.edges
        mine = positions >= 0
        source, target = edges.flip(0) if site.reverse else edges
        assert torch.equal(source[positions[mine]], messages.source[mine])
        assert torch.equal(target[positions[mine]], messages.target[mine])
        assert int(mine.sum()) == edges.shape[1]


@pytest.mark.parametrize(
    "conv", [pyg.GCNConv(4, 4), pyg.GATConv(4, 4), pyg.FeaStConv(4, 4)], ids=["GCN", "GAT", "FeaSt"]
)
def test_self_loops_of_the_layer_are_not_gated(conv: nn.Module) -> None:
    edges = torch.tensor([[0, 2, 1, 0], [1, 2, 0, 1]])  # a self-loop of the user's at node 2, and an edge twice
    _, (messages,) = messages_of(conv, torch.randn(4, 4), edges)
    assert messages.edges is not None
    mine = messages.edges >= 0
    assert sorted(messages.edges[mine].tolist()) == [0, 1, 2, 3]
    assert messages.source[~mine].tolist() == [0, 1, 3]
    assert messages.source[mine].tolist() == edges[0, messages.edges[mine]].tolist()
    x = torch.randn(4, 4)
    shut = masked_output(conv, torch.zeros(1, 4, dtype=torch.bool), x, edges, edge_index=edges)
    alone = masked_output(conv, torch.zeros(1, 4, dtype=torch.bool), x.roll(1, 0), edges, edge_index=edges)
    assert float((shut[3] - alone[3]).abs().max()) > 1e-3  # node 3 still hears itself
    assert torch.equal(shut[2], alone[2])  # node 2 does not


def test_hops_over_a_graph_of_self_loops_are_hops() -> None:
    """No edge of the user's is sent, so nothing overlaps; yet these are three hops, not three relations."""
    conv = pyg.APPNP(K=3, alpha=0.1)
    sites, _ = messages_of(conv, torch.randn(3, 4), torch.empty(2, 0, dtype=torch.long))
    assert [site.name for site in sites] == ["model", "model#1", "model#2"]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.RGCNConv(4, 4, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.conv(self.conv(x, edge_index, edge_type), edge_index, edge_type)


def test_a_shared_layer_with_relations() -> None:
    sites, _ = messages_of(Twice(), torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]]), torch.tensor([1, 1]))
    assert [(site.name, site.calls) for site in sites] == [("conv", (0, 1)), ("conv#1", (2, 3))]


# Node states -----------------------------------------------------------------------------------------------


class Odd(pyg.MessagePassing):
    """Attributes of edges come first, nodes are numbers."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.table = nn.Embedding(7, 4)
        self.weight = nn.Parameter(torch.randn(5, 4))  # as many rows as the graph below has edges

    def forward(self, strength: Tensor, links: Tensor, words: Tensor) -> Tensor:
        return self.propagate(links, h=self.table(words), strength=strength, weight=self.weight)

    def message(self, h_j: Tensor, strength: Tensor, weight: Tensor) -> Tensor:
        return h_j * strength[:, None] + weight.sum(0)


def test_states_are_those_of_nodes() -> None:
    model = Odd()
    words = torch.tensor([6, 0, 3])
    links = torch.tensor([[0, 1, 2, 2, 1], [1, 2, 0, 1, 2]])
    _, (messages,) = messages_of(model, torch.rand(5), links, words)
    assert torch.equal(messages.source_states, model.table(words).detach())
    assert set(messages.features) == {"strength"}


class Post(pyg.MessagePassing):
    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_states_of_two_kinds_of_nodes(flow: str) -> None:
    """The first of a pair sends, whichever way messages travel."""
    senders, receivers = torch.randn(5, 4), torch.randn(2, 3)
    edges = torch.tensor([[4, 0, 3], [1, 1, 0]])
    if flow == "target_to_source":
        edges = edges.flip(0)
    conv = Post(flow=flow)
    seen: list[Messages] = []
    with torch.no_grad(), capture.tap(conv, seen.append, edges):
        conv((senders, receivers), edges)
    (messages,) = seen
    assert torch.equal(messages.source_states, senders)
    assert torch.equal(messages.target_states, receivers)
    assert messages.source.tolist() == [4, 0, 3]
    assert torch.equal(messages.value, senders[messages.source])


# Forms of the graph ----------------------------------------------------------------------------------------


def test_a_sparse_adjacency_is_left_as_it_was() -> None:
    edges = torch.tensor([[1, 0, 2], [0, 1, 1]])
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(3), (3, 3), check_invariants=True)
    assert not adjacency.is_coalesced()
    found = effective_edges(adjacency)
    assert found.tolist() == [[1, 0, 1], [0, 1, 2]]
    assert not adjacency.is_coalesced()


def test_int32_edges() -> None:
    """Keys of two nodes would overflow 32 bits."""
    far = 70_000
    edges = torch.tensor([[far, 0, 1], [1, far, far]], dtype=torch.int32)
    conv = pyg.GCNConv(2, 2)
    x = torch.randn(far + 1, 2)
    _, (messages,) = messages_of(conv, x, edges, edge_index=edges)
    assert messages.edges is not None
    assert messages.edges[:3].tolist() == [0, 1, 2]
    shuffled = edges[:, [2, 0, 1]]
    _, (messages,) = messages_of(conv, x, edges, edge_index=shuffled)
    assert messages.edges is not None
    assert messages.edges[:3].tolist() == [1, 2, 0]


# What cannot be seen into ----------------------------------------------------------------------------------


def small() -> nn.Module:
    return pyg.Sequential("x, edge_index", [(pyg.SAGEConv(4, 4), "x, edge_index -> x")])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models() -> None:
    with pytest.raises(GraphMaskError, match=r"compiled with torch\.jit"):
        GraphMask(torch.jit.script(pyg.SAGEConv(4, 4)))


def test_models_that_are_not_ready() -> None:
    """Lazy layers have no weights before their first call: there is nothing to explain yet."""
    model = nn.Sequential(nn.Linear(2, 2), pyg.SAGEConv(-1, 4))
    with pytest.raises(GraphMaskError, match=r"'1\.lin_l\.weight'.*Run it once"):
        GraphMask(model)


def test_models_without_message_passing() -> None:
    with pytest.raises(GraphMaskError, match="MessageTap"):
        GraphMask(nn.Linear(4, 4))
    with pytest.raises(GraphMaskError, match=r"torch\.nn\.Module"):
        GraphMask(lambda x: x)  # type: ignore[arg-type]


class Rewired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.both = pyg.SAGEConv(4, 4), pyg.SAGEConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.both(self.plain(x, edge_index), torch.cat([edge_index, edge_index.flip(0)], 1))


@pytest.mark.parametrize("edges", [[[0, 1], [1, 2]], [[0, 1], [1, 0]]], ids=["directed", "undirected"])
def test_a_model_that_adds_edges(edges: list[list[int]]) -> None:
    data = Data(x=torch.randn(3, 4), edge_index=torch.tensor(edges))
    with pytest.raises(GraphMaskError, match=r"'both'.*rewiring"):
        GraphMask(Rewired(), recipe=QUICK).fit([data], progress=False)


class Moody(nn.Module):
    """Sends twice when there are many edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rare = pyg.SAGEConv(4, 4), pyg.SAGEConv(4, 4)
        self.what = "again"

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index)
        if edge_index.shape[1] < 3:
            return x
        return (self.conv if self.what == "again" else self.rare)(x, edge_index)


@pytest.mark.parametrize("what", ["again", "another"])
@pytest.mark.parametrize("more_first", [False, True])
def test_sites_that_depend_on_the_input(what: str, more_first: bool) -> None:
    few = Data(x=torch.randn(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
    more = Data(x=torch.randn(3, 4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    model = Moody()
    model.what = what
    with pytest.raises(GraphMaskError, match="must not depend on its input"):
        GraphMask(model, recipe=QUICK).fit([more, few] if more_first else [few, more], progress=False)


class Counting(pyg.MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=torch.ones(x.shape[0], 1, dtype=torch.long)).float() + x

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


def test_messages_that_are_not_numbers_to_blend() -> None:
    with pytest.raises(GraphMaskError, match=r"'model' \(Counting\) to send floating point messages, got torch.int64"):
        messages_of(Counting(), torch.randn(2, 4), torch.tensor([[0], [1]]))


class Bypassed(nn.Module):
    """Has a layer, but does not call it through `propagate`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv.lin_l(x)


def test_layers_that_are_never_called() -> None:
    data = Data(x=torch.randn(2, 4), edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(GraphMaskError, match="bypass"):
        GraphMask(Bypassed(), recipe=QUICK).fit([data], progress=False)
