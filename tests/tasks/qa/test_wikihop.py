"""WikiHop files: read in pieces as if at once, cut without looking at answers, and never wrong in silence."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmask.errors import GraphMaskError
from graphmask.experiments import data
from graphmask.experiments.qa import wikihop
from graphmask.experiments.qa.questions import SUBJECT, Caps, Mention, Question, Read, Span
from graphmask.experiments.qa.wikihop import Example, examples, read

ADA: dict[str, Any] = {
    "id": "WH_0",
    "query": "place_of_birth ada  lovelace ",
    "answer": "london",
    "candidates": ["england", "london", "london bridge"],
    "supports": ["Ada Lovelace was born in London.", "London Bridge is in London, England; she is not."],
}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ADA.items() if name != key}


def example(**changes: Any) -> dict[str, Any]:
    return {**ADA, **changes}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.json"


def written(path: Path, *objects: Any) -> Path:
    path.write_text(json.dumps(objects))
    return path


def only(result: Read) -> Question:
    (question,) = result.questions
    return question


class TestQuestion:
    def test_every_field(self, path: Path) -> None:
        result = read(written(path, example(annotations=[["follows", "multiple"]])))
        assert only(result) == Question(
            id="WH_0",
            relation=("place", "of", "birth"),
            subject=("ada", "lovelace"),
            candidates=("england", "london", "london bridge"),
            answer=1,
            documents=(
                ("Ada", "Lovelace", "was", "born", "in", "London", "."),
                ("London", "Bridge", "is", "in", "London", ",", "England", ";", "she", "is", "not", "."),
            ),
            mentions=(
                Mention(Span(0, 0, 2), SUBJECT),
                Mention(Span(0, 5, 6), 1),
                Mention(Span(1, 0, 2), 2),
                Mention(Span(1, 4, 5), 1),
                Mention(Span(1, 6, 7), 0),
            ),
        )
        assert result.lost == Counter()
        assert list(result.lost) == []

    def test_masked(self, path: Path) -> None:
        masked = example(
            answer="___MASK7___",
            candidates=["___MASK70___", "___MASK7___"],
            supports=["She left ___MASK70___ for ___MASK7___, and ___MASK7___-born friends."],
        )
        question = only(read(written(path, masked)))
        assert question.answer == 1
        assert [(m.span.start, m.entity) for m in question.mentions] == [(2, 0), (4, 1), (7, 1)]

    @pytest.mark.parametrize("answer", ["London", " london", "LONDON"])
    def test_answer_apart_from_case_and_spaces(self, path: Path, answer: str) -> None:
        assert only(read(written(path, example(answer=answer)))).answer == 1

    def test_an_exact_answer_comes_first(self, path: Path) -> None:
        assert only(read(written(path, example(answer="LONDON", candidates=["london", "LONDON"])))).answer == 1

    def test_limit_counts_examples(self, path: Path) -> None:
        written(path, example(answer="paris"), *(example(id=str(n)) for n in range(5)))
        result = read(path, limit=3)
        assert [question.id for question in result.questions] == ["0", "1"]
        assert result.lost == {"answer not among candidates": 1}
        assert read(path, limit=0) == Read()


class TestLost:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"candidates": []}, "no candidates"),
            ({"answer": "paris"}, "answer not among candidates"),
            ({"answer": "LONDON", "candidates": ["london", "London"]}, "answer like several candidates"),
            ({"supports": []}, "no candidate mentioned"),
            ({"supports": ["", "Ada Lovelace in Londonderry."]}, "no candidate mentioned"),
            ({"candidates": ["london", " "], "answer": " ", "supports": [""]}, "no candidate mentioned"),
        ],
    )
    def test_skipped(self, path: Path, changes: dict[str, Any], reason: str) -> None:
        assert read(written(path, example(**changes))) == Read([], Counter({reason: 1}))

    def test_an_answer_without_mention_is_kept(self, path: Path) -> None:
        result = read(written(path, example(supports=["England."])))
        assert not only(result).answerable
        assert only(result).answer == 1
        assert result.lost == {"answer not mentioned": 1}

    def test_repeated_candidates(self, path: Path) -> None:
        result = read(written(path, example(candidates=["england", "england", "london"])))
        assert (only(result).candidates, only(result).answer) == (("england", "london"), 1)
        assert result.lost == {"candidates repeated": 1}

    def test_no_subject(self, path: Path) -> None:
        result = read(written(path, example(query="place_of_birth ")))
        assert only(result).query == ("place", "of", "birth")
        assert result.lost == {"no subject": 1}


class TestCaps:
    def test_nodes(self, path: Path) -> None:
        result = read(written(path, ADA), caps=Caps(nodes=3))
        assert [mention.span.start for mention in only(result).mentions] == [0, 5, 0]
        assert result.lost == {"nodes cut": 1}

    def test_nodes_are_cut_whatever_the_answer(self, path: Path) -> None:
        written(path, *(example(id=answer, answer=answer) for answer in ADA["candidates"]))
        result = read(path, caps=Caps(nodes=2))
        assert len({question.mentions for question in result.questions}) == 1
        assert [question.answerable for question in result.questions] == [False, True, False]
        assert result.lost == {"nodes cut": 3, "answer not mentioned": 2}

    def test_nothing_left(self, path: Path) -> None:
        assert read(written(path, ADA), caps=Caps(nodes=1)).lost == {"nodes cut": 1, "no candidate mentioned": 1}

    def test_query(self, path: Path) -> None:
        result = read(written(path, ADA), caps=Caps(query=4))
        assert (only(result).relation, only(result).subject) == (("place", "of", "birth"), ("ada",))
        assert only(result).mentions[0] == Mention(Span(0, 0, 2), SUBJECT)  # sought by its whole name
        assert result.lost == {"queries cut": 1}
        assert only(read(path, caps=Caps(query=2))).query == ("place", "of")
        assert read(path, caps=Caps(query=5)).lost == {}

    def test_candidates(self, path: Path) -> None:
        result = read(written(path, ADA), caps=Caps(candidates=2))
        assert only(result).candidates == ("england", "london")
        assert [(*m.span, m.entity) for m in only(result).mentions][2] == (1, 0, 1, 1)  # no longer the bridge
        assert result.lost == {"candidates cut": 1}

    def test_answer_cut(self, path: Path) -> None:
        assert read(written(path, ADA), caps=Caps(candidates=1)) == Read(
            [], Counter({"candidates cut": 1, "answer cut": 1})
        )

    def test_no_limits(self, path: Path) -> None:
        long = example(supports=["London " * 600], query="a " * 40, candidates=["london", *map(str, range(90))])
        assert read(written(path, long)).lost == {"nodes cut": 1, "queries cut": 1, "candidates cut": 1}
        result = read(path, caps=Caps(None, None, None))
        assert result.lost == {}
        assert (len(only(result).mentions), len(only(result).query), len(only(result).candidates)) == (600, 40, 91)


class TestClusters:
    def test_given(self, path: Path, tmp_path: Path) -> None:
        file = tmp_path / "clusters.json"
        file.write_text(json.dumps({"WH_0": [[[0, 0, 2], [1, 8, 9]], [[0, 5, 6], [1, 6, 7]]], "other": []}))
        result = read(written(path, ADA, example(id="WH_1")), clusters=file)
        first, second = result.questions
        assert [(*m.span, m.entity, m.cluster) for m in first.mentions] == [
            (0, 0, 2, SUBJECT, 0),
            (0, 5, 6, 1, None),
            (1, 0, 2, 2, None),
            (1, 4, 5, 1, None),
            (1, 6, 7, 0, None),
            (1, 8, 9, SUBJECT, 0),
        ]
        assert len(second.mentions) == 5
        assert result.lost == {"clusters of several entities": 1, "no clusters": 1}

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "expected JSON, found Expecting value"),
            (b"{", "expected JSON"),
            (b'{"WH_0": [], "WH_0": []}', "expected JSON, found the key 'WH_0' twice"),
            (b"\xef\xbb\xbf{}", "expected JSON, found Unexpected UTF-8 BOM"),
            (b'{"\xff"}', "expected UTF-8, found the byte 0xff at position 3"),
            (b"[]", r"expected a JSON object.*found \[\]"),
            (b'{"WH_0": 1}', "question 'WH_0': expected a list of clusters"),
            (b'{"WH_0": [[[2, 0, 1]]]}', "question 'WH_0': expected one of 2 documents"),
            (b'{"WH_0": [[[0, 0, 8]]]}', "question 'WH_0': expected 0 <= start < end <= 7, the tokens of document 0"),
        ],
    )
    def test_bad(self, path: Path, tmp_path: Path, content: bytes, message: str) -> None:
        file = tmp_path / "clusters.json"
        file.write_bytes(content)
        with pytest.raises(GraphMaskError, match=re.escape(f"{file}: ") + message):
            read(written(path, ADA), clusters=file)

    def test_missing(self, path: Path) -> None:
        with pytest.raises(GraphMaskError, match=r"expected a file of coreference clusters, found none to read"):
            read(written(path, ADA), clusters=path.with_name("none"))


class TestErrors:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", ": expected a WikiHop file, which is a JSON array, found an empty one"),
            (b" \n", ": expected a WikiHop file, which is a JSON array, found an empty one"),
            (b"[]", ": expected examples, found an empty array"),
            (b'{"data": []}', r""": expected a WikiHop file, .* found one that begins '{"data": \[\]}'"""),
            (b"\xef\xbb\xbf[]", ": expected a file without a byte order mark"),
            (b'[{"id": "\xff"}]', ": expected UTF-8, found the byte 0xff at position 10"),
            (b'[{"id": "\xc3', ": expected UTF-8, found the byte 0xc3 at position 10"),
            ("[]".encode("utf-16"), ": expected UTF-8, found the byte 0xff at position 1"),
            (b"[1, 2]", ": example 1: expected an object, found '1, 2]'"),
            (b'["a"]', ": example 1: expected an object"),
            (b"[[]]", ": example 1: expected an object"),
            (b"[", ": example 1: expected an object, found the end of the file"),
            (b'[{"a": "}', ": example 1: expected the end of the object, found the end of the file"),
            (b'[{"a": "\\', ": example 1: expected the end of the object, found the end of the file"),
            (b'[{"a": ]]', ": example 1: expected JSON"),
            (b'[{"a" 1}]', ": example 1: expected JSON, found Expecting ':' delimiter"),
            (b'[{"a": "\n"}]', ": example 1: expected JSON, found Invalid control character"),
            (b'[{"a": "\\x"}]', r": example 1: expected JSON, found Invalid \\escape"),
            pytest.param(
                b'[{"a": ' + b"[" * 9999 + b"]" * 9999 + b"}]",
                # From Python 3.14 on as much is read as the stack holds, and then it is no example.
                f": example 1: expected {'JSON, found maximum' if sys.version_info < (3, 14) else 'the key .id.'}",
                id="deep",
            ),
            pytest.param(b'[{"a": ' + b"1" * 9999 + b"}]", ": example 1: expected JSON, found Exceeds", id="long"),
            (b'[{"a": 1, "a": 2}]', ": example 1: expected JSON, found the key 'a' twice"),
        ],
    )
    @pytest.mark.parametrize("chunk", [1, 1 << 18])
    def test_not_json(self, path: Path, content: bytes, message: str, chunk: int) -> None:
        path.write_bytes(content)
        with pytest.raises(GraphMaskError, match="^" + re.escape(str(path)) + message.replace("{", "[{]")) as caught:
            list(examples(path, chunk=chunk))
        assert caught.value.args[0].endswith((".", "?", "utf-8"))

    @pytest.mark.parametrize(
        ("after", "message"),
        [
            ("", "example 1: expected ',' or ']' after it, found the end of the file"),
            (" {", "example 1: expected ',' or ']' after it, found '[{]"),
            (",", "example 2: expected an object, found the end of the file"),
            (",]", "example 2: expected an object, found ']'"),
            (', {"id": "b', "example 2: expected the end of the object"),
            ("] x", "expected nothing after the array, found 'x'"),
        ],
    )
    def test_after_an_example(self, path: Path, after: str, message: str) -> None:
        path.write_text("[" + json.dumps(ADA) + after)
        found = examples(path)
        assert next(found).id == "WH_0"
        with pytest.raises(GraphMaskError, match=re.escape(str(path)) + ": " + message):
            list(found)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            *(
                (without(key), rf"( \(id 'WH_0'\))?: expected the key '{key}', found \[")
                for key in ("id", "query", "answer", "candidates", "supports")
            ),
            ({}, r": expected the key 'id', found \[\]"),
            (example(id=3), ": expected text under 'id', found 3"),
            (example(query=None), r" \(id 'WH_0'\): expected text under 'query', found None"),
            (example(answer=["london"]), r" \(id 'WH_0'\): expected text under 'answer', found \['london'\]"),
            (example(candidates="london"), r" \(id 'WH_0'\): expected a list of texts under 'candidates'"),
            (example(candidates=["london", 1]), r" \(id 'WH_0'\): expected a list of texts under 'candidates'"),
            (example(supports={"a": "b"}), r" \(id 'WH_0'\): expected a list of texts under 'supports'"),
            (example(supports=[["a"]]), r" \(id 'WH_0'\): expected a list of texts under 'supports'"),
            (example(query="  "), r" \(id 'WH_0'\): expected a relation and a subject under 'query', found '  '"),
            (example(query="__ ada"), r" \(id 'WH_0'\): expected a relation and a subject under 'query'"),
            (example(supports=["\ud83d"]), r" \(id 'WH_0'\): expected text under 'supports', found '\\ud83d'"),
            (
                example(supports=["so " + "[" * 1001]),
                r" \(id 'WH_0'\): expected words of at most 1,000 characters under",
            ),
            (example(id="x"), r" \(id 'x'\): expected ids that occur once, found this one again"),
        ],
    )
    def test_example(self, path: Path, bad: Any, message: str) -> None:
        written(path, example(id="x"), bad)
        with pytest.raises(GraphMaskError, match=re.escape(f"{path}: example 2") + message):
            read(path)

    @pytest.mark.parametrize("kind", ["missing", "folder"])
    def test_no_file(self, tmp_path: Path, kind: str) -> None:
        with pytest.raises(GraphMaskError, match="expected a WikiHop file, found none to read"):
            read(tmp_path if kind == "folder" else tmp_path / "none.json")

    def test_an_open_quote_does_not_read_on(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wikihop, "LARGEST", 1000)
        path.write_text('[{"id": "' + "x" * 5000)
        with pytest.raises(GraphMaskError, match="example 1: expected an object of at most 1000 characters"):
            list(examples(path, chunk=100))


TEXTS = st.text(st.sampled_from(list('ab{}[]",:\\/ \n\u0000é€😀\u2028\ufeff')), max_size=8)
OBJECTS = st.fixed_dictionaries(
    {
        "id": TEXTS,
        "query": TEXTS.map(lambda text: "of " + text),
        "answer": TEXTS,
        "candidates": st.lists(TEXTS, max_size=2),
        "supports": st.lists(TEXTS, max_size=2),
    },
    optional={"annotations": st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))},
)


class TestStreaming:
    @given(
        objects=st.lists(OBJECTS, min_size=1, max_size=3, unique_by=lambda found: found["id"]),
        chunk=st.integers(1, 40),
        ascii=st.booleans(),  # surrogate pairs as escapes, or characters of several bytes
        indent=st.sampled_from([None, 0, 3]),
    )
    def test_as_if_read_at_once(
        self, objects: list[dict[str, Any]], chunk: int, ascii: bool, indent: int | None
    ) -> None:
        text = json.dumps(objects, ensure_ascii=ascii, indent=indent)
        with TemporaryDirectory() as folder:
            path = Path(folder, "x.json")
            path.write_bytes(f"\n {text}\r\n".encode())
            found = list(examples(path, chunk=chunk))
        assert found == [
            Example(o["id"], o["query"], o["answer"], tuple(o["candidates"]), tuple(o["supports"]))
            for o in json.loads(text)
        ]

    @given(st.binary(max_size=30) | st.text('[]{}",:\\ a1', max_size=30).map(str.encode), st.integers(1, 9))
    def test_whatever_the_bytes(self, content: bytes, chunk: int) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "x.json")
            path.write_bytes(content)
            with pytest.raises(GraphMaskError, match=re.escape(str(path))):  # no such file has all five keys
                list(examples(path, chunk=chunk))

    @pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
    def test_holds_one_object_and_a_chunk(self, path: Path, chunk: int) -> None:
        objects = [json.dumps(example(id=str(n), supports=["x" * (37 * n % 500)])) for n in range(60)]
        content = "[" + ",   \n".join(objects) + "]"
        held = []

        class Watched(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                held.append(len(text.buffer) - text.start)
                return super().read(size)

        text = wikihop._Text(path, Watched(content.encode()), chunk)
        sizes = []
        for number, found in enumerate(text.objects()):
            assert found == objects[number]
            sizes.append(len(text.buffer))
        assert len(sizes) == 60
        assert max(sizes) <= max(map(len, objects)) + chunk
        assert max(held) < max(map(len, objects))

    def test_stops_reading_when_nobody_asks(self, path: Path) -> None:
        path.write_text("[" + json.dumps(ADA) + "," + " " * 1000 + "broken")
        assert len(read(path, limit=1).questions) == 1


@pytest.fixture(params=["train", "dev"])
def sample(request: pytest.FixtureRequest) -> tuple[str, Path]:
    try:
        return request.param, data.find(f"qa-wikihop-sample/{request.param}.json")
    except GraphMaskError as error:
        pytest.skip(f"needs real data: {error}")


class TestSample:
    def test_counts(self, sample: tuple[str, Path]) -> None:
        name, path = sample
        result = read(path)
        questions = result.questions
        counts = {
            "questions": len(questions),
            "answer mentioned": sum(question.answerable for question in questions),
            "subject mentioned": sum(any(m.entity == SUBJECT for m in q.mentions) for q in questions),
            "mentions": sum(len(question.mentions) for question in questions),
            "most mentions": max(len(question.mentions) for question in questions),
        }
        print(name, counts, dict(result.lost))
        assert result.lost == {}
        expected = {"train": (22, 22, 18, 1150, 163), "dev": (28, 28, 21, 1911, 273)}
        assert tuple(counts.values()) == expected[name]

    def test_mentions_name_their_entities(self, sample: tuple[str, Path]) -> None:
        raw = {found["id"]: found for found in json.loads(sample[1].read_text("utf-8"))}
        for question in read(sample[1]).questions:
            source = raw[question.id]
            assert question.candidates[question.answer] == source["answer"]
            for mention in question.mentions:
                name = source["query"].partition(" ")[2] if mention.entity == SUBJECT else None
                name = name or question.candidates[mention.entity]
                assert "".join(question.words(mention)).lower() == "".join(name.lower().split())

    @pytest.mark.parametrize("chunk", [100, 4096])
    def test_streamed(self, sample: tuple[str, Path], chunk: int) -> None:
        raw = json.loads(sample[1].read_text("utf-8"))
        assert [e.supports for e in examples(sample[1], chunk=chunk)] == [tuple(o["supports"]) for o in raw]
