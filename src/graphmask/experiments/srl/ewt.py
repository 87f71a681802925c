"""The English Web Treebank as CoNLL-2009 files: Universal Dependencies trees joined with PropBank predicates.

Universal Dependencies publishes words and trees (CoNLL-U), PropBank its annotation with the words hidden
(``.gold_skel``): the same tokens in the same order, a sense at each predicate, and for each predicate a column of
bracketed spans. The join follows these conventions:

- Tokens are the words of the tree; ranges of multiword tokens and empty nodes are left out.
- Tags are XPOS, labels keep their subtypes, features are left blank, predicted columns repeat the gold ones.
- Every predicate with a sense is kept, auxiliaries included. ARG0 becomes A0 and ARGM-LOC becomes AM-LOC; C- and R-
  stay in front; V is the predicate itself and no argument.
- An argument stands at the head of its span: the token whose head lies outside. If there are several, the one with
  the most tokens of the span below it, and the first of those. If two spans share a head, the first span has it.
- Sentences that the two sources cut differently are left out, and reported.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from graphmask.errors import GraphMaskError
from graphmask.experiments.lines import Place, blocks, numbered
from graphmask.experiments.srl import conll09
from graphmask.experiments.srl.conll09 import Predicate, Sentence

SKELETON = ".gold_skel"
FIXED = 8  # document, sentence, token, word, tag, constituents, lemma, sense; then one column per predicate
CELL = re.compile(r"((?:\([^()*]+)*)\*(\)*)")


@dataclass(frozen=True, slots=True)
class Built:
    """A written file: its size, and what was left out and why."""

    path: Path
    sentences: int
    predicates: int
    arguments: int
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """PropBank's part of a sentence: tags, tokens with senses, and for each a list of (role, first, last)."""

    place: Place
    tags: tuple[str, ...]
    senses: tuple[tuple[int, str], ...]
    spans: tuple[tuple[tuple[str, int, int], ...], ...]


def build(ud: Path, propbank: Path, out: Path, lists: Path | None = None) -> dict[str, Built]:
    """Write ``out/<split>.conll09`` for every ``files.<split>``, a list of documents such as ``weblog/a.xml.conllu``.

    ``ud`` is the folder that the lists are relative to (``not-to-release/sources`` of UD_English-EWT), ``propbank``
    any folder above the skeletons (``data/google/ewt`` of propbank-release). Lists are looked for in ``lists`` or, if
    not given, in ``ud``, beside it, and in ``file-lists`` beside it.
    """
    for folder in (ud, propbank):
        if not folder.is_dir():
            raise GraphMaskError(f"Expected a folder at {folder}, found none. Clone the sources first.")
    skeletons = defaultdict(list)
    for path in sorted(propbank.rglob(f"*{SKELETON}")):
        skeletons[path.name].append(path)
    if not skeletons:
        raise GraphMaskError(f"Expected {SKELETON} files below {propbank}, found none. Is it PropBank's folder?")
    result = {}
    for listing in _lists([lists] if lists else [ud, ud.parent, ud.parent / "file-lists"]):
        sentences: list[Sentence] = []
        skipped: list[str] = []
        for number, line in numbered(listing, "list of documents"):
            name = Path(line.strip())
            if not name.name:
                continue
            tree = ud / name
            if not tree.is_file():
                Place(listing, number).fail(f"a document below {ud}", f"no {name}", "Is it the folder of the list?")
            matching = [
                path
                for path in skeletons.get(name.name.removesuffix(".conllu") + SKELETON, [])
                if name.parent.name in ("", *path.parts)
            ]
            if len(matching) > 1:
                Place(listing, number).fail(
                    f"one skeleton of {name}", " and ".join(map(str, matching)), "Name a folder that holds one."
                )
            if matching:
                sentences += _document(tree, matching[0], skipped)
            else:
                skipped.append(f"{tree}: no skeleton below {propbank}")
        if not sentences:
            raise GraphMaskError(
                f"Expected documents of {listing} to be in {ud} and {propbank}, found no sentence that is in both. "
                f"{'; '.join(skipped[:3])}"
            )
        split = listing.name.removeprefix("files.")
        path = out / f"{split}.conll09"
        conll09.write(path, sentences)
        predicates = [predicate for sentence in sentences for predicate in sentence.predicates]
        arguments = sum(len(predicate.arguments) for predicate in predicates)
        result[split] = Built(path, len(sentences), len(predicates), arguments, tuple(skipped))
    return result


def join(tree: Sentence, skeleton: Skeleton) -> Sentence:
    """The tree's sentence with the skeleton's predicates."""
    predicates = []
    for (token, sense), spans in zip(skeleton.senses, skeleton.spans, strict=True):
        arguments: dict[int, str] = {}
        for role, first, last in spans:
            if role != "V":
                arguments.setdefault(span_head(tree.head, first, last), re.sub(r"^((?:[CR]-)*)ARG", r"\1A", role))
        predicates.append(Predicate(token, sense, tuple(sorted(arguments.items()))))
    return replace(tree, predicates=tuple(predicates))


