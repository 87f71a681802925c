"""Words, arcs and roles: paired, nested, and nothing on top of anything else."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphmask.report.sentence import LABEL, WORD, Arc, Role, arcs, layout, text_width

TYPES = ["SBJ", "OBJ", "a long label"]


def test_opposite_edges_share_an_arc() -> None:
    edges = [(0, 2), (2, 0), (0, 1), (1, 0), (3, 1), (2, 2)]
    labels = ["SBJ", "SBJ", "OBJ", "inverse OBJ", "MNR", "self"]
    kept = [[0], [0, 1], [1], [0], [], [1]]
    found = arcs(edges, range(6), kept, labels, [False, False])
    assert [(a.low, a.high, a.edges, a.text, a.kept) for a in found] == [
        (0, 1, (2, 3), "→ OBJ 2  ← inverse OBJ 1", True),
        (0, 2, (0, 1), "→ SBJ 1  ← SBJ 1, 2", True),
        (1, 3, (4,), "", False),
        (2, 2, (5,), "self 2", True),
    ]


def test_the_same_types_are_paired_first() -> None:
    found = arcs([(0, 1), (0, 1), (1, 0), (1, 0)], range(4), [[0]] * 4, ["COREF", "MATCH", "MATCH", "COREF"], [False])
    assert [(a.edges, a.text) for a in found] == [((0, 3), "COREF"), ((1, 2), "MATCH")]


def test_one_layer_needs_no_number_and_no_type_no_word() -> None:
    assert arcs([(0, 1)], [0], [[0]], ["SBJ"], [False])[0].text == "SBJ"
    assert arcs([(0, 1)], [0], [[0, 1]], None, [False, False])[0].text == "1, 2"
    assert arcs([(0, 1)], [0], [[0]], None, [False])[0].text == ""


def test_arrows_follow_a_layer_that_sends_backwards() -> None:
    found = arcs([(0, 1), (1, 0)], [0, 1], [[0], [1]], ["A", "B"], [True, True])
    assert found[0].text == "← A 1  → B 2"


def test_a_longer_arc_lies_above_a_shorter_one() -> None:
    words = ["w"] * 6
    found = [Arc(0, 5, (0,), "x", True), Arc(1, 2, (1,), "x", True), Arc(2, 4, (2,), "x", True)]
    tops = [p.top for p in layout(words, found).arcs]
    assert tops[0] < tops[2]  # y grows downwards
    assert tops[1] == tops[2]  # side by side, they need no second level


def test_arcs_of_one_word_do_not_cross() -> None:
    placed = layout(["w"] * 4, [Arc(0, n, (n,), "", True) for n in (1, 2, 3)]).arcs
    lefts = [p.left for p in placed]
    assert lefts == sorted(lefts, reverse=True)  # the longest leaves first
    assert placed[0].top > placed[1].top > placed[2].top


@st.composite
def sentences(draw: Any) -> tuple[list[str], list[Arc], list[Role]]:
    count = draw(st.integers(1, 12))
    words = draw(
        st.lists(st.sampled_from(["a", "the", "rebounded", "日本", "", "x" * 40]), min_size=count, max_size=count)
    )
    node = st.integers(0, count - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=14))
    labels = draw(st.lists(st.sampled_from(TYPES), min_size=len(edges), max_size=len(edges)))
    kept = draw(st.lists(st.sampled_from([[], [0], [1], [0, 1]]), min_size=len(edges), max_size=len(edges)))
    spans = draw(st.lists(st.tuples(node, node, st.sampled_from(["A0", "a very long role"])), max_size=4))
    roles = [Role(min(a, b), max(a, b) + 1, label) for a, b, label in spans]
    return words, arcs(edges, range(len(edges)), kept, labels, [False, True]), roles


@given(sentences())
def test_nothing_lies_on_anything_else(case: tuple[list[str], list[Arc], list[Role]]) -> None:
    words, found, roles = case
    plan = layout(words, found, roles)
    assert plan == layout(words, found, roles)
    boxes = [(x - w / 2, x + w / 2) for x, w in plan.words]
    assert all(left[1] < right[0] for left, right in pairwise(boxes)), "words overlap"
    assert boxes[0][0] >= 0
    assert boxes[-1][1] <= plan.width
    for word, (left, right) in zip(words, boxes, strict=True):
        assert right - left >= min(text_width(word, WORD), text_width("x" * 24, WORD))
    for p in plan.arcs:
        assert 0 <= p.top < plan.base
        if p.arc.low < p.arc.high:
            half = text_width(p.arc.text, LABEL) / 2
            assert p.left <= p.label - half, "a label is wider than its arc"
            assert p.label + half <= p.right
            assert boxes[p.arc.low][0] <= p.left <= boxes[p.arc.low][1], "an arc does not end at its word"
            assert boxes[p.arc.high][0] <= p.right <= boxes[p.arc.high][1]
    for p, q in combinations(plan.arcs, 2):
        assert p.top != q.top or p.right <= q.left or q.right <= p.left, "two arcs run on one line"
        if q.left < p.left and p.right < q.right:
            assert q.top < p.top, "an arc is below one that it spans"
    texts = [(p.top, p.label, text_width(p.arc.text, LABEL) / 2) for p in plan.arcs if p.arc.text]
    for (top, x, half), (other_top, other_x, other_half) in combinations(texts, 2):
        assert abs(top - other_top) >= 12 or abs(x - other_x) >= half + other_half, "labels overlap"
    for (left, right, top, _, _), (other_left, other_right, other_top, _, _) in combinations(plan.roles, 2):
        assert top != other_top or right <= other_left or other_right <= left, "roles overlap"
    assert len(plan.roles) == len(roles)


def test_very_many_arcs_stay_on_the_page() -> None:
    every = [(i, j) for i in range(40) for j in range(i)]
    found = arcs(every, range(len(every)), [[0]] * len(every), None, [False])
    plan = layout(["word"] * 40, found)
    assert plan.height < 500
    assert min(p.top for p in plan.arcs) >= 0
    assert not any(p.arc.text for p in plan.arcs)
