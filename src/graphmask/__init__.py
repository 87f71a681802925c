"""GraphMask: which edges did a graph neural network use, at which layer, and can I believe that?

>>> explainer = GraphMask(model)
>>> explainer.fit(loader)
>>> explanation = explainer.explain(data)
"""

from importlib.metadata import version

from graphmask import methods
from graphmask.attention_taps import AttentionTap
from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask, load
from graphmask.explanation import Explanation
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.tapping.masking import masked
from graphmask.tapping.taps import AdjacencyTap, MessageTap

__version__ = version("graphmask")
__all__ = [
    "AdjacencyTap",
    "AttentionTap",
    "Explanation",
    "GraphMask",
    "GraphMaskError",
    "HeteroExplanation",
    "MessageTap",
    "load",
    "masked",
    "methods",
]
