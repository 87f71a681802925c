"""The result object: numbers by hand, paths by brute force, other formats, files."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmask import Explanation, GraphMaskError
from graphmask.gates.hard_concrete import EVEN, probability_open
from graphmask.graphs.sites import Site
from reference import paths as literal


def explanation_of(
    edges: list[tuple[int, int]],
    kept: list[list[bool]],
    *,
    nodes: int = 5,
    reverse: tuple[bool, ...] = (),
    **fields: Any,
) -> Explanation:
    sites = len(kept)
    flags = torch.tensor(kept, dtype=torch.bool).view(sites, len(edges))
    reverse = reverse or (False,) * sites
    values: dict[str, Any] = {
        "edge_index": torch.tensor(edges, dtype=torch.long).view(-1, 2).t(),
        "kept": flags,
        "scores": torch.where(flags, 0.875, 0.25),
        "carried": torch.ones_like(flags),
        "original": torch.tensor([[1.0, -1.0]]),
        "masked": torch.tensor([[0.5, -1.0]]),
        "divergence": 0.02,
        "flips": 0.0,
        "tolerance": 0.03,
        "structure": tuple(Site(f"layer{k}", f"layer{k}", (0,), reverse[k]) for k in range(sites)),
        "baselines": tuple(torch.full((3,), float(k)) for k in range(sites)),
        "num_nodes": nodes,
    }
    return Explanation(**values | fields)


CHAIN = [(0, 1), (1, 2), (3, 2), (2, 4)]


@pytest.fixture
def example() -> Explanation:
    return explanation_of(CHAIN, [[True, False, True, False], [False, True, False, True]])


# Numbers -----------------------------------------------------------------------------------------------------


def test_retained(example: Explanation) -> None:
    assert example.retained == 4 / 8
    assert example.retained_per_site == (0.5, 0.5)
    carried = torch.tensor([[True, False, True, False], [True, True, True, True]])
    partly = replace(example, carried=carried)
    assert partly.retained == pytest.approx(4 / 6)  # of the gates there are
    assert partly.retained_per_site == (1.0, 0.5)
    nothing = explanation_of([], [[], []])
    assert (nothing.retained, nothing.retained_per_site) == (0.0, (0.0, 0.0))


def test_faithful_within_the_tolerance(example: Explanation) -> None:
    assert example.faithful
    assert replace(example, divergence=0.03).faithful
    assert not replace(example, divergence=0.0301).faithful
    assert not replace(example, divergence=float("nan")).faithful
    assert example.same_prediction
    assert not replace(example, flips=0.5).same_prediction


def test_repr_says_it_all(example: Explanation) -> None:
    text = repr(example)
    assert text == (
        "Explanation(within tolerance: divergence 0.02 of 0.03, same prediction; kept layer0 2/4, layer1 2/4)"
    )
    assert re.search(r"NOT within tolerance.*CHANGED", repr(replace(example, divergence=1.0, flips=1.0)))


def test_scores_of_edges_that_carry_nothing_are_zero() -> None:
    assert probability_open(torch.tensor([-torch.inf, EVEN])).tolist() == [0.0, 0.5]


# Paths -------------------------------------------------------------------------------------------------------


def test_paths_by_hand(example: Explanation) -> None:
    """Site 0 keeps 0->1 and 3->2, site 1 keeps 1->2 and 2->4."""
    found = example.paths(2)
    assert [[tuple(hop) for hop in path] for path in found] == [[(0, 0, 0, 1), (1, 1, 1, 2)], [(0, 2, 3, 2)]]
    assert [[hop.edge for hop in path] for path in example.paths(4)] == [[2, 3]]
    assert example.paths(0) == []
    assert [[hop.edge for hop in path] for path in example.paths(2, persist=False)] == [[0, 1]]


graphs = st.integers(1, 3).flatmap(
    lambda sites: st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6).flatmap(
        lambda edges: st.tuples(
            st.just(edges),
            st.lists(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)), min_size=sites, max_size=sites),
            st.lists(st.booleans(), min_size=sites, max_size=sites),
        )
    )
)


@settings(max_examples=150)
@given(graphs, st.integers(0, 3), st.booleans())
def test_paths_are_all_maximal_chains(graph: Any, target: int, persist: bool) -> None:
    edges, kept, reverse = graph
    explanation = explanation_of(edges, kept, nodes=4, reverse=tuple(reverse))
    hops = [
        (site, edge, *(ends[::-1] if reverse[site] else ends))
        for site, flags in enumerate(kept)
        for edge, ends in enumerate(edges)
        if flags[edge]
    ]
    found = explanation.paths(target, persist=persist)
    assert len(found) == len(set(found))
    expected = literal.paths(hops, len(kept), target, persist)  # type: ignore[arg-type]
    assert {tuple(tuple(hop) for hop in path) for path in found} == expected
    lengths = [len(path) for path in found]
    assert lengths == sorted(lengths, reverse=True)
    for limit in (0, 1, 2):
        some = explanation.paths(target, persist=persist, limit=limit)
        assert len(some) == min(limit, len(found))
        assert set(some) <= set(found)


def test_millions_of_paths_are_not_listed() -> None:
    edges = [(u, v) for u in range(12) for v in range(12)]
    explanation = explanation_of(edges, [[True] * 144] * 8, nodes=12)
    assert len(explanation.paths(3, limit=50)) == 50
    assert len(explanation.paths(3)) == 1000


@pytest.mark.parametrize("target", [-1, 5, 99])
def test_paths_of_a_node_that_is_not_there(example: Explanation, target: int) -> None:
    with pytest.raises(GraphMaskError, match=f"Expected a node from 0 to 4, got {target}"):
        example.paths(target)


# Elsewhere ---------------------------------------------------------------------------------------------------


def test_to_pyg(example: Explanation) -> None:
    found = replace(example, scores=torch.tensor([[0.9, 0.1, 0.8, 0.2], [0.3, 0.7, 0.4, 0.6]])).to_pyg()
    assert found.edge_mask.tolist() == pytest.approx([0.9, 0.7, 0.8, 0.6])
    assert found.site_mask.tolist()[1] == pytest.approx([0.1, 0.7])
    assert found.site_kept.tolist() == [[True, False], [False, True], [True, False], [False, True]]
    assert torch.equal(found.edge_index, example.edge_index)
    assert found.num_nodes == 5
    assert found.validate(raise_on_error=True)
    assert found.get_explanation_subgraph().num_edges == 4


def test_to_networkx(example: Explanation) -> None:
    graph = replace(example, edge_type=torch.tensor([3, 1, 4, 1])).to_networkx()
    assert isinstance(graph, networkx.MultiDiGraph)
    assert sorted(graph.nodes) == [0, 1, 2, 3, 4]
    assert {(u, v, key): d["edge_type"] for u, v, key, d in graph.edges(keys=True, data=True)} == {
        (0, 1, 0): 3,
        (1, 2, 1): 1,
        (3, 2, 2): 4,
        (2, 4, 3): 1,
    }
    assert graph.edges[1, 2, 1]["kept"] == {"layer0": False, "layer1": True}
    assert graph.edges[0, 1, 0]["scores"] == {"layer0": 0.875, "layer1": 0.25}


def test_networkx_keeps_parallel_edges_and_self_loops() -> None:
    graph = explanation_of([(0, 1), (0, 1), (1, 1)], [[True, False, True]], nodes=3).to_networkx()
    assert [graph.edges[0, 1, key]["kept"]["layer0"] for key in (0, 1)] == [True, False]
    assert graph.has_edge(1, 1)
    assert graph.number_of_nodes() == 3
    assert "edge_type" not in graph.edges[0, 1, 0]


# Files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "types", "notes", "empty", "half", "views"])
def test_saved_then_loaded_is_the_same(example: Explanation, case: str, tmp_path: Path) -> None:
    whole = torch.tensor([[0, 1, 3, 2], [1, 2, 2, 4], [3, 1, 4, 1]])
    explanation = {
        "plain": example,
        "types": replace(example, edge_type=torch.tensor([3, 1, 4, 1]), reopened=2),
        "notes": replace(example, info={"name": "größe", "gold": [1, 2], "deep": {"a": None}}),
        "empty": explanation_of([], [[], []]),
        "half": replace(
            example, original=torch.ones(1, 2, dtype=torch.bfloat16), structure=(Site("a", "a", (0, 1, 2), True),) * 2
        ),
        "views": replace(example, edge_index=whole[:2], edge_type=whole[2]),
    }[case]
    explanation.save(tmp_path / "x")
    loaded = Explanation.load(tmp_path / "x")
    for name, value in vars(explanation).items():
        found = getattr(loaded, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(found, value), name
            assert found.dtype == value.dtype, name
        elif name == "baselines":
            assert all(torch.equal(a, b) for a, b in zip(found, value, strict=True))
        else:
            assert found == value, name
    assert repr(loaded) == repr(explanation)
    if explanation.num_nodes > 2:
        assert loaded.paths(2) == explanation.paths(2)


def test_notes_that_are_not_json_are_refused_before_the_file_changes(example: Explanation, tmp_path: Path) -> None:
    example.save(tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    with pytest.raises(TypeError):
        replace(example, info={"tensor": torch.ones(2)}).save(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == before
