"""Re-DocRED as questions."""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa import redocred
from graphmask.experiments.qa.questions import SUBJECT, Mention, Span

from .support import NAMES, NORWAY, write


def test_one_document_by_hand():
    lost: Counter[str] = Counter()
    (question,) = redocred.questions(NORWAY, NAMES, lost)
    assert question.id == "Norway / P36 / 0"
    assert question.query == ("capital", "Norway")
    assert question.candidates == ("Denmark", "Oslo", "Bergen")
    assert question.answer == 1
    assert question.evidence == {0, 1}
    assert question.answerable
    assert question.mentions == (
        Mention(Span(0, 0, 1), SUBJECT, 0),
        Mention(Span(0, 4, 5), 0, 1),
        Mention(Span(1, 3, 4), 1, 2),
        Mention(Span(1, 6, 7), 2, 3),
        Mention(Span(2, 0, 1), 1, 2),
    )
    assert [question.words(mention) for mention in question.mentions[:2]] == [("Norway",), ("Denmark",)]
    assert lost == {"several answers": 1, "no other candidate": 1}


def test_an_entity_is_called_by_its_longest_mention():
    document = copy.deepcopy(NORWAY)
    document["sents"][2] = ["Greater", "Oslo", "area", "is", "older", "than", "Tom", "Hansen", "."]
    document["vertexSet"][2][1]["pos"] = [0, 3]
    document["vertexSet"][4][0]["pos"] = [6, 8]
    (question,) = redocred.questions(document, NAMES, Counter())
    assert question.candidates == ("Denmark", "Greater Oslo area", "Bergen")


def test_the_same_place_twice_is_one_mention():
    document = copy.deepcopy(NORWAY)
    document["vertexSet"][3] *= 2
    (question,) = redocred.questions(document, NAMES, Counter())
    assert sum(mention.entity == 2 for mention in question.mentions) == 1


def test_documents_are_divided_by_title(tmp_path):
    documents = [{**NORWAY, "title": f"Norway {number}"} for number in range(200)]
    folder = write(tmp_path, documents)
    parts = {split: {q.id for q in redocred.read(folder, split).questions} for split in redocred.SPLITS}
    assert sum(map(len, parts.values())) == 200 == len(set.union(*parts.values()))
    assert set.union(*parts.values()) == {q.id for q in redocred.read(folder).questions}
    assert 120 < len(parts["train"]) < 160
    assert 10 < len(parts["dev"]) < 35
    # Other documents do not move one to another part.
    fewer = write(tmp_path, documents[:20])
    assert {q.id for q in redocred.read(fewer, "test").questions} <= parts["test"]
    assert len(redocred.read(fewer, limit=7).questions) == 7


def _change(**changes):
    return [{**copy.deepcopy(NORWAY), **changes}]


def _without(key):
    return [{name: value for name, value in NORWAY.items() if name != key}]


@pytest.mark.parametrize(
    ("documents", "names", "said"),
    [
        (_without("sents"), NAMES, "document 0: expected DocRED's title, sents"),
        (_without("labels"), NAMES, "KeyError: 'labels'"),
        (_change(labels=[{"h": 0, "r": "P36", "t": 9, "evidence": []}]), NAMES, "IndexError"),
        (_change(labels=[{"h": 0, "r": "P36", "t": 2, "evidence": [7]}]), NAMES, "evidence in sentence 7 of 3"),
        (_change(vertexSet=[[{"name": "x", "sent_id": 3, "pos": [0, 1], "type": "LOC"}]]), NAMES, "of sentence 3"),
        (_change(vertexSet=[[{"name": "x", "sent_id": 0, "pos": [2, 2], "type": "LOC"}]]), NAMES, "tokens 2 to 2"),
        (_change(vertexSet=[[]]), NAMES, "IndexError"),
        (["a text"], NAMES, "TypeError"),
        ([NORWAY], {"P17": "country"}, "KeyError: 'P36'"),
    ],
)
def test_what_is_wrong_is_located(tmp_path, documents, names, said):
    folder = write(tmp_path, documents, names)
    with pytest.raises(GraphMaskError) as caught:
        redocred.read(folder)
    assert said in str(caught.value)
    assert "test_revised.json: document 0" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dev_revised.json", b'[{"title": ', "expected JSON, found otherwise"),
        ("dev_revised.json", b"\xff\xfe", "expected JSON, found otherwise"),
        ("test_revised.json", b"{}", "expected a JSON list, found a dict"),
        ("rel_info.json", b"[]", "expected a JSON dict, found a list"),
        ("rel_info.json", None, "found none to read"),
    ],
)
def test_files_that_are_none(tmp_path, name, text, said):
    path = write(tmp_path, [NORWAY, NORWAY]) / name
    path.unlink() if text is None else path.write_bytes(text)
    with pytest.raises(GraphMaskError, match=said) as caught:
        redocred.read(tmp_path)
    assert name in str(caught.value)


def test_a_split_that_is_none(tmp_path):
    with pytest.raises(GraphMaskError, match="Expected a split among train, dev, test, got 'valid'"):
        redocred.read(write(tmp_path, [NORWAY]), "valid")


def test_real_documents(real):
    """The counts that the corpus is known to have."""
    folder = real("qa-redocred")
    found = redocred.read(folder)
    assert len(found.questions) == 17_542
    assert sum(bool(question.evidence) for question in found.questions) == 7_777
    assert sum(len(question.candidates) for question in found.questions) / 17_542 == pytest.approx(6.7, abs=0.05)
    titles = [document["title"] for name in redocred.FILES for document in json.loads((folder / name).read_bytes())]
    parts = Counter(redocred.part_of(title) for title in titles)
    assert parts.total() == 1000
    assert 650 < parts["train"] < 750
