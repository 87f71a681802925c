"""What is done to every message, in C: `kernels.head` and `kernels.blend` in single precision, and hard gates.

Left out where the library was installed without a compiler; PyTorch does the same then, in two or three times the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

try:
    from graphmask.ops import _fused
except ImportError:  # no compiler when it was installed, or an old processor
    _fused = None  # type: ignore[assignment]


#: Locations stay in [-3, 3]: a saturated gate could not be moved again.
LIMIT = 3.0
#: Edges that get a gradient: all, or evenly spread ones.
ALL = slice(None)


class Kept(NamedTuple):
    """What the gradient of a location needs, of the edges that get one."""

    normal: Tensor  #: [k, h] LayerNorm's result
    inverse: Tensor  #: [k] what it was divided by, inverted
    raw: Tensor  #: [k] the location before it was clamped


class Top(NamedTuple):
    """What follows the sum of the parts: LayerNorm's weight (None: all ones) and bias, ReLU, dot product, constant."""

    gamma: Tensor | None
    beta: Tensor
    out: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """One part of a gate's input: of each edge, row ``index * stride + place`` of ``table``, scaled by ``weight``."""

    table: Tensor
    index: Tensor
    weight: Tensor | None = None
    stride: int = 1
    place: int = 0

    def some(self, at: slice) -> Rows:
        """Of these edges alone."""
        return replace(self, index=self.index[at], weight=None if self.weight is None else self.weight[at])


LANES, MOST_WIDTH, MOST_PARTS = 8, 1024, 16
#: Edges that are worth a thread.
PER_THREAD = 1 << 14


def usable(*values: Tensor) -> bool:
    """Single precision, on a processor, and not too wide?"""
    if _fused is None:
        return False
    for value in values:  # no generator: small graphs notice
        if not value.is_cpu or value.dtype is not torch.float32 or value.size(-1) > MOST_WIDTH:
            return False
    return True


def fits(rows: Sequence[Rows], top: Top) -> bool:
    """Can `locations` do it?"""
    return 0 < len(rows) <= MOST_PARTS and len(top.beta) % LANES == 0 and usable(top.beta, *(r.table for r in rows))


def block() -> int:
    """Edges at once, of what needs a row for each: few enough for the processor's cache, enough for every thread."""
    return PER_THREAD * torch.get_num_threads()


def _first_and_step(edges: slice) -> tuple[int, int]:
    return edges.start or 0, edges.step or 1


def tables(rows: Sequence[Rows]) -> list[Tensor]:
    """The different ones."""
    return list({id(part.table): part.table for part in rows}.values())


def room_for(edges: int, top: Top) -> Kept:
    beta = top.beta
    return Kept(beta.new_empty(edges, len(beta)), beta.new_empty(edges), beta.new_empty(edges))


