"""WikiHop (Welbl, Stenetorp and Riedel 2018): questions with candidates over several Wikipedia articles.

A file is one JSON array of objects with the keys ``id query answer candidates supports``; others are ignored. The
query is a relation, its words joined by underscores, and the words of a subject. Masked WikiHop has the same form.

`Read.lost` counts questions by what happened to them:

=================================  ======================================================================
no candidates                      skipped
answer not among candidates        skipped
answer like several candidates     skipped: equal to none, and to more than one apart from case and spaces
answer cut                         skipped: it was among the candidates that were cut
no candidate mentioned             skipped
answer not mentioned               kept: `Question.answerable` is false
no subject                         kept: the query is only a relation
candidates repeated                kept, the candidate once
candidates cut, queries cut,       kept, with the first so many; see `Caps`
nodes cut
no clusters                        kept: the file of clusters does not know the question
=================================  ======================================================================

and under ``clusters of several entities`` the clusters that were dropped.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from reprlib import repr as shown
from typing import Any, BinaryIO, NamedTuple, NoReturn

from graphmask.errors import GraphMaskError
from graphmask.experiments.qa.mentions import find, spans, tokenise, with_clusters
from graphmask.experiments.qa.questions import SUBJECT, Caps, Question, Read

CHUNK = 1 << 18
#: Characters of one example, many times more than WikiHop has: an unclosed quote must not read on through the file.
LARGEST = 1 << 24
WHITE_SPACE = re.compile(r"[ \t\n\r]*")
OUTSIDE_STRING = re.compile(r'["{}\[\]]')
INSIDE_STRING = re.compile(r'["\\]')


class Example(NamedTuple):
    """An object of the file, its types checked."""

    id: str
    query: str
    answer: str
    candidates: tuple[str, ...]
    supports: tuple[str, ...]


def read(
    path: str | Path, *, caps: Caps | None = None, clusters: str | Path | None = None, limit: int | None = None
) -> Read:
    """The questions of a file, or of its first ``limit`` examples, and what was lost.

    ``clusters`` is a JSON file of coreference clusters, ``{id: [[[document, start, end], ...], ...]}``; see
    `mentions.spans`. A broken file is a `GraphMaskError` that says where.
    """
    caps = Caps() if caps is None else caps
    chains = None if clusters is None else (Path(clusters), _chains(Path(clusters)))
    result = Read()
    for example in islice(examples(path), limit):
        question = _question(example, caps, chains, result.lost)
        if question is not None:
            result.questions.append(question)
    return Read(result.questions, +result.lost)  # without reasons that never occurred


def examples(path: str | Path, *, chunk: int = CHUNK) -> Iterator[Example]:
    """The examples of a file one after another; never more than one and ``chunk`` bytes are held."""
    path = Path(path)
    seen: set[str] = set()
    try:
        with open(path, "rb") as file:
            for number, text in enumerate(_Text(path, file, chunk).objects(), 1):
                example = _example(text, path, number)
                if example.id in seen:
                    _fail(path, "ids that occur once", "this one again", "Remove one.", number, example.id)
                seen.add(example.id)
                yield example
    except OSError as error:
        _fail(path, "a WikiHop file", f"none to read ({error.strerror})", "Check the path.")


class _Text:
    """The text of a file from ``start`` on, as far as it has been read."""

    def __init__(self, path: Path, file: BinaryIO, chunk: int) -> None:
        self.path, self.file, self.chunk = path, file, chunk
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.bytes = 0
        self.buffer, self.start = "", 0

    def objects(self) -> Iterator[str]:
        """The texts of the objects in the array that is the file: braces match, the rest is not checked."""
        unpacked = "Was it copied or unpacked completely?"
        if (first := self.peek()) != "[":
            if first == "\ufeff":
                _fail(self.path, "a file without a byte order mark", "one", "Save it as plain UTF-8.")
            instead = f"one that begins {self.beginning()}" if first else "an empty one"
            _fail(self.path, "a WikiHop file, which is a JSON array", instead, unpacked)
        number, separator = 0, first
        while separator != "]":
            self.start += 1
            number += 1
            if (first := self.peek()) == "]" and number == 1:
                _fail(self.path, "examples", "an empty array", unpacked)
            if first != "{":
                _fail(self.path, "an object", self.beginning(), "Examples are JSON objects.", number)
            yield self.object(number)
            separator = self.peek()
            if separator not in ("]", ","):
                _fail(self.path, "',' or ']' after it", self.beginning(), unpacked, number)
        self.start += 1
        if self.peek():
            _fail(self.path, "nothing after the array", self.beginning(), "A file holds one array.")

    def peek(self) -> str:
        """Skip white space and show the next character; nothing at the end of the file."""
        while True:
            space = WHITE_SPACE.match(self.buffer, self.start)
            self.start = space.end() if space else self.start
            if self.start < len(self.buffer):
                return self.buffer[self.start]
            if not self.grow():
                return ""

    def object(self, number: int) -> str:
        """Take the object that begins here."""
        position, depth, quoted = self.start, 0, False
        while True:
            match = (INSIDE_STRING if quoted else OUTSIDE_STRING).search(self.buffer, position)
            if match is None:
                position = max(position, len(self.buffer)) - self.start
                if position > LARGEST:
                    _fail(
                        self.path, f"an object of at most {LARGEST} characters", "more",
                        "Is a quote or brace left open?", number,
                    )  # fmt: skip
                if not self.grow():
                    _fail(
                        self.path, "the end of the object", "the end of the file",
                        "Was it copied or unpacked completely?", number,
                    )  # fmt: skip
                continue
            position = match.end()
            if match[0] == '"':
                quoted = not quoted
            elif match[0] == "\\":
                position += 1
            else:
                depth += 1 if match[0] in "{[" else -1
                if depth == 0:
                    text = self.buffer[self.start : position]
                    self.start = position
                    return text

    def grow(self) -> bool:
        """Forget what is before ``start`` and read on; whether there was more."""
        raw = self.file.read(self.chunk)
        pending = len(self.decoder.getstate()[0])
        try:
            more = self.decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            byte = f"the byte {error.object[error.start]:#04x} at position {self.bytes - pending + error.start + 1}"
            _fail(self.path, "UTF-8", byte, "Convert the file, for example: iconv -f latin1 -t utf-8")
        self.bytes += len(raw)
        self.buffer, self.start = self.buffer[self.start :] + more, 0
        return bool(raw)

    def beginning(self) -> str:
        """What comes next, for errors."""
        while len(self.buffer) < self.start + 20 and self.grow():
            pass
        return repr(self.buffer[self.start : self.start + 20]) if self.peek() else "the end of the file"


def _fail(
    path: Path, expected: str, found: str, hint: str, number: int | None = None, id: str | None = None
) -> NoReturn:
    example = "" if number is None else f" example {number}" + ("" if id is None else f" (id {id!r})") + ":"
    raise GraphMaskError(f"{path}:{example} expected {expected}, found {found}. {hint}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python keeps the last of two values for a key: that could be the wrong answer."""
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {repeated!r} twice in an object")
    return members


