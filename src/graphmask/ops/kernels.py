"""The two operations that touch every message: `head` gives locations of gates, `blend` puts them to work.

Each is defined by a few lines of plain PyTorch that autograd goes back through. In single precision on a processor C
does the same (`fused`), with a backward pass of its own. A third version, a backward pass by hand in PyTorch, was
dropped: it held more memory than the definition, which takes gradients from few edges of a large graph and keeps the
messages of those alone. Peak of new tensors in a step of fitting without C on 200,000 edges, in MB, by hand and as
defined here (``bench.memory.peak_bytes`` of the first of ``bench.core.Subject(name, 200_000).steps()``): GCN 152 and
147, GAT 206 and 200, RGCNConv 139 and 129, TransformerConv 307 and 306. Without C, a step takes 6 to 19 % longer than
it did by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphmask.ops import fused
from graphmask.ops.fused import ALL, LIMIT, Rows, Top

#: Edges at once where no gradient is wanted: what is computed for them stays in the processor's cache.
BLOCK = 1 << 13
EPS = 1e-5


class _Blend(torch.autograd.Function):
    """`blend` in C."""

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
        saved = rows if ctx.needs_input_grad[1] else None
        out, copies = fused.blend(m, z, b, None if saved == ALL else saved, in_place=in_place)
        if in_place:
            ctx.mark_dirty(m)
        ctx.save_for_backward(m if saved == ALL else copies, z, b, source)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m, z, b, source = ctx.saved_tensors
        need_m, need_z, need_b, _, _, need_nodes, _ = ctx.needs_input_grad
        saved, picked = (m, ctx.rows) if need_z else None, (source, ctx.count) if need_nodes else None
        grad_m, grad_z, grad_b, grad_nodes = fused.blend_backward(
            grad, z, b, saved, picked, of_baseline=need_b, of_messages=need_m
        )
        return grad_m, grad_z, grad_b, None, None, grad_nodes, None


def _blend(m: Tensor, z: Tensor, b: Tensor, rows: slice, in_place: bool) -> Tensor:
    """`blend` as it is defined."""
    if rows == ALL:
        return torch.lerp(b, m, z[:, None])
    fixed = z.detach()[:, None]
    # Nothing is added, but gates get their gradient by it: from these rows alone, of which alone messages are kept.
    added = (z[rows, None] - fixed[rows]) * (m[rows] - b).detach()
    out = (m.mul_(fixed) if in_place else m * fixed).addcmul_(1 - fixed, b)
    return out.index_add_(0, torch.arange(len(m), device=m.device)[rows], added)


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
    (``picked``): then C gives the nodes their gradient at once, without one for every message.
    """
    if not (fused.usable(messages, baseline) and gate.dtype == messages.dtype and messages.is_contiguous()):
        return _blend(messages, gate, baseline, rows, in_place)
    if picked is None:
        return _Blend.apply(messages, gate, baseline, rows, in_place, None, None)
    return _Blend.apply(messages.detach(), gate, baseline, rows, in_place, *picked)


#: Another part: ``value`` [E, d] projected by ``weight`` [h, d].
Columns = tuple[Tensor, Tensor]


