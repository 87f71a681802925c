r"""Gate networks: for every edge of a site, the location of its gate.

.. math:: \gamma_{u,v} = W_2\, \mathrm{ReLU}(\mathrm{LN}(W_1 [h_u, h_v, m_{u,v}])) + c

(appendix A of the paper), seeing only what the layer itself sees at that moment: no look-ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.gates.attention import AttentionGate
from graphmask.gates.base import INITIAL_LOCATION, Gate, SiteSpec, linear
from graphmask.gates.bilinear import BilinearGate
from graphmask.gates.joining import Joined
from graphmask.ops.kernels import ALL, Columns, Rows, Standard, Top, fold, head, memory_of
from graphmask.ops.moments import Moments
from graphmask.tapping.messages import Messages

__all__ = ["INITIAL_LOCATION", "BilinearGate", "EdgeGate", "Gate", "SiteSpec", "build"]

#: Edges per site whose gates are moved by one step of training.
TRAIN_EDGES = 1 << 13


def _same(column: Tensor, numbers: Tensor) -> bool:
    return column.shape == (numbers.shape[0], 1) and column.data_ptr() == numbers.data_ptr()


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.data_ptr() == other.data_ptr() and memory_of(one) == memory_of(other))


@dataclass
class _Projected:
    """Nodes to project, and the row of the result that each edge looks up, times ``scale``.

    They are multiplied by the sum of the weights of these names, and the sum of the constants of these names is added.
    """

    nodes: Tensor
    index: Tensor
    weights: tuple[str, ...]
    biases: tuple[str, ...] = ()
    scale: Tensor | None = None


@dataclass
class _Folded:
    """Projections that include the standardisation of their inputs and LayerNorm's mean, and their constants."""

    weights: dict[str, Tensor]
    biases: dict[str, Tensor]
    tables: dict[str, Tensor]
    top: Top  #: what comes after them
    joined: Tensor | None = None  #: that laid end to end, where it does not change
    stacks: dict[Any, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def stack(self, parts: list[_Projected]) -> tuple[Tensor, Tensor | None]:
        """Weight [k h, d] and bias [k h] of parts that are projected together."""
        key = tuple((part.weights, part.biases) for part in parts)
        if key not in self.stacks:
            weights = [_sum([self.weights[name] for name in part.weights]) for part in parts]
            biases = [_sum([self.biases[name] for name in part.biases]) if part.biases else None for part in parts]
            bias = biases[0]
            if len(parts) > 1:
                zero = weights[0].new_zeros(len(weights[0]))
                bias = torch.cat([zero if one is None else one for one in biases])
            self.stacks[key] = weights[0] if len(parts) == 1 else torch.cat(weights), bias
        return self.stacks[key]


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _project(parts: list[_Projected], folded: _Folded) -> list[Rows]:
    """Nodes that several parts share are multiplied once; their rows lie side by side in one table."""
    groups: list[list[_Projected]] = []
    for part in parts:
        known = [group for group in groups if _same_memory(group[0].nodes, part.nodes)]
        if known:
            known[0].append(part)
        else:
            groups.append([part])
    if len(groups) > 1 and len({part.nodes.shape[0] for part in parts}) == 1 and not torch.is_grad_enabled():
        return _project_aside(groups, folded)
    rows = []
    for group in groups:
        nodes, count = group[0].nodes, len(group)
        table = F.linear(nodes, *folded.stack(group)).view(nodes.shape[0] * count, -1)
        rows += [Rows(table, part.index, part.scale, count, number) for number, part in enumerate(group)]
    return rows


def _project_aside(groups: list[list[_Projected]], folded: _Folded) -> list[Rows]:
    """Project different states of the same nodes into one table, so that they need not be concatenated later."""
    parts = [part for group in groups for part in group]
    count, width = len(parts[0].nodes), len(folded.weights[parts[0].weights[0]])
    table = parts[0].nodes.new_empty(count, len(parts) * width)
    for start, group in zip(accumulate(map(len, groups), initial=0), groups, strict=False):
        weight, bias = folded.stack(group)
        room = table[:, start * width : (start + len(group)) * width]
        if bias is None:
            torch.mm(group[0].nodes, weight.t(), out=room)
        else:
            torch.addmm(bias, group[0].nodes, weight.t(), out=room)
    table = table.view(-1, width)
    return [Rows(table, part.index, part.scale, len(parts), number) for number, part in enumerate(parts)]


class EdgeGate(Gate):
    """The edge-list form.

    ``W_1`` is kept as one projection per input, so that the two node parts are multiplied once per node and
    gathered: O(V d h + E h) instead of O(E d h). Standardisation is folded into the projections.
    """

    turn: Tensor

    def __init__(self, spec: SiteSpec, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        sizes = {"source": spec.source, "target": spec.target, "message": spec.message}
        sizes |= {f"feature:{key}": size for key, size in spec.features.items()}
        self.sizes = {key: size for key, size in sizes.items() if size}
        self.weights = nn.ParameterDict({key: linear(hidden, size, generator) for key, size in self.sizes.items()})
        tables = {f"category:{key}": count for key, count in spec.categories.items()}
        if spec.pieces > 1:
            tables["piece"] = spec.pieces
        self.tables = nn.ParameterDict(
            {key: nn.Parameter(torch.randn(count, hidden, generator=generator)) for key, count in tables.items()}
        )
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5, generator=generator))
        self.out_bias = nn.Parameter(torch.tensor(INITIAL_LOCATION))
        for key, size in self.sizes.items():
            self.register_buffer(f"mean:{key}", torch.zeros(size))
            self.register_buffer(f"scale:{key}", torch.ones(size))
        self.register_buffer("turn", torch.zeros((), dtype=torch.long))  # which edges are trained next
        self._folded: tuple[Any, _Folded] | None = None
        self._standard: tuple[Any, Standard] | None = None

    def _input(self, messages: Messages, key: str, value: Tensor | None = None) -> Tensor:
        """What a gate sees under this name, [N, d] or [E', d], or a ``value`` in its place."""
        if value is not None:
            pass
        elif key == "source":
            value = messages.source_states
        elif key == "target":
            value = messages.target_states
        elif key == "message":
            value = messages.flat().detach()
        else:
            value = messages.features.get(key.removeprefix("feature:"))
        size = self.sizes[key]
        if value is None or value.shape[1] != size:
            raise GraphMaskError(
                f"Expected {size} {key.removeprefix('feature:')} feature(s) at this site as when it was fitted, "
                f"got {'none' if value is None else value.shape[1]}."
            )
        return value.to(self.bias.dtype)

    @torch.no_grad()
    def moments(self, pieces: list[Messages]) -> dict[str, Moments]:
        inputs: dict[str, list[Tensor]] = {key: [] for key in self.sizes}
        for messages in pieces:
            for key in self.sizes:
                value = self._input(messages, key)
                if value.shape[0] and not (key in ("source", "target") and inputs[key]):
                    inputs[key].append(value)
        return {key: Moments.of(torch.cat(parts)) for key, parts in inputs.items() if parts}

    @torch.no_grad()
    def start_at(self, location: float) -> None:
        self.out.zero_()
        self.out_bias.fill_(location)

    def _fold(self) -> _Folded:
        """Anew each time while gates are trained (fused optimisers leave no trace in versions); once afterwards."""
        if self.training or torch.is_grad_enabled():
            return self._folds()
        modules = (self, self.weights, self.tables, self.norm)
        values = [value for module in modules for value in (*module._parameters.values(), *module._buffers.values())]
        state = [(value.data_ptr(), value._version) for value in values if value is not None]
        if self._folded is None or self._folded[0] != state:
            self._folded = state, self._folds()
        return self._folded[1]

    def _standards(self) -> Standard:
        """Of all inputs side by side."""
        parts = [[getattr(self, f"{kind}:{key}") for key in self.sizes] for kind in ("scale", "mean")]
        state = [(part.data_ptr(), part._version) for kind in parts for part in kind]
        if self._standard is None or self._standard[0] != state:
            self._standard = state, Standard.of(torch.cat(parts[0]), torch.cat(parts[1]), len(self.bias))
        return self._standard[1]

    def _folds(self) -> _Folded:
        *folded, bias = fold([self.weights[key] for key in self.sizes], self.bias, self._standards())
        weights = dict(zip(self.sizes, folded, strict=True))
        tables = {key: table - table.mean(1, keepdim=True) for key, table in self.tables.items()}
        biases = {"all": bias}
        biases |= {key: weight[:, 0] for key, weight in weights.items() if self.sizes[key] == 1}
        if torch.is_grad_enabled():
            return _Folded(weights, biases, tables, Top(self.norm.weight, self.norm.bias, self.out, self.out_bias))
        # relu(g x + b) o = relu(sign(g) x + b / |g|) |g| o, and LayerNorm does not see the sign.
        sign = torch.where(self.norm.weight < 0, -1.0, 1.0).to(bias.dtype)
        size = self.norm.weight.abs().clamp_min(1e-12)
        top = Top(None, self.norm.bias / size, self.out * size, self.out_bias)
        return _Folded(
            {key: weight * sign[:, None] for key, weight in weights.items()},
            {key: constant * sign for key, constant in biases.items()},
            {key: table * sign for key, table in tables.items()},
            top,
            top.joined(),
        )

    def next_rows(self, messages: Messages) -> slice:
        # Every gate gets its value; the gradient is taken from evenly spread edges, others each time: a single step
        # learns nothing more from hundreds of thousands.
        stride = -(-messages.source.shape[0] // TRAIN_EDGES)
        if stride <= 1:
            return ALL
        self.turn.add_(1)
        return slice(int(self.turn) % stride, None, stride)

    def raw(self, messages: Messages, rows: slice = ALL) -> Tensor:
        folded = self._fold()
        return head(*self._parts(messages, folded), folded.top, rows, joined=folded.joined)

    def _parts(self, messages: Messages, folded: _Folded) -> tuple[list[Rows], list[Columns]]:
        """W_1 [...] as a sum: rows looked up in projected tables, and projected columns."""
        nodes: list[_Projected] = []
        for key, index in (("source", messages.source), ("target", messages.target)):
            if key in self.sizes:
                nodes.append(_Projected(self._input(messages, key), index, (key,)))
        lifted = messages.lifted if self.spec.lifted else None
        edges = [key for key in self.sizes if key not in ("source", "target") and not (lifted and key == "message")]
        columns = {key: self._input(messages, key) for key in edges}  # inputs that are not projected as nodes
        if lifted is not None:
            # The message is a node's row times a number: project the nodes, not the edges.
            x, scale = self._input(messages, "message", lifted[0].detach()), lifted[1]
            same = [] if scale is None else [key for key, value in columns.items() if _same(value, scale)]
            for key in same:  # the edge weight as a feature scales the same row
                columns.pop(key)
            if "source" in self.sizes and scale is None and _same_memory(x, nodes[0].nodes):
                nodes[0].weights = ("source", "message")  # one row has both
            else:
                scale = None if scale is None else scale.detach()
                nodes.append(_Projected(x, messages.source, ("message",), tuple(same), scale))
        alone = not nodes or nodes[0].scale is not None
        if not alone:
            nodes[0].biases = ("all",)
        rows = _project(nodes, folded)
        for key, table in folded.tables.items():
            if key == "piece":
                one = torch.full_like(messages.source, messages.piece)
                rows.append(Rows(table, messages.number if isinstance(messages, Joined) else one))
                continue
            name = key.removeprefix("category:")
            if name not in messages.categories:
                raise GraphMaskError(f"Expected {name} at this site as when it was fitted, got none.")
            rows.append(Rows(table, messages.categories[name] % len(table)))
        if alone:
            rows.append(Rows(folded.biases["all"][None], torch.zeros_like(messages.source)))
        return rows, [(value, folded.weights[key]) for key, value in columns.items()]


def build(spec: SiteSpec, hidden: int, generator: torch.Generator) -> Gate:
    """The gate network that fits a site."""
    if spec.heads:
        return AttentionGate(spec, hidden, generator)
    return (BilinearGate if spec.matrix else EdgeGate)(spec, hidden, generator)
