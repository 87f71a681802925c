"""CoNLL-2009 files, read and written without loss.

One token per line, columns separated by tabs, a blank line after each sentence:

    ID FORM LEMMA PLEMMA POS PPOS FEAT PFEAT HEAD PHEAD DEPREL PDEPREL FILLPRED PRED APRED1 .. APREDn

The columns with a P are predicted by other programs, the others gold. The k-th APRED column holds the arguments of
the k-th token whose FILLPRED is Y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from graphmask.errors import GraphMaskError
from graphmask.experiments.lines import Place, blocks
from graphmask.files import write_bytes

COLUMNS = (
    "ID", "FORM", "LEMMA", "PLEMMA", "POS", "PPOS", "FEAT", "PFEAT", "HEAD", "PHEAD", "DEPREL", "PDEPREL", "FILLPRED",
    "PRED",
)  # fmt: skip
ABSENT = "_"


class Tree(NamedTuple):
    """A dependency tree: heads count tokens from 1, and 0 is the root, as in the file."""

    heads: tuple[int, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A token that has arguments, and those arguments as (token, role) in the order of tokens; tokens from 0."""

    index: int
    sense: str
    arguments: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Every column of a sentence. ``head`` or ``phead`` is empty where the file leaves the whole tree out."""

    form: tuple[str, ...]
    lemma: tuple[str, ...]
    plemma: tuple[str, ...]
    pos: tuple[str, ...]
    ppos: tuple[str, ...]
    feat: tuple[str, ...]
    pfeat: tuple[str, ...]
    head: tuple[int, ...]
    phead: tuple[int, ...]
    deprel: tuple[str, ...]
    pdeprel: tuple[str, ...]
    predicates: tuple[Predicate, ...]

    def __len__(self) -> int:
        return len(self.form)

    def lemmas(self, predicted: bool) -> tuple[str, ...]:
        return self.plemma if predicted else self.lemma

    def tags(self, predicted: bool) -> tuple[str, ...]:
        return self.ppos if predicted else self.pos

    def features(self, predicted: bool) -> tuple[str, ...]:
        return self.pfeat if predicted else self.feat

    def tree(self, predicted: bool) -> Tree:
        tree = Tree(self.phead, self.pdeprel) if predicted else Tree(self.head, self.deprel)
        if not tree.heads:
            column, other = ("PHEAD", "HEAD") if predicted else ("HEAD", "PHEAD")
            raise GraphMaskError(
                f"Expected a tree in the column {column}, found '_' throughout the sentence that begins "
                f"{' '.join(self.form[:6])!r}. Use the tree in {other}."
            )
        return tree

    @property
    def fillpred(self) -> tuple[str, ...]:
        """The column FILLPRED: Y at predicates."""
        marked = {predicate.index for predicate in self.predicates}
        return tuple("Y" if token in marked else ABSENT for token in range(len(self)))

    @property
    def pred(self) -> tuple[str, ...]:
        """The column PRED: senses of predicates."""
        senses = {predicate.index: predicate.sense for predicate in self.predicates}
        return tuple(senses.get(token, ABSENT) for token in range(len(self)))

    @property
    def blind(self) -> bool:
        """Whether senses and arguments were left out, for systems to fill in."""
        return any(predicate.sense == ABSENT for predicate in self.predicates)


def read(path: str | Path, *, limit: int | None = None, blind: bool = False) -> list[Sentence]:
    """All sentences of a file, or the first ``limit``; see `iterate`."""
    return list(islice(iterate(path, blind=blind), limit))


def iterate(path: str | Path, *, blind: bool = False) -> Iterator[Sentence]:
    """The sentences of a file one after another, each checked; a `GraphMaskError` names file and line.

    With ``blind``, sentences may mark predicates (FILLPRED is Y) and leave out their senses (PRED is ``_``) and all
    APRED columns, as the blind test files of the shared task do. Such predicates have the sense ``_`` and no
    arguments. Without it they are errors: training on a blind file would quietly teach that nothing has arguments.
    """
    for place, block in blocks(Path(path), "CoNLL-2009"):
        yield parse([line.split("\t") for line in block], place.down, blind=blind)


def write(path: str | Path, sentences: Iterable[Sentence]) -> None:
    """Write the whole file or nothing. What `iterate` could not read back as it is, is not written."""
    path = Path(path)
    text = []
    line = 1
    for sentence in sentences:
        lines = _rows(sentence, Place(path, line))
        again = parse([row.split("\t") for row in lines], Place(path, line).down, blind=True)
        if again != sentence:
            Place(path, line).fail(
                "arguments in the order of tokens and one per token, and columns as long as the sentence",
                f"another sentence when read back, beginning {' '.join(sentence.form[:6])!r}",
                "Sort predicates and arguments.",
            )
        text += [*lines, ""]
        line += len(lines) + 1
    if not text:
        raise GraphMaskError(f"Expected sentences to write to {path}, found none.")
    write_bytes(path, ("\n".join(text) + "\n").encode())


def parse(rows: list[list[str]], at: Callable[[int], Place], *, blind: bool = False) -> Sentence:
    """The sentence of these rows of columns; ``at`` says where a row stands, for errors."""
    width = len(rows[0])
    for down, row in enumerate(rows):
        if len(row) != width or width < len(COLUMNS):
            expected = f"{width} columns as in the sentence's first line" if down else "at least 14 columns"
            at(down).fail(expected, str(len(row)), "Columns are separated by single tabs.")
        if "" in row:
            at(down).fail(
                "a value in every column", f"nothing in {_name(row.index(''))}", "An absent value is written '_'."
            )
    columns = list(zip(*rows, strict=True))
    numbers = {str(number): number for number in range(len(rows) + 1)}
    for down, (cell, number) in enumerate(zip(columns[0], islice(numbers, 1, None), strict=True)):
        if cell != number:
            at(down).fail(f"the ID {number}", repr(cell), "Tokens of a sentence count 1, 2, 3 without gaps.")
    head = _heads(columns[8], "HEAD", numbers, at)
    # Where predicted columns copy gold ones there is nothing new to check.
    phead = head if columns[9] == columns[8] else _heads(columns[9], "PHEAD", numbers, at)
    return Sentence(
        form=columns[1],
        lemma=columns[2],
        plemma=columns[3],
        pos=columns[4],
        ppos=columns[5],
        feat=columns[6],
        pfeat=columns[7],
        head=head,
        phead=phead,
        deprel=columns[10],
        pdeprel=columns[11],
        predicates=_predicates(columns[12], columns[13], columns[14:], at, blind),
    )


def _name(column: int) -> str:
    return COLUMNS[column] if column < len(COLUMNS) else f"APRED{column - len(COLUMNS) + 1}"


def _heads(column: tuple[str, ...], name: str, numbers: dict[str, int], at: Callable[[int], Place]) -> tuple[int, ...]:
    try:
        heads = tuple([numbers[value] for value in column])
    except KeyError:
        if column.count(ABSENT) == len(column):
            return ()
        down = next(down for down, value in enumerate(column) if value not in numbers)
        at(down).fail(
            f"in {name} a whole number from 0 to {len(column)}",
            repr(column[down]),
            "Heads are IDs of the same sentence, 0 is the root; '_' is allowed only throughout a sentence.",
        )
    # Each walk towards the root marks what it sees and ends where another walk has been: linear in all.
    seen = [0] * (len(heads) + 1)
    for start in range(1, len(heads) + 1):
        token = start
        while token and not seen[token]:
            seen[token] = start
            token = heads[token - 1]
        if token and seen[token] == start:
            cycle = [token]
            while (following := heads[cycle[-1] - 1]) != token:
                cycle.append(following)
            shown = " -> ".join(map(str, [*cycle[:10], *(["..."] if len(cycle) > 10 else []), token]))
            at(token - 1).fail(f"a tree in {name}", f"the cycle {shown}", "Every token must lead to 0.")
    return heads


def _predicates(
    fillpred: tuple[str, ...],
    pred: tuple[str, ...],
    arguments: list[tuple[str, ...]],
    at: Callable[[int], Place],
    blind: bool,
) -> tuple[Predicate, ...]:
    marked = []
    for token, (fill, sense) in enumerate(zip(fillpred, pred, strict=True)):
        if fill == "Y":
            marked.append(token)
        elif fill != ABSENT:
            at(token).fail("Y or _ in FILLPRED", repr(fill), "Y marks predicates.")
        elif sense != ABSENT:
            at(token).fail("_ in PRED where FILLPRED is _", repr(sense), "Mark the token with Y, or remove the sense.")
    unknown = [token for token in marked if pred[token] == ABSENT]
    if unknown and not (blind and len(unknown) == len(marked) and not arguments):
        at(unknown[0]).fail(
            "a sense in PRED where FILLPRED is Y",
            "_",
            "A blind test file (no senses and no APRED columns) is read with blind=True.",
        )
    if not unknown and len(arguments) != len(marked):
        at(0).fail(
            f"one APRED column for each of the {len(marked)} tokens whose FILLPRED is Y",
            str(len(arguments)),
            "Every line of a sentence has 14 columns and one for each of its predicates.",
        )
    if unknown:
        return tuple(Predicate(token, ABSENT, ()) for token in marked)
    return tuple(
        Predicate(token, pred[token], tuple((argument, role) for argument, role in enumerate(column) if role != ABSENT))
        for token, column in zip(marked, arguments, strict=True)
    )


def _rows(sentence: Sentence, place: Place) -> list[str]:
    size = len(sentence)
    roles = [[ABSENT] * size for _ in sentence.predicates if not sentence.blind]
    try:
        for column, predicate in zip(roles, sentence.predicates, strict=False):
            for token, role in predicate.arguments:
                column[token] = role
        heads, pheads = (map(str, numbers or [ABSENT] * size) for numbers in (sentence.head, sentence.phead))
        columns = [
            map(str, range(1, size + 1)), sentence.form, sentence.lemma, sentence.plemma, sentence.pos, sentence.ppos,
            sentence.feat, sentence.pfeat, heads, pheads, sentence.deprel, sentence.pdeprel, sentence.fillpred,
            sentence.pred, *roles,
        ]  # fmt: skip
        lines = ["\t".join(row) for row in zip(*columns, strict=True)]
    except (IndexError, ValueError):
        place.fail(
            "columns as long as the sentence and arguments inside it",
            f"others in the sentence that begins {' '.join(sentence.form[:6])!r}",
            f"It has {size} tokens.",
        )
    if not lines:
        place.fail("a token", "a sentence without any", "Leave it out.")
    for down, line in enumerate(lines):
        if "\n" in line or line.endswith("\r"):
            place.down(down).fail("values without ends of lines", repr(line), "Replace them before writing.")
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError as error:
                place.down(down).fail("text", f"half a surrogate pair ({error.object[error.start]!r})", "Replace it.")
    return lines
