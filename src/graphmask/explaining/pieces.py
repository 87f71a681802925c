"""Explains a large batch of sentences in parts, because gates of pairs of tokens take more memory than the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphmask.graphs import batches
from graphmask.tapping.subject import Subject

#: Pairs of tokens, counted at every layer and head, that are explained at once (a sentence is never divided).
PAIRS_AT_ONCE = 1 << 20


def pieces(subject: Subject, batch: Any) -> list[Any]:
    """The batch in parts of about `PAIRS_AT_ONCE` pairs; the batch itself where it is small or cannot be divided.

    Only a tokenizer's output on which the default forward calls the model is divided: its rows are sentences.
    """
    sites = subject.sites
    if not sites or not all(site.heads for site in sites) or subject.forward is not batches.default_forward:
        return [batch]
    if not isinstance(batch, Mapping) or not all(isinstance(value, Tensor) for value in batch.values()):
        return [batch]
    ids = batch.get("input_ids")
    if ids is None or ids.dim() != 2 or any(value.shape[:1] != ids.shape[:1] for value in batch.values()):
        return [batch]
    sentences, tokens = ids.shape
    pairs = sentences * tokens**2 * sum(max(site.stand_in.logits, 1) for site in sites)
    count = min(-(-pairs // PAIRS_AT_ONCE), sentences)
    if count < 2:
        return [batch]
    parts = {key: value.tensor_split(count) for key, value in batch.items()}
    return [{key: values[number] for key, values in parts.items()} for number in range(count)]


class Alike:
    """Keeps the first of equal tensors, so that explanations share it: the pairs of all sentences of one length."""

    def __init__(self) -> None:
        self._known: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}

    def __call__(self, part: Tensor) -> Tensor:
        """An equal tensor that was given before, or a copy: a view of a part would keep the whole tensor in memory."""
        known = self._known.setdefault((part.shape, part.dtype), [])
        for one in known:
            if torch.equal(one, part):
                return one
        known.append(part.clone())
        return known[-1]
