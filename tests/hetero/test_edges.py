"""Which edge type a layer's edges are of, and where they lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, HeteroData
from torch_geometric.transforms import ToSparseTensor

import graphmask
from graphmask import GraphMask, GraphMaskError, methods
from graphmask.graphs import batches
from graphmask.graphs.hetero_edges import HeteroEdgeMap
from graphmask.graphs.sites import Site, StandIn, layers_of
from graphmask.tapping import capture
from graphmask.tapping.masking import by_user_edges
from graphmask.tapping.messages import Messages

from .support import BY_NAME, CASES, CITES, QUICK, TYPES, WRITES, WRITTEN, AllTypes, Case, Stack, batch, fitted, graph

KINDS = TYPES[1]


def messages_of(model: nn.Module, data: Any, run: Any = batches.default_forward) -> tuple[list[Any], list[Messages]]:
    seen: list[Messages] = []
    with torch.no_grad(), capture.tap(model, seen.append, batches.edge_map_of(data)) as state:
        run(model, data)
    return state.sites, seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_positions_are_those_of_the_edges(case: Case) -> None:
    """Every layer carries every edge once, under the numbers of the nodes that it joins."""
    model, data = case.model(), graph(4)
    sites, seen = messages_of(model, data, lambda *args: case.run(*args))
    layout = batches.Layout.of(data)
    whole = layout.edge_index()
    first = torch.tensor([layout.first["author"], layout.first["paper"]])
    for messages in seen:
        edges = torch.arange(whole.shape[1]) if messages.edges is None else messages.edges
        assert int((edges >= 0).sum()) == len(set(edges[edges >= 0].tolist()))
        kinds = layout.edge_map().edge_type[edges]
        for column in (edges >= 0).nonzero().view(-1).tolist():
            source, name, target = KINDS[kinds[column]]
            ends = [TYPES[0].index(source), TYPES[0].index(target)]
            local = whole[:, edges[column]] - first[ends]
            given = torch.stack([messages.source[column], messages.target[column]])
            if case.name not in ("hgt", "rgcn inside", "gcn inside"):  # those have numbers of their own
                assert given.tolist() == local.tolist(), name
    layers = layers_of(sites)
    for layer in range(layers[-1] + 1):
        carried = [m for m in seen if layers[m.site] == layer]
        found = torch.cat([torch.arange(whole.shape[1]) if m.edges is None else m.edges for m in carried])
        # GCN takes several loops at one node for one.
        loops = (whole[0] == whole[1]).nonzero().view(-1).tolist() if "gcn" in case.name else []
        assert sorted({*found[found >= 0].tolist(), *loops}) == list(range(whole.shape[1]))


def test_one_dropped_message_by_the_formula() -> None:
    """SAGE, bipartite: the mean over a paper's authors with one of them replaced by the baseline."""
    torch.manual_seed(0)
    model = pyg.HeteroConv({kind: pyg.SAGEConv((-1, -1), 4) for kind in KINDS}, aggr="sum").double()
    data = graph(1)
    for kind in TYPES[0]:
        data[kind].x = data[kind].x.double()

    def forward(model: nn.Module, data: HeteroData) -> Tensor:
        return model(data.x_dict, data.edge_index_dict)["paper"]

    forward(model, data)
    sites, seen = messages_of(model, data, forward)
    baselines = [torch.full((m.flat().shape[1],), 0.5).double() for m in seen]
    gates = torch.ones(3, 23, dtype=torch.bool)
    gates[0, 3] = gates[2, 16 + 4] = False
    with torch.no_grad(), capture.tap(model, by_user_edges(gates, baselines), batches.edge_map_of(data), tuple(sites)):
        masked = forward(model, data)
    expected = torch.zeros(len(data["paper"].x), 4).double()
    for kind, dropped in ((WRITES, 3), (CITES, 4)):
        conv, edges, x = model.convs[kind], data[kind].edge_index, data[kind[0]].x
        for paper in range(len(expected)):
            rows = [
                x[edges[0, e]] if e != dropped else torch.full_like(x[0], 0.5)
                for e in range(edges.shape[1])
                if edges[1, e] == paper
            ]
            mean = torch.stack(rows).mean(0) if rows else torch.zeros_like(x[0])
            expected[paper] += conv.lin_l(mean) + conv.lin_r(data["paper"].x[paper])
    assert torch.allclose(masked, expected, atol=1e-12)


