"""Mean and spread of rows, per feature; the moments of several batches can be merged into those of their union."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphmask.devices import double


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
        means, variances = (
            torch.stack([double(getattr(part, name)) for part in parts]) for name in ("mean", "variance")
        )
        counts = means.new_tensor([part.count for part in parts])[:, None]
        mean = (counts * means).sum(0) / counts.sum()
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / counts.sum()
        mean, variance, deviation = (
            moment.to(first.dtype).to(first.device) for moment in (mean, variance, variance.sqrt())
        )
        return cls(int(counts.sum()), mean, variance, deviation)