def span_head(heads: tuple[int, ...], first: int, last: int) -> int:
    """The token of a span, from 0, that stands for it; ``heads`` as in files."""
    below: Counter[int] = Counter()
    for token in range(first, last + 1):
        while first <= heads[token] - 1 <= last:
            token = heads[token] - 1
        below[token] += 1
    return max(below, key=lambda token: (below[token], -token))


def read_trees(path: Path) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file, without predicates."""
    for place, block in blocks(path, "CoNLL-U"):
        rows, lines = [], []
        for down, line in enumerate(block):
            columns = line.split("\t")
            if line.startswith("#") or re.fullmatch(r"\d+[-.]\d+", columns[0]):
                continue
            if len(columns) != 10:
                place.down(down).fail("the 10 columns of CoNLL-U", str(len(columns)), "Columns are separated by tabs.")
            number, form, lemma, _, tag, _, head, label, _, _ = columns
            rows.append([number, form, lemma, lemma, tag, tag, "_", "_", head, head, label, label, "_", "_"])
            lines.append(place.down(down))
        if not rows:
            place.fail("a sentence", "only comments", "Was the file cut off?")
        sentence = conll09.parse(rows, lines.__getitem__)
        if not sentence.head:
            lines[0].fail("a tree", "'_' for every head", "Spans have heads only in trees.")
        yield sentence


def read_skeletons(path: Path) -> Iterator[Skeleton]:
    """The sentences of a ``.gold_skel`` file."""
    for place, block in blocks(path, "PropBank skeleton"):
        rows = [line.split() for line in block]
        for down, row in enumerate(rows):
            if len(row) != len(rows[0]) or len(row) < FIXED:
                expected = f"{len(rows[0])} columns as in the sentence's first line" if down else "at least 8 columns"
                place.down(down).fail(expected, str(len(row)), "Columns are separated by spaces.")
            if row[2] != str(down):
                place.down(down).fail(f"the token {down}", repr(row[2]), "Tokens of a sentence count 0, 1, 2.")
        senses = tuple((token, row[7]) for token, row in enumerate(rows) if row[7] != "-")
        if len(rows[0]) - FIXED != len(senses):
            place.fail(
                f"one column of spans for each of the {len(senses)} senses",
                str(len(rows[0]) - FIXED),
                "Take the file anew from PropBank.",
            )
        columns = list(zip(*rows, strict=True))
        spans = tuple(_spans(column, place) for column in columns[FIXED:])
        yield Skeleton(place, columns[4], senses, spans)


def _spans(column: tuple[str, ...], place: Place) -> tuple[tuple[str, int, int], ...]:
    spans, opened = [], []
    for token, cell in enumerate(column):
        match = CELL.fullmatch(cell)
        if match is None:
            place.down(token).fail("a span such as (ARG0*, *, *) or (ARG0*)", repr(cell), "Take the file anew.")
        opened += [(role, token) for role in match[1].split("(")[1:]]
        for _ in match[2]:
            if not opened:
                place.down(token).fail("a bracket that was opened before", repr(cell), "Take the file anew.")
            role, first = opened.pop()
            spans.append((role, first, token))
    if opened:
        place.down(opened[-1][1]).fail("a bracket that is closed", f"({opened[-1][0]}", "Take the file anew.")
    # Inner spans were closed before outer ones: turned round, of two with the same beginning the outer comes first.
    return tuple(sorted(reversed(spans), key=lambda span: span[1]))


def _lists(folders: list[Path]) -> list[Path]:
    for folder in folders:
        listings = sorted(path for path in folder.glob("files.*") if path.is_file())
        if listings:
            return listings
    raise GraphMaskError(
        f"Expected lists of documents (files.train, files.dev, ...) in {' or '.join(map(str, folders))}, found none. "
        "Name their folder."
    )


def _document(tree: Path, skeleton: Path, skipped: list[str]) -> list[Sentence]:
    trees, skeletons = list(read_trees(tree)), list(read_skeletons(skeleton))
    sizes, others = [len(sentence) for sentence in trees], [len(sentence.tags) for sentence in skeletons]
    if len(trees) == len(skeletons):
        pairs = [(at, at) for at in range(len(trees)) if sizes[at] == others[at]]
    else:  # where a sentence was cut in two, those around it still have their lengths, in order
        matching = SequenceMatcher(None, sizes, others, autojunk=False).get_matching_blocks()
        pairs = [(block.a + step, block.b + step) for block in matching for step in range(block.size)]
        pairs = [(left, right) for left, right in pairs if _alike(trees[left], skeletons[right])]
    joined = {left for left, _ in pairs}
    skipped += [
        f"{tree}: sentence {number + 1} ({size} tokens) is not cut like PropBank's"
        for number, size in enumerate(sizes)
        if number not in joined
    ]
    return [join(trees[left], skeletons[right]) for left, right in pairs]


def _alike(tree: Sentence, skeleton: Skeleton) -> bool:
    """Whether most tags agree: the two sources corrected tags independently, yet only few."""
    return 2 * sum(map(str.__eq__, tree.pos, skeleton.tags)) > len(tree)
