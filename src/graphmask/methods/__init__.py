"""The paper's other methods and the field's, all used like `GraphMask`: ``methods.get(name)(model, ...)``."""

from __future__ import annotations

from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask
from graphmask.explaining.method import Method
from graphmask.methods.erasure_search import ErasureSearch
from graphmask.methods.gate_scores import GateScores
from graphmask.methods.gnn_explainer import GNNExplainer
from graphmask.methods.information_bottleneck import InformationBottleneck
from graphmask.methods.integrated_gradients import IntegratedGradients
from graphmask.methods.occlusion import Occlusion
from graphmask.methods.pg_explainer import PGExplainer
from graphmask.methods.random_choice import RandomChoice
from graphmask.methods.unamortised import Unamortised

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        GraphMask,
        ErasureSearch,
        IntegratedGradients,
        InformationBottleneck,
        GNNExplainer,
        Unamortised,
        GateScores,
        PGExplainer,
        Occlusion,
        RandomChoice,
    )
}


def get(name: str) -> type[Method]:
    """The class of a method."""
    if name not in METHODS:
        raise GraphMaskError(f"Expected a method among {', '.join(METHODS)}, got {name!r}.")
    return METHODS[name]
