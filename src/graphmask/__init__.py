"""GraphMask: which edges did a graph neural network use, at which layer, and can I believe that?

>>> explainer = GraphMask(model)
>>> explainer.fit(loader)
>>> explanation = explainer.explain(data)
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from graphmask import _moved, methods
from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask, load
from graphmask.explanation import Explanation, set_page_writer
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.tapping.masking import masked
from graphmask.tapping.taps import AdjacencyTap, MessageTap


def _write_page(*args: Any, **kwargs: Any) -> Path:
    """`Explanation.to_html` calls this, so that drawing is loaded by those who draw."""
    from graphmask.report.build import write_page

    return write_page(*args, **kwargs)


_moved.install()
set_page_writer(_write_page)

__version__ = version("graphmask")
__all__ = [
    "AdjacencyTap",
    "Explanation",
    "GraphMask",
    "GraphMaskError",
    "HeteroExplanation",
    "MessageTap",
    "load",
    "masked",
    "methods",
]
