"""GraphMask: which edges did a graph neural network use, at which layer, and can I believe that?

>>> explainer = GraphMask(model)
>>> explainer.fit(loader)
>>> explanation = explainer.explain(data)

Names are imported when they are first used: ``import graphmask`` and ``graphmask --help`` cost nothing, and
``graphmask.analysis``, ``graphmask.report``, ``graphmask.store`` and others need no import of their own.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphmask import analysis, integrations, methods, report, store
    from graphmask.errors import GraphMaskError
    from graphmask.explainer import GraphMask, load
    from graphmask.explanation import Explanation
    from graphmask.graphs import loaders
    from graphmask.hetero_explanation import HeteroExplanation
    from graphmask.tapping.masking import masked
    from graphmask.tapping.taps import AdjacencyTap, MessageTap

__version__ = version("graphmask")
__all__ = [
    "AdjacencyTap",
    "Explanation",
    "GraphMask",
    "GraphMaskError",
    "HeteroExplanation",
    "MessageTap",
    "analysis",
    "integrations",
    "load",
    "loaders",
    "masked",
    "methods",
    "report",
    "store",
]

#: Where each name lives; None for a module of that name.
_HOMES = {
    "AdjacencyTap": "taps",
    "Explanation": "explanation",
    "GraphMask": "explainer",
    "GraphMaskError": "errors",
    "HeteroExplanation": "hetero",
    "MessageTap": "taps",
    "load": "explainer",
    "masked": "masking",
    **dict.fromkeys(("analysis", "integrations", "loaders", "methods", "report", "store")),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graphmask' has no attribute {name!r}")
    home = _HOMES[name]
    found = import_module(f"graphmask.{name}") if home is None else getattr(import_module(f"graphmask.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
