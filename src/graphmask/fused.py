"""What is done to every message, in C: `kernels.head` and `kernels.blend` in single precision, and hard gates.

Left out where the library was installed without a compiler; PyTorch does the same then, in two or three times the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

try:
    from graphmask import _fused
except ImportError:  # no compiler when it was installed, or an old processor
    _fused = None  # type: ignore[assignment]


class Top(NamedTuple):
    """What follows the sum of the parts: LayerNorm's weight (None: all ones) and bias, ReLU, and a dot product."""

    gamma: Tensor | None
    beta: Tensor
    out: Tensor


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
    return _fused is not None and all(
        v.device.type == "cpu" and v.dtype == torch.float32 and v.shape[-1] <= MOST_WIDTH for v in values
    )


def fits(rows: Sequence[Rows], top: Top) -> bool:
    """Can `locations` do it?"""
    return 0 < len(rows) <= MOST_PARTS and len(top.beta) % LANES == 0 and usable(top.beta, *(r.table for r in rows))


def block() -> int:
    """Edges at once, of what needs a row for each: few enough for the processor's cache, enough for every thread."""
    return PER_THREAD * torch.get_num_threads()


def locations(
    rows: Sequence[Rows], dense: Tensor | None, top: Top, *, keep: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """[E] as `kernels.head`, ``dense`` [E, h] being the sum of the columns; and with ``keep`` what goes backwards."""
    edges, width = len(rows[0].index), len(top.beta)
    gamma = torch.ones_like(top.beta) if top.gamma is None else top.gamma
    fixed = [value.detach().contiguous() for value in (gamma, top.beta, top.out)]
    tables = [part.table.detach().contiguous() for part in rows]
    indices = [part.index.long().contiguous() for part in rows]
    weights = [None if part.weight is None else part.weight.detach().float().contiguous() for part in rows]
    dense = None if dense is None else dense.detach().contiguous()
    location = top.beta.new_empty(edges)
    normal, inverse = (top.beta.new_empty(edges, width), top.beta.new_empty(edges)) if keep else (None, None)

    def run(start: int, stop: int) -> None:
        parts = tuple(
            (
                table.data_ptr(),
                _at(index, start),
                _at(weight, start),
                part.stride,
                part.place,
                (len(table) - 1 - part.place) // part.stride + 1,
            )
            for part, table, index, weight in zip(rows, tables, indices, weights, strict=True)
        )
        ends = (_at(value, start) for value in (location, normal, inverse))
        _fused.gates(stop - start, width, parts, _at(dense, start), *(value.data_ptr() for value in fixed), *ends)

    threads = min(torch.get_num_threads(), edges // PER_THREAD)
    if threads < 2:
        run(0, edges)
    else:
        bounds = [edges * number // threads for number in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, bounds[:-1], bounds[1:]))
    return location, normal, inverse


def gates_backward(
    grad: Tensor,
    index: Tensor,
    scale: Tensor | None,
    normal: Tensor,
    inverse: Tensor,
    table: Tensor,
    top: Top,
    *,
    of_columns: bool,
) -> tuple[Tensor, Top, Tensor | None]:
    """Gradients of the table, of what comes after it, and, if wanted, of the columns' sum [E, h]."""
    edges, parts = index.shape
    width = normal.shape[1]
    of_table, of_top = torch.zeros_like(table), Top(*normal.new_zeros(3, width))
    columns = torch.empty_like(normal) if of_columns else None
    given = [value if value is None else value.contiguous() for value in (index, scale, normal, inverse, grad, *top)]
    found = (of_table, *of_top, columns)
    _fused.gates_backward(edges, width, parts, *(_at(value, 0) for value in (*given, *found)))
    return of_table, of_top, columns


def blend_backward(
    grad: Tensor, gate: Tensor, source: Tensor | None, nodes: int, *, of_baseline: bool, of_messages: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the baseline [D], of the messages [E, D], and, where there is ``source``, of the nodes [N, D]."""
    grad, gate = grad.contiguous(), gate.contiguous()
    edges, width = grad.shape
    source = None if source is None else source.long().contiguous()
    of_nodes = None if source is None else grad.new_zeros(nodes, width)
    baseline = grad.new_zeros(width) if of_baseline else None
    messages = torch.empty_like(grad) if of_messages else None
    given = (grad, gate, source, baseline, messages, of_nodes)
    _fused.blend_backward(edges, width, nodes, *(_at(value, 0) for value in given))
    return baseline, messages, of_nodes


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


def _at(value: Tensor | None, row: int) -> int:
    """Address of a row; 0 is none."""
    return 0 if value is None else value.data_ptr() + row * value.stride(0) * value.element_size()