def locations(
    rows: Sequence[Rows], values: Sequence[Tensor], weights: Sequence[Tensor], top: Top, kept: slice | None = None
) -> tuple[Tensor, Kept | None]:
    """[E] as `kernels.head`, and what goes backwards from the edges ``kept``.

    Columns are projected by PyTorch, block by block, so that no row is made per edge.
    """
    edges, width = len(rows[0].index), len(top.beta)
    gamma = torch.ones_like(top.beta) if top.gamma is None else top.gamma
    fixed = [value.detach().contiguous() for value in (gamma, top.beta, top.out)]
    parts = [
        (
            part.table.detach().contiguous(),
            part.index.long().contiguous(),
            None if part.weight is None else part.weight.detach().float().contiguous(),
            part.stride,
            part.place,
        )
        for part in rows
    ]
    location = top.beta.new_empty(edges)
    found = None if kept is None else room_for(len(range(edges)[kept]), top)
    first, step = _first_and_step(kept or ALL)
    bias = float(top.bias)

    def run(start: int, stop: int, dense: int) -> None:
        before = max(-((first - start) // step), 0)  # so many are kept of the edges before start
        _fused.gates(
            stop - start,
            width,
            tuple(_part(*part, start) for part in parts),
            first + before * step - start,
            step,
            bias,
            LIMIT,
            dense,
            *(value.data_ptr() for value in fixed),
            _at(location, start),
            *(_at(value, before) for value in found or (None, None, None)),
        )

    size = block() if values else edges
    threads = min(torch.get_num_threads(), edges // PER_THREAD)
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        for start in range(0, edges, size or 1):
            stop, dense = min(start + size, edges), None
            for value, weight in zip(values, weights, strict=True):
                some, projection = value[start:stop], weight.detach().t()
                dense = torch.mm(some, projection) if dense is None else dense.addmm_(some, projection)
            if pool is None:
                run(start, stop, _at(dense, 0))
                continue
            bounds = [start + (stop - start) * number // threads for number in range(threads + 1)]
            rest = [_at(dense, bound - start) for bound in bounds[:-1]]
            list(pool.map(run, bounds[:-1], bounds[1:], rest))
    return location, found


def gates_backward(
    grad: Tensor,
    rows: Sequence[Rows],
    kept: Kept,
    top: Top,
    trained: slice,
    *,
    of_columns: bool,
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """Gradients of the tables, of what comes after them, and, if wanted, of the columns' sum [k, h]."""
    edges, width = kept.normal.shape
    of_table = {id(table): torch.zeros_like(table, memory_format=torch.contiguous_format) for table in tables(rows)}
    sums = kept.normal.new_zeros(3 * width + 1)
    of_top = [*sums[:-1].split(width), sums[-1]]
    columns = torch.empty_like(kept.normal) if of_columns else None
    indices = [part.index.long().contiguous() for part in rows]
    weights = [None if part.weight is None else part.weight.float().contiguous() for part in rows]
    parts = tuple(
        _part(of_table[id(part.table)], index, weight, part.stride, part.place, 0)
        for part, index, weight in zip(rows, indices, weights, strict=True)
    )
    assert top.gamma is not None
    given = [value.detach().contiguous() for value in (*kept, grad, top.gamma, top.beta, top.out)]
    _fused.gates_backward(
        edges,
        width,
        parts,
        *_first_and_step(trained),
        LIMIT,
        *(value.data_ptr() for value in given),
        *(value.data_ptr() for value in of_top),
        _at(columns, 0),
    )
    return list(of_table.values()), of_top, columns


def blend(
    messages: Tensor, gate: Tensor, baseline: Tensor, kept: slice | None, *, in_place: bool
) -> tuple[Tensor, Tensor | None]:
    """As `kernels.blend`; and a copy of the messages that are ``kept``, as they were."""
    edges, width = messages.shape
    gate, baseline = gate.detach().contiguous(), baseline.detach().contiguous()
    copies = None if kept is None else messages.new_empty(len(range(edges)[kept]), width)
    to = messages if in_place else torch.empty_like(messages)
    values = (messages, gate, baseline, to, copies)
    _fused.blend(edges, width, *_first_and_step(kept or ALL), *(_at(value, 0) for value in values))
    return to, copies


def blend_backward(
    grad: Tensor,
    gate: Tensor,
    baseline: Tensor,
    kept: tuple[Tensor, slice] | None,
    picked: tuple[Tensor, int] | None,
    *,
    of_baseline: bool,
    of_messages: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the messages [E, D], the gates [E], the baseline [D] and the nodes [N, D].

    Of the gates only where messages were ``kept`` (those, and which they are); of the nodes where messages were
    ``picked`` (sender of each, N).
    """
    grad, gate, baseline = grad.contiguous(), gate.contiguous(), baseline.contiguous()
    edges, width = grad.shape
    copies, rows = (None, ALL) if kept is None else (kept[0].contiguous(), kept[1])
    source, nodes = (None, 0) if picked is None else (picked[0].long().contiguous(), picked[1])
    d_gate = None if copies is None else (torch.empty_like if rows == ALL else torch.zeros_like)(gate)
    d_baseline = grad.new_zeros(width) if of_baseline else None
    d_messages = torch.empty_like(grad) if of_messages else None
    d_nodes = None if source is None else grad.new_zeros(nodes, width)
    values = (grad, gate, source, copies, baseline, d_gate, d_baseline, d_messages, d_nodes)
    _fused.blend_backward(edges, width, nodes, *_first_and_step(rows), *(_at(value, 0) for value in values))
    return d_messages, d_gate, d_baseline, d_nodes


def overwrite(messages: Tensor, is_open: Tensor, baseline: Tensor) -> bool:
    """Put the baseline [D] in place of the messages [E, ...] that are not open (bool [E]); False if not done."""
    values = (messages, is_open, baseline)
    if _fused is None or is_open.dtype != torch.bool or baseline.dim() != 1 or baseline.dtype != messages.dtype:
        return False
    if any(value.device.type != "cpu" or not value.is_contiguous() for value in values):
        return False
    if is_open.shape != messages.shape[:1] or messages.numel() != len(messages) * len(baseline):
        return False
    edges, size = len(messages), baseline.numel() * messages.element_size()
    _fused.overwrite(edges, size, messages.data_ptr(), is_open.data_ptr(), baseline.data_ptr())
    return True


def _part(
    table: Tensor, index: Tensor, weight: Tensor | None, stride: int, place: int, start: int
) -> tuple[int, int, int, int, int, int]:
    """As `_fused.Part`, of the edges from ``start`` on."""
    rows = (len(table) - 1 - place) // stride + 1
    return table.data_ptr(), _at(index, start), _at(weight, start), stride, place, rows


def _at(value: Tensor | None, row: int) -> int:
    """Address of a row; 0 is none."""
    if value is None:
        return 0
    return value.data_ptr() + (row * value.stride(0) * value.element_size() if row else 0)
