"""Errors about models that do not let gradients through, for methods and fits that need gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError

_HINT = "Methods that need no gradients: erasure_search, occlusion, random."


@contextmanager
def needed() -> Iterator[None]:
    """Turn PyTorch's errors about a model that has no gradients into a GraphMaskError about that model."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "modified by an inplace operation" in text or "being used in an in-place operation" in text:
            why = "overwrites in place what its own gradient needs. Replace operations such as `h += 1` or `h.relu_()`"
        elif "numpy() on Tensor that requires grad" in text:
            why = "leaves PyTorch (.numpy()) on the way to its output. Keep the forward in PyTorch"
        elif "Inference tensors" in text:
            why = "runs under torch.inference_mode. Leave that to whoever calls the model"
        else:
            raise
        raise GraphMaskError(f"Expected a model that gradients can pass, got one that {why}. {_HINT}") from error


def check_passed(original: Tensor, masked: Tensor, wanted: bool) -> None:
    """Raise if gates change the output but have no gradient.

    An output that has no gradient and does not change belongs to a model that does not use its messages.
    """
    if not wanted or not torch.is_grad_enabled() or masked.requires_grad:
        return
    if original.shape != masked.shape or not torch.allclose(original, masked, rtol=1e-4, atol=1e-6):
        raise GraphMaskError(
            "Expected a model that gradients can pass, got one whose output has none: its forward detaches, runs under "
            f"torch.no_grad or torch.inference_mode, or returns a choice (argmax) in place of its scores. {_HINT}"
        )
