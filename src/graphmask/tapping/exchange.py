"""Edges' rows in another order, or mixed with constants, as gates say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse


def exchange_order(gate: Tensor, generator: torch.Generator) -> Tensor:
    """[E'] an order of the edges in which those whose gate is shut have changed places at random."""
    order = torch.arange(len(gate), device=gate.device)
    shut = (gate == 0).nonzero().view(-1)
    order[shut] = shut[torch.randperm(len(shut), generator=generator).to(shut.device)]
    return order


def contents_exchanged(kwargs: dict[str, Any], order: Tensor) -> dict[str, Any]:
    """What a layer knows of its edges (of their senders, not of their receivers), in another order."""
    count = len(order)

    def is_content(key: str, value: Any) -> bool:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or is_sparse(value):
            return False
        return key not in MessagePassing.special_args and not key.endswith("_i") and value.shape[:1] == (count,)

    return {key: value[order] if is_content(key, value) else value for key, value in kwargs.items()}


def between(value: Tensor, gate: Tensor, constant: Tensor) -> Tensor:
    """z v + (1 - z) c, of an argument with a row per edge."""
    gate = gate.view(-1, *[1] * (value.dim() - 1))
    constant = constant.to(value.dtype).reshape(-1, *value.shape[1:])
    if gate.dtype == torch.bool:
        return torch.where(gate, value, constant)
    return torch.lerp(constant.expand_as(value), value, gate.to(value.dtype))
