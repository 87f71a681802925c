"""Word vectors from text, from arrays, from nowhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from graphmask.errors import GraphMaskError
from graphmask.experiments.srl import conll09
from graphmask.experiments.srl.vocabulary import Vocabulary
from graphmask.experiments.vectors import Vectors

WORDS = ["the", "US", "us", "0000", "##th", ". .", "the"]
ROWS = np.arange(21, dtype=np.float16).reshape(7, 3) / 4
ASKED = ["The", "US", "us", "1984", "19th", ". .", "absent", "7"]
EXPECTED = [0, 1, 2, 3, 4, 5, None, None]


def _text(path: Path, header: str = "", end: str = "\n") -> Path:
    rows = zip(WORDS, ROWS.tolist(), strict=True)
    path.write_text(header + "".join(f"{word} {' '.join(map(str, row))}{end}" for word, row in rows))
    return path


def _arrays(path: Path) -> Path:
    np.savez_compressed(path, words=np.array(WORDS), vectors=ROWS)
    return path


@pytest.mark.parametrize("kind", ["text", "header", "trailing", "windows", "npz"])
def test_looked_up_by_hand(tmp_path: Path, kind: str) -> None:
    path = {
        "text": lambda: _text(tmp_path / "v.txt"),
        "header": lambda: _text(tmp_path / "v.txt", "7 3\n"),
        "trailing": lambda: _text(tmp_path / "v.txt", end=" \n"),
        "windows": lambda: _text(tmp_path / "v.txt", end="\r\n"),
        "npz": lambda: _arrays(tmp_path / "v.npz"),
    }[kind]()
    vectors = Vectors.open(path)
    assert vectors.dimension == 3
    found = vectors.for_words(ASKED)
    rows = [ROWS[row].tolist() if row is not None else [0.0] * 3 for row in EXPECTED]
    assert found.table.tolist() == rows
    assert found.table.dtype == torch.float32
    assert found.found.tolist() == [row is not None for row in EXPECTED]
    assert found.slots.tolist() == [0, 0, 0, 0, 0, 0, 1, 2]
    assert vectors.for_words([]).table.shape == (0, 3)


def test_trainable_vectors_of_absent_words(tmp_path: Path) -> None:
    found = Vectors.open(_arrays(tmp_path / "v.npz")).for_words(ASKED)
    initial = found.initial(seed=0)
    assert initial.shape == (3, 3)
    assert initial[0].tolist() == [0.0] * 3
    assert (initial[1:] != 0).all()
    assert torch.equal(initial, found.initial(seed=0))
    assert not torch.equal(initial, found.initial(seed=1))


def test_without_vectors_every_word_is_trainable() -> None:
    found = Vectors.open(None, dimension=4).for_words(["a", "b", "c"])
    assert found.table.tolist() == [[0.0] * 4] * 3
    assert found.slots.tolist() == [1, 2, 3]
    many = Vectors.open(None, dimension=100).for_words([str(number) for number in range(500)])
    assert many.initial(0)[1:].std().item() == pytest.approx(0.1, rel=0.02)  # unit length on average


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"a 1 2 3\nb 1 2\nc 1 2 3\n", 2, "3 numbers as in the first line, found 2"),
        (b"a 1 2 3\nb 1 2 3 4\n", 2, "3 numbers as in the first line, found 4"),
        (b"2 3\na 1 2 3\nb 1 2\n", 3, "3 numbers as in the first line, found 2"),
        (b"a 1 2 3\n\nb 1 2 3\n", 2, "3 numbers as in the first line, found 0"),
        (b"a 1 2 3\nb 1 x 3\n", 2, "finite numbers, found 'x'"),
        (b"a 1 2 3\nb 1 2 nan\n", 2, "finite numbers, found 'nan'"),
        (b"a 1 2 3\nb 1e99 2 3\n", 2, "finite numbers, found '1e99'"),
        (b"a 1 2 3\nb\xff 1 2 3\n", 2, "UTF-8, found the byte 0xff at position 2 of the line"),
        (b"", 1, "a word and its vector, found no numbers"),
        (b"5 5\n", 2, "a word and its vector, found no numbers"),
    ],
)
def test_malformed_text(tmp_path: Path, content: bytes, line: int, message: str) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with pytest.raises(GraphMaskError, match=re.escape(f"{path}:{line}: expected {message}. ")):
        Vectors.open(path).for_words(["a", "b"])


def test_malformed_arrays(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    for arrays in (
        {"words": np.array(["a"])},
        {"words": np.array(["a"], dtype=object), "vectors": np.ones((1, 2))},
        {"words": np.array(["a"]), "vectors": np.ones((2, 2))},
        {"words": np.array(["a"]), "vectors": np.ones(1)},
        {"words": np.array([1]), "vectors": np.ones((1, 2))},
        {"words": np.array(["a"]), "vectors": np.ones((1, 2), dtype=int)},
        {"words": np.array(["a"]), "vectors": np.full((1, 2), np.inf)},
    ):
        np.savez(path, **arrays)
        with pytest.raises(GraphMaskError, match="Expected"):
            Vectors.open(path).for_words(["a"])
    for content in (b"", b"words", _arrays(tmp_path / "good.npz").read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(GraphMaskError, match="Expected the arrays"):
            Vectors.open(path)
    with pytest.raises(GraphMaskError, match="found no such file"):
        Vectors.open(tmp_path / "missing.txt")


def test_real_vectors(real: Callable[[str], Path]) -> None:
    sentences = conll09.read(real("srl-ewt/dev.conll09"))
    words = Vocabulary.of(word for sentence in sentences for word in sentence.form).words[1:]
    started = time.process_time()
    found = Vectors.open(real("embeddings/glove.6B.100d.fp16.npz")).for_words(words)
    assert time.process_time() - started < 10
    assert found.table.shape == (len(words), 100)
    assert found.found.double().mean().item() > 0.85
    assert not found.found[words.index("a")]
    the, The = found.table[words.index("the")], found.table[words.index("The")]
    assert torch.equal(the, The)
    assert (the != 0).all()
