"""Masks of all passages of a part in a file, and how far those of several fits agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmask import files
from graphmask.analysis.stability import fleiss_kappa


def write_masks(file: Path, kept: Tensor) -> None:
    """bool [L, E], eight to a byte."""
    bits = torch.from_numpy(np.packbits(kept.numpy(), axis=1))
    files.write(file, "masks", {"bits": bits}, {"edges": kept.shape[1]})


def read_masks(file: Path) -> Tensor:
    tensors, description = files.read(file, "masks")
    whole = np.unpackbits(tensors["bits"].numpy(), axis=1, count=description["edges"])
    return torch.from_numpy(whole.astype(bool))


def agreement(masks: Sequence[Tensor]) -> dict[str, Any]:
    """Fleiss' kappa between fits over all gates, and by layer."""
    votes = sum(one.long() for one in masks[1:]) + masks[0].long()
    counts = torch.stack([torch.bincount(row, minlength=len(masks) + 1) for row in votes])
    opened = torch.arange(len(masks) + 1.0)
    ratings = torch.stack([opened, len(masks) - opened], 1)
    return {"kappa": fleiss_kappa(ratings, counts.sum(0)), "layers": [fleiss_kappa(ratings, row) for row in counts]}
