"""One module draws progress bars."""

from __future__ import annotations

import ast
from pathlib import Path

from graphmask import bars

SRC = Path(__file__).parents[1] / "src/graphmask"


def test_a_step_counts_when_the_next_begins() -> None:
    with bars.steps(3, enabled=False) as step, bars.bar(enabled=False) as bar:
        shown = step.__closure__
        assert shown is not None
        progress = next(cell.cell_contents for cell in shown if isinstance(cell.cell_contents, type(bar)))
        seen = []
        for name in ("one", "two", "three"):
            step(name)
            (task,) = progress.tasks
            seen.append((task.description, task.completed, task.total))
    assert seen == [("one", 0, 3), ("two", 1, 3), ("three", 2, 3)]


def test_no_other_module_makes_one() -> None:
    found = set()
    for path in SRC.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for_types = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "rich.progress" and node not in for_types:
                found.add(path.relative_to(SRC).as_posix())
    assert found == {"bars.py"}
