"""Hard gates as text in a JSON file, and how far several fits agree on them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmask.analysis.stability import fleiss_kappa
from graphmask.errors import GraphMaskError


def pack(gates: Tensor) -> str:
    """bool [L, E] -> text: eight gates a byte, compressed."""
    return base64.b64encode(zlib.compress(np.packbits(gates.cpu().numpy()).tobytes())).decode()


def unpack(text: str, shape: Sequence[int]) -> Tensor:
    """The gates that `pack` was given."""
    flat = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8))
    count = int(np.prod(shape))
    if len(flat) < count:
        raise GraphMaskError(f"Expected {count} packed gates, found {len(flat)}. Delete the result.")
    return torch.from_numpy(flat[:count].astype(bool)).view(*shape)


def packed(kept: Tensor, carried: Tensor) -> dict[str, Any]:
    """Both [L, E], for a result."""
    return {"shape": list(kept.shape), "kept": pack(kept), "carried": pack(carried)}


def kappa(masks: Sequence[dict[str, Any]]) -> tuple[list[float | None], float | None]:
    """Fleiss' kappa over the fits whose packed masks these are, per site and in total; None without two fits.

    Every fit rates every message that a site carries as kept or dropped.
    """
    if len(masks) < 2:
        return [], None
    shapes = {tuple(mask["shape"]) for mask in masks}
    if len(shapes) > 1 or len({mask["carried"] for mask in masks}) > 1:
        raise GraphMaskError("Expected masks of the same messages from every seed, got different ones.")
    shape = shapes.pop()
    carried = unpack(masks[0]["carried"], shape)
    votes = torch.stack([unpack(mask["kept"], shape) for mask in masks]).sum(0)

    def agreement(found: Tensor) -> float | None:
        return fleiss_kappa(torch.stack([found, len(masks) - found], 1)) if len(found) else None

    return [agreement(v[c]) for v, c in zip(votes, carried, strict=True)], agreement(votes[carried])
