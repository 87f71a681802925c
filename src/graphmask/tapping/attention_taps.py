"""no"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.tapping.attention import Attention, Inputs

#: Computes attention, [B, H, N, D'], in place of the model.
Attend = Callable[[Inputs], Tensor]


class AttentionTap(nn.Module):
    r"""Attention over sequences, :math:`\mathrm{softmax}(Q K^\top / \sqrt D) V`, where GraphMask can gate every pair.

    .. code-block:: python

        out = self.tap(q, k, v, mask)      # was: F.scaled_dot_product_attention(q, k, v, mask)

    Args of the call:
        query: ``[B, H, N, D]``.
        key: the same, or with fewer heads that several queries share.
        value: ``[B, H, N, D']``, likewise.
        mask: broadcasts to ``[B, H, N, N]``: bool, True where the query (row) may attend to the key (column), or a
            float that is added to the logits, very negative where it may not.
        nodes: ``[B, N, d]`` states that these were made from: gates see them too.
        scaling: of the logits; by default one over the root of D.
        dropout: of the attention weights, while the module trains.

    Returns:
        ``[B, H, N, D']``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.handler: Attend | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        nodes: Tensor | None = None,
        scaling: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        given = Inputs(query, key, value, mask, scaling, dropout if self.training else 0.0, nodes=nodes)
        return Attention(given, "AttentionTap").plain() if self.handler is None else self.handler(given)


def multihead(name: str, layer: nn.MultiheadAttention, attend: Attend) -> Callable[..., Any]:
    """A forward for ``layer`` that leaves its attention to ``attend``."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        if key is not query or value is not query:
            raise GraphMaskError(
                f"Expected self-attention at {name!r}, one tensor as query, key and value, got others. "
                "Cross-attention is not supported."
            )
        if layer.bias_k is not None or layer.add_zero_attn or query.is_nested:
            raise GraphMaskError(
                f"Expected {name!r} without add_bias_kv, add_zero_attn and nested tensors, got one of them: its keys "
                "are not its tokens."
            )
        alone = query.dim() == 2
        states = query[None] if alone else query if layer.batch_first else query.transpose(0, 1)
        batch, count, _ = states.shape
        assert layer.in_proj_weight is not None
        parts = F.linear(states, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
        q, k, v = (part.view(batch, count, layer.num_heads, layer.head_dim).transpose(1, 2) for part in parts)
        mask = _allowed(attn_mask, key_padding_mask, batch, layer.num_heads)
        out = attend(Inputs(q, k, v, mask, dropout=layer.dropout if layer.training else 0.0, nodes=states))
        out = layer.out_proj(out.transpose(1, 2).reshape(batch, count, -1))
        return (out[0] if alone else out if layer.batch_first else out.transpose(0, 1)), None

    return forward


def _allowed(attn_mask: Tensor | None, padding: Tensor | None, batch: int, heads: int) -> Tensor | None:
    """In PyTorch's masks True means forbidden; floats are added."""

    def added(mask: Tensor) -> Tensor:
        forbidden = mask.dtype == torch.bool
        return torch.zeros_like(mask, dtype=torch.float).masked_fill(mask, -torch.inf) if forbidden else mask

    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.view(batch, heads, *attn_mask.shape[1:])
    elif attn_mask is not None:
        attn_mask = attn_mask[None, None]
    if padding is not None:
        padding = (padding[None] if padding.dim() == 1 else padding)[:, None, None]
    masks = [added(mask) for mask in (attn_mask, padding) if mask is not None]
    return sum(masks[1:], masks[0]) if masks else None


@contextmanager
def slow_path() -> Iterator[None]:
    """Inside, `nn.TransformerEncoderLayer` calls its attention instead of a fused kernel."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
