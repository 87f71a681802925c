"""Arguments of a layer with one row per edge (weights, attributes): replacing them, and which of them edges compete by.

GCNConv divides by the sum of the weights at a node, and GATConv gives a node's self-loop the mean attribute of its
edges. The output would still depend on a dropped edge through such an argument, so it is replaced too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse

from graphmask.devices import double

#: Of the edges, this part is changed to see whether others notice.
ONE_IN = 4


_SIGNATURES: dict[type[MessagePassing], inspect.Signature] = {}


def bind(layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments | None:
    """The arguments of a forward of the layer, by name; None if they do not fit."""
    kind = type(layer)
    if kind not in _SIGNATURES:
        _SIGNATURES[kind] = inspect.signature(kind.forward)
    try:
        return _SIGNATURES[kind].bind(layer, *args, **kwargs)
    except TypeError:
        return None


def per_edge(bound: inspect.BoundArguments) -> dict[str, Tensor]:
    """Tensors with one row per edge, by argument name: those after the edges that are not per node."""
    edges: int | None = None
    nodes: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, value in bound.arguments.items():
        if isinstance(value, EdgeIndex) or (_is_integers(value) and value.dim() == 2 and value.shape[0] == 2):
            edges = value.shape[1]
        elif edges is None:
            parts = value if isinstance(value, (tuple, list)) else (value,)
            nodes |= {part.shape[0] for part in parts if isinstance(part, Tensor) and part.dim()}
        elif isinstance(value, Tensor) and not is_sparse(value) and value.shape[:1] == (edges,):
            of_nodes = edges in nodes and "edge" not in name  # as many nodes as edges: then the name decides
            tensors |= {} if of_nodes else {name: value}
    return tensors


def _is_integers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)


def exchanged(bound: inspect.BoundArguments, others: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments, with ``others`` in place of the arguments of the same names."""
    bound.arguments.update(others)
    return bound.args[1:], bound.kwargs


def compared(layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """The arguments by which the layer compares edges: changing them at some edges changes the messages of others."""
    bound = bind(layer, args, kwargs)
    candidates = {} if bound is None else {n: v for n, v in per_edge(bound).items() if v.is_floating_point()}
    if not candidates:
        return {}
    before, comparing = _sent(layer, args, kwargs), {}
    if not before:
        return {}
    for name, value in candidates.items():
        some = torch.arange(len(value), device=value.device) % ONE_IN == 0
        shifted = torch.where(some.view(-1, *[1] * (value.dim() - 1)), 1.5 * value.detach() + 1, value.detach())
        other = bind(layer, args, kwargs)
        assert other is not None
        after = _sent(layer, *exchanged(other, {name: shifted}))
        # In the first call: of a layer with several hops, later messages follow from what earlier ones have changed.
        if int((~torch.isclose(before[0], after[0], rtol=1e-4, atol=1e-6)).sum()) > int(some.sum()):
            comparing[name] = value
    return comparing


@torch.no_grad()
def _sent(layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """[E'] one number for every message, call by call."""
    sums: list[Tensor] = []

    def look(_: MessagePassing, __: Any, value: Tensor) -> None:
        at = layer.node_dim if layer.node_dim >= 0 or value.dim() == 1 else value.dim() + layer.node_dim
        rows = value.movedim(at if value.dim() > 1 else 0, 0).flatten(1) if value.dim() > 1 else value[:, None]
        sums.append(double(rows).abs().sum(1))

    handle = layer.register_message_forward_hook(look)
    try:
        type(layer).forward(layer, *args, **kwargs)
    finally:
        handle.remove()
    return sums
