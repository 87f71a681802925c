"""How a model is called on a batch, and checks of what it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphmask.errors import GraphMaskError
from graphmask.graphs import how_to_call
from graphmask.graphs.reading import adapter, num_nodes_of, seeds_of, tensor

Forward = Callable[[nn.Module, Any], Tensor]


def default_forward(model: nn.Module, batch: Any) -> Tensor:
    """Match the model's own signature against the batch's attributes.

    A plain tuple is passed as positional arguments; a model with one argument that is no attribute of the
    batch gets the batch itself. Of a sampled subgraph (`seeds_of`) only the rows of the seeds are returned. Of
    HeteroData, ``x_dict`` (or ``x``) is a dictionary by type.
    """
    output, seeds = _logits(_matched(model, batch), batch), seeds_of(batch)
    if seeds is None or not isinstance(output, Tensor) or output.dim() == 0 or seeds >= output.shape[0]:
        return output
    return output[:seeds] if output.shape[0] == num_nodes_of(batch, None) else output


def _logits(output: Any, batch: Any) -> Any:
    """Of what models of `transformers` return, the logits."""
    if isinstance(output, Tensor):
        return output
    logits, mask = getattr(output, "logits", None), tensor(batch, "attention_mask")
    if not isinstance(logits, Tensor):
        return output
    if logits.dim() > 2 and mask is not None and mask.shape == logits.shape[:2] and not bool(mask.all()):
        raise GraphMaskError(
            f"Expected logits with one row per sequence, or sequences without padding, got {tuple(logits.shape)} and "
            "padding, whose logits mean nothing. Say which positions count: "
            "GraphMask(model, forward=lambda model, batch: model(**batch).logits[:, 0])."
        )
    return logits


def _matched(model: nn.Module, batch: Any) -> Tensor:
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return model(*batch)
    parameters = _parameters(type(model).forward)
    if not parameters:  # *args, which PyTorch Geometric's GAE passes on to its encoder
        raise GraphMaskError(
            f"Expected a forward with named arguments, which tell what of a batch they are, got *args in "
            f"{type(model).__name__}. {how_to_call.line(model)}"
        )
    required, reader = [name for name, is_required in parameters if is_required], adapter(batch)
    if len(required) == 1 and (required[0] == "batch" or reader.attribute(batch, required[0]) is None):
        return model(batch)
    arguments: dict[str, Any] = {}
    for name, is_required in parameters:
        value = reader.attribute(batch, name)
        if value is None and name == "batch" and isinstance(batch, Data):
            value = torch.zeros(num_nodes_of(batch, None) or 0, dtype=torch.long, device=_device(batch))  # one graph
        if value is not None:
            arguments[name] = value
        elif is_required:
            raise GraphMaskError(
                f"Expected the batch to have {name!r}, which {type(model).__name__}.forward asks for, found "
                f"{reader.contents(batch)}. Say how to call the model: "
                "GraphMask(model, forward=lambda model, batch: ...)."
            )
    if not reader.by_type:
        return model(**arguments)
    by_type = [name for name, value in arguments.items() if isinstance(value, dict) and not name.endswith("_dict")]
    if not by_type:
        return model(**arguments)
    try:
        return model(**arguments)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise GraphMaskError(
            f"Expected a model for heterogeneous graphs together with HeteroData, got {type(model).__name__}, which "
            f"does not take {', '.join(by_type)} as dictionaries by type ({type(error).__name__}: {error!s:.120}). "
            "Pass data.to_homogeneous(), make the model heterogeneous with torch_geometric.nn.to_hetero, or say how to "
            "call it: GraphMask(model, forward=lambda model, batch: ...)."
        ) from error


def check_forward(model: nn.Module) -> None:
    """Raise for a module that only contains others and cannot be called."""
    if not how_to_call.can_be_called(model):
        raise GraphMaskError(
            f"Expected a model that can be called, got {type(model).__name__}, which has no forward(). "
            f"{how_to_call.line(model)}"
        )


def check_cached(model: nn.Module) -> None:
    """Raise for layers with a cache that would send every batch along the edges of the first."""
    names = [name for name, module in model.named_modules() if getattr(module, "cached", False) is True]
    if names:
        raise GraphMaskError(
            f"Expected layers that look at each batch's own edges, got cached=True at {', '.join(map(repr, names))}: "
            f"such a layer keeps the first graph it sees. Set model.{names[0]}.cached = False (and the others'): "
            "weights stay as they are. Or fit on the one whole graph: fit([data])."
        )


@functools.cache
def _parameters(forward: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
    """What a model's forward asks for, without self, and whether it must be given.

    Reading a signature costs as much as a small layer.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    parameters = [p for p in inspect.signature(forward).parameters.values() if p.kind in kinds][1:]
    return tuple((parameter.name, parameter.default is inspect.Parameter.empty) for parameter in parameters)


def names_of(model: nn.Module) -> list[str]:
    """Names of the arguments of a model's forward, without self."""
    return [name for name, _ in _parameters(type(model).forward)]


def _device(batch: Data) -> torch.device | None:
    return next((value.device for value in batch.to_dict().values() if isinstance(value, Tensor)), None)


def call(forward: Forward, model: nn.Module, batch: Any) -> Tensor:
    """Run the model and check its output."""
    output = forward(model, batch)
    if not isinstance(output, Tensor):
        keys = list(output) if isinstance(output, Mapping) and output else [0]
        which = f", of {', '.join(map(repr, keys))}" if isinstance(output, Mapping) else ""
        raise GraphMaskError(
            f"Expected the model to return one tensor, got {type(output).__name__}. Pick the output to explain{which}: "
            f"GraphMask(model, forward=lambda model, batch: model(...)[{keys[0]!r}])."
        )
    if output.is_floating_point() and output.dim() == 0:
        raise GraphMaskError(
            "Expected a floating point output with one row per example, got "
            f"{output.dtype} of shape (): a squeeze() has taken the only example's row away, or all were summed. Write "
            "squeeze(-1) in the model, or GraphMask(model, forward=lambda model, batch: model(...).reshape(-1))."
        )
    if not output.is_floating_point():
        raise GraphMaskError(
            "Expected a floating point output with one row per example, got "
            f"{output.dtype} of shape {tuple(output.shape)}."
        )
    return output


#: What a model can be asked to run in. Not fp16: small slopes at the gates would vanish.
PRECISIONS = {"bf16": torch.bfloat16}


def check_precision(precision: str | None) -> str | None:
    if precision not in {None, *PRECISIONS}:
        raise GraphMaskError(f"Expected precision {' or '.join(map(repr, PRECISIONS))}, or none, got {precision!r}.")
    return precision


def in_precision(forward: Forward, precision: str | None) -> Forward:
    """Autocast for the model; its output, and all that is made of it, in full precision."""
    if precision is None:
        return forward

    def call(model: nn.Module, batch: Any) -> Tensor:
        device = next((p.device.type for p in model.parameters()), "cpu")
        with torch.autocast(device, PRECISIONS[precision]):
            output = forward(model, batch)
        return output.float() if isinstance(output, Tensor) and output.dtype in PRECISIONS.values() else output

    return call
