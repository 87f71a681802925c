"""Names that help and suggestions need, without importing what they name: that would take seconds."""

from __future__ import annotations

from graphmask.errors import check_known as check
from graphmask.errors import check_least
from graphmask.experiments import TASKS
from graphmask.experiments.settings import PRECISIONS

__all__ = ["METHODS", "PRECISIONS", "TASKS", "check", "check_least"]

#: tests/test_cli.py holds these against the methods that there are.
METHODS = (
    "graphmask",
    "erasure_search",
    "integrated_gradients",
    "information_bottleneck",
    "gnn_explainer",
    "unamortised",
    "gate_scores",
    "attention_weights",
    "attention_rollout",
    "pg_explainer",
    "occlusion",
    "gradient_message",
    "grad_cam",
    "lrp",
    "eig_search",
    "subgraphx",
    "random",
)
