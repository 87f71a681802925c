"""Explanations of text: which tokens the nodes are, for reports, stores and analyses.

Nothing else is needed for models of Hugging Face's `transformers`: ``GraphMask(model)`` takes them as they are, see
`graphmask.tapping.attention_interface`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphmask.errors import GraphMaskError

if TYPE_CHECKING:
    from graphmask.store.columns import Metadata


def tokens(tokenizer: Any, *, classes: Sequence[str] | None = None) -> Metadata:
    """For ``explain_all(out=..., metadata=tokens(tokenizer))``: the tokens of every sentence.

    Padding is no node, so it is not among them. Kept are

    * ``tokens``: one text per node, which reports show as a sentence;
    * ``special``: the numbers of nodes that are special tokens ([CLS], [SEP], <s>, ...);
    * ``words``: the number of the word that a node is part of, None for special tokens; where the tokenizer knows it;
    * ``classes``: their names, if given.

    Args:
        tokenizer: any of `transformers`.
        classes: names of the model's classes, for instance ``model.config.id2label.values()``.
    """
    special = set(tokenizer.all_special_ids)

    def notes(batch: Any) -> list[dict[str, Any]]:
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(ids, Tensor) or ids.dim() != 2:
            raise GraphMaskError(
                "Expected a batch as a tokenizer returns it, with input_ids [B, N], got "
                f"{'none' if ids is None else type(ids).__name__}."
            )
        mask = batch.get("attention_mask")
        found = []
        for number, row in enumerate(ids):
            here = [at for at in range(len(row)) if mask is None or bool(mask[number, at])]
            numbers = row[here].tolist()
            note: dict[str, Any] = {
                "tokens": [str(token) for token in tokenizer.convert_ids_to_tokens(numbers)],
                "special": [at for at, one in enumerate(numbers) if one in special],
            }
            if getattr(batch, "is_fast", False):
                words = batch.word_ids(number)
                note["words"] = [words[at] for at in here]
            if classes is not None:
                note["classes"] = list(classes)
            found.append(note)
        return found

    return notes
