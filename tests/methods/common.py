"""The methods with few steps, and tools that several of their tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.divergence import Divergence
from graphmask.explaining.case import Case
from graphmask.explaining.method import Method
from graphmask.graphs import batches
from graphmask.methods import METHODS, get
from graphmask.tapping.restore import freeze, restored
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import record

NAMES = [name for name in METHODS if name != "graphmask"]  # it has laws of its own
#: Methods that say nothing of models without attention.
OF_ATTENTION = ("gate_scores", "attention_weights", "attention_rollout")
#: By a name of ours: the method, and options with which it is quick.
QUICK: dict[str, tuple[str, dict[str, Any]]] = {
    "erasure_search": ("erasure_search", {"budget": 32}),
    "integrated_gradients": ("integrated_gradients", {"steps": 8}),
    "information_bottleneck": ("information_bottleneck", {"steps": 6}),
    "gnn_explainer": ("gnn_explainer", {"steps": 10}),
    "unamortised": ("unamortised", {"steps": 10, "learning_rate": 0.5}),
    "unamortised, free baselines": ("unamortised", {"steps": 10, "learning_rate": 0.5, "free_baselines": True}),
    "gate_scores": ("gate_scores", {}),
    "attention_weights": ("attention_weights", {}),
    "attention_rollout": ("attention_rollout", {}),
    "pg_explainer": ("pg_explainer", {"steps": 6}),
    "occlusion": ("occlusion", {}),
    "gradient_message": ("gradient_message", {}),
    "grad_cam": ("grad_cam", {}),
    "lrp": ("lrp", {}),
    "eig_search": ("eig_search", {}),
    "subgraphx": ("subgraphx", {"rollouts": 2, "children": 2, "samples": 4, "least": 3}),
    "random": ("random", {}),
}
assert {name for name, _ in QUICK.values()} == set(NAMES)


def quick(name: str, model: nn.Module, *args: Any, **more: Any) -> Method:
    method, options = QUICK[name]
    return get(method)(model, *args, **(options | more))


def case_of(model: nn.Module, batch: Any, divergence: str = "kl", tolerance: float = 0.03, forward: Any = None) -> Case:
    """A batch under explanation, of a model in evaluation mode."""
    subject = Subject(model, forward or batches.default_forward, Divergence(divergence))
    trace = record(subject, batch, lambda m: torch.zeros(m.source.shape))
    subject.divergence.resolve(trace.output)
    return Case(subject.at(trace.sites), tolerance, batch, trace)


@contextmanager
def training(method: Method) -> Iterator[None]:
    """The model as it is while a method is fitted."""
    with restored(method.model):
        freeze(method.model, training=True)
        yield


def gates(kept: set[tuple[int, int]], like: Tensor) -> Tensor:
    """The set as bool [L, E]."""
    found = torch.zeros(like.shape, dtype=torch.bool)
    for place in kept:
        found[place] = True
    return found
