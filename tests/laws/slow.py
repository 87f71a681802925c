"""A second, slow implementation of masking: PyTorch Geometric's hooks, edge by edge, nothing of this library's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import FastRGCNConv, MessagePassing
from torch_geometric.utils import is_sparse

from graphmask import AdjacencyTap, MessageTap
from graphmask.graphs.sites import Site

from .cases import Case
from .support import run


@dataclass
class SlowCall:
    site: Site
    gates: Tensor  #: [N, N] by endpoints
    baseline: Tensor

    @property
    def message(self) -> Tensor:
        return self.baseline[: self.site.stand_in.message]

    @property
    def logits(self) -> Tensor:
        return self.baseline[self.site.stand_in.message :][: self.site.stand_in.logits]


class Slow:
    """Hooks of one run."""

    def __init__(self, calls: list[SlowCall], pairs: list[tuple[int, int]]) -> None:
        self.calls, self.pairs, self.next = calls, pairs, 0
        self.effective: list[tuple[int, int]] = []
        self.kinds: list[int] = []
        self.relation = 0
        self.dropped: list[tuple[int, bool]] = []  # receiver of every edge of this forward, and was it dropped?

    @property
    def call(self) -> SlowCall:
        return self.calls[self.next]

    def see(self, edge_index: Any) -> None:
        edges = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
        rows = edges.to_dense().nonzero().flip(1) if is_sparse(edges) else edges.t()
        self.effective = [(u, v) for u, v in rows.tolist()]

    def shut(self, turned: bool) -> list[bool]:
        """Of every edge that the layer sees: is it the user's, and dropped?"""
        left, found = Counter(self.pairs), []
        for u, v in self.effective:
            pair = (v, u) if turned else (u, v)
            left[pair] -= u == v
            own = left[pair] < 0  # a self-loop that the graph does not have (so often)
            found.append(not own and not bool(self.call.gates[pair]))
        return found

    def softmax(self, src: Tensor, index: Tensor, *_: Any, **__: Any) -> Tensor:
        src, shut = src.clone(), self.shut(turned=False)
        constant = self.call.logits
        if len(src) != len(shut):  # relation by relation: dropped edges are in none
            shut = [s for s, kind in zip(shut, self.kinds, strict=True) if kind == self.relation]
            self.relation += 1
            constant = torch.full(src.shape[1:], -1e9)
        for edge in range(len(src)):
            if shut[edge]:
                src[edge] = constant.view(src.shape[1:])
        out = torch.zeros_like(src)
        for node in index.unique().tolist():
            out[index == node] = src[index == node].softmax(0)
        return out

    def arguments(self, _: nn.Module, args: Any, kwargs: dict[str, Any], *, name: str) -> Any:
        """Edges that the layer drops at all of its sites have constants for arguments."""
        self.dropped = []
        mine = [call for call in self.calls if call.site.module == name]
        first = mine[0]
        start = first.site.stand_in.message + first.site.stand_in.logits
        for argument, size in first.site.stand_in.inputs:
            value = kwargs[argument].clone()
            for edge, pair in enumerate(self.pairs):
                if not any(bool(call.gates[pair]) for call in mine):
                    value[edge] = first.baseline[start : start + size].view(value.shape[1:])
            kwargs = {**kwargs, argument: value}
            start += size
        return args, kwargs

    def content(self, _: nn.Module, inputs: Any) -> None:
        kinds = inputs[0].get("edge_type")
        self.kinds, self.relation = [] if kinds is None else kinds.tolist(), 0

    def message(self, module: MessagePassing, _: Any, out: Tensor, *, turned: bool) -> Tensor:
        dim = module.node_dim if module.node_dim >= 0 else out.dim() + module.node_dim
        out, shut = out.movedim(dim, 0).clone(), self.shut(turned)
        kinds = self.kinds if isinstance(module, FastRGCNConv) else [0] * len(shut)
        groups = [(v, kind) for (_, v), kind in zip(self.effective, kinds, strict=True)]
        for edge, is_shut in enumerate(shut):
            if not self.call.site.stand_in.behind:
                out[edge] = self.call.message.view(out.shape[1:]) if is_shut else out[edge]
            elif is_shut:
                out[edge] = 0
            elif module.aggr == "mean":
                among = [other for other, group in enumerate(groups) if group == groups[edge]]
                out[edge] *= len(among) / sum(not shut[other] for other in among)
        self.dropped += [(v, is_shut) for (_, v), is_shut in zip(self.effective, shut, strict=True)]
        self.next += 1
        return out.movedim(0, dim)

    def behind(self, module: MessagePassing, _: Any, out: Any) -> Any:
        last = self.calls[self.next - 1]
        if not last.site.stand_in.behind:
            return out
        out = out.clone()
        for node in range(len(out)):
            shut = [is_shut for v, is_shut in self.dropped if v == node]
            share = sum(shut) / (max(len(shut), 1) if module.aggr == "mean" else 1)
            out[node] += share * last.message
        return out


def run_replaced(case: Case, batch: Any, edge_index: Tensor, calls: list[SlowCall]) -> Tensor:
    """The masked model's output; ``calls`` in the order in which messages are sent."""
    model = case.model()
    slow = Slow(calls, [(u, v) for u, v in edge_index.t().tolist()])
    against = {name for name in case.reverse if name.endswith("conv_out")}
    names: list[tuple[dict[str, Any], Any]] = []

    def tapped(messages: Tensor, edge_index: Tensor, *_: Any, **__: Any) -> Tensor:
        call, slow.next = slow.call, slow.next + 1
        pairs = zip(messages, edge_index.t(), strict=True)
        return torch.stack([m if call.gates[u, v] else call.baseline for m, (u, v) in pairs])

    def multiplied(adjacency: Tensor, messages: Tensor, _: Tensor) -> Tensor:
        call, slow.next = slow.call, slow.next + 1
        adjacency = adjacency.to_dense()
        graphs, _, nodes, _ = adjacency.shape
        z = torch.zeros_like(adjacency)
        for b in range(graphs):
            own = slice(b * nodes, (b + 1) * nodes)
            part = call.gates[own, own].t().to(z.dtype)
            z[b, :, : part.shape[0], : part.shape[1]] = part
        there = (adjacency != 0).to(z.dtype)
        shares = there / there.sum((1, 3), keepdim=True).clamp_min(1)
        return (z * adjacency) @ messages + ((1 - z) * shares) @ call.baseline.expand_as(messages)

    for name, module in model.named_modules():
        if isinstance(module, MessagePassing):
            _hook(slow, name, module, turned=name in against)
            place = vars(sys.modules[type(module).__module__])
            if "softmax" in place:
                names.append((place, place["softmax"]))
                place["softmax"] = slow.softmax
        elif isinstance(module, (MessageTap, AdjacencyTap)):
            module.forward = tapped if isinstance(module, MessageTap) else multiplied
    try:
        output = run(model, batch)
    finally:
        for place, function in reversed(names):
            place["softmax"] = function
    assert slow.next == len(calls)
    return output


def _hook(slow: Slow, name: str, module: MessagePassing, *, turned: bool) -> None:
    see: Callable[..., None] = lambda _, inputs: slow.see(inputs[0])  # noqa: E731
    module.fuse, module._decomposed_layers = False, 1
    module.register_forward_pre_hook(partial(slow.arguments, name=name), with_kwargs=True)
    module.register_edge_update_forward_pre_hook(see)
    module.register_propagate_forward_pre_hook(see)
    module.register_message_forward_pre_hook(slow.content)
    module.register_message_forward_hook(partial(slow.message, turned=turned))
    module.register_forward_hook(slow.behind)
