"""The paper's other methods and the field's, all used like `GraphMask`: ``methods.get(name)(model, ...)``."""

from __future__ import annotations

from graphmask.errors import GraphMaskError
from graphmask.explainer import GraphMask
from graphmask.explaining.method import Method
from graphmask.methods.attention_rollout import AttentionRollout
from graphmask.methods.attention_weights import AttentionWeights
from graphmask.methods.eig_search import EiGSearch
from graphmask.methods.erasure_search import ErasureSearch
from graphmask.methods.gate_scores import GateScores
from graphmask.methods.gnn_explainer import GNNExplainer
from graphmask.methods.grad_cam import GradCAM
from graphmask.methods.gradient_message import GradientMessage
from graphmask.methods.information_bottleneck import InformationBottleneck
from graphmask.methods.integrated_gradients import IntegratedGradients
from graphmask.methods.occlusion import Occlusion
from graphmask.methods.pg_explainer import PGExplainer
from graphmask.methods.random_choice import RandomChoice
from graphmask.methods.relevance import Relevance
from graphmask.methods.subgraphx import SubgraphX
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
        AttentionWeights,
        AttentionRollout,
        PGExplainer,
        Occlusion,
        GradientMessage,
        GradCAM,
        Relevance,
        EiGSearch,
        SubgraphX,
        RandomChoice,
    )
}


def register(name: str, method: type[Method]) -> type[Method]:
    """no"""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise GraphMaskError(f"Expected a subclass of graphmask.explaining.method.Method, got {method!r:.80}.")
    if METHODS.get(name, method) is not method:
        raise GraphMaskError(f"Expected a name that no other method has, got {name!r}, which is {METHODS[name]!r}.")
    if getattr(method, "name", name) != name:
        raise GraphMaskError(f"Expected the name that the class has, {method.name!r}, got {name!r}.")
    method.name = name
    METHODS[name] = method
    return method


def get(name: str) -> type[Method]:
    """The class of a method."""
    if name not in METHODS:
        raise GraphMaskError(f"Expected a method among {', '.join(METHODS)}, got {name!r}.")
    return METHODS[name]
