"""`edges.match` against looking at every pair."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmask.graphs.edges import EdgeMap, match
from reference import edges as literal

edge_lists = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


def tensor(edges: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor(edges, dtype=torch.long).view(-1, 2).t()


@settings(max_examples=300, deadline=None)
@given(edge_lists, edge_lists)
def test_match_is_the_pairwise_search(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    assert match(tensor(mine), tensor(theirs)).tolist() == literal.match(mine, theirs)


@settings(max_examples=100, deadline=None)
@given(edge_lists, st.randoms(use_true_random=False))
def test_match_of_a_permutation_finds_every_edge(mine: list[tuple[int, int]], random: object) -> None:
    theirs = list(mine)
    random.shuffle(theirs)  # type: ignore[attr-defined]
    positions = match(tensor(mine), tensor(theirs)).tolist()
    assert sorted(positions) == list(range(len(mine)))
    assert [mine[position] for position in positions] == theirs


def test_node_numbers_far_apart() -> None:
    mine = [(0, 1_000_000), (1_000_000, 0), (1, 0)]
    theirs = [(1, 0), (0, 1_000_000), (0, 0), (1_000_000, 0)]
    assert match(tensor(mine), tensor(theirs)).tolist() == [2, 0, -1, 1]


def test_self_loops_that_a_layer_replaces_keep_their_place() -> None:
    """GCN drops the input's self-loops and appends one per node: the user's stay the user's."""
    mine = tensor([(0, 0), (0, 1), (1, 2)])
    theirs = tensor([(0, 1), (1, 2), (0, 0), (1, 1), (2, 2)])
    positions = EdgeMap(mine)(theirs, (), 0, "layer").edges
    assert positions is not None
    assert positions.tolist() == [1, 2, 0, -1, -1]


def test_relations_tell_parallel_edges_apart() -> None:
    """Two edges 0 -> 1, of relation 1 and 0: a layer that sends relation by relation selects the second first."""
    mine, types = tensor([(0, 1), (0, 1), (2, 1)]), torch.tensor([1, 0, 0])
    first = EdgeMap(mine)(mine[:, types == 0], (types,), 0, "layer").edges
    second = EdgeMap(mine)(mine[:, types == 1], (types,), 1, "layer").edges
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([1, 2], [0])


def test_an_answer_stays_what_it_was_when_others_are_asked_for() -> None:
    """What a call sends along is a value: a later call, turned around, says nothing of an earlier one."""
    mine = tensor([(0, 1), (1, 2), (0, 2)])
    edge_map = EdgeMap(mine)
    same = edge_map(mine.clone(), (), 0, "first")
    turned = edge_map(mine.flip(0), (), 0, "second")
    again = edge_map(mine.flip(0), (), 0, "third")
    assert (same.edges, same.flipped) == (None, False)
    assert turned.flipped
    assert again.flipped
    assert turned.edges is not None
    assert turned.edges.tolist() == [0, 1, 2]
