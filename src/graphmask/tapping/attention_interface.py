"""Hugging Face attention: while a model is tapped, the attention implementation its configuration names is ours.

Models of `transformers` look their attention up by name, in `AttentionInterface`, and the mask that goes with it in
`AttentionMaskInterface`. Inside `answered` both know a name that means "ask GraphMask"; afterwards neither does.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.tapping.attention import Inputs
from graphmask.tapping.restore import modules_of, named_modules_of

#: Computes the attention of a module, by its name.
AttendAt = Callable[[str, Inputs], Tensor]
#: Arguments of attention functions that change nothing about which numbers come out, or that are read here.
_HARMLESS = frozenset({"scaling", "dropout", "softcap", "is_causal", "output_attentions", "sliding_window"})
_numbers = itertools.count()


def pretrained(model: nn.Module) -> list[nn.Module]:
    """Modules that are `transformers`' models. It is not imported for that: who has one has imported it."""
    library = sys.modules.get("transformers.modeling_utils")
    return [] if library is None else [part for part in modules_of(model) if isinstance(part, library.PreTrainedModel)]


def asks(model: nn.Module) -> bool:
    """Does a part of the model look its attention up?"""
    return any(part._can_set_attn_implementation() for part in pretrained(model))  # type: ignore[operator]


def check(model: nn.Module) -> None:
    """Raise for models whose attention is more than that of tokens to tokens of one sequence."""
    for part in pretrained(model):
        if getattr(part.config, "is_encoder_decoder", False):
            raise GraphMaskError(
                f"Expected an encoder or a decoder, got {type(part).__name__}, which is both: its cross-attention has "
                "other senders than receivers, which is not supported. Explain its encoder."
            )


@contextmanager
def answered(model: nn.Module, attend: AttendAt, verify: bool) -> Iterator[None]:
    """Inside, attention of the model's parts is computed by ``attend``.

    With ``verify``, what it computes is compared with the model's own implementation, call by call.
    """
    parts = [part for part in pretrained(model) if part._can_set_attn_implementation()]  # type: ignore[operator]
    if not parts:
        yield
        return
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    names = {module: name or "model" for name, module in named_modules_of(model)}
    states: dict[nn.Module, Tensor] = {}  # that a module is called with, until it attends

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = kwargs.get("hidden_states", args[0] if args else None)
        if isinstance(hidden, Tensor) and hidden.dim() == 3:
            states[module] = hidden

    attentive = [module for module in modules_of(model) if "Attention" in type(module).__name__]
    handles: list[Any] = []

    def function(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        dropout = dropout if module.training else 0.0
        given = Inputs(query, key, value, attention_mask, scaling, dropout, softcap, states.pop(module, None))
        if verify:
            _verify(names[module], module, given, others)
        return attend(names[module], given).transpose(1, 2).contiguous(), None

    ours = f"graphmask{next(_numbers)}"
    registries: list[Any] = [AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping]
    configs = {id(config): config for config in _configs(model)}.values()
    were = [(config, config._attn_implementation_internal) for config in configs]
    try:
        handles += [module.register_forward_pre_hook(before, with_kwargs=True) for module in attentive]
        AttentionInterface.register(ours, function)
        AttentionMaskInterface.register(ours, eager_mask)
        for config, _ in were:
            config._attn_implementation_internal = ours
        yield
    finally:
        for handle in handles:
            handle.remove()
        for config, implementation in were:
            config._attn_implementation_internal = implementation
        for registry in registries:
            registry.pop(ours, None)


def _configs(model: nn.Module) -> Iterator[Any]:
    """The configurations that modules of the model look at."""
    for module in modules_of(model):
        config = vars(module).get("config")
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            yield config


@torch.no_grad()
def _verify(name: str, module: nn.Module, given: Inputs, others: dict[str, Any]) -> None:
    """Is this attention what `attention.Attention` computes? Models may add what it knows nothing of."""
    from graphmask.tapping.attention import Attention

    own = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    if own is None or given.dropout:
        return
    more = {} if given.softcap is None else {"softcap": given.softcap}
    scaling = Attention(given, name).scaling
    expected = own(
        module, given.query, given.key, given.value, given.mask, scaling=scaling, dropout=0.0, **more, **others
    )[0]
    computed = Attention(given, name).plain().transpose(1, 2)
    loose = 1e-4 if given.query.dtype in (torch.float32, torch.float64) else 2e-2
    if expected.shape != computed.shape or not torch.allclose(expected, computed, rtol=loose, atol=loose):
        raise GraphMaskError(
            f"Expected plain softmax attention at {name!r}, got something else ({type(module).__name__} adds to it, "
            f"for instance by {', '.join(sorted(set(others) - _HARMLESS)) or 'sinks or biases'}). Write its attention "
            "with a graphmask.AttentionTap instead."
        )
