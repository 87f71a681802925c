"""Studies, each from data to tables and pages (`settings.STUDIES`), and the tasks with known answers among them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from graphmask.errors import check_known
from graphmask.experiments.settings import KNOWN

#: Names of the tasks with known answers.
TASKS = tuple(KNOWN)


def get(name: str) -> ModuleType:
    """The module of a task with a known answer: ``generate``, ``make``, ``train``, ``accuracy``, ``describe``."""
    return import_module(KNOWN[check_known("a task", name, TASKS)].module)
