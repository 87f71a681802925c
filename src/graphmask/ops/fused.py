"""The operations on every message in C: `kernels.head` and `kernels.blend` in single precision, and hard gates.

It is missing where the library was installed without a compiler; PyTorch then does the same in two or three times the
time. C reads NumPy's views of tensors, which own no memory: it checks their types and sizes, and every index that it
follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError

try:
    from graphmask.ops import _fused
except ImportError:  # no compiler when it was installed, or an old processor
    _fused = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np

    from graphmask.ops._fused import Part


#: Locations stay in [-3, 3]: a saturated gate could not be moved again.
LIMIT = 3.0
#: Edges that get a gradient: all, or evenly spread ones.
ALL = slice(None)


class Top(NamedTuple):
    """What follows the sum of the parts: LayerNorm's weight (None: all ones) and bias, ReLU, dot product, constant."""

    gamma: Tensor | None
    beta: Tensor
    out: Tensor
    bias: Tensor

    def joined(self) -> Tensor:
        """[3 h + 1] laid end to end, as C takes them; [2 h + 1] without a weight of LayerNorm."""
        parts = (self.beta, self.out, self.bias.view(1))
        return torch.cat(parts if self.gamma is None else (self.gamma, *parts))


@dataclass(eq=False)
class Rows:
    """One part of a gate's input: of each edge, row ``index * stride + offset`` of ``table``, scaled by ``weight``."""

    table: Tensor
    index: Tensor
    weight: Tensor | None = None
    stride: int = 1
    offset: int = 0
    arrays: tuple[np.ndarray, np.ndarray | None] | None = None  #: of its edges, once they were asked for

    def some(self, at: slice) -> Rows:
        """Of these edges alone."""
        weight = None if self.weight is None else self.weight[at]
        return replace(self, index=self.index[at], weight=weight, arrays=None)

    def of_edges(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Index and weight of every edge as C takes them; the backward pass finds them made."""
        if self.arrays is None:
            self.arrays = _array(self.index.long()), None if self.weight is None else _array(self.weight.float())
        return self.arrays


LANES, MOST_WIDTH, MOST_PARTS = 8, 1024, 16
#: Edges that are worth a thread.
PER_THREAD = 1 << 14


def usable(*values: Tensor) -> bool:
    """Whether the tensors are in single precision, on a processor, and not too wide."""
    if _fused is None:
        return False
    for value in values:  # no generator: small graphs notice
        if not value.is_cpu or value.dtype is not torch.float32 or value.size(-1) > MOST_WIDTH:
            return False
    return True


def fits(rows: Sequence[Rows], top: Top) -> bool:
    """Whether `locations` supports these inputs."""
    return 0 < len(rows) <= MOST_PARTS and top.beta.shape[0] % LANES == 0 and usable(top.beta, *(r.table for r in rows))


def block() -> int:
    """How many edges are processed at once where each needs a row: few enough for the cache, enough for all threads."""
    return PER_THREAD * torch.get_num_threads()


def _first_and_step(edges: slice) -> tuple[int, int]:
    return edges.start or 0, edges.step or 1


def tables(rows: Sequence[Rows]) -> list[Tensor]:
    """The distinct tables."""
    return list({id(part.table): part.table for part in rows}.values())


def _array(value: Tensor) -> np.ndarray:
    """A NumPy view that C reads: of the tensor's memory, or of a copy where it is not contiguous."""
    return (value.detach() if value.requires_grad else value).contiguous().numpy()


def _room(value: Tensor | None) -> np.ndarray | None:
    """A NumPy view that C writes: of the memory of a new tensor."""
    return None if value is None else value.numpy()


def locations(
    rows: Sequence[Rows], values: Sequence[Tensor], weights: Sequence[Tensor], top: Tensor, saved: slice | None = None
) -> tuple[Tensor, Tensor | None]:
    """[E] as `kernels.head` with `Top.joined`, and what `gates_backward` needs of the k edges ``saved``.

    That is LayerNorm's results [k, h], what they were divided by, inverted [k], and locations before they were clamped
    [k], laid end to end. Columns are projected by PyTorch, block by block, so that no row is made per edge.
    """
    edges, width = rows[0].index.shape[0], rows[0].table.shape[1]
    location = top.new_empty(edges)
    for_backward = None if saved is None else top.new_empty(len(range(edges)[saved]) * (width + 2))
    arrays = _array(top), LIMIT, location.numpy(), _room(for_backward)
    parts, first_and_step = _parts(rows, {id(one): _array(one) for one in tables(rows)}), _first_and_step(saved or ALL)

    def run(start: int, stop: int, dense: np.ndarray | None) -> None:
        _fused.gates(width, parts, dense, *arrays, *first_and_step, start, stop)

    size = block() if values else edges
    threads = min(torch.get_num_threads(), edges // PER_THREAD) if edges > PER_THREAD else 1
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        for start in range(0, edges, size or 1):
            stop, projected = min(start + size, edges), None
            for value, weight in zip(values, weights, strict=True):
                some, projection = value[start:stop], weight.detach().t()
                projected = torch.mm(some, projection) if projected is None else projected.addmm_(some, projection)
            dense = None if projected is None else _array(projected)
            try:
                if pool is None:
                    run(start, stop, dense)
                    continue
                bounds = [start + (stop - start) * number // threads for number in range(threads + 1)]
                share = [None if dense is None else dense[a - start : b - start] for a, b in pairwise(bounds)]
                list(pool.map(run, bounds[:-1], bounds[1:], share))
            except IndexError as error:
                raise _nowhere(error) from error
    return location, for_backward


def _parts(rows: Sequence[Rows], table: dict[int, np.ndarray]) -> tuple[Part, ...]:
    """As C takes them; ``table`` has an array for each of their tables."""
    return tuple((table[id(part.table)], *part.of_edges(), part.stride, part.offset) for part in rows)


def _nowhere(error: IndexError) -> GraphMaskError:
    return GraphMaskError(
        f"Expected every edge to name nodes and relations that exist, got {error}. Check edge_index and edge_type."
    )


def gates_backward(
    grad: Tensor, rows: Sequence[Rows], saved: Tensor, top: Tensor, trained: slice, *, of_columns: bool
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Gradients of the tables, of ``top``, and, if wanted, of the columns' sum [k, h]; ``saved`` is of `locations`."""
    width = rows[0].table.shape[1]
    of_table = {id(table): torch.zeros_like(table, memory_format=torch.contiguous_format) for table in tables(rows)}
    of_top = torch.zeros_like(top)
    columns = top.new_empty(len(saved) // (width + 2), width) if of_columns else None
    parts = _parts(rows, {key: value.numpy() for key, value in of_table.items()})
    arrays = (
        _array(grad),
        _array(saved),
        _array(top),
        LIMIT,
        of_top.numpy(),
        None if columns is None else columns.numpy(),
    )
    try:
        _fused.gates_backward(width, parts, *arrays, *_first_and_step(trained))
    except IndexError as error:
        raise _nowhere(error) from error
    return list(of_table.values()), of_top, columns


def blend(
    messages: Tensor, gate: Tensor, baseline: Tensor, saved: slice | None, *, in_place: bool
) -> tuple[Tensor, Tensor | None]:
    """As `kernels.blend`; and a copy of the messages that are ``saved``, as they were."""
    edges, width = messages.shape
    copies = None if saved is None else messages.new_empty(len(range(edges)[saved]), width)
    to = messages if in_place else torch.empty_like(messages)
    _fused.blend(
        _array(messages),
        _array(gate),
        _array(baseline),
        to.detach().numpy(),
        _room(copies),
        *_first_and_step(saved or ALL),
    )
    return to, copies


def blend_backward(
    grad: Tensor,
    gate: Tensor,
    baseline: Tensor,
    saved: tuple[Tensor, slice] | None,
    picked: tuple[Tensor, int] | None,
    *,
    of_baseline: bool,
    of_messages: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the messages [E, D], the gates [E], the baseline [D] and the nodes [N, D].

    Of the gates only where messages were ``saved`` (those, and which they are); of the nodes where messages were
    ``picked`` (sender of each, N).
    """
    width = grad.shape[1]
    copies, which = (None, ALL) if saved is None else (_array(saved[0]), saved[1])
    source, nodes = (None, 0) if picked is None else (_array(picked[0].long()), picked[1])
    d_gate = None if copies is None else gate.new_empty(len(gate)) if which == ALL else gate.new_zeros(len(gate))
    d_baseline = grad.new_zeros(width) if of_baseline else None
    d_messages = grad.new_empty(grad.shape) if of_messages else None
    d_nodes = None if source is None else grad.new_zeros(nodes, width)
    try:
        _fused.blend_backward(
            _array(grad),
            _array(gate),
            _array(baseline),
            copies,
            source,
            _room(d_gate),
            _room(d_baseline),
            _room(d_messages),
            _room(d_nodes),
            *_first_and_step(which),
        )
    except IndexError as error:
        raise _nowhere(error) from error
    return d_messages, d_gate, d_baseline, d_nodes


#: NumPy has no type for these; hard gates move bytes and do not ask what they mean.
BITS = {torch.bfloat16: torch.int16}


def overwrite(messages: Tensor, is_open: Tensor, baseline: Tensor) -> bool:
    """Put the baseline [D] in place of the messages [E, ...] that are not open (bool [E]); False if not done."""
    values = (messages, is_open, baseline)
    if _fused is None or is_open.dtype != torch.bool or baseline.dim() != 1 or baseline.dtype != messages.dtype:
        return False
    if any(value.device.type != "cpu" or not value.is_contiguous() for value in values):
        return False
    if is_open.shape != messages.shape[:1] or messages.numel() != len(messages) * len(baseline):
        return False
    if (bits := BITS.get(messages.dtype)) is not None:
        messages, baseline = messages.view(bits), baseline.view(bits)
    _fused.overwrite(messages.detach().numpy(), is_open.numpy(), baseline.detach().numpy())
    return True
