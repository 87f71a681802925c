"""The two operations that touch every message, block by block: intermediate rows never leave the processor's cache.

Both equal a few lines of plain PyTorch (given in their docstrings, and tested against them).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphmask import fused
from graphmask.fused import Rows, Top

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
        if fused.usable(grad, b):
            picked = source if need_nodes else None
            grad_b, grad_m, grad_nodes = fused.blend_backward(
                grad, z, picked, ctx.count, of_baseline=need_b, of_messages=need_m
            )
            return grad_m, grad_z, grad_b, None, None, grad_nodes, None
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


def _offsets(rows: Sequence[Rows]) -> tuple[list[Tensor], list[int]]:
    """The different tables, and where each part's begins if they are laid end to end."""
    tables = list({id(part.table): part.table for part in rows}.values())
    before = dict(zip(map(id, tables), [0, *accumulate(map(len, tables))], strict=False))
    return tables, [before[id(part.table)] for part in rows]


def _positions(rows: Sequence[Rows], at: slice = ALL) -> tuple[Tensor, Tensor | None]:
    """[n, k] which rows of the tables laid end to end are each edge's, and their weights if any have some."""
    columns = [
        (part.index[at].long() * part.stride).add_(before + part.place)
        for part, before in zip(rows, _offsets(rows)[1], strict=True)
    ]
    index = torch.stack(columns, 1)
    if all(part.weight is None for part in rows):
        return index, None
    scale = torch.ones(index.shape, dtype=rows[0].table.dtype, device=index.device)
    for number, part in enumerate(rows):
        if part.weight is not None:
            scale[:, number] = part.weight[at]
    return index, scale


def place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Where in memory: of tensors that are alive, equal places hold the same."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), version


def _in_c(
    rows: Sequence[Rows], values: Sequence[Tensor], weights: Sequence[Tensor], top: Top, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`_locations` by `fused`: columns are projected by PyTorch, block by block, so that no row is kept per message."""
    edges, found = len(rows[0].index), []
    blocks = _blocks(edges, fused.block()) if values else []
    for at in blocks or [slice(0, edges)]:
        dense = torch.mm(values[0][at], weights[0].t()) if values else None
        for value, weight in zip(values[1:], weights[1:], strict=True):
            assert dense is not None
            dense.addmm_(value[at], weight.t())
        some = [part.some(at) for part in rows] if values else rows
        found.append(fused.locations(some, dense, top, keep=keep))
    if len(found) == 1:
        return found[0]
    location, normal, inverse = zip(*found, strict=True)
    return torch.cat(location), torch.cat(normal) if keep else None, torch.cat(inverse) if keep else None


def _locations(
    rows: Sequence[Rows], values: Sequence[Tensor], weights: Sequence[Tensor], top: Top, *, keep: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What `head` returns; with ``keep`` also each edge's LayerNorm [E, h] and what it was divided by, inverted [E]."""
    if fused.fits(rows, top):
        return _in_c(rows, values, weights, top, keep=keep)
    gamma, beta, out = top
    index, scale = _positions(rows)
    edges, parts = index.shape
    tables = _offsets(rows)[0]
    table = tables[0] if len(tables) == 1 else torch.cat(tables)
    offsets = torch.arange(0, min(BLOCK, edges) * parts, parts, device=index.device)
    mean, location = torch.full_like(beta, 1 / len(beta)), beta.new_empty(edges)
    normal, inverse = (beta.new_empty(edges, len(beta)), beta.new_empty(edges)) if keep else (None, None)
    room = beta.new_empty(min(BLOCK, edges), len(beta))
    for at in _blocks(edges):
        each, scales = index[at], None if scale is None else scale[at].view(-1)
        h = torch.embedding_bag(table, each.view(-1), offsets[: len(each)], False, 0, False, scales)[0]
        for value, weight in zip(values, weights, strict=True):
            h.addmm_(value[at], weight.t())
        other = room[: len(h)]
        scaling = torch.mv(torch.mul(h, h, out=other), mean).add_(EPS).rsqrt_()
        h.mul_(scaling[:, None])
        if normal is not None and inverse is not None:
            normal[at], inverse[at] = h, scaling
        torch.add(h if gamma is None else h.mul_(gamma), beta, out=other)
        torch.mv(other.relu_(), out, out=location[at])
        del h  # its memory serves the next block
    return location, normal, inverse


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trained: slice,
        rows: Sequence[Rows],
        values: list[Tensor],
        table: Tensor,
        gamma: Tensor,
        beta: Tensor,
        out: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        top = Top(gamma, beta, out)
        some, some_values = rows, values
        if trained == ALL:
            location, normal, inverse = _locations(rows, values, weights, top, keep=True)
        else:
            some, some_values = [part.some(trained) for part in rows], [value[trained].contiguous() for value in values]
            location, _, _ = _locations(rows, values, weights, top)
            _, normal, inverse = _locations(some, some_values, weights, top, keep=True)
        ctx.trained = trained
        ctx.save_for_backward(
            *_positions(some), normal, inverse, table, gamma, beta, out, *weights, *some_values
        )
        return location

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, scale, normal, inverse, table, gamma, beta, out, *rest = ctx.saved_tensors
        weights, values = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        grad = grad[ctx.trained].contiguous()
        if fused.usable(table) and table.shape[1] % fused.LANES == 0:
            top = Top(gamma, beta, out)
            d_table, d_top, of_columns = fused.gates_backward(
                grad, index, scale, normal, inverse, table, top, of_columns=bool(values)
            )
            d_weights = [] if of_columns is None else [of_columns.t() @ value for value in values]
            return None, None, None, d_table, *d_top, *d_weights
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


def head(rows: Sequence[Rows], columns: Sequence[Columns], top: Top, trained: slice = ALL) -> Tensor:
    """[E] ``relu(layer_norm(sum(r for r in rows) + sum(v @ w.T for v, w in columns))) @ out``.

    The mean that LayerNorm subtracts is linear in tables and weights: it must have been taken out of them already
    (every row of a table and every column of ``w`` sums to zero), which is cheaper than taking it out of every edge.
    No gradient is given to what a gate sees (weights of rows and ``v``); it comes from the edges of ``trained`` alone.
    """
    values = [value.detach() for value, _ in columns]
    weights = [weight for _, weight in columns]
    if not torch.is_grad_enabled():  # nothing to remember, and small graphs notice what autograd costs
        return _locations(rows, values, weights, top)[0]
    tables = _offsets(rows)[0]
    table = tables[0] if len(tables) == 1 else torch.cat(tables)
    gamma = torch.ones_like(top.beta) if top.gamma is None else top.gamma
    return _Head.apply(trained, rows, values, table, gamma, top.beta, top.out, *weights)


def centred(weight: Tensor) -> Tensor:
    """[h, d] or [h] without its mean over h, as `head` wants it."""
    return weight - weight.mean(0)
