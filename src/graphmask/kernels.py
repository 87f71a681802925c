"""The two operations that touch every message, block by block: intermediate rows never leave the processor's cache.

Both equal a few lines of plain PyTorch (given in their docstrings, and tested against them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Rows per block: 32 to 64 channels of them fit a core's second-level cache.
BLOCK = 1 << 13
EPS = 1e-5


def _blocks(count: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, z: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(m, z, b)
        return torch.lerp(b, m, z[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        m, z, b = ctx.saved_tensors
        need_m, need_z, need_b = ctx.needs_input_grad
        grad_m = torch.empty_like(m) if need_m else None
        grad_z, grad_b, shut = torch.empty_like(z), torch.zeros_like(b), 1 - z
        for at in _blocks(len(z)):
            g = grad[at]
            if need_z:
                torch.sum(g * m[at], 1, out=grad_z[at])
                grad_z[at].sub_(g @ b)
            if need_b:
                grad_b.addmv_(g.t(), shut[at])
            if grad_m is not None:
                torch.mul(g, z[at, None], out=grad_m[at])
        return grad_m, grad_z if need_z else None, grad_b if need_b else None


def blend(messages: Tensor, gate: Tensor, baseline: Tensor) -> Tensor:
    """``gate[:, None] * messages + (1 - gate)[:, None] * baseline`` for [E, D], [E], [D]; exact at 0 and 1."""
    return _Blend.apply(messages, gate, baseline)


#: One part of a gate's input: rows of ``table`` picked by ``index``, each scaled by ``weight`` if there is one.
Rows = tuple[Tensor, Tensor, Tensor | None]
#: Another part: ``value`` [E, d] projected by ``weight`` [h, d].
Columns = tuple[Tensor, Tensor]


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, training: bool, index: Tensor, scale: Tensor | None, values: list[Tensor], *parameters: Tensor
    ) -> Tensor:
        table, gamma, beta, out, *weights = parameters
        count = len(index)
        normal = gamma.new_empty(count, len(gamma)) if training else None
        inverse = gamma.new_empty(count)
        location = gamma.new_empty(count)
        for at in _blocks(count):
            h = F.embedding_bag(index[at], table, mode="sum", per_sample_weights=None if scale is None else scale[at])
            for value, weight in zip(values, weights, strict=True):
                h.addmm_(value[at], weight.t())
            torch.mean(h.square(), 1, out=inverse[at])
            inverse[at].add_(EPS).rsqrt_()
            h.mul_(inverse[at, None])
            if normal is not None:
                normal[at] = h
            torch.mv(torch.addcmul(beta, h, gamma).relu_(), out, out=location[at])
        if normal is not None:
            ctx.save_for_backward(index, scale, normal, inverse, *parameters, *values)
        return location

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, scale, normal, inverse, table, gamma, beta, out, *rest = ctx.saved_tensors
        weights, values = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        d_gamma, d_beta, d_out = (torch.zeros_like(gamma) for _ in range(3))
        d_table = torch.zeros_like(table)
        d_weights = [torch.zeros_like(weight) for weight in weights]
        for at in _blocks(len(grad)):
            h, g = normal[at], grad[at]
            hidden = torch.addcmul(beta, h, gamma).relu_()
            d_out.addmv_(hidden.t(), g)
            d = torch.ops.aten.threshold_backward(torch.outer(g, out), hidden, 0)
            d_beta += d.sum(0)
            product = d * h
            d_gamma += product.sum(0)
            # LayerNorm backwards; its centring is in the parameters, see `head`.
            share = (product @ gamma).div_(-h.shape[1])
            d.mul_(gamma).addcmul_(h, share[:, None]).mul_(inverse[at, None])
            for column in range(index.shape[1]):
                d_table.index_add_(0, index[at, column], d if scale is None else d * scale[at, column, None])
            for value, d_weight in zip(values, d_weights, strict=True):
                d_weight.addmm_(d.t(), value[at])
        return None, None, None, None, d_table, d_gamma, d_beta, d_out, *d_weights


def head(
    rows: Sequence[Rows],
    columns: Sequence[Columns],
    gamma: Tensor,
    beta: Tensor,
    out: Tensor,
    only: Tensor | None = None,
) -> Tensor:
    """[E] ``relu(layer_norm(sum(s * t[i] for t, i, s in rows) + sum(v @ w.T for v, w in columns))) @ out``.

    The mean that LayerNorm subtracts is linear in tables and weights: it must have been taken out of them already
    (every row of ``t`` and every column of ``w`` sums to zero), which is cheaper than taking it out of every edge.
    No gradient is given to what a gate sees (``s`` and ``v``); with ``only``, it comes from those edges alone.
    """
    table = torch.cat([table for table, _, _ in rows])
    starts = [sum(len(before) for before, _, _ in rows[:number]) for number in range(len(rows))]
    index = torch.stack([picked + start for (_, picked, _), start in zip(rows, starts, strict=True)], 1)
    scale = None
    if any(weight is not None for _, _, weight in rows):
        ones = torch.ones(len(index), dtype=gamma.dtype, device=gamma.device)
        scale = torch.stack([ones if weight is None else weight.to(gamma.dtype) for _, _, weight in rows], 1)
    values = [value.detach() for value, _ in columns]
    parameters = [table, gamma, beta, out, *(weight for _, weight in columns)]
    if only is None or not torch.is_grad_enabled():
        return _Head.apply(torch.is_grad_enabled(), index, scale, values, *parameters)
    with torch.no_grad():
        location = _Head.apply(False, index, scale, values, *parameters)
    some = None if scale is None else scale[only]
    return location.index_put((only,), _Head.apply(True, index[only], some, [v[only] for v in values], *parameters))


def centred(weight: Tensor) -> Tensor:
    """[h, d] or [h] without its mean over h, as `head` wants it."""
    return weight - weight.mean(0)
