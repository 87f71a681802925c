"""The two operations that touch every message, block by block: intermediate rows never leave the processor's cache.

Both equal a few lines of plain PyTorch (given in their docstrings, and tested against them).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphmask.ops import fused
from graphmask.ops.fused import ALL, LIMIT, Kept, Rows, Top

#: Rows per block: few enough to stay in the processor's cache, enough that calling the operations costs little.
BLOCK = 1 << 13
EPS = 1e-5


def _blocks(count: int, size: int = 0) -> list[slice]:
    size = size or BLOCK
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


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
        kept = rows if ctx.needs_input_grad[1] else None
        if fused.usable(m, b) and z.dtype == m.dtype and m.is_contiguous():
            out, copies = fused.blend(m, z, b, None if kept == ALL else kept, in_place=in_place)
        else:
            copies = None if kept is None or kept == ALL else m[rows].clone()  # not a view: it would keep all of m
            out = m.lerp_(b, (1 - z)[:, None]) if in_place else torch.lerp(b, m, z[:, None])
        if in_place:
            ctx.mark_dirty(m)
        ctx.save_for_backward(m if kept == ALL else copies, z, b, source)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m, z, b, source = ctx.saved_tensors
        need_m, need_z, need_b, _, _, need_nodes, _ = ctx.needs_input_grad
        if fused.usable(grad, b):
            kept, picked = (m, ctx.rows) if need_z else None, (source, ctx.count) if need_nodes else None
            grad_m, grad_z, grad_b, grad_nodes = fused.blend_backward(
                grad, z, b, kept, picked, of_baseline=need_b, of_messages=need_m
            )
            return grad_m, grad_z, grad_b, None, None, grad_nodes, None
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


#: Another part: ``value`` [E, d] projected by ``weight`` [h, d].
Columns = tuple[Tensor, Tensor]


def _positions(rows: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
    """[n, k] which rows of the tables laid end to end are each edge's, and their weights if any have some."""
    tables = fused.tables(rows)
    before = dict(zip(map(id, tables), accumulate(map(len, tables), initial=0), strict=False))
    columns = [(part.index.long() * part.stride).add_(before[id(part.table)] + part.place) for part in rows]
    index = torch.stack(columns, 1)
    if all(part.weight is None for part in rows):
        return index, None
    scale = torch.ones(index.shape, dtype=rows[0].table.dtype, device=index.device)
    for number, part in enumerate(rows):
        if part.weight is not None:
            scale[:, number] = part.weight
    return index, scale


def place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Where in memory: of tensors that are alive, equal places hold the same."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), version


def _locations(
    rows: Sequence[Rows], values: Sequence[Tensor], weights: Sequence[Tensor], top: Top, *, keep: bool = False
) -> tuple[Tensor, Kept | None]:
    """What `head` returns; with ``keep`` also what goes backwards from it, of all edges."""
    gamma, beta, out, bias = top
    index, scale = _positions(rows)
    edges, parts = index.shape
    tables = fused.tables(rows)
    table = tables[0] if len(tables) == 1 else torch.cat(tables)
    offsets = torch.arange(0, min(BLOCK, edges) * parts, parts, device=index.device)
    mean, location = torch.full_like(beta, 1 / len(beta)), beta.new_empty(edges)
    kept = fused.room_for(edges, top) if keep else None
    room = beta.new_empty(min(BLOCK, edges), len(beta))
    for at in _blocks(edges):
        each, scales = index[at], None if scale is None else scale[at].view(-1)
        h = torch.embedding_bag(table, each.view(-1), offsets[: len(each)], False, 0, False, scales)[0]
        for value, weight in zip(values, weights, strict=True):
            h.addmm_(value[at], weight.t())
        other = room[: len(h)]
        scaling = torch.mv(torch.mul(h, h, out=other), mean).add_(EPS).rsqrt_()
        h.mul_(scaling[:, None])
        if kept is not None:
            kept.normal[at], kept.inverse[at] = h, scaling
        torch.add(h if gamma is None else h.mul_(gamma), beta, out=other)
        torch.mv(other.relu_(), out, out=location[at])
        del h  # its memory serves the next block
    location += bias
    if kept is not None:
        kept.raw.copy_(location)
    return location.clamp_(-LIMIT, LIMIT), kept


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trained: slice,
        rows: Sequence[Rows],
        values: list[Tensor],
        gamma: Tensor,
        beta: Tensor,
        out: Tensor,
        bias: Tensor,
        *projections: Tensor,
    ) -> Tensor:
        """``projections``: the tables that ``rows`` are of, and a weight for each of ``values``."""
        top, weights = Top(gamma, beta, out, bias), projections[len(projections) - len(values) :]
        if fused.fits(rows, top):
            location, kept = fused.locations(rows, values, weights, top, trained)
        else:
            location, kept = _locations(rows, values, weights, top, keep=trained == ALL)
            if trained != ALL:
                some = [part.some(trained) for part in rows]
                _, kept = _locations(some, [value[trained] for value in values], weights, top, keep=True)
        assert kept is not None
        ctx.trained, ctx.rows = trained, rows
        ctx.values = [value[trained].contiguous() for value in values]  # not a view: it would keep all messages
        ctx.save_for_backward(*kept, *top)
        return location

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, top = Kept(*ctx.saved_tensors[:3]), Top(*ctx.saved_tensors[3:])
        trained, values = ctx.trained, ctx.values
        if fused.fits(ctx.rows, top):
            d_tables, d_top, of_columns = fused.gates_backward(
                grad, ctx.rows, kept, top, trained, of_columns=bool(values)
            )
            d_weights = [] if of_columns is None else [of_columns.t() @ value for value in values]
            return None, None, None, *d_top, *d_tables, *d_weights
        gamma, beta, out, _ = top
        assert gamma is not None
        rows, tables = [part.some(trained) for part in ctx.rows], fused.tables(ctx.rows)
        index, scale = _positions(rows)
        grad = within_limits(kept.raw, grad[trained])
        d_gamma, d_beta, d_out = (torch.zeros_like(gamma) for _ in range(3))
        d_table = gamma.new_zeros(sum(map(len, tables)), len(gamma))
        d_weights = [gamma.new_zeros(len(gamma), value.shape[1]) for value in values]
        for at in _blocks(len(grad)):
            h, g = kept.normal[at], grad[at]
            hidden = torch.addcmul(beta, h, gamma).relu_()
            d_out.addmv_(hidden.t(), g)
            d = torch.ops.aten.threshold_backward(torch.outer(g, out), hidden, 0)
            d_beta += d.sum(0)
            product = d * h
            d_gamma += product.sum(0)
            # LayerNorm backwards; its centring is in the parameters, see `head`.
            share = (product @ gamma).div_(-h.shape[1])
            d.mul_(gamma).addcmul_(h, share[:, None]).mul_(kept.inverse[at, None])
            for column in range(index.shape[1]):
                d_table.index_add_(0, index[at, column], d if scale is None else d * scale[at, column, None])
            for value, d_weight in zip(values, d_weights, strict=True):
                d_weight.addmm_(d.t(), value[at])
        d_top = [d_gamma, d_beta, d_out, grad.sum()]
        return None, None, None, *d_top, *d_table.split([len(table) for table in tables]), *d_weights


