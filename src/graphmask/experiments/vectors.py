"""Word vectors made elsewhere, for the words that a corpus has: from a text file, from an ``.npz``, or none.

Only what is asked for is kept in memory; a text file of a gigabyte is read past, not loaded.
"""

from __future__ import annotations

import math
import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.experiments.lines import Place, numbered


class Found(NamedTuple):
    """Vectors of n words: ``table`` ``[n, d]`` float32, zero where ``found`` ``[n]`` is False.

    A model keeps ``table`` as it is and adds trainable vectors at the rows that were not found::

        known = nn.Embedding.from_pretrained(found.table)
        absent = nn.Embedding.from_pretrained(found.initial(seed), freeze=False, padding_idx=0)
        vectors = known(words) + absent(found.slots[words])
    """

    table: Tensor
    found: Tensor

    @property
    def slots(self) -> Tensor:
        """``[n]``: 1, 2, ... for words that were not found, 0 for the others."""
        return (~self.found).cumsum(0) * ~self.found

    def initial(self, seed: int) -> Tensor:
        """Random vectors for the slots, as spread out as those that were found; row 0 is zero."""
        size = int((~self.found).sum())
        known = self.table[self.found]
        spread = known.std().item() if len(known) > 1 else self.table.shape[1] ** -0.5
        drawn = torch.randn(size + 1, self.table.shape[1], generator=torch.Generator().manual_seed(seed)) * spread
        drawn[0] = 0
        return drawn


class Vectors(ABC):
    """A source of word vectors of one dimension."""

    dimension: int

    @staticmethod
    def open(path: str | Path | None, dimension: int = 100) -> Vectors:
        """GloVe text, or an ``.npz`` with the arrays ``words`` and ``vectors``; None has no word, of ``dimension``."""
        if path is None:
            return _None(dimension)
        path = Path(path)
        if not path.is_file():
            raise GraphMaskError(f"Expected word vectors at {path}, found no such file.")
        return _Arrays(path) if path.suffix == ".npz" else _Text(path)

    def for_words(self, words: Sequence[str]) -> Found:
        """For each word the vector of its form, else of its lower case, else with its digits replaced by 0 or #."""
        spelled = [_spellings(word) for word in words]
        rows = self._select({spelling for spellings in spelled for spelling in spellings})
        table = np.zeros((len(words), self.dimension), dtype=np.float32)
        found = torch.zeros(len(words), dtype=torch.bool)
        for number, spellings in enumerate(spelled):
            row = next((rows[spelling] for spelling in spellings if spelling in rows), None)
            if row is not None:
                table[number] = row
                found[number] = True
        return Found(torch.from_numpy(table), found)

    @abstractmethod
    def _select(self, wanted: set[str]) -> dict[str, np.ndarray]:
        """The vectors of those that are there."""


def _spellings(word: str) -> list[str]:
    lower = word.lower()
    spellings = [word, lower]
    if re.search(r"\d", lower):
        spellings += [re.sub(r"\d", "0", lower), re.sub(r"\d", "#", lower)]
    return spellings


class _None(Vectors):
    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def _select(self, wanted: set[str]) -> dict[str, np.ndarray]:
        return {}


class _Arrays(Vectors):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _check_sizes(path)
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                self.words, self.vectors = file["words"], file["vectors"]
        except GraphMaskError:
            raise
        except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise GraphMaskError(
                f"Expected the arrays 'words' and 'vectors' in {path}, found no such file contents ({error}). "
                "Save them by numpy.savez, words as text and not as objects."
            ) from None
        words, vectors = self.words, self.vectors
        if (
            words.dtype.kind != "U"
            or vectors.dtype.kind != "f"
            or words.shape != vectors.shape[:1]
            or vectors.ndim != 2
        ):
            raise GraphMaskError(
                f"Expected words [n] of text and vectors [n, d] of floats in {path}, found {words.dtype} "
                f"{list(words.shape)} and {vectors.dtype} {list(vectors.shape)}."
            )
        self.dimension = vectors.shape[1]

    def _select(self, wanted: set[str]) -> dict[str, np.ndarray]:
        rows_of: dict[str, int] = {}
        for row, word in enumerate(self.words.tolist()):
            if word in wanted:
                rows_of.setdefault(word, row)
        chosen = self.vectors[list(rows_of.values())]
        if not np.isfinite(chosen).all():
            wrong = list(rows_of)[int(np.isfinite(chosen).all(1).argmin())]
            raise GraphMaskError(f"Expected finite numbers in {self.path}, found others for the word {wrong!r}.")
        return dict(zip(rows_of, chosen, strict=True))


#: Word vectors shrink to a half, a list of words to a hundredth; what is small and claims more is no such file.
_SHRINKS_TO, _SMALL = 1 / 200, 1 << 26


def _check_sizes(path: Path) -> None:
    """Before anything is unpacked: an archive, or the header of an array in it, may claim any size."""
    with zipfile.ZipFile(path) as archive:
        for name in ("words.npy", "vectors.npy"):
            entry = archive.getinfo(name)
            with archive.open(entry) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
                claimed = file.tell() + math.prod(shape) * dtype.itemsize
            bomb = entry.file_size > _SMALL and entry.compress_size < entry.file_size * _SHRINKS_TO
            if bomb or (claimed != entry.file_size and not dtype.hasobject):
                raise GraphMaskError(
                    f"Expected word vectors in {path}, found {entry.compress_size} bytes that claim to be "
                    f"{max(claimed, entry.file_size)} of {name}. It is not read."
                )


class _Text(Vectors):
    def __init__(self, path: Path) -> None:
        self.path = path
        lines = (line.rstrip(" ") for _, line in numbered(path, "word vector"))
        first = next(lines, "").split(" ")
        # Some programs begin with a line of two numbers: how many words, and the dimension.
        self.header = len(first) == 2 and all(value.isdecimal() for value in first)
        if self.header:
            first = next(lines, "").split(" ")
        self.dimension = len(first) - 1
        if self.dimension < 1:
            Place(path, 1 + self.header).fail(
                "a word and its vector", "no numbers", "Each line is a word and numbers, separated by single spaces."
            )

    def _select(self, wanted: set[str]) -> dict[str, np.ndarray]:
        rows: dict[str, np.ndarray] = {}
        for number, line in numbered(self.path, "word vector"):
            if number == 1 and self.header:
                continue
            line = line.rstrip(" ")
            word, *values = line.rsplit(" ", self.dimension)
            # Some words hold spaces; one that ends in a number is a vector that is too long.
            if len(values) != self.dimension or (" " in word and _is_number(word.rsplit(" ", 1)[1])):
                Place(self.path, number).fail(
                    f"{self.dimension} numbers as in the first line",
                    str(line.count(" ")),
                    "Was the file cut off, or made from two of different dimensions?",
                )
            if word in wanted and word not in rows:
                with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is refused below
                    row = np.array([float(value) if _is_number(value) else np.nan for value in values]).astype("f4")
                if not np.isfinite(row).all():
                    wrong = values[int(np.isfinite(row).argmin())]
                    Place(self.path, number).fail("finite numbers", repr(wrong), "Repair or remove the line.")
                rows[word] = row
        return rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
