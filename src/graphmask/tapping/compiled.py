"""Models compiled by `torch.compile`: the same modules run uncompiled, so that hooks see their messages.

The compiled form computes the same function with the same weights, up to rounding. It is bypassed inside `eager`, and
used again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from graphmask.errors import GraphMaskError


def original(model: Any) -> Any:
    """The module that was passed to `torch.compile`, where that returned a wrapper; anything else unchanged."""
    while _is_wrapper(model):
        model = model._orig_mod
    return model


def is_compiled(module: nn.Module) -> bool:
    """Compiled by ``torch.compile(module)`` or ``module.compile()``."""
    return module._compiled_call_impl is not None or _is_wrapper(module)


def eager(modules: Iterable[nn.Module]) -> AbstractContextManager[Any]:
    """A context in which compiled modules among these run uncompiled."""
    return torch.compiler.set_stance("force_eager") if any(map(is_compiled, modules)) else nullcontext()


def check(name: str, module: nn.Module) -> None:
    """Raise for compiled models that cannot be run uncompiled."""
    if isinstance(module, torch.jit.ScriptModule):
        raise GraphMaskError(
            f"Expected a plain PyTorch model, got one compiled with torch.jit (module {name!r}): its messages cannot "
            "be intercepted. Pass the model as it was before compilation; the weights are shared."
        )
    if is_compiled(module) and not hasattr(torch.compiler, "set_stance"):
        raise GraphMaskError(
            f"Expected a model without compiled parts, or PyTorch 2.6 where these can be passed over, got one compiled "
            f"with torch.compile (module {name!r}) and PyTorch {torch.__version__}. Pass the model as it was before "
            "compilation; the weights are shared."
        )


def _is_wrapper(module: Any) -> bool:
    # By name: to import the class takes seconds where nothing was compiled.
    return type(module).__name__ == "OptimizedModule" and isinstance(module, nn.Module)
