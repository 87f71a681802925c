"""The planted sets hold what they say: motifs by isomorphism, labels by role, infections by breadth-first search."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphmask.errors import GraphMaskError
from graphmask.experiments import motifs, mutagenicity


def graph_of(edge_index: torch.Tensor) -> nx.Graph:
    return nx.Graph(edge_index.t().tolist())


def same(edge_index: torch.Tensor, wanted: nx.Graph) -> bool:
    return nx.is_isomorphic(graph_of(edge_index), wanted)


HOUSE = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)])


def both_ways(data: Data) -> bool:
    pairs = set(map(tuple, data.edge_index.t().tolist()))
    return len(pairs) == data.num_edges and all((b, a) in pairs and a != b for a, b in pairs)


def test_structures_are_what_networkx_draws() -> None:
    for pairs, wanted in (
        (motifs.cycle(6), nx.cycle_graph(6)),
        (motifs.grid(3), nx.grid_2d_graph(3, 3)),
        (motifs.CRANE, nx.complete_bipartite_graph(2, 3)),
        (motifs.HOUSE, nx.house_graph()),
        (motifs.tree(3), nx.balanced_tree(2, 3)),
        (motifs.ladder(5), nx.ladder_graph(5)),
        (motifs.wheel(7), nx.wheel_graph(7)),
    ):
        assert nx.is_isomorphic(nx.Graph(pairs), wanted)
        assert len(pairs) == wanted.number_of_edges()


@pytest.mark.parametrize(("nodes", "edges"), [(20, 1), (60, 5)])
def test_preferential_attachment_ties_every_new_node(nodes: int, edges: int) -> None:
    pairs = motifs.barabasi_albert(nodes, edges, np.random.default_rng(0))
    assert len(pairs) == len(set(pairs)) == (nodes - edges) * edges
    assert nx.is_connected(nx.Graph(pairs))
    for node in range(edges, nodes):
        assert sum(b == node for _, b in pairs) == edges
    # The rich get richer: far above what a random graph of as many edges has.
    degrees = [degree for _, degree in nx.Graph(pairs).degree()]
    assert max(degrees) > 2.5 * 2 * len(pairs) / nodes


@pytest.mark.parametrize(
    ("name", "motif", "count", "nodes"),
    [
        ("ba_shapes", HOUSE, 80, 700),
        ("ba_community", HOUSE, 160, 1400),
        ("tree_cycles", nx.cycle_graph(6), 60, 871),
        ("tree_grid", nx.grid_2d_graph(3, 3), 80, 1231),
    ],
)
def test_node_sets_hold_their_motifs(name: str, motif: nx.Graph, count: int, nodes: int) -> None:
    data = getattr(motifs, name)(3)
    assert (data.num_nodes, int(data.motif.max()) + 1) == (nodes, count)
    assert both_ways(data)
    assert int((data.gold >= 0).sum()) == 2 * count * motif.number_of_edges()
    for number in range(count):
        mine = data.edge_index[:, data.gold == number]
        assert sorted(set(mine.flatten().tolist())) == (data.motif == number).nonzero().view(-1).tolist()
        if number < 5:
            assert same(mine, motif)
    assert torch.equal(data.edge_index, getattr(motifs, name)(3).edge_index)
    assert not torch.equal(data.edge_index, getattr(motifs, name)(4).edge_index)


def test_roles_in_a_house_follow_from_its_shape() -> None:
    data = motifs.ba_community(0)
    for number in (0, 79, 80, 159):
        nodes = (data.motif == number).nonzero().view(-1)
        inside = graph_of(data.edge_index[:, data.gold == number])
        community = 4 * (number >= 80)
        for node in nodes.tolist():
            neighbours = [inside.degree(other) for other in inside[node]]
            role = 1 if inside.degree(node) == 3 else 3 if neighbours == [3, 3] else 2
            assert int(data.y[node]) == community + role
    assert bool((data.y[data.motif < 0] % 4 == 0).all())
    # Features tell the communities apart on average.
    assert float(data.x[:700].mean()) == pytest.approx(-1, abs=0.05)
    assert float(data.x[700:].mean()) == pytest.approx(1, abs=0.05)


def test_graph_sets_are_labelled_by_their_motif() -> None:
    for graphs, shapes in (
        (motifs.ba_2motifs(1, 20), (HOUSE, nx.cycle_graph(5))),
        (motifs.spmotif(1, 0.7, 30), (nx.cycle_graph(5), HOUSE, nx.complete_bipartite_graph(2, 3))),
    ):
        assert [int(graph.y) for graph in graphs[: len(shapes)]] == list(range(len(shapes)))
        for graph in graphs:
            assert both_ways(graph)
            assert same(graph.edge_index[:, graph.gold], shapes[int(graph.y)])
            assert nx.is_connected(graph_of(graph.edge_index))
            assert graph.x.shape[0] == int(graph.edge_index.max()) + 1


@pytest.mark.parametrize("bias", [1 / 3, 0.9])
def test_bias_is_the_share_of_labels_that_agree_with_their_base(bias: float) -> None:
    def base(graph: Data) -> int:
        nodes = graph.num_nodes - 5
        first = torch.bincount(graph.edge_index[0], minlength=nodes)[0]
        return 2 if int(first) >= nodes - 1 else 0 if nodes in (15, 31) else 1  # a wheel's hub; sizes of trees

    graphs = motifs.spmotif(5, bias, 900)
    share = sum(base(graph) == int(graph.y) for graph in graphs) / 900
    assert share == pytest.approx(bias, abs=4 * (bias * (1 - bias) / 900) ** 0.5)


def test_infection_distances_and_unique_paths_by_brute_force() -> None:
    data = motifs.infection(0, nodes=200, degree=3.0, infected=10, longest=4)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(200))
    graph.add_edges_from(data.edge_index.t().tolist())
    sick = data.x[:, 1].nonzero().view(-1).tolist()
    assert len(sick) == 10
    known = 0
    for node in range(200):
        lengths = [nx.shortest_path_length(graph, s, node) for s in sick if nx.has_path(graph, s, node)]
        distance = min([*lengths, 5])
        assert int(data.y[node]) == distance
        paths = [
            path
            for s in sick
            if nx.has_path(graph, s, node) and nx.shortest_path_length(graph, s, node) == distance
            for path in nx.all_shortest_paths(graph, s, node)
        ]
        if 1 <= distance <= 4 and len(paths) == 1:
            known += 1
            found = data.edge_index[:, motifs.path_to(data, node)].t().tolist()
            assert sorted(map(tuple, found)) == sorted(zip(paths[0], paths[0][1:], strict=False))
        else:
            assert int(data.parent[node]) == -1
    assert known > 30


LINES = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "node_labels": "0\n4\n1\n0\n3\n",
    "graph_labels": "0\n1\n",
    "edge_gt": "0\n0\n1\n1\n0\n0\n",
}


def write(folder, **changes: str) -> None:
    for name, text in {**LINES, **changes}.items():
        (folder / f"Mutagenicity_{name}.txt").write_text(text)


def test_molecules_are_read_from_their_text(tmp_path) -> None:
    write(tmp_path)
    first, second = mutagenicity.read(tmp_path)
    assert first.x.argmax(1).tolist() == [0, 4, 1]
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.gold.tolist() == [False, False, True, True]
    assert second.edge_index.tolist() == [[0, 1], [1, 0]]
    assert (int(first.y), int(second.y)) == (mutagenicity.MUTAGEN, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_gt": "0\n"}, "Expected 6 lines"),
        ({"A": "1, 9\n" * 6}, "pairs of atoms from 1 to 5"),
        ({"node_labels": "0\nx\n"}, "whole numbers"),
        ({"graph_indicator": "2\n1\n1\n2\n2\n"}, "in the order of their 2 molecules"),
    ],
)
def test_damaged_files_are_refused(tmp_path, changes: dict[str, str], message: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(GraphMaskError, match=message):
        mutagenicity.read(tmp_path)


def test_a_missing_file_is_named(tmp_path) -> None:
    write(tmp_path)
    (tmp_path / "Mutagenicity_edge_gt.txt").unlink()
    with pytest.raises(GraphMaskError, match=r"Mutagenicity_edge_gt\.txt"):
        mutagenicity.read(tmp_path)