def head(rows: Sequence[Rows], columns: Sequence[Columns], top: Top, trained: slice = ALL) -> Tensor:
    """[E] ``relu(layer_norm(sum(r for r in rows) + sum(v @ w.T for v, w in columns))) @ out + bias``, clamped.

    The mean that LayerNorm subtracts is linear in tables and weights: it must have been taken out of them already
    (every row of a table and every column of ``w`` sums to zero), which is cheaper than taking it out of every edge.
    No gradient is given to what a gate sees (weights of rows and ``v``); it comes from the edges of ``trained`` alone.
    """
    values = [value.detach() for value, _ in columns]
    weights = [weight for _, weight in columns]
    if not torch.is_grad_enabled():  # nothing to remember, and small graphs notice what autograd costs
        return (fused.locations if fused.fits(rows, top) else _locations)(rows, values, weights, top)[0]
    gamma = torch.ones_like(top.beta) if top.gamma is None else top.gamma
    return _Head.apply(trained, rows, values, gamma, *top[1:], *fused.tables(rows), *weights)


def within_limits(location: Tensor, grad: Tensor) -> Tensor:
    """The gradient, blocked where a location that was clamped would be moved further outward."""
    return grad.masked_fill(((location > LIMIT) & (grad < 0)) | ((location < -LIMIT) & (grad > 0)), 0)


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, location: Tensor) -> Tensor:
        ctx.save_for_backward(location)
        return location.clamp(-LIMIT, LIMIT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return within_limits(*ctx.saved_tensors, *grads)


def clamp(location: Tensor) -> Tensor:
    """To [-LIMIT, LIMIT]; the gradient is blocked only where it points further outward."""
    return _Clamp.apply(location) if torch.is_grad_enabled() else location.clamp_(-LIMIT, LIMIT)


class Standard(NamedTuple):
    """How inputs of d numbers are standardised and projections of them centred: constants while gates are trained."""

    scale: Tensor  #: [d + 1] what inputs are divided by, inverted; and 1
    point: Tensor  #: [d + 1] minus their means; and 1
    centre: Tensor  #: [h, h] what takes the mean out

    @classmethod
    def of(cls, scale: Tensor, mean: Tensor, hidden: int) -> Standard:
        one = scale.new_ones(1)
        centre = torch.eye(hidden, dtype=scale.dtype, device=scale.device) - 1 / hidden
        return cls(torch.cat([scale, one]), torch.cat([-mean, one]), centre)


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, standard: Standard, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.standard, ctx.sizes = standard, [part.shape[1] for part in parts]
        joined = torch.mm(standard.centre, torch.cat(parts, 1)).mul_(standard.scale)
        return *joined.split_with_sizes(ctx.sizes, 1)[:-1], torch.mv(joined, standard.point)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        standard, bias = ctx.standard, grads[-1]
        joined = torch.cat([*grads[:-1], torch.zeros_like(bias)[:, None]], 1)
        joined = torch.mm(standard.centre, joined.addr_(bias, standard.point).mul_(standard.scale))
        return None, *joined.split_with_sizes(ctx.sizes, 1)


def fold(weights: Sequence[Tensor], bias: Tensor, standard: Standard) -> tuple[Tensor, ...]:
    """W' and, last, b' [h] with W' x + b' = W ((x - mean) * scale) + b, centred.

    W is given, and returned, as parts [h, d] that lie side by side: small graphs notice every operation. The bias is
    one more column of it.
    """
    return _Fold.apply(standard, *weights, bias[:, None])
