"""Tasks with known answers: data, model and gold explanations."""

from __future__ import annotations

from types import ModuleType

from graphmask.errors import GraphMaskError
from graphmask.experiments import relay, star_graphs

TASKS: dict[str, ModuleType] = {"star": star_graphs, "relay": relay}


def get(name: str) -> ModuleType:
    """The module of a task: ``generate``, ``train``, ``accuracy``."""
    if name not in TASKS:
        raise GraphMaskError(f"Expected a task among {', '.join(TASKS)}, got {name!r}.")
    return TASKS[name]