def _decoded(text: str, path: Path, number: int | None = None) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        _fail(path, "JSON", str(error), "Was the file changed, or unpacked incompletely?", number)


def _example(text: str, path: Path, number: int) -> Example:
    fields = _decoded(text, path, number)
    id = fields.get("id")

    def fail(expected: str, value: object, hint: str) -> NoReturn:
        _fail(path, expected, shown(value), hint, number, id if isinstance(id, str) else None)

    values: list[Any] = []
    for key in Example._fields:
        if key not in fields:
            fail(f"the key {key!r}", sorted(fields), "WikiHop's examples have " + ", ".join(Example._fields) + ".")
        value = fields[key]
        strings = value if key in ("candidates", "supports") else [value]
        if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
            fail(f"{'text' if strings is not value else 'a list of texts'} under {key!r}", value, "Mend the example.")
        for string in strings:
            try:
                string.encode()
            except UnicodeEncodeError as error:
                fail(f"text under {key!r}", string[error.start], "Half a surrogate pair is no character: replace it.")
            if long := _LONG.search(string):
                fail(f"words of at most {LONGEST_WORD:,} characters under {key!r}", long[0], "Is that text?")
        values.append(tuple(strings) if strings is value else value)
    example = Example(*values)
    if not _relation(example.query):
        fail("a relation and a subject under 'query'", example.query, "Such as 'place_of_birth ada lovelace'.")
    return example


