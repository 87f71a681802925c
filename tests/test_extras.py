"""What is missing is said, with the extra that brings it; `make extras` installs each extra alone."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphmask import GraphMaskError, methods
from graphmask.analysis import tables
from graphmask.experiments.bench import transformer
from graphmask.experiments.qa import mentions
from graphmask.report import molecule, plot
from graphmask.store import files
from laws.cases import BY_NAME

CASE = BY_NAME["GCN"]


def _integrated() -> Any:
    method = methods.METHODS["integrated_gradients"](CASE.model())
    method.fit(CASE.loader(1, 1), progress=False)
    return method.explain(CASE.graphs(1)[0])


#: Of each extra, a package that it brings and what cannot be done without it.
ASKED: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "methods": ("methods", "captum.attr", _integrated),
    "plot": ("plot", "matplotlib.pyplot", lambda: plot.axes(None, (1, 1))),
    "store": ("store", "pyarrow.parquet", files.require),
    "store, tables": ("store", "polars", tables.load_polars),
    "qa": ("qa", "spacy", mentions._tokeniser.__wrapped__),
    "transformers": ("transformers", "transformers", transformer.make),
    "chem": ("chem", "rdkit.Chem", lambda: molecule.read("CO", 2)),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_missing_package_is_asked_for_by_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, package, ask = ASKED[name]
    monkeypatch.setitem(sys.modules, package.split(".")[0], None)  # import raises
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GraphMaskError, match=rf"pip install graphmask\[{extra}\]"):
        ask()


def test_processes_without_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphmask import team

    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setattr(team, "launched", lambda: 2)
    with pytest.raises(GraphMaskError, match=r"pip install graphmask\[distributed\]"):
        team.team()


def test_every_extra_is_tried_alone() -> None:
    root = Path(__file__).parents[1]
    tool: dict[str, Any] = {"__name__": "extras", "__file__": str(root / "tools" / "extras.py")}
    exec(compile((root / "tools" / "extras.py").read_text(), "extras.py", "exec"), tool)
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*tool["PARTS"]} - {"", "no compiler"} == {*extras} - {"all", "docs", "dev"}
    for tests in tool["PARTS"].values():
        assert all((root / "tests" / test.split("::")[0]).exists() for test in tests)
