"""Paths: counted, listed, by pattern, by length and distance; by hand and against every combination of hops."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmask import Explanation, GraphMaskError, analysis
from graphmask.analysis.side_by_side import nodes_of
from graphmask.experiments import relay

from . import literal
from .support import explanation_of, explanations

BLOCK = "graphmask.analysis.side_by_side.EDGES_AT_ONCE"

# By hand -----------------------------------------------------------------------------------------------------------

#         0 -> 1, 1 -> 2, 3 -> 2, 2 -> 4; layer 0 keeps the first and third, layer 1 the second and last.
CHAIN = explanation_of([(0, 1), (1, 2), (3, 2), (2, 4)], [[0, 2], [1, 3]], types=[7, 8, 9, 7])


def test_by_hand() -> None:
    assert analysis.paths_into(CHAIN) == [0, 1, 2, 0, 1]  # 0-1; 3-2 and 0-1-2; 3-2-4
    assert analysis.paths_into(CHAIN, persist=False) == [0, 0, 1, 0, 1]
    assert analysis.count_paths(CHAIN, targets=[2, 4]) == 3
    assert analysis.count_paths(CHAIN, sources=[0], targets=[2, 4]) == 1
    assert analysis.count_paths(CHAIN, sources=[0]) == 2  # 0-1 and 0-1-2
    found = analysis.path_patterns([CHAIN], targets=[2, 4])
    assert found.rows() == [([7, 8], 2, 1, 1 / 3), ([9], 1, 1, 1 / 3), ([9, 7], 2, 1, 1 / 3)]
    on = analysis.edges_on_paths([CHAIN], sources=[3])
    assert on.rows() == [(0, 2, 1, 0.5), (1, 2, 1, 0.5), (None, 4, 2, 0.5)]
    on = analysis.edges_on_paths([CHAIN], sources=[3], targets=[2])
    assert on.rows() == [(0, 2, 1, 0.5), (1, 2, 0, 0.0), (None, 4, 1, 0.25)]


def test_exact_where_no_list_could_be() -> None:
    """Ten edges each between two nodes to and fro, kept at 40 layers: 10^40 paths."""
    edges = [(0, 1)] * 10 + [(1, 0)] * 10
    many = explanation_of(edges, [list(range(20))] * 40, nodes=2, types=[0] * 20)
    assert analysis.count_paths(many, targets=[0], persist=False) == 10**40
    found = analysis.path_patterns([many], targets=[0], persist=False)
    assert found["paths"].to_list() == [1e40]
    assert found["length"].to_list() == [40]
    assert len(analysis.list_paths(many, targets=[0], persist=False, limit=5)) == 5
    # With persistence: one to forty hops, in turns to and fro, each at any later layer; a start before any arrival.
    assert analysis.count_paths(many, sources=[0], targets=[1]) > 10**40


def test_listing_finds_its_few_paths_among_many_dead_ends() -> None:
    """A ladder of 2^30 ways, of which a source opens one: found at once, not after trying the others."""
    edges, kept = [], []
    for step in range(30):
        low, high = 3 * step, 3 * step + 3
        edges += [(low, high), (low, high)]
        kept.append([2 * step, 2 * step + 1])
    edges.append((100, 90))
    kept.append([60])
    ladder = explanation_of(edges, kept, nodes=101)
    assert analysis.count_paths(ladder, targets=[90]) == 2**30 + 1
    assert analysis.list_paths(ladder, sources=[100], targets=[90]) == [((30, 60, 100, 90),)]


def test_bad_nodes() -> None:
    for bad in (-1, 5):
        with pytest.raises(GraphMaskError, match=f"Expected nodes from 0 to 4, got {bad}"):
            analysis.count_paths(CHAIN, targets=[bad])
        with pytest.raises(GraphMaskError, match=f"Expected nodes from 0 to 4, got {bad}"):
            analysis.edges_on_paths([CHAIN], sources=lambda _, bad=bad: [bad])
    with pytest.raises(GraphMaskError, match="Expected a limit of at least 1"):
        analysis.list_paths(CHAIN, limit=0)
    with pytest.raises(GraphMaskError, match="Expected 'roots' in"):
        analysis.path_patterns([CHAIN], sources="roots")
    assert nodes_of(explanation_of([], [[]], info={"root": 3}), "root") == [3]
    assert nodes_of(CHAIN, lambda _: torch.tensor([1, 2])) == [1, 2]


# Random graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_targets", [False, True])
@pytest.mark.parametrize("from_sources", [False, True])
@pytest.mark.parametrize("persist", [False, True])
@settings(max_examples=30)
@given(found=explanations(most=1))
def test_counting_and_listing(found: list[Explanation], persist: bool, from_sources: bool, to_targets: bool) -> None:
    explanation = found[0]
    sources = explanation.info["sources"] if from_sources else None
    targets = explanation.info["targets"] if to_targets else None
    expected = literal.chains(explanation, sources, targets, persist)
    options: dict[str, Any] = {"sources": sources, "targets": targets, "persist": persist}
    assert analysis.count_paths(explanation, **options) == len(expected)
    listed = analysis.list_paths(explanation, **options, limit=10**6)
    assert len(listed) == len(expected)
    assert set(listed) == expected
    assert [len(path) for path in listed] == sorted((len(path) for path in listed), reverse=True)
    few = analysis.list_paths(explanation, **options, limit=2)
    assert len(few) == min(2, len(expected))
    assert set(few) <= expected
    if not from_sources:
        for node in range(explanation.num_nodes):
            same = explanation.paths(node, persist=persist, limit=10**6)
            assert analysis.list_paths(explanation, targets=[node], persist=persist, limit=10**6) == same
            assert analysis.paths_into(explanation, persist=persist)[node] == len(same)


@pytest.mark.parametrize("to_targets", [False, True])
@pytest.mark.parametrize("from_sources", [False, True])
@pytest.mark.parametrize("persist", [False, True])
@settings(max_examples=30)
@given(found=explanations(), at_once=st.sampled_from([1, 1000]))
def test_patterns_and_edges_on_paths(
    found: list[Explanation], persist: bool, from_sources: bool, to_targets: bool, at_once: int
) -> None:
    which = {"sources": "sources" if from_sources else None, "targets": "targets" if to_targets else None}
    with mock.patch(BLOCK, at_once):
        patterns = analysis.path_patterns(iter(found), **which, persist=persist)
        on = analysis.edges_on_paths(iter(found), **which, persist=persist)
    expected: Counter[tuple[int | None, ...]] = Counter()
    lie: set[tuple[int, int, int]] = set()
    for number, e in enumerate(found):
        sources = e.info["sources"] if from_sources else None
        for path in literal.chains(e, sources, e.info["targets"] if to_targets else None, persist):
            types = None if e.edge_type is None else e.edge_type.tolist()
            expected[tuple(None if types is None else types[hop[1]] for hop in path)] += 1
            lie |= {(number, hop[0], hop[1]) for hop in path}
    assert {tuple(row[0]): row[2] for row in patterns.rows()} == expected
    assert all(len(row[0]) == row[1] for row in patterns.rows())
    assert patterns["share"].to_list() == pytest.approx([n / expected.total() for n in patterns["paths"]])
    assert patterns["paths"].to_list() == sorted(expected.values(), reverse=True)
    layers = literal.layers_of(found)
    kept = [sum(int(e.kept[k].sum()) for e in found) for k in layers]
    counts = [sum(hop[1] == k for hop in lie) for k in layers]
    assert on["layer"].to_list() == [*layers, None]
    assert on["kept"].to_list() == [*kept, sum(kept)]
    assert on["on_paths"].to_list() == [*counts, sum(counts)]
    shares = [literal.quotient(a, b) for a, b in zip([*counts, sum(counts)], [*kept, sum(kept)], strict=True)]
    assert on["share"].to_list() == shares


def test_connections_by_hand() -> None:
    found = analysis.connections([CHAIN, explanation_of([(0, 1)], [[0], []], nodes=5)], [3], [4])
    assert found.rows() == [(0, 0.5, 0.0, None, 2), (1, 0.0, 0.5, None, 2), (None, 0.5, 0.5, 0.5, 2)]


@pytest.mark.parametrize("persist", [False, True])
@settings(max_examples=30)
@given(found=explanations(), at_once=st.sampled_from([1, 1000]))
def test_connections_by_loops(found: list[Explanation], persist: bool, at_once: int) -> None:
    with mock.patch(BLOCK, at_once):
        table = analysis.connections(iter(found), "sources", "targets", persist=persist)
    layers = literal.layers_of(found)
    for row, chosen in zip(table.to_dicts(), [*([k] for k in layers), layers], strict=True):
        leaving = arriving = connected = 0
        for e in found:
            sources, targets = e.info["sources"], e.info["targets"]
            kept = [hop for hop in literal.hops(e) if hop[0] in chosen]
            leaving += any((hop[2] in sources) != (hop[3] in sources) for hop in kept)
            arriving += any(hop[3] in targets for hop in kept)
            connected += bool(literal.chains(e, sources, targets, persist))
        assert row["leaving"] == leaving / len(found)
        assert row["arriving"] == arriving / len(found)
        assert row["connected"] == (connected / len(found) if row["layer"] is None else None)


# Along the shortest paths of the graph -------------------------------------------------------------------------------

#    0 -> 1 -> 2 -> 3 and back; predicate 0, roles 1 and 3. Layer 0 keeps 1 -> 2, layer 1 keeps 2 -> 3 and 0 -> 1.
TREE = explanation_of(
    [(0, 1), (1, 2), (2, 3), (1, 0), (2, 1), (3, 2)],
    [[1], [2, 0]],
    nodes=5,
    info={"predicate": 0, "roles": [1, 3, 4], "tokens": [10, 12, 11, 3, 0], "kind": "V"},
)


def test_retained_by_hand() -> None:
    lengths = analysis.kept_by_path_length([TREE], "predicate", "roles", group="kind")
    # 0-1: its one edge is kept. 0-1-2-3: the last two are, at layers 0 and 1. Node 4 is not connected.
    assert lengths.rows() == [("V", 1, 1, 1, 1.0), ("V", 3, 2, 1, 1.0)]
    assert analysis.kept_by_path_length([TREE], "predicate", "roles", longest=2).rows() == [
        (None, 1, 1, 1, 1.0),
        (None, 2, 2, 1, 1.0),
    ]
    distances = analysis.kept_by_distance([TREE], "predicate", "roles", positions="tokens")
    assert distances.rows() == [(None, 2, 1, 1, 1.0), (None, 7, 1, 1, 1.0)]
    back = analysis.kept_by_distance([TREE], [3], [0, 2])  # no message is kept that way
    assert back.rows() == [(None, 1, 1, 0, 0.0), (None, 3, 1, 0, 0.0)]
    with pytest.raises(GraphMaskError, match="Expected a position for each of 5 nodes, got 2"):
        analysis.kept_by_distance([TREE], [0], [1], positions=lambda _: [0, 1])
    with pytest.raises(GraphMaskError, match="Expected at least one explanation"):
        analysis.kept_by_distance([], [0], [1])


@pytest.mark.parametrize("persist", [False, True])
@settings(max_examples=40)
@given(found=explanations(nodes=5, edges=9))
def test_retained_by_trying_all_walks(found: list[Explanation], persist: bool) -> None:
    lengths: Counter[tuple[str, int, int]] = Counter()
    distances: Counter[tuple[str, int, bool]] = Counter()
    for e in found:
        for source in set(e.info["sources"]):
            for target in range(e.num_nodes):
                expected = literal.retained_paths(e, source, target, persist)
                if expected is not None:
                    lengths[e.info["group"], *expected] += 1
                    distances[e.info["group"], abs(3 * source - 3 * target), expected[1] > 0] += 1
    everywhere = range

    def all_nodes(e: Explanation) -> range:
        return everywhere(e.num_nodes)

    by_length = analysis.kept_by_path_length(iter(found), "sources", all_nodes, group="group", persist=persist)
    assert {row[:3]: row[3] for row in by_length.rows()} == lengths
    by_distance = analysis.kept_by_distance(
        iter(found),
        "sources",
        all_nodes,
        positions=lambda e: [3 * node for node in range(e.num_nodes)],
        group="group",
        persist=persist,
    )
    paths: Counter[tuple[str, int]] = Counter()
    for (group, distance, _), count in distances.items():
        paths[group, distance] += count
    assert {row[:2]: row[2] for row in by_distance.rows()} == paths
    assert all(row[3] == distances[row[0], row[1], True] for row in by_distance.rows())


# Gold ----------------------------------------------------------------------------------------------------------------


def test_relay_paths_are_the_gold_paths() -> None:
    """Explanations that keep exactly the gold: the paths into the root are the gold's own, and no others."""
    listed = 0
    for batch in relay.generate(40, seed=3, batch_size=1):
        gold = batch.gold.t()
        edges = [(int(u), int(v)) for u, v in batch.edge_index.t()]
        explanation = explanation_of(
            edges,
            [row.nonzero().view(-1).tolist() for row in gold],
            nodes=batch.num_nodes,
            types=batch.edge_type.tolist(),
        )
        expected = {
            ((0, first, leaf, mid), (1, second, mid, 0))
            for first, (leaf, mid) in enumerate(edges)
            for second, (sender, root) in enumerate(edges)
            if batch.gold[first, 0] and batch.gold[second, 1] and sender == mid and root == 0
        }
        for persist in (True, False):
            into_root = analysis.list_paths(explanation, targets=[0], persist=persist, limit=10**6)
            assert {path for path in into_root if len(path) == 2} == expected
            assert len(into_root) == len(expected)
            assert set(explanation.paths(0, persist=persist, limit=10**6)) == expected
            assert analysis.count_paths(explanation, targets=[0], persist=persist) == len(expected)
            patterns = analysis.path_patterns([explanation], targets=[0], persist=persist)
            leaf_mid_root = [relay.LEAF_TO_MID, relay.MID_TO_ROOT]
            assert patterns.rows() == ([(leaf_mid_root, 2, len(expected), 1.0)] if expected else [])
        listed += len(expected)
    assert listed > 100