class Unnamed(nn.Module):
    """Layers whose names tell nothing, over two types with the same edges."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(3, 3) for _ in range(4)])

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x = x_dict["a"]
        first, second = edge_index_dict.values()
        x = self.convs[0](x, first) - self.convs[1](x, second)
        return self.convs[2](x, first.clone()) - self.convs[3](x, second.clone())


@pytest.mark.parametrize("shared", [True, False])
def test_types_with_the_same_edges_are_told_apart(shared: bool) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    data = HeteroData()
    data["a"].x = torch.randn(3, 3)
    data["a", "one", "a"].edge_index = edges
    data["a", "two", "a"].edge_index = edges if shared else edges.clone()
    kinds = data.edge_types
    sites, seen = messages_of(Unnamed(), data)
    assert [m.edges.tolist() for m in seen] == [[0, 1, 2], [3, 4, 5]] * 2
    assert [site.edge_types for site in sites] == [(kinds[0],), (kinds[1],)] * 2

    named = pyg.HeteroConv({kinds[1]: pyg.SAGEConv(3, 3), kinds[0]: pyg.SAGEConv(3, 3)})
    _, seen = messages_of(named, data, lambda model, data: model(data.x_dict, data.edge_index_dict)["a"])
    assert [m.edges.tolist() for m in seen] == [[3, 4, 5], [0, 1, 2]]

    han = pyg.HANConv(3, 4, data.metadata())
    sites, seen = messages_of(han, data, lambda model, data: model(data.x_dict, data.edge_index_dict)["a"])
    assert [m.edges.tolist() for m in seen] == [[0, 1, 2], [3, 4, 5]]
    assert sites == [Site("model", "model", (0, 1), types=((kinds[0],), (kinds[1],)), stand_in=StandIn(4, logits=1))]


def test_one_module_for_several_types() -> None:
    """It is registered once, under the first name; each type is a site of its own in one layer."""
    conv = pyg.SAGEConv((3, 3), 3)
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(3, 3), torch.randn(4, 3)
    kinds = [("a", "to", "b"), ("b", "to", "a")]
    data[kinds[0]].edge_index = torch.tensor([[0, 2], [3, 1]])
    data[kinds[1]].edge_index = torch.tensor([[3, 0, 1], [0, 1, 1]])
    model = pyg.HeteroConv({kind: conv for kind in kinds})
    sites, seen = messages_of(model, data, lambda model, data: model(data.x_dict, data.edge_index_dict)["b"])
    assert [m.edges.tolist() for m in seen] == [[0, 1], [2, 3, 4]]
    assert [site.edge_types for site in sites] == [(kinds[0],), (kinds[1],)]
    assert layers_of(sites) == [0, 0]


def test_layers() -> None:
    sites, _ = messages_of(BY_NAME["sage"].model(), graph(0))
    assert [site.layer for site in sites] == ["first"] * 3 + ["second"] * 3
    assert layers_of(sites) == [0, 0, 0, 1, 1, 1]
    case = BY_NAME["to_hetero"]
    sites, _ = messages_of(case.model(), graph(0), lambda *args: case.run(*args))
    assert [site.layer for site in sites] == ["convs.0"] * 3 + ["convs.1"] * 3
    again = pyg.HeteroConv({CITES: pyg.SAGEConv(7, 7)})

    def twice(model: nn.Module, data: HeteroData) -> Tensor:
        x = model({"paper": data["paper"].x}, {CITES: data[CITES].edge_index})
        return model(x, {CITES: data[CITES].edge_index})["paper"]

    sites, _ = messages_of(again, graph(0), twice)
    assert [(site.name, site.layer) for site in sites] == [
        ("convs.<paper___cites___paper>", "convs"),
        ("convs.<paper___cites___paper>#1", "convs#1"),
    ]


def test_a_layer_for_all_types_tells_its_gates_the_type() -> None:
    _, seen = messages_of(BY_NAME["hgt"].model(), graph(0))
    assert seen[0].categories["edge_type"].tolist() == [0] * 8 + [1] * 8 + [2] * 7
    assert seen[0].target_states.shape == (10, 8)  # queries of 4 authors and 6 papers
    assert int(seen[0].target.max()) < 10
    _, pieces = messages_of(BY_NAME["han"].model(), graph(0))
    assert [m.piece for m in pieces] == [0, 1, 2] * 2


# Batches that lack a type -----------------------------------------------------------------------------------------


def without(kind: tuple[str, str, str], data: HeteroData) -> HeteroData:
    data = data.clone()
    del data[kind]
    return data


@pytest.mark.parametrize("name", ["sage", "gat", "hgt", "han"])
@pytest.mark.parametrize("kind", [WRITES, CITES])
def test_a_type_that_is_missing_is_as_one_without_edges(name: str, kind: tuple[str, str, str]) -> None:
    case, (model, explainer) = BY_NAME[name], fitted(name)
    data = without(kind, graph(5))
    found = explainer.explain(data, allow_infeasible=True, repair=False)
    assert found.edge_types == tuple(KINDS)
    assert found[kind].edge_index.shape == (2, 0)
    assert bool(found[WRITTEN].carried.all())
    assert torch.equal(found[WRITTEN].edge_index, data[WRITTEN].edge_index)
    assert found.edge_type.unique().tolist() == [n for n, other in enumerate(KINDS) if other != kind]
    with graphmask.masked(model, found):
        assert torch.equal(case.run(model, data), found.masked)
    if name in ("sage", "hgt"):
        empty = graph(5)
        empty[kind].edge_index, empty[kind].edge_attr = torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, 3)
        other = explainer.explain(empty, allow_infeasible=True, repair=False)
        # Above, states differ: an empty type still adds what its layer makes of the receiver.
        assert torch.equal(found[WRITTEN].kept[0], other[WRITTEN].kept[0])
        assert float((found[WRITTEN].scores[0] - other[WRITTEN].scores[0]).abs().max()) <= 1e-6


def test_fitting_where_some_batches_lack_a_type() -> None:
    """Sites are found on the batch with most types, wherever it is; steps pass over what is not there."""
    model = BY_NAME["sage"].model()
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit([without(CITES, graph(0)), without(WRITES, graph(1)), graph(2)], progress=False)
    assert {kind for site in explainer.sites for kind in site.edge_types} == set(KINDS)
    assert set(explainer.types.edge_types) == set(KINDS)
    found = explainer.explain(graph(3), allow_infeasible=True)
    assert bool(found.carried.any(0).all())
    for name in ("information_bottleneck", "pg_explainer"):
        method = methods.get(name)(model, steps=3)
        method.fit([without(CITES, graph(0)), graph(2)], progress=False)
        assert method.explain(without(WRITES, graph(1))).carried.sum() == 2 * (8 + 7)


def test_types_in_another_order_have_the_same_numbers() -> None:
    _, explainer = fitted("sage")
    data, turned = graph(6), HeteroData()
    turned["paper"].x, turned["author"].x = data["paper"].x, data["author"].x
    for kind in reversed(KINDS):
        turned[kind].edge_index = data[kind].edge_index
    a, b = (explainer.explain(some, allow_infeasible=True) for some in (data, turned))
    assert (a.node_types, b.node_types) == (("author", "paper"), ("paper", "author"))
    assert a.edge_types == b.edge_types
    for kind in KINDS:
        assert torch.equal(a[kind].edge_index, b[kind].edge_index)
        assert torch.equal(a[kind].kept, b[kind].kept)
        assert float((a[kind].scores - b[kind].scores).abs().max()) <= 1e-6


# Other forms of the same -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_adjacency() -> None:
    class Sparse(Stack):
        def forward(self, x_dict: dict[str, Tensor], adj_t_dict: dict[Any, Tensor]) -> Tensor:  # type: ignore[override]
            return super().forward(x_dict, adj_t_dict)

    torch.manual_seed(0)
    plain = Stack(lambda _: pyg.GraphConv((-1, -1), 8)).eval()
    data = graph(0)
    for kind in KINDS:
        del data[kind].edge_attr
        data[kind].edge_index = data[kind].edge_index.unique(dim=1)[:, :5]
    expected = batches.default_forward(plain, data)
    model = Sparse(lambda _: pyg.GraphConv((-1, -1), 8)).eval()
    sparse = ToSparseTensor(layout=torch.sparse_csr)(data.clone())
    batches.default_forward(model, sparse)
    model.load_state_dict(plain.state_dict())
    found = methods.get("random")(model).explain(sparse)
    assert torch.allclose(found.original, expected, atol=1e-5)
    assert bool(found.carried.any(0).all())
    for kind in KINDS:
        assert sorted(found[kind].edge_index.t().tolist()) == sorted(data[kind].edge_index.t().tolist())
    with graphmask.masked(model, found), torch.no_grad():
        assert torch.equal(batches.default_forward(model, sparse), found.masked)


def test_relations_of_a_converted_graph() -> None:
    """`to_homogeneous`, then RGCN: an ordinary explanation, with the names of its relations."""

    class Relations(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = pyg.RGCNConv(6, 8, 3), pyg.FastRGCNConv(8, 3, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)

    def converted(*graphs: HeteroData) -> Any:
        data = Batch.from_data_list(list(graphs))
        generator = torch.Generator().manual_seed(len(graphs[0]["paper"].x))
        for kind in data.node_types:
            data[kind].x = data[kind].x[:, :5] @ torch.randn(5, 6, generator=generator)
        return data.to_homogeneous()

    torch.manual_seed(0)
    model = Relations().eval()
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit([converted(graph(0), graph(3))], progress=False)
    found = list(explainer.explain_all([converted(graph(2), graph(5))], allow_infeasible=True))
    alone = [explainer.explain(converted(graph(seed)), allow_infeasible=True) for seed in (2, 5)]
    for a, b in zip(found, alone, strict=True):
        assert torch.equal(a.edge_index, b.edge_index)  # nodes of a graph do not lie together in the batch
        assert torch.equal(a.kept, b.kept)
        assert a.info["edge_type_names"] == [" ".join(kind) for kind in KINDS]
        assert a.num_nodes == 4 + 8
        with graphmask.masked(model, b), torch.no_grad():
            data = converted(graph(2 if a is found[0] else 5))
            assert torch.equal(model(data.x, data.edge_index, data.edge_type), b.masked)


@pytest.mark.parametrize("name", ["integrated_gradients", "random", "occlusion"])
@pytest.mark.parametrize("model", ["pooled", "hgt"])
def test_other_methods(name: str, model: str) -> None:
    case = BY_NAME[model]
    network = case.model()
    method = methods.get(name)(network, **({"steps": 3} if name == "integrated_gradients" else {}))
    together = list(method.explain_all([batch(1, 2)]))
    for seed, found in zip((1, 2), together, strict=True):
        alone = method.explain(graph(seed))
        assert torch.equal(found.kept, alone.kept)
        assert float((found.scores - alone.scores).abs().max()) <= 1e-4
        with graphmask.masked(network, alone):
            assert torch.equal(case.run(network, graph(seed)), alone.masked)


def test_occlusion_by_running_the_model_without_each_message() -> None:
    """Many copies at once, whose edges lie type after type."""
    torch.manual_seed(0)
    model, data = AllTypes(pyg.HGTConv).eval(), graph(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that a message matters by far more than rounding does
    found = methods.get("occlusion")(model, tolerance=10.0).explain(data)
    edge_map = batches.edge_map_of(data)
    sites, _ = messages_of(model, data)
    zeros = [site.stand_in.left_out(torch.zeros(())) for site in sites]
    moved = torch.zeros(2, 23)
    for site in range(2):
        for edge in range(23):
            gates = torch.ones(2, 23, dtype=torch.bool)
            gates[site, edge] = False
            with torch.no_grad(), capture.tap(model, by_user_edges(gates, zeros), edge_map, tuple(sites)):
                q = batches.default_forward(model, data).log_softmax(-1)
            p = found.original.log_softmax(-1)
            moved[site, edge] = (p.exp() * (p - q)).sum(-1).mean().clamp_min(0)
    assert float(moved.max()) > 1e-3
    assert torch.allclose(found.scores, moved / moved.max(), atol=1e-3)


def test_a_layer_that_sends_along_edges_nobody_passed_in() -> None:
    class Rewired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(7, 3)

        def forward(self, data: HeteroData) -> Tensor:
            return self.conv(data["paper"].x, torch.tensor([[0, 1], [5, 4]]))

    data = graph(0)
    data[CITES].edge_index = torch.tensor([[2, 3], [3, 2]])
    data[WRITES].edge_index = torch.tensor([[3], [3]])
    data[WRITTEN].edge_index = torch.tensor([[3], [3]])
    for kind in KINDS:
        del data[kind].edge_attr
    with pytest.raises(GraphMaskError, match=r"Expected module 'conv' to send along edges of the graph .* \(0, 5\)"):
        methods.get("random")(Rewired()).explain(data)


def test_all_types_at_once_in_an_order_of_the_model() -> None:
    """HGT on edges that the model turned round, and thinned: still the user's edges."""

    def forward(model: nn.Module, data: HeteroData) -> Tensor:
        return model(data.x_dict, {kind: data[kind].edge_index.flip(1)[:, 1:] for kind in reversed(KINDS)})

    data = graph(2)
    for kind, count in zip(KINDS, (5, 4, 6), strict=True):
        data[kind].edge_index = data[kind].edge_index.unique(dim=1)[:, :count]
        del data[kind].edge_attr
    counts = [data[kind].num_edges for kind in KINDS]
    first = [sum(counts[:n]) for n in range(3)]
    _, seen = messages_of(BY_NAME["hgt"].model(), data, forward)
    expected = [first[n] + e for n in (2, 1, 0) for e in reversed(range(counts[n] - 1))]
    assert seen[0].edges.tolist() == expected
    with pytest.raises(GraphMaskError, match="Expected module 'first' to send along edges of the graph"):
        messages_of(
            BY_NAME["hgt"].model(), data, lambda m, d: m(d.x_dict, {CITES: torch.tensor([[0, 1, 2, 3], [5, 5, 5, 4]])})
        )


def test_positions_from_edges_in_any_order() -> None:
    layout = batches.Layout.of(graph(3))
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    whole = layout.edge_map()
    mixed = HeteroEdgeMap.numbered(whole.edge_index[:, order], whole.edge_type[order], KINDS, layout.first)
    for number, kind in enumerate(KINDS):
        edges, place = mixed.parts[kind]
        start = int((whole.edge_type < number).sum())
        assert place.tolist() == [at for at in range(23) if whole.edge_type[order[at]] == number]
        assert torch.equal(edges.edge_index, layout.local[number][:, order[place] - start])
