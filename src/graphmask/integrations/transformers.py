"""Models of Hugging Face's `transformers`: their attention seen and gated by hand, and the tokens that nodes are.

``GraphMask(model)`` takes them as they are, see `graphmask.tapping.attention_interface`; nothing here is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.graphs.sites import ABSENT
from graphmask.tapping.attention import Attention, Inputs
from graphmask.tapping.capture import attending, attends, check_model
from graphmask.tapping.restore import restored

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
        records = []
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
            records.append(note)
        return records

    return notes


@contextmanager
def tapped(model: nn.Module) -> Iterator[Tapped]:
    """A context in which this library computes the attention of ``model``: it can be read, and pairs dropped.

    .. code-block:: python

        with tapped(model) as attention:
            output = model(**batch).logits                  # as before
            attention.sites                                 # one name per call of attention, input side first
            attention.weights[attention.sites[0]]           # [B, H, N, N], receivers in rows
            attention.gate(attention.sites[0], gates)       # 1 keeps a pair, 0 drops it
            without = model(**batch).logits

    The model is used in evaluation mode. Afterwards it, its configuration and the registries of `transformers` are
    exactly as they were found, also when something fails inside.

    Args:
        model: of `transformers`, or with `torch.nn.MultiheadAttention` or `graphmask.AttentionTap`.
    """
    check_model(model)
    if not attends(model):
        raise GraphMaskError(
            "Expected attention: a model of transformers, torch.nn.MultiheadAttention or a graphmask.AttentionTap, "
            f"found none in {type(model).__name__}."
        )
    with restored(model):
        model.eval()
        tap = Tapped(model)
        handle = model.register_forward_pre_hook(lambda *_: tap.restart())
        try:
            with attending(model, tap.attend, verify=True):
                yield tap
        finally:
            handle.remove()


class Tapped:
    """The attention of a model inside `tapped`.

    Attributes:
        model: the model, which calling this object calls too.
        weights: by site, what values were multiplied by in the last run: the attention, ``[B, H, N, N]``, receivers in
            rows, and 0 where a pair is dropped.
        gates: by site, what `gate` was given.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights: dict[str, Tensor] = {}
        self.gates: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}

    @property
    def sites(self) -> tuple[str, ...]:
        """The calls of attention in the last run, in their order; none before the model has run."""
        return tuple(self.weights)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def gate(self, site: str, gates: Tensor) -> None:
        """Mask a site in the runs that follow: 1 keeps a pair, 0 drops it.

        A dropped pair sends nothing and takes no part in the softmax; a gate z in between leaves it the share z of its
        mass before the softmax, and the share z of its value.

        Args:
            site: one of `sites`.
            gates: bool or float, from 0 to 1; broadcasts to ``[B, H, N, N]``: sentence, head, receiver, sender.
        """
        if site not in self.weights:
            known = ", ".join(map(repr, self.sites)) or "none before the model has run"
            raise GraphMaskError(f"Expected a site of this model ({known}), got {site!r}.")
        if not gates.is_floating_point() and gates.dtype != torch.bool:
            raise GraphMaskError(f"Expected gates that are bool or floating point, got {gates.dtype}.")
        if gates.numel() and not bool(((gates >= 0) & (gates <= 1)).all()):
            raise GraphMaskError("Expected gates from 0 to 1, got others.")
        self.gates[site] = gates

    def open(self) -> None:
        """Remove all masks."""
        self.gates.clear()

    def restart(self) -> None:
        """A run of the model begins."""
        self._calls.clear()
        self.weights.clear()

    def attend(self, name: str, given: Inputs) -> Tensor:
        """[B, H, N, D'] the output of attention at this call of a module."""
        call = self._calls[name] = self._calls.get(name, -1) + 1
        site = f"{name}#{call}" if call else name
        attention, gates = Attention(given, name), self.gates.get(site)
        if gates is None:
            weights = attention.weights(attention.logits())
        else:
            batch, heads, count, _ = attention.query.shape
            try:
                gates = gates.to(attention.query.device).expand(batch, heads, count, count)
            except RuntimeError:
                raise GraphMaskError(
                    f"Expected gates that broadcast to {[batch, heads, count, count]} at {site!r}, "
                    f"got {list(gates.shape)}."
                ) from None
            absent = torch.full((heads,), ABSENT, device=gates.device)
            weights = attention.masked_weights(gates, absent) * gates.to(attention.query.dtype)
        self.weights[site] = weights.detach()
        return weights @ attention.value
