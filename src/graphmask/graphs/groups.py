"""Elements that belong to groups: edges to graphs, candidates to nodes."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_within(group: Tensor, count: int) -> Tensor:
    """For each element, how many of the same group come before it."""
    sizes = torch.bincount(group, minlength=count)
    order = group.argsort(stable=True)
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - (sizes.cumsum(0) - sizes)[group[order]]
    return rank
