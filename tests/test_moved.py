"""Programs written against former import paths run, and get the very same objects."""

from __future__ import annotations

import importlib
import sys

import pytest

from graphmask._moved import MOVED
from reference import fresh

#: What README, docs and examples of 0.1 imported from.
DOCUMENTED = [
    ("graphmask.training", "Recipe"),
    ("graphmask.recipe", "Recipe"),
    ("graphmask.history", "History"),
    ("graphmask.loaders", "KHopLoader"),
    ("graphmask.messages", "Messages"),
    ("graphmask.hard_concrete", "sample"),
    ("graphmask.gates", "EdgeGate"),
    ("graphmask.batches", "default_forward"),
    ("graphmask.hetero", "HeteroExplanation"),
    ("graphmask.method", "Method"),
    ("graphmask.case", "Choice"),
    ("graphmask.masking", "masked"),
    ("graphmask.tasks.star_graphs", "StarModel"),
]


@pytest.mark.parametrize("former", sorted(MOVED))
def test_a_former_name_is_the_same_module(former: str) -> None:
    assert importlib.import_module(f"graphmask.{former}") is importlib.import_module(f"graphmask.{MOVED[former]}")


@pytest.mark.parametrize(("module", "name"), DOCUMENTED)
def test_documented_names(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    assert found is getattr(sys.modules[found.__module__], name)
    assert "graphmask." in found.__module__


def test_modules_inside_a_package_that_moved_are_loaded_once() -> None:
    code = (
        "import graphmask.tasks.relay, graphmask.experiments.relay, sys\n"
        "import graphmask.tasks.qa.questions as former\n"
        "from graphmask.experiments.qa import questions\n"
        "from graphmask import training\n"
        "import graphmask.training\n"
        "assert graphmask.tasks.relay is graphmask.experiments.relay\n"
        "assert former is questions and former.__name__ == 'graphmask.experiments.qa.questions'\n"
        "assert former.__spec__.name == former.__name__\n"
        "assert training is graphmask.training is sys.modules['graphmask.fitting.training']\n"
    )
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr


def test_what_was_renamed_says_so() -> None:
    from graphmask.tapping import restore

    with pytest.warns(DeprecationWarning, match="called restored"):
        assert restore.guest is restore.restored  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nothing"):
        restore.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("graphmask.trainings")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("graphmask.tasks.nothing")