class _Parts(NamedTuple):
    """The parts of `head`'s input with their tables concatenated, once for all blocks of edges."""

    table: Tensor  #: [rows of all tables, h]
    positions: Tensor  #: [E, k] the rows that are each edge's
    scale: Tensor | None  #: [E, k] their weights, if any have some
    columns: Sequence[Columns]

    @classmethod
    def of(cls, rows: Sequence[Rows], columns: Sequence[Columns]) -> _Parts:
        tables = fused.tables(rows)
        before = dict(zip(map(id, tables), accumulate(map(len, tables), initial=0), strict=False))
        index = torch.stack(
            [(part.index.long() * part.stride).add_(before[id(part.table)] + part.offset) for part in rows], 1
        )
        scale = None
        if any(part.weight is not None for part in rows):
            scale = torch.ones(index.shape, dtype=tables[0].dtype, device=index.device)
            for number, part in enumerate(rows):
                if part.weight is not None:
                    scale[:, number] = part.weight.detach()
        seen = [(value.detach(), weight) for value, weight in columns]
        return cls(tables[0] if len(tables) == 1 else torch.cat(tables), index, scale, seen)

    def some(self, at: slice) -> _Parts:
        """Of these edges alone. Values are copied if they are spread: a view would keep all messages."""
        columns = [(value[at].contiguous(), weight) for value, weight in self.columns]
        return _Parts(self.table, self.positions[at], None if self.scale is None else self.scale[at], columns)

    def locations(self, top: Top) -> Tensor:
        """`head` as it is defined."""
        hidden = F.embedding_bag(self.positions, self.table, mode="sum", per_sample_weights=self.scale)
        for value, weight in self.columns:
            hidden = hidden.addmm_(value, weight.t())
        # LayerNorm less its mean, which `head` says is zero.
        hidden = F.rms_norm(hidden, top.beta.shape, top.gamma, EPS).add_(top.beta).relu_()
        return clamp(torch.mv(hidden, top.out) + top.bias)


def memory_of(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Where in memory: of tensors that are alive, equal places hold the same."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), version


class _Head(torch.autograd.Function):
    """`head` in C."""

    @staticmethod
    def forward(
        ctx: Any, trained: slice, rows: Sequence[Rows], values: list[Tensor], top: Tensor, *projections: Tensor
    ) -> Tensor:
        """``projections``: the tables that ``rows`` are of, and a weight for each of ``values``."""
        weights = projections[len(projections) - len(values) :]
        location, saved = fused.locations(rows, values, weights, top, trained)
        ctx.trained, ctx.rows = trained, rows
        ctx.values = [value[trained].contiguous() for value in values]  # not a view: it would keep all messages
        ctx.save_for_backward(saved, top)
        return location

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, top = ctx.saved_tensors
        d_tables, d_top, of_columns = fused.gates_backward(
            grad, ctx.rows, saved, top, ctx.trained, of_columns=bool(ctx.values)
        )
        d_weights = [] if of_columns is None else [of_columns.t() @ value for value in ctx.values]
        return None, None, None, d_top, *d_tables, *d_weights


def head(
    rows: Sequence[Rows],
    columns: Sequence[Columns],
    top: Top,
    trained: slice = ALL,
    *,
    joined: Tensor | None = None,
) -> Tensor:
    """[E] ``relu(layer_norm(sum(r for r in rows) + sum(v @ w.T for v, w in columns))) @ out + bias``, clamped.

    The mean that LayerNorm subtracts is linear in tables and weights: it must have been taken out of them already
    (every row of a table and every column of ``w`` sums to zero), which is cheaper than taking it out of every edge.
    No gradient is given to what a gate sees (weights of rows and ``v``); it comes from the edges of ``trained`` alone.
    ``joined`` is `Top.joined` where it is known.
    """
    learns = torch.is_grad_enabled()
    if fused.fits(rows, top):
        values, weights = [value.detach() for value, _ in columns], [weight for _, weight in columns]
        if not learns:  # nothing to remember, and small graphs notice what autograd costs
            return fused.locations(rows, values, weights, top.joined() if joined is None else joined)[0]
        if top.gamma is None:
            top = top._replace(gamma=torch.ones_like(top.beta))
        return _Head.apply(trained, rows, values, top.joined(), *fused.tables(rows), *weights)
    parts = _Parts.of(rows, columns)
    if learns and trained == ALL:
        return parts.locations(top)
    edges = len(parts.positions)
    location = top.beta.new_empty(edges)
    with torch.no_grad():
        for start in range(0, edges, BLOCK):
            at = slice(start, start + BLOCK)
            location[at] = parts.some(at).locations(top)
    if learns:
        location[trained] = parts.some(trained).locations(top)
    return location


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