#: The tokeniser's time grows with the square of a word's length: a second at 4,000 characters.
LONGEST_WORD = 1000
_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1}}}")


def _relation(query: str) -> tuple[str, ...]:
    return tuple(word for first in query.split()[:1] for word in first.split("_") if word)


def _chains(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        _fail(path, "a file of coreference clusters", f"none to read ({error.strerror})", "Check the path.")
    except UnicodeDecodeError as error:
        _fail(path, "UTF-8", f"the byte {error.object[error.start]:#04x} at position {error.start + 1}", "Convert it.")
    clusters = _decoded(text, path)
    if not isinstance(clusters, dict):
        _fail(path, "a JSON object from ids of questions to clusters", shown(clusters), "See `wikihop.read`.")
    return clusters


def _answer(example: Example, candidates: tuple[str, ...]) -> int | str:
    """The number of the right candidate, or why there is none."""
    if not candidates:
        return "no candidates"
    if example.answer in candidates:
        return candidates.index(example.answer)
    alike = [number for number, text in enumerate(candidates) if _plain(text) == _plain(example.answer)]
    if len(alike) == 1:
        return alike[0]
    return "answer like several candidates" if alike else "answer not among candidates"


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _question(
    example: Example, caps: Caps, chains: tuple[Path, dict[str, Any]] | None, lost: Counter[str]
) -> Question | None:
    """What the model sees is cut before anyone looks at the answer; None if nothing can be asked."""
    candidates = tuple(dict.fromkeys(example.candidates))
    lost["candidates repeated"] += len(candidates) < len(example.candidates)
    answer = _answer(example, candidates)
    if isinstance(answer, str):
        lost[answer] += 1
        return None
    lost["candidates cut"] += len(candidates) > len(candidates[: caps.candidates])
    candidates = candidates[: caps.candidates]
    if answer >= len(candidates):
        lost["answer cut"] += 1
        return None

    documents = tuple(tokenise(support) for support in example.supports)
    subject = " ".join(example.query.split()[1:])
    lost["no subject"] += not subject
    mentions = find(documents, candidates, subject)
    if chains is not None:
        path, known = chains
        lost["no clusters"] += example.id not in known
        clusters = spans(known.get(example.id, []), documents, f"{path}: question {example.id!r}")
        mentions, dropped = with_clusters(mentions, clusters, documents)
        lost["clusters of several entities"] += dropped
    lost["nodes cut"] += len(mentions) > len(mentions[: caps.nodes])
    mentions = mentions[: caps.nodes]
    if all(mention.entity == SUBJECT for mention in mentions):
        lost["no candidate mentioned"] += 1
        return None

    relation, words = _relation(example.query), tokenise(subject)
    query = (relation + words)[: caps.query]
    lost["queries cut"] += len(query) < len(relation) + len(words)
    question = Question(
        id=example.id,
        relation=query[: len(relation)],
        subject=query[len(relation) :],
        candidates=candidates,
        answer=answer,
        documents=documents,
        mentions=tuple(mentions),
    )
    lost["answer not mentioned"] += not question.answerable
    return question
