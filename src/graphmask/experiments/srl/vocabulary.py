"""Words, tags and labels as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError

UNKNOWN = "<unknown>"


class Vocabulary:
    """Words by number; 0 stands for every word that is not in it."""

    def __init__(self, words: Sequence[str]) -> None:
        """``words`` are numbered from 1, in this order."""
        self.words = (UNKNOWN, *words)
        if len(self.index) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise GraphMaskError(f"Expected different words in a vocabulary, found {twice!r} twice.")

    @classmethod
    def of(cls, words: Iterable[str], minimum: int = 1) -> Vocabulary:
        """Words seen at least ``minimum`` times: the most frequent first, equally frequent ones by alphabet."""
        counts = Counter(words)
        kept = (word for word, count in counts.items() if count >= minimum and word != UNKNOWN)
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index and word != UNKNOWN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def encode(self, words: Sequence[str]) -> Tensor:
        """``[n]`` int64."""
        return torch.tensor([self.index.get(word, 0) for word in words], dtype=torch.long)

    def decode(self, numbers: Tensor) -> list[str]:
        """The words again; unknown ones as ``<unknown>``."""
        return [self.words[number] for number in numbers.tolist()]

    def to_json(self) -> list[str]:
        """What `from_json` takes, to be kept beside a model's weights."""
        return list(self.words[1:])

    @classmethod
    def from_json(cls, words: object) -> Vocabulary:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise GraphMaskError(
                "Expected a list of words for a vocabulary, found something else. Train the model anew."
            )
        return cls(words)
