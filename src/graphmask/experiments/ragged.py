"""Lists of different lengths, end to end in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def starts(sizes: Tensor) -> Tensor:
    """``[n + 1]``: where each list begins, and the total."""
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))


def spans(first: Tensor, sizes: Tensor) -> Tensor:
    """The numbers first[k], first[k] + 1, ... (sizes[k] of them), one list after another."""
    offset = torch.arange(int(sizes.sum())) - starts(sizes)[:-1].repeat_interleave(sizes)
    return first.repeat_interleave(sizes) + offset
