"""Edge types, overlaps and inverses: by hand, by loops, and from a frame that streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from graphmask import Explanation, GraphMaskError, analysis
from graphmask.analysis.side_by_side import Block, tally

from . import literal
from .support import explanation_of, explanations

BLOCK = "graphmask.analysis.side_by_side.EDGES_AT_ONCE"


def rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dicts()


def assert_same(found: pl.DataFrame, expected: Sequence[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for row, wanted in zip(rows(found), expected, strict=True):
        assert row == {name: pytest.approx(v) if isinstance(v, float) else v for name, v in wanted.items()}


def frame_of(found: Sequence[Explanation]) -> pl.DataFrame:
    """As a store has it: a row per graph, layer and edge."""
    columns = {"graph": pl.Int64, "layer": pl.Int16, "edge": pl.Int32, "source": pl.Int32, "target": pl.Int32}
    columns |= {"type": pl.Int32, "score": pl.Float32, "kept": pl.Boolean, "carried": pl.Boolean}
    data = []
    for graph, e in enumerate(found):
        for layer in range(len(e.structure)):
            for edge, (u, v) in enumerate(e.edge_index.t().tolist()):
                kind = None if e.edge_type is None else int(e.edge_type[edge])
                flags = bool(e.kept[layer, edge]), bool(e.carried[layer, edge])
                data.append((graph, layer, edge, u, v, kind, float(e.scores[layer, edge]), *flags))
    return pl.DataFrame(data, schema=columns, orient="row")


# A hand-computed example: two layers, types 0 and 1 ----------------------------------------------------------------

#        0 -> 1 (type 0), 1 -> 0 (type 1), 0 -> 1 (type 1), 2 -> 2 (type 0), 1 -> 2 (type 0)
EDGES = [(0, 1), (1, 0), (0, 1), (2, 2), (1, 2)]
BY_HAND = explanation_of(EDGES, [[0, 1, 2], [4]], types=[0, 1, 1, 0, 0], carried=[[0, 1, 2, 3, 4], [0, 1, 3, 4]])


def test_edge_types_by_hand() -> None:
    names = ("layer", "type", "edges", "kept", "share", "base_rate", "probability")
    expected = [
        (0, 0, 3, 1, 1 / 4, 3 / 5, 1 / 3),
        (0, 1, 2, 2, 2 / 4, 2 / 5, 1.0),
        (1, 0, 3, 1, 1 / 4, 3 / 4, 1 / 3),
        (1, 1, 1, 0, 0.0, 1 / 4, 0.0),
    ]
    assert_same(analysis.edge_types([BY_HAND]), [dict(zip(names, row, strict=True)) for row in expected])


def test_overlap_by_hand() -> None:
    found = analysis.type_overlap([BY_HAND]).filter(pl.col("layer") == 0)
    # Kept of type 0: edge 0, beside which edge 1 (back) and edge 2 run; of type 1: edges 1 and 2, both beside edge 0.
    assert found["overlap"].to_list() == [1.0, 1.0]
    assert found["base_rate"].to_list() == [pytest.approx(1 / 3), 1.0]
    directed = analysis.type_overlap([BY_HAND], directed=True).filter(pl.col("layer") == 0)
    assert directed["overlap"].to_list() == [1.0, 0.5]
    above = analysis.type_overlap([BY_HAND]).filter(pl.col("layer") == 1)
    assert above["overlap"].to_list() == [0.0, None]  # no edge of type 1 is kept there
    assert above["base_rate"].to_list() == [pytest.approx(1 / 3), 1.0]


def test_inverses_by_hand() -> None:
    found = analysis.inverses([BY_HAND])
    assert found["layer"].to_list() == [0, 1, None]
    assert found["kept"].to_list() == [3, 1, 4]
    assert found["both"].to_list() == [3, 0, 3]
    assert found["share"].to_list() == [1.0, 0.0, 0.75]
    assert found["edges"].to_list() == [4, 3, 7]  # a self-loop is no pair
    assert found["base_rate"].to_list() == [pytest.approx(3 / 4), pytest.approx(2 / 3), pytest.approx(5 / 7)]
    typed = analysis.inverses([BY_HAND], {0: 1, 1: 0})
    assert typed["both"].to_list() == [2, 0, 2]  # edge 2, of type 1, wants 1 -> 0 of type 0
    assert analysis.inverses([BY_HAND], {})["both"].to_list() == [0, 0, 0]


def test_groups_by_hand() -> None:
    verb = explanation_of([(0, 1), (1, 2)], [[0]], types=[3, 4], info={"predicate": "V"})
    noun = explanation_of([(0, 1), (1, 2)], [[0, 1]], types=[4, 4], info={"predicate": "N"})
    found = analysis.kept_by_type([verb, noun, verb], "predicate").filter(pl.col("layer").is_null())
    assert found.select("group", "type", "probability", "share", "graphs", "occurrence").rows() == [
        ("N", 4, 1.0, 1.0, 1, 1.0),
        ("V", 3, 1.0, 1.0, 2, 1.0),
        ("V", 4, 0.0, 0.0, 2, 1.0),
    ]
    with pytest.raises(GraphMaskError, match=r"Expected 'mood' in explanation\.info, found 'predicate'"):
        analysis.kept_by_type([verb], "mood")


# Random graphs -----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(found=explanations(), at_once=st.sampled_from([1, 8, 1000]))
def test_edge_types_by_loops(found: list[Explanation], at_once: int) -> None:
    """However explanations are put side by side; from a frame the same."""
    with mock.patch(BLOCK, at_once):
        table = analysis.edge_types(iter(found))
        assert_same(table, literal.edge_types(found))
    frame = frame_of(found)
    assert_frame_equal(analysis.edge_types_of_store(frame.lazy()), table)
    sent = frame.filter(pl.col("carried")).drop("carried")
    assert_frame_equal(analysis.edge_types_of_store(sent.lazy()), table)


@pytest.mark.parametrize("grouped", [False, True])
@settings(max_examples=25)
@given(found=explanations(), at_once=st.sampled_from([1, 8, 1000]))
def test_kept_by_type_by_loops(found: list[Explanation], at_once: int, grouped: bool) -> None:
    with mock.patch(BLOCK, at_once):
        table = analysis.kept_by_type(iter(found), "group" if grouped else None)
    assert_same(table, literal.kept_by_type(found, lambda e: e.info["group"] if grouped else None))


@pytest.mark.parametrize("directed", [False, True])
@settings(max_examples=30)
@given(found=explanations(edges=8, nodes=3), at_once=st.sampled_from([1, 1000]))
def test_overlap_by_loops(found: list[Explanation], at_once: int, directed: bool) -> None:
    with mock.patch(BLOCK, at_once):
        table = analysis.type_overlap(iter(found), directed=directed)
    assert_same(table, literal.type_overlap(found, directed))


@pytest.mark.parametrize("types", [None, {0: 1, 1: 0}, {0: 0, 1: 2, 2: 1, 7: 9}, {}])
@settings(max_examples=20)
@given(found=explanations(typed=True, edges=8, nodes=3), at_once=st.sampled_from([1, 1000]))
def test_inverses_by_loops(found: list[Explanation], at_once: int, types: dict[int, int] | None) -> None:
    with mock.patch(BLOCK, at_once):
        table = analysis.inverses(iter(found), types)
    assert_same(table, literal.inverses(found, types))


# What is wrong with the input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "analyse", [analysis.edge_types, analysis.kept_by_type, analysis.type_overlap, analysis.inverses]
)
def test_no_explanations(analyse: Any) -> None:
    with pytest.raises(GraphMaskError, match="Expected at least one explanation, found none"):
        analyse(iter([]))


def test_two_models() -> None:
    other = explanation_of([(0, 1)], [[0]])
    with pytest.raises(GraphMaskError, match="Expected explanations of one model, with sites layer0, layer1"):
        analysis.edge_types([BY_HAND, other])


def test_inverse_types_want_types() -> None:
    with pytest.raises(GraphMaskError, match="Expected edges with types"):
        analysis.inverses([explanation_of([(0, 1)], [[0]])], {0: 0})


def test_tally_of_far_apart_values() -> None:
    for big in (2**40, 2**20, 8):
        columns = torch.tensor([0, big, 0, big]), torch.tensor([-big, 3, -big, 4])
        assert dict(tally(*columns)) == {(0, -big): 2, (big, 3): 1, (big, 4): 1}


def test_a_block_numbers_nodes_through() -> None:
    block = Block.of([explanation_of([(0, 1)], [[0]], nodes=3), explanation_of([(1, 0)], [[]], nodes=2)])
    assert block.source.tolist() == [[0, 4]]
    assert block.target.tolist() == [[1, 3]]
    assert block.num_nodes == 5
