"""Softmax over edges: a dropped edge's logit is replaced too, so that its share does not depend on its content.

PyTorch Geometric's attention layers call `torch_geometric.utils.softmax`, by the name under which their module imported
it, inside `message` or `edge_update`. While a model is tapped that name stands for the function below, in the modules
of its layers and nowhere else; a layer that computes a softmax in another way keeps its own, and `analysis.silence`
shows what that lets through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from graphmask.graphs.sites import ABSENT

#: Receives the logits and the dimension of the edges; returns what to compare instead.
Replace = Callable[[Tensor, int], Tensor]


#: The names of a module, and the one that the softmax has among them.
Binding = tuple[dict[str, Any], str]
_BINDINGS: dict[type[MessagePassing], tuple[Binding, ...]] = {}


def bindings(layer: MessagePassing) -> tuple[Binding, ...]:
    """Where a layer's `message` and `edge_update` find the softmax."""
    kind = type(layer)
    if kind not in _BINDINGS:
        softmaxes: dict[tuple[int, str], Binding] = {}
        for method in (kind.message, kind.edge_update):
            names = getattr(method, "__globals__", {})
            for name, value in names.items():
                if getattr(value, "__wrapped__", value) is softmax:
                    softmaxes[id(names), name] = names, name
        _BINDINGS[kind] = tuple(softmaxes.values())
    return _BINDINGS[kind]


class Watched:
    """The softmax, of logits that went through ``replace``."""

    __wrapped__ = staticmethod(softmax)

    def __init__(self, replace: Replace, function: Callable[..., Tensor]) -> None:
        self.replace, self.function = replace, function

    def __call__(
        self,
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        return self.function(self.replace(src, dim), index, ptr, num_nodes, dim)


def watch(binding: Binding, replace: Replace) -> Callable[..., Tensor] | None:
    """Install a watched softmax there; returns what it replaced, or None if the same ``replace`` already watches it."""
    names, name = binding
    before: Callable[..., Tensor] = names[name]
    if isinstance(before, Watched) and before.replace == replace:
        return None
    names[name] = Watched(replace, before)
    return before


def mixed(logits: Tensor, gate: Tensor, constant: Tensor, dim: int) -> Tensor:
    r"""Logits of edges that are open to the degree z: :math:`z l + (1 - z) c`.

    Exactly ``l`` where z = 1 and exactly ``c`` where z = 0. ``constant`` is [H], or [E', H] with one per edge. There is
    nothing halfway to the logit of an edge that takes no part (`sites.ABSENT`): such an edge has the share z of its
    mass, :math:`l + \log z`.
    """
    spread = [1] * logits.dim()
    spread[dim] = -1
    gate = gate.view(spread)
    heads = [size for at, size in enumerate(logits.shape) if at != dim % logits.dim()]
    constant = constant.reshape(-1, *heads).movedim(0, dim)
    absent = None if gate.dtype == torch.bool else constant.detach() < ABSENT / 2
    constant = constant.to(logits.dtype).clamp_min(torch.finfo(logits.dtype).min / 4)  # no infinity in half precision
    if absent is None:
        return torch.where(gate, logits, constant)
    z = gate.to(logits.dtype)
    between = torch.lerp(constant, logits, z)  # weight 0 gives the constant, weight 1 the logits, exactly
    if not bool(absent.any()):
        return between
    return torch.where(absent & (gate > 0), logits + z.clamp_min(1e-6).log(), between)
