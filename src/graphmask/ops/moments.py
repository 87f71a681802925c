"""Mean and spread of rows, per feature; those of several batches together make up those of their union."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Moments:
    count: int
    mean: Tensor  #: [D]
    variance: Tensor  #: [D]
    deviation: Tensor  #: [D] its root

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Of [N, D], N > 0."""
        return cls(len(rows), rows.mean(0), rows.var(0, unbiased=False), rows.std(0, unbiased=False))

    @classmethod
    def union(cls, parts: Sequence[Moments]) -> Moments:
        if len(parts) == 1:
            return parts[0]
        first = parts[0].mean
        counts = torch.tensor([part.count for part in parts], dtype=torch.double, device=first.device)[:, None]
        means, variances = (
            torch.stack([getattr(part, name).double() for part in parts]) for name in ("mean", "variance")
        )
        mean = (counts * means).sum(0) / counts.sum()
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / counts.sum()
        return cls(int(counts.sum()), mean.to(first), variance.to(first), variance.sqrt().to(first))
