"""For a model without `forward`, suggests the line to write, from the model's methods and submodules."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

#: What a method's argument of this name is of a batch, where it is not the attribute of that name: a decoder is asked
#: about candidate edges, not about those of the graph.
_CANDIDATES = ("edge_index", "edge_label_index", "edges", "pairs", "index", "edge_pairs")


def can_be_called(model: nn.Module) -> bool:
    """Whether the class defines a forward; those of `nn.Module` and of Lightning's module only raise."""
    if "forward" in vars(model):
        return True
    owner = next(kind for kind in type(model).__mro__ if "forward" in vars(kind))
    return owner is not nn.Module and owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning")


def line(model: nn.Module) -> str:
    """A hint that ends in a line of code."""
    encode, decode = getattr(model, "encode", None), getattr(model, "decode", None)
    if callable(encode) and callable(decode):
        called = f"model.encode({_of_batch(encode)})"
        rest = [f"batch.{'edge_label_index' if name in _CANDIDATES else name}" for name in _names(decode)[1:]]
        called = f"model.decode({', '.join([called, *(rest or ['batch.edge_label_index'])])})"
        return f"It has encode and decode: GraphMask(model, forward=lambda model, batch: {called})."
    inner = [(name, child) for name, child in model.named_children() if name.isidentifier()]
    models = [(name, child) for name, child in inner if can_be_called(child) and _has_inside(child)]
    if len(models) == 1:
        name, child = models[0]
        return (
            f"Its network is in {name!r}: GraphMask(model.{name}), or, to go on from there, "
            f"GraphMask(model, forward=lambda model, batch: model.{name}({_of_batch(child.forward)}))."
        )
    return "Write one, or say how to run it: GraphMask(model, forward=lambda model, batch: ...)."


def _has_inside(child: nn.Module) -> bool:
    """Whether it is a network of several parts, and not a loss, a metric or a single layer."""
    return any(True for _ in child.parameters()) and any(True for _ in child.children())


def _of_batch(function: Any) -> str:
    return ", ".join(f"batch.{name}" for name in _names(function)) or "batch.x, batch.edge_index"


def _names(function: Any) -> list[str]:
    """Of the arguments that must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
