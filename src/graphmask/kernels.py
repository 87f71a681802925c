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

#: Rows per block: few enough to stay in the processor's cache, enough that calling the operations costs little.
BLOCK = 1 << 13
EPS = 1e-5


def _blocks(count: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]


#: Rows that get a gradient: all, or evenly spread ones.
ALL = slice(None)


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, z: Tensor, b: Tensor, rows: slice, in_place: bool) -> Tensor:
        ctx.rows = rows
        ctx.save_for_backward(m if rows == ALL else m[rows].clone(), z, b)  # not a view: it would keep all of m
        if in_place and rows != ALL:
            ctx.mark_dirty(m)
            return m.lerp_(b, (1 - z)[:, None])
        return torch.lerp(b, m, z[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m, z, b = ctx.saved_tensors
        need_m, need_z, need_b, *_ = ctx.needs_input_grad
        grad_z = None
        if need_z:
            grad_z, some = torch.zeros_like(z), grad[ctx.rows]
            trained = grad_z[ctx.rows]
            for at in _blocks(len(some)):
                trained[at] = (some[at] * m[at]).sum(1) - some[at] @ b
        grad_m, grad_b, shut = torch.empty_like(grad) if need_m else None, torch.zeros_like(b), 1 - z
        for at in _blocks(len(z)):
            if need_b:
                grad_b.addmv_(grad[at].t(), shut[at])
            if grad_m is not None:
                torch.mul(grad[at], z[at, None], out=grad_m[at])
        return grad_m, grad_z, grad_b if need_b else None, None, None


def blend(messages: Tensor, gate: Tensor, baseline: Tensor, rows: slice = ALL, *, in_place: bool = False) -> Tensor:
    """``gate[:, None] * messages + (1 - gate)[:, None] * baseline`` for [E, D], [E], [D]; exact at 0 and 1.

    The gates of ``rows`` alone get a gradient, and then only those messages are kept for it: the others may be
    overwritten (``in_place``).
    """
    return _Blend.apply(messages, gate, baseline, rows, in_place)


#: One part of a gate's input: rows of ``table`` picked by ``index``, each scaled by ``weight`` if there is one.
Rows = tuple[Tensor, Tensor, Tensor | None]
#: Another part: ``value`` [E, d] projected by ``weight`` [h, d].
Columns = tuple[Tensor, Tensor]


class _Lookup:
    """Where in the tables, laid end to end, the parts of each edge are, and their weights: made block by block."""

    def __init__(self, rows: Sequence[Rows], dtype: torch.dtype) -> None:
        self.rows, self.dtype = rows, dtype
        self.starts = [sum(len(before) for before, _, _ in rows[:number]) for number in range(len(rows))]
        self.weighted = any(weight is not None for _, _, weight in rows)

    def __len__(self) -> int:
        return len(self.rows[0][1])

    def __getitem__(self, at: slice) -> tuple[Tensor, Tensor | None]:
        """[n, k] positions and, if any are weighted, [n, k] weights."""
        parts = [picked[at] for _, picked, _ in self.rows]
        index = torch.stack(
            [part + start if start else part for part, start in zip(parts, self.starts, strict=True)], 1
        )
        if not self.weighted:
            return index, None
        scale = torch.ones(index.shape, dtype=self.dtype, device=index.device)
        for number, (_, _, weight) in enumerate(self.rows):
            if weight is not None:
                scale[:, number] = weight[at]
        return index, scale


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, trained: slice | None, lookup: _Lookup, values: list[Tensor], *parameters: Tensor) -> Tensor:
        table, gamma, beta, out, *weights = parameters
        edges = len(lookup)
        mean = torch.full_like(gamma, 1 / len(gamma))
        location = gamma.new_empty(edges)
        start, stop, stride = (trained or slice(0)).indices(edges)
        done, count = 0, len(range(start, stop, stride))
        normal, inverse = gamma.new_empty(count, len(gamma)), gamma.new_empty(count)
        # Room for one block, used again and again: new memory costs more than what is computed in it.
        room = gamma.new_empty(min(BLOCK, edges), len(gamma))
        for at in _blocks(edges):
            index, scale = lookup[at]
            h = F.embedding_bag(index, table.detach(), mode="sum", per_sample_weights=scale)
            for value, weight in zip(values, weights, strict=True):
                h.addmm_(value[at], weight.t())
            other = room[: len(h)]
            scaling = torch.mv(torch.mul(h, h, out=other), mean).add_(EPS).rsqrt_()
            h.mul_(scaling[:, None])
            if count:
                first = max(start - at.start, (start - at.start) % stride)
                some = scaling[first::stride]
                normal[done : done + len(some)] = h[first::stride]
                inverse[done : done + len(some)] = some
                done += len(some)
            torch.mv(torch.addcmul(beta, h, gamma, out=other).relu_(), out, out=location[at])
            del h  # its memory serves the next block
        if trained is not None:
            ctx.trained = trained
            some_values = [value[trained].contiguous() for value in values]
            ctx.save_for_backward(*lookup[trained], normal, inverse, *parameters, *some_values)
        return location

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, scale, normal, inverse, table, gamma, beta, out, *rest = ctx.saved_tensors
        weights, values = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        grad = grad[ctx.trained].contiguous()
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
        return None, None, None, d_table, d_gamma, d_beta, d_out, *d_weights


def head(
    rows: Sequence[Rows],
    columns: Sequence[Columns],
    gamma: Tensor,
    beta: Tensor,
    out: Tensor,
    trained: slice = ALL,
) -> Tensor:
    """[E] ``relu(layer_norm(sum(s * t[i] for t, i, s in rows) + sum(v @ w.T for v, w in columns))) @ out``.

    The mean that LayerNorm subtracts is linear in tables and weights: it must have been taken out of them already
    (every row of ``t`` and every column of ``w`` sums to zero), which is cheaper than taking it out of every edge.
    No gradient is given to what a gate sees (``s`` and ``v``); it comes from the edges of ``trained`` alone.
    """
    table = torch.cat([table for table, _, _ in rows])
    values = [value.detach() for value, _ in columns]
    parameters = [table, gamma, beta, out, *(weight for _, weight in columns)]
    return _Head.apply(trained if torch.is_grad_enabled() else None, _Lookup(rows, gamma.dtype), values, *parameters)


def centred(weight: Tensor) -> Tensor:
    """[h, d] or [h] without its mean over h, as `head` wants it."""
    return weight - weight.mean(0)
