"""The two operations that touch every message, block by block: intermediate rows never leave the processor's cache.

Both equal a few lines of plain PyTorch (given in their docstrings, and tested against them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Rows per block: few enough to stay in the processor's cache, enough that calling the operations costs little.
BLOCK = 1 << 13
EPS = 1e-5


def _blocks(count: int, size: int = 0) -> list[slice]:
    size = size or BLOCK
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


#: Rows that get a gradient: all, or evenly spread ones.
ALL = slice(None)


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        m: Tensor,
        z: Tensor,
        b: Tensor,
        rows: slice,
        in_place: bool,
        nodes: Tensor | None,
        source: Tensor | None,
    ) -> Tensor:
        ctx.rows = rows
        ctx.count = 0 if nodes is None else len(nodes)
        ctx.save_for_backward(m if rows == ALL else m[rows].clone(), z, b, source)  # not a view: it would keep all of m
        if in_place:
            ctx.mark_dirty(m)
            return m.lerp_(b, (1 - z)[:, None])
        return torch.lerp(b, m, z[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m, z, b, source = ctx.saved_tensors
        need_m, need_z, need_b, _, _, need_nodes, _ = ctx.needs_input_grad
        grad_z = None
        if need_z:
            grad_z, some = torch.zeros_like(z), grad[ctx.rows]
            trained = grad_z[ctx.rows]
            for at in _blocks(len(some)):
                trained[at] = (some[at] * m[at]).sum(1) - some[at] @ b
        grad_m, grad_b, shut = torch.empty_like(grad) if need_m else None, torch.zeros_like(b), 1 - z
        for at in _blocks(len(z), BLOCK // 4):  # messages are wider than what gates compute
            if need_b:
                grad_b.addmv_(grad[at].t(), shut[at])
            if grad_m is not None:
                torch.mul(grad[at], z[at, None], out=grad_m[at])
        grad_nodes = None
        if need_nodes:
            grad_nodes = grad.new_zeros(ctx.count, grad.shape[1])
            for at in _blocks(len(z), max(BLOCK, 2 * ctx.count)):  # adding few rows to many nodes is slow
                grad_nodes.index_add_(0, source[at], grad[at] * z[at, None])
        return grad_m, grad_z, grad_b if need_b else None, None, None, grad_nodes, None


def blend(
    messages: Tensor,
    gate: Tensor,
    baseline: Tensor,
    rows: slice = ALL,
    *,
    in_place: bool = False,
    picked: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """``gate[:, None] * messages + (1 - gate)[:, None] * baseline`` for [E, D], [E], [D]; exact at 0 and 1.

    The gates of ``rows`` alone get a gradient, and then only those messages are kept for it: the others may be
    overwritten (``in_place``, not where all rows get one). Messages that are ``nodes[source]`` may say so
    (``picked``): then the nodes get their gradient at once, without one for every message.
    """
    if picked is None:
        return _Blend.apply(messages, gate, baseline, rows, in_place, None, None)
    return _Blend.apply(messages.detach(), gate, baseline, rows, in_place, *picked)


@dataclass(frozen=True, eq=False)
class Rows:
    """One part of a gate's input: of each edge, row ``index * stride + place`` of ``table``, scaled by ``weight``."""

    table: Tensor
    index: Tensor
    weight: Tensor | None = None
    stride: int = 1
    place: int = 0


#: Another part: ``value`` [E, d] projected by ``weight`` [h, d].
Columns = tuple[Tensor, Tensor]


class Top(NamedTuple):
    """What follows the sum of the parts: LayerNorm's weight (None: all ones) and bias, ReLU, and a dot product."""

    gamma: Tensor | None
    beta: Tensor
    out: Tensor


#: What was computed of a graph's edges alone, kept for the next layer and the next run.
Memo = dict[Any, Any]


