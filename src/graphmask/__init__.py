"""GraphMask: which edges did a graph neural network use, at which layer, and can I believe that?

>>> explainer = GraphMask(model)
>>> explainer.fit(loader)
>>> explanation = explainer.explain(data)

A public name is loaded when it is first asked for, with what it needs: ``graphmask --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphmask import _moved, hooks

if TYPE_CHECKING:
    from graphmask import analysis, integrations, methods, report, store
    from graphmask.comparing import Comparison, compare
    from graphmask.config import show_config
    from graphmask.errors import GraphMaskError
    from graphmask.explainer import GraphMask, load
    from graphmask.explanation import Explanation
    from graphmask.graphs import loaders
    from graphmask.hetero_explanation import HeteroExplanation
    from graphmask.tapping.attention_taps import AttentionTap
    from graphmask.tapping.masking import masked
    from graphmask.tapping.taps import AdjacencyTap, MessageTap

    __version__: str

__all__ = [
    "AdjacencyTap",
    "AttentionTap",
    "Comparison",
    "Explanation",
    "GraphMask",
    "GraphMaskError",
    "HeteroExplanation",
    "MessageTap",
    "analysis",
    "compare",
    "integrations",
    "load",
    "loaders",
    "masked",
    "methods",
    "report",
    "show_config",
    "store",
]

#: Public name -> the module that has it.
_WHERE = {
    "AdjacencyTap": "tapping.taps",
    "AttentionTap": "tapping.attention_taps",
    "Comparison": "comparing",
    "Explanation": "explanation",
    "GraphMask": "explainer",
    "GraphMaskError": "errors",
    "HeteroExplanation": "hetero_explanation",
    "MessageTap": "tapping.taps",
    "compare": "comparing",
    "load": "explainer",
    "masked": "tapping.masking",
    "show_config": "config",
}


def __getattr__(name: str) -> Any:
    """A public name, the version, or a module of this package, former names included."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("graphmask")
    elif name in _WHERE:
        value = getattr(importlib.import_module(f"graphmask.{_WHERE[name]}"), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'graphmask' has no attribute {name!r}")
    else:
        try:
            return importlib.import_module(f"graphmask.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"graphmask.{name}":
                raise  # the module is there, and something it needs is not
            raise AttributeError(f"module 'graphmask' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _report(name: str) -> Any:
    module, function = name.split(".")
    return getattr(importlib.import_module(f"graphmask.report.{module}"), function)


def _hetero() -> Callable[..., HeteroExplanation]:
    from graphmask.hetero_explanation import read

    return read


_moved.install()
hooks.report = _report
hooks.kinds["graphmask.hetero"] = _hetero
