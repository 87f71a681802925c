"""After ``import graphmask``, everything that the documentation names is there, and nothing was loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import graphmask
from reference import fresh


def test_importing_loads_nothing_heavy() -> None:
    code = "import graphmask, sys; print(sorted({'torch', 'torch_geometric', 'polars', 'matplotlib'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NAMES = [
    "GraphMask", "Explanation", "load", "masked", "analysis.erosion", "report.build.write_report", "store.open",
    "loaders.KHopLoader", "integrations.pyg.GraphMaskAlgorithm", "methods.get", "report.figures.curve",
]  # fmt: skip


def test_what_the_docs_name_needs_no_import_of_its_own() -> None:
    code = f"import graphmask; print({', '.join(f'callable(graphmask.{name})' for name in NAMES)})"
    done = fresh.run(code)
    assert done.stdout.split() == ["True"] * len(NAMES), done.stderr


def test_every_public_name_is_found_and_others_are_not() -> None:
    for name in graphmask.__all__:
        assert getattr(graphmask, name) is not None
        assert name in dir(graphmask)
    with pytest.raises(AttributeError, match="has no attribute 'GraphMsk'"):
        graphmask.GraphMsk  # noqa: B018
    with pytest.raises(AttributeError, match=r"graphmask\.report.*'nothing'"):
        graphmask.report.nothing  # noqa: B018
