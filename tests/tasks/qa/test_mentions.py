"""Mentions and edges against slow references that follow the definitions word by word."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa import mentions
from graphmask.experiments.qa.mentions import (
    COMPLEMENT,
    COREF,
    DOC_BASED,
    MATCH,
    RELATIONS,
    edges,
    find,
    names,
    spans,
    tokenise,
    with_clusters,
)
from graphmask.experiments.qa.questions import SUBJECT, Mention, Question, Span

WORDS = st.sampled_from(["new", "New", "york", "York", "city", "of"])


def found(documents: Sequence[str], candidates: Sequence[str], subject: str = "") -> list[tuple[int, int, int, int]]:
    return [(*m.span, m.entity) for m in find([d.split() for d in documents], candidates, subject)]


class TestTokens:
    def test_english(self) -> None:
        assert tokenise("Thomas L. Woolwine's U.S. home, (1921).") == (
            "Thomas", "L.", "Woolwine", "'s", "U.S.", "home", ",", "(", "1921", ")", ".",
        )  # fmt: skip

    def test_white_space_is_no_token(self) -> None:
        assert tokenise(" A\xa0midfielder  of\nnote ") == ("A", "midfielder", "of", "note")
        assert tokenise(" \n") == tokenise("") == ()

    def test_a_mask_is_one_token_whatever_follows(self) -> None:
        text = "(___MASK7___, ___MASK70___) ___MASK7___'s ___MASK3___:___MASK4___-based"
        assert tokenise(text) == (
            "(", "___MASK7___", ",", "___MASK70___", ")", "___MASK7___", "'s", "___MASK3___", ":", "___MASK4___",
            "-based",
        )  # fmt: skip

    def test_equal_words_are_kept_once(self) -> None:
        first, second = tokenise("Zanzibar " * 2)
        assert first is second

    def test_names_in_either_case(self) -> None:
        assert names("u.s.") == {("u.s", "."), ("u.s.",)}
        assert names("  ") == frozenset()

    def test_missing_spacy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = builtins.__import__

        def without(name: str, *arguments: Any, **keywords: Any) -> Any:
            if name == "spacy":
                raise ImportError("No module named 'spacy'")
            return original(name, *arguments, **keywords)

        mentions._tokeniser.cache_clear()
        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(GraphMaskError, match=r"pip install graphmask\[qa\]"):
            tokenise("a")


class TestFind:
    def test_candidates_and_subject_in_reading_order(self) -> None:
        documents = ["Paris is in France", "the capital of FRANCE"]
        assert found(documents, ["france", "spain"], "paris") == [(0, 0, 1, SUBJECT), (0, 3, 4, 0), (1, 3, 4, 0)]

    def test_a_name_within_a_longer_one_is_left_to_it(self) -> None:
        documents = ["New York City in New York", "york new"]
        assert found(documents, ["new york", "york", "new york city", "city"]) == [
            (0, 0, 3, 2), (0, 4, 6, 0), (1, 0, 1, 1),
        ]  # fmt: skip

    def test_also_within_the_subject(self) -> None:
        assert found(["Zoo Lake is a lake"], ["lake"], "zoo lake") == [(0, 0, 2, SUBJECT), (0, 4, 5, 0)]

    def test_names_that_merely_overlap_are_both_kept(self) -> None:
        assert found(["a b c"], ["a b", "b c"]) == [(0, 0, 2, 0), (0, 1, 3, 1)]

    def test_repetitions_overlap_themselves(self) -> None:
        assert found(["b b b"], ["b b"]) == [(0, 0, 2, 0), (0, 1, 3, 0)]

    def test_a_name_does_not_run_over_the_end(self) -> None:
        assert found(["new york", "city"], ["new york city", "new york hotel"]) == []

    def test_same_name_for_several(self) -> None:
        assert found(["in France"], ["France", "france"], "FRANCE") == [(0, 1, 2, SUBJECT), (0, 1, 2, 0), (0, 1, 2, 1)]

    def test_empty_names_are_nowhere(self) -> None:
        assert found(["a", ""], ["", " "], "") == []

    def test_masks(self) -> None:
        documents = [tokenise("the ___MASK7___:___MASK70___ line")]
        assert [(*m.span, m.entity) for m in find(documents, ["___MASK70___", "___MASK7___"], "x")] == [
            (0, 1, 2, 1), (0, 3, 4, 0),
        ]  # fmt: skip

    @pytest.mark.parametrize("name", ["Warner Bros. Records", "U.S.", "St. Louis", "Washington, D.C.", "ID", "AC/DC"])
    def test_lower_case_does_not_hide_a_name(self, name: str) -> None:
        document = tokenise(f"She left {name} in 1999")
        (mention,) = find([document], [name.lower()], "nobody")
        assert "".join(document[mention.span.start : mention.span.end]) == name.replace(" ", "")

    @given(
        documents=st.lists(st.lists(WORDS, max_size=8), max_size=3),
        candidates=st.lists(st.lists(WORDS, min_size=0, max_size=3), max_size=5),
        subject=st.lists(WORDS, max_size=2),
    )
    def test_against_every_candidate_at_every_place(
        self, documents: list[list[str]], candidates: list[list[str]], subject: list[str]
    ) -> None:
        entities = [(SUBJECT, subject), *enumerate(candidates)]
        everywhere = {
            (number, start, start + len(words), entity)
            for number, document in enumerate(documents)
            for entity, words in entities
            for start in range(len(document))
            if words and [w.lower() for w in document[start : start + len(words)]] == [w.lower() for w in words]
        }

        def within_longer(d: int, start: int, end: int) -> bool:
            return any(d == e and s <= start and end <= t and t - s > end - start for e, s, t, _ in everywhere)

        expected = sorted(place for place in everywhere if not within_longer(*place[:3]))
        got = found([" ".join(d) for d in documents], [" ".join(c) for c in candidates], " ".join(subject))
        assert got == expected


class TestSpans:
    DOCUMENTS = (("a", "b", "c"), ("d",))

    def test_read(self) -> None:
        assert spans([[[0, 0, 2], [1, 0, 1]], []], self.DOCUMENTS, "") == [[Span(0, 0, 2), Span(1, 0, 1)], []]

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({}, r"expected a list of clusters.*found \{\}"),
            ([1], r"expected a list of clusters.*found \[1\]"),
            ([[1]], r"expected three whole numbers.*found 1"),
            ([[[0, 1]]], r"expected three whole numbers.*found \[0, 1\]"),
            ([[[0, 0, True]]], r"expected three whole numbers.*found \[0, 0, True\]"),
            ([[[0, 0, 1.0]]], "expected three whole numbers"),
            ([[[2, 0, 1]]], r"expected one of 2 documents, found \[2, 0, 1\]"),
            ([[[-1, 0, 1]]], "expected one of 2 documents"),
            ([[[0, 0, 4]]], r"expected 0 <= start < end <= 3, the tokens of document 0, found \[0, 0, 4\]"),
            ([[[0, -1, 1]]], "expected 0 <= start"),
            ([[[0, 1, 1]]], "expected 0 <= start"),
            ([[[0, 0, 1]], [[0, 1, 2], [0, 0, 1]]], r"expected each span in one cluster.*clusters 0 and 1"),
        ],
    )
    def test_bad(self, value: object, message: str) -> None:
        with pytest.raises(GraphMaskError, match="here: " + message):
            spans(value, self.DOCUMENTS, "here")


class TestClusters:
    DOCUMENTS = (
        ("Ada", "met", "Bob", ".", "She", "saw", "the", "man", "Ada", "'s", "mother"),
        ("the", "Ada", "prize"),
    )
    ADA, BOB, AGAIN = (Mention(Span(0, 0, 1), 0), Mention(Span(0, 2, 3), 1), Mention(Span(0, 8, 9), 0))

    def clustered(self, *clusters: list[Span]) -> tuple[list[tuple[int, int, int | None]], int]:
        nodes, dropped = with_clusters([self.ADA, self.BOB, self.AGAIN], clusters, self.DOCUMENTS)
        assert [node.span for node in nodes] == sorted(node.span for node in nodes)
        return [(node.span.start, node.entity, node.cluster) for node in nodes], dropped

    def test_entity_and_number_are_given(self) -> None:
        she, man = Span(0, 4, 5), Span(0, 6, 8)
        assert self.clustered([Span(0, 0, 1), she], [man, Span(0, 2, 3)]) == (
            [(0, 0, 0), (2, 1, 1), (4, 0, 0), (6, 1, 1), (8, 0, None)],
            0,
        )

    def test_two_entities_are_dropped(self) -> None:
        assert self.clustered([Span(0, 0, 1), Span(0, 2, 3), Span(0, 4, 5)]) == (
            [(0, 0, None), (2, 1, None), (8, 0, None)],
            1,
        )

    def test_two_mentions_of_one_entity(self) -> None:
        assert self.clustered([], [Span(0, 0, 1), Span(0, 8, 9)]) == ([(0, 0, 1), (2, 1, None), (8, 0, 1)], 0)

    def test_without_a_mention(self) -> None:
        assert self.clustered([Span(0, 4, 5), Span(0, 6, 8)]) == ([(0, 0, None), (2, 1, None), (8, 0, None)], 0)

    def test_containing_a_mention_is_not_holding_it(self) -> None:
        assert self.clustered([Span(0, 8, 11), Span(0, 4, 5)]) == ([(0, 0, None), (2, 1, None), (8, 0, None)], 0)

    def test_a_span_over_another_entity_is_a_node(self) -> None:
        assert self.clustered([Span(0, 2, 3), Span(0, 8, 11)]) == (
            [(0, 0, None), (2, 1, 0), (8, 0, None), (8, 1, 0)],
            0,
        )

    def test_a_span_over_the_same_entity_is_not(self) -> None:
        assert self.clustered([Span(0, 0, 1), Span(0, 7, 9)]) == ([(0, 0, 0), (2, 1, None), (8, 0, 0)], 0)

    def test_an_exact_span_decides_the_number(self) -> None:
        overlapping, exact = [Span(0, 0, 1), Span(0, 7, 9)], [Span(0, 8, 9), Span(0, 4, 5)]
        assert self.clustered(overlapping, exact) == ([(0, 0, 0), (2, 1, None), (4, 0, 1), (8, 0, 1)], 0)
        assert self.clustered(exact, overlapping) == ([(0, 0, 1), (2, 1, None), (4, 0, 0), (8, 0, 0)], 0)

    def test_overlapping_new_spans_are_one_node(self) -> None:
        assert self.clustered([Span(0, 2, 3), Span(0, 6, 8), Span(0, 7, 8)]) == (
            [(0, 0, None), (2, 1, 0), (6, 1, 0), (8, 0, None)],
            0,
        )

    def test_articles_aside(self) -> None:
        prize = Mention(Span(1, 1, 3), 2)
        nodes, dropped = with_clusters([prize], [[Span(1, 0, 3), Span(0, 4, 5)]], self.DOCUMENTS)
        assert nodes == [Mention(Span(0, 4, 5), 2, 0), Mention(Span(1, 1, 3), 2, 0)]
        assert dropped == 0

    def test_one_place_of_two_entities(self) -> None:
        both = [Mention(Span(0, 0, 1), 0), Mention(Span(0, 0, 1), 1)]
        assert with_clusters(both, [[Span(0, 0, 1), Span(0, 4, 5)]], self.DOCUMENTS) == (both, 1)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    documents = tuple(tuple(d) for d in draw(st.lists(st.lists(WORDS, min_size=2, max_size=4), min_size=1, max_size=3)))
    places = [
        Span(number, start, end)
        for number, document in enumerate(documents)
        for start, end in product(range(len(document)), range(1, len(document) + 1))
        if start < end
    ]
    nodes = draw(
        st.lists(
            st.builds(
                Mention, st.sampled_from(places), st.integers(-1, 2), st.none() | st.integers(0, 2)
            ),
            max_size=8,
        )
    )  # fmt: skip
    return Question("q", ("r",), ("s",), ("a", "b", "c"), 0, documents, tuple(nodes))


class TestEdges:
    def test_by_hand(self) -> None:
        documents = (("Ada", "saw", "ada"), ("ADA", "he"), ("x",))
        places = [((0, 0, 1), None), ((0, 2, 3), 0), ((1, 0, 1), 1), ((1, 1, 2), 1), ((2, 0, 1), None)]
        nodes = tuple(Mention(Span(*place), 0, cluster) for place, cluster in places)
        index, kind = edges(Question("q", (), (), ("a",), 0, documents, nodes))
        pairs = {
            k: [(s, r) for s, r, t in zip(*index.tolist(), kind.tolist(), strict=True) if t == k] for k in range(4)
        }
        assert pairs == {
            MATCH: [(1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (1, 2)],
            DOC_BASED: [(1, 0), (0, 1), (3, 2), (2, 3)],
            COREF: [(3, 2), (2, 3)],
            COMPLEMENT: [
                (3, 0),
                (4, 0),
                (3, 1),
                (4, 1),
                (4, 2),
                (0, 3),
                (1, 3),
                (4, 3),
                (0, 4),
                (1, 4),
                (2, 4),
                (3, 4),
            ],
        }
        assert [RELATIONS[k] for k in pairs] == ["MATCH", "DOC-BASED", "COREF", "COMPLEMENT"]

    def test_two_who_are_both_called_he_do_not_match(self) -> None:
        nodes = tuple(Mention(Span(place, 0, 1), entity, entity) for place, entity in enumerate((0, 1, 0)))
        index, kind = edges(Question("q", (), (), ("a", "b"), 0, (("He",), ("he",), ("he",)), nodes))
        assert index[:, kind == MATCH].tolist() == [[2, 0], [0, 2]]

    def test_none(self) -> None:
        index, kind = edges(Question("q", (), (), ("a",), 0, (), ()))
        assert index.shape == (2, 0)
        assert kind.shape == (0,)
        assert index.dtype == kind.dtype == torch.int64

    @given(questions())
    def test_against_the_definitions(self, question: Question) -> None:
        expected = []
        for (r, to), (s, of) in product(enumerate(question.mentions), repeat=2):
            if r == s:
                continue
            kinds = []
            same = [w.lower() for w in question.words(to)] == [w.lower() for w in question.words(of)]
            if same and to.entity == of.entity and to.span != of.span:
                kinds.append(MATCH)
            if to.span.document == of.span.document:
                kinds.append(DOC_BASED)
            if to.cluster is not None and to.cluster == of.cluster:
                kinds.append(COREF)
            expected += [(k, r, s) for k in kinds or [COMPLEMENT]]
        index, kind = edges(question)
        assert index.dtype == kind.dtype == torch.int64
        assert list(zip(kind.tolist(), index[1].tolist(), index[0].tolist(), strict=True)) == sorted(expected)
