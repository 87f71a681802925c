"""Many sentences at once are explained some at a time: gates of pairs of tokens take more memory than the model."""

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
    """The batch in parts of about so many pairs, in order; the batch itself where it is small or cannot be divided.

    What a tokenizer returns is divided, where the model is called on it by the default forward: rows are sentences.
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
    """Of tensors that many explanations have in common, such as the pairs of sentences of one length, the first."""

    def __init__(self) -> None:
        self._known: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}

    def __call__(self, part: Tensor) -> Tensor:
        """An equal tensor that was given before, or a copy: of a part of a whole, the whole would be kept."""
        known = self._known.setdefault((part.shape, part.dtype), [])
        for one in known:
            if torch.equal(one, part):
                return one
        known.append(part.clone())
        return known[-1]
