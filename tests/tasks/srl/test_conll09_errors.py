"""Broken CoNLL-2009 files: each error says file, line, what was expected and what was found."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmask.errors import GraphMaskError
from graphmask.experiments.srl import conll09

from .support import TWO, damaged, located


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("\tA1\tA0\n", "\tA1\n", 2, "16 columns as in the sentence's first line, found 15"),
        ("\tA1\tA0\n", "\tA1\tA0\t_\n", 2, "16 columns as in the sentence's first line, found 17"),
        ("2\ta b\tab\t", "2\ta b\tab", 10, "14 columns as in the sentence's first line, found 13"),
        ("\troot\t_\t_\n2\ta b", "\troot\t_\n2\ta b", 9, "at least 14 columns, found 13"),
        ("num=sg", "", 2, "a value in every column, found nothing in FEAT"),
        ("\tA1\tA0\n", "\tA1\t\n", 2, "a value in every column, found nothing in APRED2"),
        ("3\tthat", "4\tthat", 3, "the ID 3, found '4'"),
        ("1\tThe", "0\tThe", 1, "the ID 1, found '0'"),
        ("2\ta b", "02\ta b", 10, "the ID 2, found '02'"),
        ("\t2\t2\tdet", "\ttwo\t2\tdet", 1, "in HEAD a whole number from 0 to 7, found 'two'"),
        ("\t2\t2\tdet", "\t2\t8\tdet", 1, "in PHEAD a whole number from 0 to 7, found '8'"),
        ("\t2\t2\tdet", "\t-1\t2\tdet", 1, "in HEAD a whole number from 0 to 7, found '-1'"),
        ("\t2\t2\tdet", "\t٢\t2\tdet", 1, "in HEAD a whole number from 0 to 7, found '٢'"),
        ("\t2\t2\tdet", "\t_\t2\tdet", 1, "in HEAD a whole number from 0 to 7, found '_'"),
        ("\t2\t2\tdet", "\t1\t2\tdet", 1, "a tree in HEAD, found the cycle 1 -> 1"),
        ("\t2\t6\tacl", "\t3\t6\tacl", 3, "a tree in HEAD, found the cycle 3 -> 5 -> 3"),
        ("\t0\t0\troot", "\t0\t2\troot", 2, "a tree in PHEAD, found the cycle 2 -> 6 -> 2"),
        ("Y\tsee.01", "y\tsee.01", 5, "Y or _ in FILLPRED, found 'y'"),
        ("Y\tsee.01", "_\tsee.01", 5, "_ in PRED where FILLPRED is _, found 'see.01'"),
        ("Y\tsee.01", "Y\t_", 5, "a sense in PRED where FILLPRED is Y, found _"),
        ("Y\tsee.01", "_\t_", 1, "one APRED column for each of the 1 tokens whose FILLPRED is Y, found 2"),
        ("1\tThe", "# text\n1\tThe", 1, "at least 14 columns, found 1"),
        ("1\tThe", "\ufeff1\tThe", 1, "a file without a byte order mark, found one"),
        (TWO, "", 1, "a CoNLL-2009 file, found an empty one"),
        (TWO, "\n\n", 1, "a CoNLL-2009 file, found an empty one"),
    ],
)
def test_every_error_by_hand(two: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in TWO
    two.write_bytes(TWO.replace(old, new, 1).encode())
    with pytest.raises(GraphMaskError, match=re.escape(f"{two}:{line}: expected {message}. ")):
        conll09.read(two)


def test_wrong_encoding(two: Path) -> None:
    two.write_bytes(TWO.replace("she\tshe", "caf\xe9\tshe").encode("latin1", "replace"))
    with pytest.raises(GraphMaskError, match=r":4: expected UTF-8, found the byte 0xe9 at position 6 of the line\. "):
        conll09.read(two)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(GraphMaskError, match=re.escape(f"{path}:1: expected a CoNLL-2009 file, found none")):
            conll09.read(path)


def _survives(text: bytes, path: Path, total: int) -> None:
    """Damaged files are read, and then written without loss, or refused with the line named."""
    rng = random.Random(0)
    seen, outcomes = 0, {"read": 0, "refused": 0}
    while seen < total:
        broken = damaged(text, rng)
        seen += len(broken)
        path.write_bytes(broken)
        try:
            read = conll09.read(path, blind=True)
        except GraphMaskError as error:
            located(error, path)
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            if outcomes["read"] <= 20:
                again = path.with_name("again.conll09")
                conll09.write(again, read)
                assert conll09.read(again, blind=True) == read
    assert min(outcomes.values()) >= 20, outcomes


def test_a_megabyte_of_damage(tmp_path: Path) -> None:
    _survives(2 * TWO.encode(), tmp_path / "damaged.conll09", 1_000_000)


def test_damage_to_real_sentences(real: Callable[[str], Path], tmp_path: Path) -> None:
    text = real("srl-ewt/dev.conll09").read_bytes()
    few = b"\n\n".join(text.split(b"\n\n")[:2]) + b"\n\n"
    _survives(few, tmp_path / "damaged.conll09", 500_000)
