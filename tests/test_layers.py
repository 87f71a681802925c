"""Every module imports only from layers below its own, and no two modules import each other, however indirectly.

All imports count: those inside functions and those for type checkers too, which a program that runs would not notice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

#: From the bottom up. A name stands for a module or for a package with all in it; CONTRIBUTING.md has the reasons.
LAYERS = (
    "errors",
    "_moved",
    "bars",
    "hooks",
    "words",
    "launch",
    "texts",
    "devices",
    "divergence",
    "files",
    "locks",
    "team",
    "graphs",
    "ops",
    "config",
    "tapping",
    "gates",
    "fitting",
    "explained_features",
    "explanation_contents",
    "explanation",
    "hetero_explanation",
    "labels",
    "store",
    "explaining",
    "explainer",
    "methods",
    "analysis",
    "report",
    "comparing",
    "integrations",
    "experiments",
    "experiments.bench",
    "graphmask",  # the package's own __init__, which puts the parts together
    "cli",
    "__main__",
)


def module_of(path: Path, src: Path) -> str:
    name = ".".join(path.relative_to(src).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports(source: str, module: str, modules: set[str], package: bool) -> Iterator[str]:
    """The modules of ours that a source text names in import statements, wherever these stand."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "graphmask":
                    yield alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if package else module.split(".")[:-1]
            start = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            if base.split(".")[0] == "graphmask":
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield inner if inner in modules else base


def graph(src: Path = SRC) -> dict[str, set[str]]:
    """Module -> the modules it imports."""
    paths = {module_of(path, src): path for path in (src / "graphmask").rglob("*.py")}
    return {
        module: set(imports(path.read_text(), module, set(paths), path.name == "__init__.py")) - {module}
        for module, path in paths.items()
    }


def layer(module: str) -> str:
    """The most specific entry of LAYERS that a module belongs to."""
    inner = module.removeprefix("graphmask.")
    fitting = [name for name in LAYERS if inner == name or inner.startswith(f"{name}.")]
    assert fitting, f"{module} stands in no layer: add it to LAYERS"
    return max(fitting, key=len)


def upward(edges: dict[str, set[str]]) -> list[str]:
    rank = {name: number for number, name in enumerate(LAYERS)}
    return [
        f"{module} imports {other}"
        for module, others in sorted(edges.items())
        for other in sorted(others)
        if rank[layer(other)] > rank[layer(module)]
    ]


def cycle(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_leads_upwards() -> None:
    assert upward(graph()) == []


def test_no_cycle_between_modules() -> None:
    assert cycle(graph()) == []


def test_every_layer_is_there() -> None:
    used = {layer(module) for module in graph()}
    assert [name for name in LAYERS if name not in used] == []


@pytest.mark.parametrize(
    "line",
    [
        "from graphmask.cli import common",
        "def f():\n    import graphmask.cli.common",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from graphmask import cli",
        "from .cli import common",
        "class A:\n    def f(self):\n        from graphmask.cli.common import show",
    ],
)
def test_hidden_imports_are_seen(line: str, tmp_path: Path) -> None:
    for name, text in {"__init__": "", "errors": line, "cli/__init__": "", "cli/common": ""}.items():
        path = tmp_path / "graphmask" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (found,) = upward(graph(tmp_path))
    assert found.startswith("graphmask.errors imports graphmask.cli")


def test_a_cycle_is_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    assert not cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