class _Lookup:
    """Where in the tables, laid end to end, the parts of each edge are, and their weights."""

    def __init__(self, rows: Sequence[Rows], dtype: torch.dtype, memo: Memo) -> None:
        self.tables = list({id(part.table): part.table for part in rows}.values())
        before = dict(zip(map(id, self.tables), [0, *accumulate(map(len, self.tables))], strict=False))
        layout = tuple((before[id(part.table)] + part.place, part.stride) for part in rows)
        places = [place(part.index) for part in rows]
        known = memo.get(layout)
        if known is None or known[0] != places:
            # The columns are kept with it: what lies at their places cannot become something else meanwhile.
            known = memo[layout] = places, [part.index for part in rows], *_positions(rows, layout)
        self.index: Tensor = known[2]  #: [E, k]
        self.offsets: Tensor = known[3]
        self.scale: Tensor | None = None  #: [E, k], if any are weighted
        if any(part.weight is not None for part in rows):
            self.scale = torch.ones(self.index.shape, dtype=dtype, device=self.index.device)
            for number, part in enumerate(rows):
                if part.weight is not None:
                    self.scale[:, number] = part.weight

    def __len__(self) -> int:
        return len(self.index)

    def sums(self, table: Tensor, at: slice) -> Tensor:
        """[n, h] the parts of each edge of a block together."""
        index, scale = self.index[at], None if self.scale is None else self.scale[at].view(-1)
        return torch.embedding_bag(table, index.view(-1), self.offsets[: len(index)], False, 0, False, scale)[0]


def _positions(rows: Sequence[Rows], layout: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """[E, k], and where in a block of them the edges begin."""
    device = rows[0].index.device
    columns = [part.index.long() for part in rows]
    moved = [
        column if (start, stride) == (0, 1) else torch.add(torch.tensor(start, device=device), column, alpha=stride)
        for column, (start, stride) in zip(columns, layout, strict=True)
    ]
    index = torch.stack(moved, 1)
    return index, torch.arange(0, min(BLOCK, len(index)) * len(rows), len(rows), device=device)


def place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Where in memory: of tensors that are alive, equal places hold the same."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), version


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trained: slice | None,
        lookup: _Lookup,
        values: list[Tensor],
        table: Tensor,
        gamma: Tensor | None,
        beta: Tensor,
        out: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        edges = len(lookup)
        mean = torch.full_like(beta, 1 / len(beta))
        location = beta.new_empty(edges)
        start, stop, stride = (trained or slice(0)).indices(edges)
        done, count = 0, len(range(start, stop, stride))
        normal, inverse = beta.new_empty(count, len(beta)), beta.new_empty(count)
        room = beta.new_empty(min(BLOCK, edges), len(beta))
        for at in _blocks(edges):
            h = lookup.sums(table.detach(), at)
            for value, weight in zip(values, weights, strict=True):
                h.addmm_(value[at], weight.t())
            other = room[: len(h)]
            scaling = torch.mv(torch.mul(h, h, out=other), mean).add_(EPS).rsqrt_()
            if gamma is None:
                torch.addcmul(beta, h, scaling[:, None], out=other)
            else:
                torch.addcmul(beta, h.mul_(scaling[:, None]), gamma, out=other)
            if count:
                first = max(start - at.start, (start - at.start) % stride)
                some = scaling[first::stride]
                normal[done : done + len(some)] = h[first::stride]
                inverse[done : done + len(some)] = some
                done += len(some)
            torch.mv(other.relu_(), out, out=location[at])
            del h  # its memory serves the next block
        if trained is not None:
            ctx.trained = trained
            some_values = [value[trained].contiguous() for value in values]
            index = lookup.index[trained].contiguous()
            scale = None if lookup.scale is None else lookup.scale[trained].contiguous()
            ctx.save_for_backward(index, scale, normal, inverse, table, gamma, beta, out, *weights, *some_values)
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
    rows: Sequence[Rows], columns: Sequence[Columns], top: Top, trained: slice = ALL, memo: Memo | None = None
) -> Tensor:
    """[E] ``relu(layer_norm(sum(r for r in rows) + sum(v @ w.T for v, w in columns))) @ out``.

    The mean that LayerNorm subtracts is linear in tables and weights: it must have been taken out of them already
    (every row of a table and every column of ``w`` sums to zero), which is cheaper than taking it out of every edge.
    No gradient is given to what a gate sees (weights of rows and ``v``); it comes from the edges of ``trained`` alone.
    With the ``memo`` of a graph, its edges are not looked at again for every layer.
    """
    lookup = _Lookup(rows, top.beta.dtype, {} if memo is None else memo)
    table = lookup.tables[0] if len(lookup.tables) == 1 else torch.cat(lookup.tables)
    values = [value.detach() for value, _ in columns]
    weights = [weight for _, weight in columns]
    if not torch.is_grad_enabled():  # nothing to remember, and small graphs notice what autograd costs
        return _Head.forward(None, None, lookup, values, table, *top, *weights)
    return _Head.apply(trained, lookup, values, table, *top, *weights)


def centred(weight: Tensor) -> Tensor:
    """[h, d] or [h] without its mean over h, as `head` wants it."""
    return weight - weight.mean(0)
