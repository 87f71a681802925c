"""Questions over documents: what is read, what is drawn of it, and that it says so."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.report import metadata
from graphmask.report.build import example
from graphmask.report.page import render
from graphmask.report.question import Mention, Question, chips, counts, messages, passages, probabilities, spaced
from graphmask.report.question_drawing import LINES, MENTIONS, Drawing, choose, draw

from .conftest import explain
from .test_browser_sentence import EVIL

DOCUMENTS = [
    ["Marie", "Curie", "was", "born", "in", "Warsaw", "."],
    ["Warsaw", "is", "the", "capital", "of", "Poland", "."],
    ["She", "worked", "in", "France", ";", "Paris", "is", "in", "France", "."],
    ["Radium", "glows", "(", "faintly", ")", "."],
]
#: Node by node: Marie Curie, Warsaw, Warsaw, Poland, France, France.
MENTIONED = [[0, 0, 2, -1], [0, 5, 6, 2], [1, 0, 1, 2], [1, 5, 6, 0], [2, 3, 4, 1], [2, 8, 9, 1]]
PAIRS = [
    (0, 1, "DOC-BASED"), (1, 2, "MATCH"), (2, 3, "DOC-BASED"), (4, 5, "MATCH"), (0, 4, "COMPLEMENT"),
    (3, 4, "COMPLEMENT"),
]  # fmt: skip
#: Both directions of each pair, and one edge out of a padding node.
EDGES = [*((u, v) for a, b, _ in PAIRS for u, v in ((a, b), (b, a))), (6, 0)]
TYPES = [*(name for *_, name in PAIRS for _ in range(2)), "COREF"]
#: By layer: Curie - Warsaw and Curie -> France; Warsaw - Warsaw; Warsaw - Poland and one Warsaw -> Warsaw.
KEPT = [[0, 1, 8, 12], [2, 3], [2, 4, 5]]


def ask(*, info: dict[str, Any] | None = None, kept: Any = KEPT, nodes: int = 8, **changes: Any) -> Explanation:
    """Where was Marie Curie from? The model says Poland, over Warsaw; nodes 6 and 7 are padding."""
    record = {
        "title": "Curie",
        "query": "country of citizenship: Marie Curie",
        "documents": DOCUMENTS,
        "mentions": MENTIONED,
        "candidates": ["Poland", "France", "Warsaw"],
        "answer": 0,
        "predicted": 0,
        "evidence": [1, 3],
        "edge_labels": TYPES,
        "notes": ["made up"],
        **(info or {}),
    }
    outputs = {"original": torch.tensor([[2.0, 1.0, 0.0, 50.0]]), "masked": torch.tensor([[2.0, 2.0, 0.0, 50.0]])}
    return explain(EDGES, kept, nodes=nodes, info=record, **{**outputs, **changes})


def html(explanation: Explanation) -> str:
    return render([example(explanation)], title="Title", verdict="Verdict.")


def picture(explanation: Explanation) -> ElementTree.Element:
    found = re.search(r'<svg class="question".*?</svg>', html(explanation), re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found.group())


def parts(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [part for part in root.iter() if name in part.get("class", "").split()]


def lines(root: ElementTree.Element) -> set[tuple[str, str, str, int]]:
    """Type, hops, the layers written on it and the number of heads of each line."""
    labels = {part.get("data-hops"): part.text for part in parts(root, "edge-label")}
    return {
        (
            str(part.get("data-type")),
            str(part.get("data-hops")),
            labels[part.get("data-hops")] or "",
            str(parts(part, "head")[0].get("d")).count("M"),
        )
        for part in parts(root, "edge")
    }


def test_kept_edges_are_drawn_with_their_layers() -> None:
    root = picture(ask())
    assert lines(root) == {
        ("DOC-BASED", "0:0 0:1", "0", 2),  # both directions at the same layer: one line, two heads
        ("MATCH", "1:2 2:2", "1,2", 1),
        ("MATCH", "1:3", "1", 1),  # layers differ: a line of its own
        ("DOC-BASED", "2:4 2:5", "2", 2),
        ("COMPLEMENT", "0:8", "0", 1),
    }
    assert root.get("aria-label") == "5 lines between 6 mentions in 3 documents"
    titles = {part.findtext("title") for part in parts(root, "edge")}
    assert "Warsaw (document 0) → Warsaw (document 1)\nMATCH, kept at layers 1, 2, score 0.90" in titles
    assert "Marie Curie (document 0) ↔ Warsaw (document 0)\nDOC-BASED, kept at layer 0, score 0.90" in titles
    text = html(ask())
    assert "All 7 kept edges are drawn; all 6 mentions. Numbers on the lines are layers: 0 conv1, 1 conv2" in text


def test_every_type_has_its_own_style() -> None:
    root = picture(ask())
    styles = {(part.get("data-type"), part.get("class")) for part in parts(root, "edge")}
    assert styles == {
        ("COMPLEMENT", "edge kept c0 d0"),
        ("DOC-BASED", "edge kept c2 d0"),
        ("MATCH", "edge kept c3 d0"),
    }


def test_mentions_stand_in_their_documents() -> None:
    root = picture(ask())
    pills = {int(part.get("data-node", "")): part for part in parts(root, "mention")}
    assert sorted(pills) == [0, 1, 2, 3, 4, 5]  # padding is not there
    assert [pills[v].findtext("text") for v in sorted(pills)] == [
        "◆ Marie Curie", "Warsaw", "Warsaw", "✓ Poland", "France", "France",
    ]  # fmt: skip
    assert [pills[v].get("class") for v in sorted(pills)] == [
        f"node mention {role}" for role in ("subject", "other", "other", "right", "other", "other")
    ]
    assert pills[0].findtext("title") == "Marie Curie: subject of the question, in document 0"
    assert pills[3].findtext("title") == "Poland: model's answer, right (Poland), in document 1"
    boxes = {int(part.get("data-document", "")): part for part in parts(root, "document")}
    assert sorted(boxes) == [0, 1, 2]  # document 3 has no mention
    assert {d: [t.text for t in box.findall("text")] for d, box in boxes.items()} == {
        0: ["document 0"],
        1: ["document 1", "evidence"],
        2: ["document 2"],
    }
    for v, (document, *_) in enumerate(MENTIONED):
        (inner, outer) = (part.find("rect") for part in (pills[v], boxes[document]))
        assert inner is not None
        assert outer is not None
        for start, size in (("x", "width"), ("y", "height")):
            begin, end = float(outer.get(start, "")), float(outer.get(start, "")) + float(outer.get(size, ""))
            assert begin < float(inner.get(start, ""))
            assert float(inner.get(start, "")) + float(inner.get(size, "")) < end


def test_a_wrong_answer_and_the_right_one_are_told_apart() -> None:
    explanation = ask(info={"predicted": 1})
    root = picture(explanation)
    roles = {int(p.get("data-node", "")): p.get("class", "").split()[-1] for p in parts(root, "mention")}
    assert roles == {0: "subject", 1: "other", 2: "other", 3: "missed", 4: "wrong", 5: "wrong"}
    text = html(explanation)
    assert '<li class="chip missed"><b>Poland</b>' in text
    assert '<li class="chip wrong"><b>France</b>' in text
    assert metadata.error_of(explanation) == 1.0
    assert metadata.error_of(ask()) == 0.0
    assert (metadata.read(explanation).predicted, metadata.read(explanation).label) == ("France", "Poland")


def test_candidates_that_are_years_are_right_or_wrong_too() -> None:
    names = {"candidates": ["1948", "July 1948", "1948"]}
    assert metadata.read(ask(info={**names, "answer": 0, "predicted": 1})).error == 1
    assert metadata.read(ask(info={**names, "answer": 0, "predicted": 2})).error == 1
    assert metadata.read(ask(info={**names, "answer": 0, "predicted": 0})).error == 0


def test_candidates_have_their_probabilities() -> None:
    asked = example(ask()).question
    assert asked is not None
    found, more = chips(asked)
    total = math.exp(2) + math.exp(1) + 1
    assert [(c.name, c.tags) for c in found] == [
        ("Poland", ("model's answer", "right answer")), ("France", ()), ("Warsaw", ()),
    ]  # fmt: skip
    assert [c.before for c in found] == pytest.approx([math.exp(2) / total, math.exp(1) / total, 1 / total])
    assert more == 0
    text = html(ask())
    assert '<b>Poland</b> <span class="share">66.5% → 46.8%</span>' in text  # padding's 50 has no part in it
    assert '<p class="query"><span class="sub">Question</span> country of citizenship: Marie Curie</p>' in text
    assert 'class="cell outputs"' not in text


def test_another_answer_after_masking_is_tagged() -> None:
    asked = example(ask(masked=torch.tensor([[0.0, 3.0, 0.0]]))).question
    assert asked is not None
    assert [c.tags for c in chips(asked)[0]] == [("model's answer", "right answer"), ("after masking",), ()]


@pytest.mark.parametrize(
    "output",
    [
        torch.zeros(3, 4),
        torch.zeros(1, 2),
        torch.full((1, 3), math.nan),
        torch.full((1, 3), -math.inf),
        torch.tensor(1.0),
    ],
)
def test_without_scores_of_the_candidates_there_are_no_probabilities(output: torch.Tensor) -> None:
    explanation = ask(original=output, masked=output)
    assert '<li class="chip right"><b>Poland</b> <span class="tag">model&#39;s answer</span>' in html(explanation)
    assert 'class="share"' not in html(explanation)


def test_softmax_leaves_out_what_is_impossible() -> None:
    assert probabilities([0.0, -math.inf, 0.0]) == [0.5, 0.0, 0.5]
    assert probabilities([1000.0, 1000.0]) == [0.5, 0.5]
    assert probabilities([]) == []


def test_many_candidates_are_cut_but_never_the_two_that_matter() -> None:
    names = [f"c{i}" for i in range(40)]
    asked = Question("", [], [], names, 38, 39, before=[1 / 40] * 40, after=[1 / 40] * 40)
    found, more = chips(asked)
    assert [c.name for c in found] == ["c38", "c39", *(f"c{i}" for i in range(8))]
    assert more == 30


def test_the_table_counts_kept_and_all() -> None:
    made = example(ask())
    assert made.question is not None
    assert counts(made.question, made.edges, made.edge_types, made.kept, made.gated) == [
        ("COMPLEMENT", [(1, 4), (0, 4), (0, 4), (1, 4)]),
        ("DOC-BASED", [(2, 4), (0, 4), (2, 4), (4, 4)]),
        ("MATCH", [(0, 4), (2, 4), (1, 4), (2, 4)]),
    ]  # the last is at any layer; COREF touches padding alone
    row = re.search(r"<tr><th[^>]*c2 d0.*?</tr>", html(ask()))
    assert row is not None
    assert re.findall(r"<td[^>]*>(.*?)</td>", row.group()) == ["2 of 4", "0 of 4", "2 of 4", "4 of 4"]


def test_documents_are_text_with_their_mentions_marked() -> None:
    text = html(ask())
    assert (
        '<p class="passage"><span class="sub">document 0</span> <mark class="subject" title="subject of the question">'
        'Marie Curie</mark> was born in <mark class="other" title="other candidate: Warsaw">Warsaw</mark>.</p>' in text
    )
    assert (
        '<p class="passage evidence"><span class="sub">document 1 <b class="tag">evidence</b></span> <mark '
        'class="other" title="other candidate: Warsaw">Warsaw</mark> is the capital of <mark class="right" '
        'title="model&#39;s answer, right: Poland">Poland</mark>.</p>' in text
    )
    assert 'document 3 <b class="tag">evidence</b></span> Radium glows (faintly).</p>' in text  # without a mention


def test_documents_without_mention_or_evidence_are_left_out() -> None:
    asked = Question("", [["a"], ["b"], ["c"]], [Mention(1, 0, 1, 0)], ["b"], evidence=frozenset([2]))
    assert [(p.document, p.evidence) for p in passages(asked, [0])[0]] == [(1, False), (2, True)]


def test_long_documents_are_cut_to_what_is_around_their_mentions() -> None:
    tokens = [f"w{i}" for i in range(300)]
    asked = Question("", [tokens], [Mention(0, 50, 52, 0), Mention(0, 200, 201, -1)], ["x"])
    pieces = passages(asked, [0, 1])[0][0].pieces
    assert [(p.text.split()[0], p.text.split()[-1], p.role) for p in pieces] == [
        ("…", "…", ""), ("w38", "w49", ""), ("w50", "w51", "other"), ("w52", "w63", ""),
        ("…", "…", ""), ("w188", "w199", ""), ("w200", "w200", "subject"), ("w201", "w212", ""), ("…", "…", ""),
    ]  # fmt: skip
    only = passages(asked, [1])[0][0].pieces  # what is not drawn need not be read
    assert [p.text.split()[0] for p in only] == ["…", "w188", "w200", "w201", "…"]


def test_nested_mentions_are_both_seen() -> None:
    asked = Question("", [["New", "York", "City", "."]], [Mention(0, 0, 3, 0), Mention(0, 1, 2, 1)], ["a", "b"], 1, 1)
    pieces = passages(asked, [0, 1])[0][0].pieces
    assert [(p.space, p.text, p.role) for p in pieces] == [
        ("", "New", "other"), (" ", "York", "right"), (" ", "City", "other"), ("", ".", ""),
    ]  # fmt: skip


def test_tokens_are_joined_as_people_write() -> None:
    assert (
        spaced(["It", "'s", "5", "%", "(", "or", "so", ")", ",", "he", "did", "n't", "say", "."])
        == "It's 5% (or so), he didn't say."
    )


def test_hostile_texts_are_text() -> None:
    bad = "<script>alert(1)</script>"
    info = {
        "documents": [[bad, "was", bad, EVIL, "in", bad, "."], *DOCUMENTS[1:]], "query": bad, "title": bad,
        "candidates": [bad, bad, bad], "edge_labels": [bad] * len(EDGES), "notes": [bad],
    }  # fmt: skip
    text = html(ask(info=info))
    assert "<script>alert" not in text
    assert "<img" not in text
    root = picture(ask(info=info))
    pills = {p.get("data-node"): p.findtext("text") for p in parts(root, "mention")}
    assert pills["1"] == bad
    assert f"{bad} was (document 0) ↔ {bad} (document 0)\n{bad}, kept at layer 0, score 0.90" in {
        part.findtext("title") for part in parts(root, "edge")
    }
    assert {part.get("data-type") for part in parts(root, "edge")} == {bad}


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"mentions": [[9, 0, 1, 0]]}, "Mention 0 is in document 9 of 4."),
        ({"mentions": [[0, 0, 2, -1], [0, 5, 99, 2]]}, "Mention 1 is tokens 5 to 99 of document 0, which has 7."),
        ({"mentions": [[0, 2, 2, 0]]}, "Mention 0 is tokens 2 to 2 of document 0, which has 7."),
        ({"mentions": [[0, 0, 1, 3]]}, "Mention 0 is of entity 3; there are 3 candidates."),
        ({"mentions": [[0, 0, 1, -2]]}, "Mention 0 is of entity -2; there are 3 candidates."),
        ({"mentions": MENTIONED * 2}, '"mentions" has 12 entries for 8 nodes.'),
        ({"mentions": [[0, 0, 1]]}, "Expected documents as lists of tokens, mentions as"),
        ({"mentions": [[0, 0, 1, "x"]]}, "Expected documents as lists of tokens, mentions as"),
        ({"mentions": 3}, "Expected documents as lists of tokens, mentions as"),
        ({"documents": ["a text"] * 4}, "Expected documents as lists of tokens, mentions as"),
        ({"evidence": [math.inf]}, "Expected documents as lists of tokens, mentions as"),
        ({"answer": 3}, '"answer" is 3; there are 3 candidates.'),
        ({"predicted": -1}, '"predicted" is -1; there are 3 candidates.'),
        ({"evidence": [4]}, '"evidence" has 4; there are 4 documents.'),
        ({"evidence": [-1]}, '"evidence" has -1; there are 4 documents.'),
    ],
)
def test_a_record_that_does_not_fit_gets_the_plain_view_and_a_note(info: dict[str, Any], why: str) -> None:
    explanation = ask(info=info)
    notes = metadata.read(explanation).notes
    assert notes[1].startswith(f"Left out: the question view. {why}")
    text = html(explanation)
    assert 'class="question"' not in text
    assert 'data-view="graph"' in text


def test_the_page_itself_refuses_more_mentions_than_nodes() -> None:
    asked = Question("", [["a", "b"]], [Mention(0, 0, 1, 0), Mention(0, 1, 2, 0)], ["x"])
    with pytest.raises(GraphMaskError, match="Expected at most 1 mentions, got 2"):
        replace(example(explain([], [[]], nodes=1)), question=asked)
    with pytest.raises(GraphMaskError, match="Expected 1 probabilities, got 2"):
        Question("", [], [], ["x"], before=[0.5, 0.5])


@pytest.mark.parametrize("missing", ["documents", "mentions"])
def test_without_documents_or_mentions_it_is_no_question(missing: str) -> None:
    text = html(ask(info={missing: None}))
    assert 'class="question"' not in text
    assert "Left out" not in text


def test_names_of_nodes_may_leave_padding_out() -> None:
    found = metadata.read(ask(info={"node_labels": list("abcdef")}))
    assert found.node_labels == ["a", "b", "c", "d", "e", "f", "padding", "padding"]
    assert found.notes == ["made up"]
    assert metadata.read(ask()).node_labels == [
        "Marie Curie", "Warsaw", "Warsaw", "Poland", "France", "France", "padding", "padding",
    ]  # fmt: skip
    odd = metadata.read(ask(info={"node_labels": ["a"]}))
    assert odd.notes[1] == 'Left out: "node_labels" has 1 entries for 8 nodes.'
    assert odd.question is not None
    assert metadata.read(ask(info={"node_labels": 3})).notes[1] == 'Left out: "node_labels" is not a list.'


def test_messages_of_a_layer_that_sends_backwards_point_there() -> None:
    made = example(ask(kept=[[8], [8], []], reverse=[True, False, False]))
    assert [(m.ends, m.both, m.layers, m.hops) for m in made.messages()] == [
        ((0, 4), False, (1,), ((1, 8),)),
        ((4, 0), False, (0,), ((0, 8),)),
    ]


def test_paths_from_the_subject_to_the_answer_come_first() -> None:
    """Strong messages that lead elsewhere are behind weak ones that lead to the answer."""
    scores = torch.full((3, len(EDGES)), 0.1)
    scores[0, 0], scores[1, 2], scores[2, 4] = 0.6, 0.7, 0.8  # Curie -> Warsaw -> Warsaw -> Poland
    scores[2, 11], scores[0, 6], scores[2, 8] = 0.99, 0.95, 0.97
    made = example(ask(kept=[[0, 6], [2], [4, 8, 11]], scores=scores))
    assert [m.ends for m in made.messages()] == [(2, 3), (1, 2), (0, 1), (4, 3), (0, 4), (4, 5)]


def crowd(count: int = 150, documents: int = 30) -> Explanation:
    """Many mentions, each of which sends to six others; node 7 is the only one of the answer."""
    mentions = [[v % documents, v // documents, v // documents + 1, 0 if v == 7 else 1 + v % 9] for v in range(count)]
    mentions[11][3] = -1
    edges = [(v, (v + step) % count) for v in range(count) for step in (1, 4, 7, 11, 30, 60)]
    types = ["COMPLEMENT" if (v - u) % documents else "MATCH" for u, v in edges]
    info = {
        "query": "q", "documents": [[f"name{d}"] * 100 for d in range(documents)], "mentions": mentions,
        "candidates": [f"c{i}" for i in range(10)], "answer": 0, "predicted": 0, "edge_labels": types,
    }  # fmt: skip
    return explain(edges, [list(range(len(edges)))] * 3, info=info)


def test_big_graphs_are_cut_and_the_page_says_so() -> None:
    explanation = crowd()
    root = picture(explanation)
    drawn = parts(root, "edge")
    assert len(drawn) <= LINES
    pills = {int(p.get("data-node", "")) for p in parts(root, "mention")}
    assert len(pills) == MENTIONS
    assert {7, 11} <= pills  # answer and subject
    edges = {int(hop.split(":")[1]) for line in drawn for hop in str(line.get("data-hops")).split()}
    text = html(explanation)
    assert f"{len(edges)} of 900 kept edges are drawn: first those on the strongest retained paths" in text
    assert "36 of 150 mentions." in text
    assert "6 more documents with mentions are not shown." in text
    assert len(text) < 200_000
    hidden = sum(int(t.text.split()[-3 if "other" in t.text else 0]) for t in parts(root, "more") if t.text)
    inside = {int(part.get("data-document", "")) for part in parts(root, "document")}
    assert hidden + len(pills) == sum(v % 30 in inside for v in range(150))


def test_nothing_kept_is_said() -> None:
    text = html(ask(kept=[[], [], []]))
    assert "Nothing is kept; all 6 mentions are drawn." in text
    assert 'data-hops="' not in text


def test_a_question_without_mentions_has_its_text() -> None:
    explanation = ask(info={"mentions": []})
    assert picture(explanation).get("aria-label") == "0 lines between 0 mentions in 0 documents"
    assert float(picture(explanation).get("viewBox", "").split()[-1]) > 0
    assert "Radium glows (faintly)." in html(explanation)
    assert "Left out" not in html(explanation)


def test_one_layer_needs_no_numbers() -> None:
    root = picture(ask(kept=[[0, 1]]))
    assert parts(root, "edge-label") == []
    assert len(parts(root, "edge")) == 1
    assert "any layer" not in html(ask(kept=[[0, 1]]))


def test_the_same_question_gives_the_same_page() -> None:
    assert html(crowd()) == html(crowd())


@st.composite
def cases(pick: Any) -> tuple[Question, list[tuple[int, int]], list[str], list[list[int]]]:
    documents = pick(st.integers(1, 8))
    count = pick(st.integers(1, 30))
    node = st.integers(0, count - 1)
    mentions = [Mention(pick(st.integers(0, documents - 1)), 0, 1, pick(st.integers(-1, 3))) for _ in range(count)]
    edges = pick(st.lists(st.tuples(node, node), max_size=40))
    types = [pick(st.sampled_from(["MATCH", "COREF"])) for _ in edges]
    kept = [pick(st.sampled_from([[], [0], [1], [0, 1]])) for _ in edges]
    words = pick(st.sampled_from(["a", "W" * 60, "日本" * 20]))
    return Question("q", [[words]] * documents, mentions, list("abcd"), 0, 1), edges, types, kept


@given(cases())
def test_boxes_and_pills_do_not_overlap(case: Any) -> None:
    asked, edges, types, kept = case
    found = messages(asked, edges, types, kept, [[0.9] * len(edges)] * 2, [False, False])
    drawing = draw(asked, found, 2)
    assert drawing == draw(asked, found, 2)
    for group in (drawing.boxes, drawing.pills):
        for a, b in combinations(group, 2):
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
            assert apart
    for box in drawing.boxes:
        assert box.x >= 0
        assert box.x + box.width <= drawing.width
        assert box.y >= 0
        assert box.y + box.height <= drawing.height
    hops = Counter(hop for line in drawing.lines for hop in line.message.hops)
    assert max(hops.values(), default=1) == 1
    nodes, chosen = choose(asked, found)
    assert len(nodes) == len(drawing.pills)
    assert len(chosen) == len(drawing.lines)
    if len(asked.mentions) <= MENTIONS and len(found) <= LINES:
        assert set(hops) == {(site, e) for e, sites in enumerate(kept) for site in sites}
    for line in drawing.lines:
        assert 0 <= line.x <= drawing.width
        assert 0 <= line.y <= drawing.height
    heads_touch_their_pills(drawing)


def heads_touch_their_pills(drawing: Drawing) -> None:
    pills = {pill.node: pill for pill in drawing.pills}
    for line in drawing.lines:
        tips = [tuple(map(float, tip)) for tip in re.findall(r"M(\S+) ([\d.]+)l", line.heads)]
        assert len(tips) == 1 + line.message.both
        for (x, y), node in zip(tips, line.message.ends[::-1], strict=False):  # the receiver's is the first
            pill = pills[node]
            assert min(abs(x - pill.x), abs(x - pill.x - pill.width)) < 0.1
            assert pill.y < y < pill.y + pill.height


@pytest.mark.parametrize("documents", [1, 2])
def test_a_busy_mention_grows_with_its_lines(documents: int) -> None:
    mentions = [Mention(v and documents - 1, 0, 1, 0) for v in range(9)]
    edges = [(v, 0) for v in range(1, 9)]
    asked = Question("q", [["word"]] * documents, mentions, ["a"])
    drawing = draw(asked, messages(asked, edges, None, [[0]] * 8, [[0.9] * 8], [False]), 1)
    heads_touch_their_pills(drawing)
    assert [pill.height > 40 for pill in sorted(drawing.pills, key=lambda p: p.node)] == [True] + [False] * 8
