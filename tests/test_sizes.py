"""Modules and functions stay readable in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src/graphmask"
LINES_OF_A_MODULE, LINES_OF_A_FUNCTION = 400, 60


def test_no_module_is_too_long() -> None:
    sizes = {path.relative_to(SRC).as_posix(): len(path.read_text().splitlines()) for path in SRC.rglob("*.py")}
    assert {name: size for name, size in sizes.items() if size > LINES_OF_A_MODULE} == {}


def test_no_function_is_too_long() -> None:
    long = [
        f"{path.relative_to(SRC)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LINES_OF_A_FUNCTION
    ]
    assert long == []
