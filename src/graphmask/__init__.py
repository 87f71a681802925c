"""GraphMask: which edges did a graph neural network use, at which layer, and can I believe that?

>>> explainer = GraphMask(model)
>>> explainer.fit(loader)
>>> explanation = explainer.explain(data)
"""

from importlib.metadata import version

from graphmask import _moved, methods
from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask, load
from graphmask.explanation import Explanation
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.tapping.masking import masked
from graphmask.tapping.taps import AdjacencyTap, MessageTap

_moved.install()

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
