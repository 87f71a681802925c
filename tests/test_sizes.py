"""Modules and functions stay readable in one sitting: 400 lines, 60 lines, 25 branches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src/graphmask"
LINES_OF_A_MODULE, LINES_OF_A_FUNCTION, BRANCHES = 400, 60, 25

#: Every place at which a function can go two ways, expressions and loops over comprehensions too.
BRANCHING = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """All that stands in a function, without the functions and classes that are defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from inside(child)


def branches(function: ast.AST) -> int:
    found = [*inside(function)]
    operators = sum(len(node.values) - 1 for node in found if isinstance(node, ast.BoolOp))
    conditions = sum(len(node.ifs) for node in found if isinstance(node, ast.comprehension))
    return sum(isinstance(node, BRANCHING) for node in found) + operators + conditions


def test_no_module_is_too_long() -> None:
    sizes = {path.relative_to(SRC).as_posix(): len(path.read_text().splitlines()) for path in SRC.rglob("*.py")}
    assert {name: size for name, size in sizes.items() if size > LINES_OF_A_MODULE} == {}


def test_no_function_is_too_long() -> None:
    long = [
        f"{path.relative_to(SRC)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_no_function_has_too_many_branches() -> None:
    counted = {
        f"{path.relative_to(SRC)}:{node.lineno} {node.name}": branches(node)
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function)
    }
    assert len(counted) > 2000
    assert {name: count for name, count in counted.items() if count > BRANCHES} == {}


def test_branches_are_counted() -> None:
    text = """
def f(a, b):
    if a and b or not a:
        return [x for x in a if x]
    elif b:
        try:
            return 1 if a else 2
        except ValueError:
            pass
    def inner():
        while True:
            pass
    """
    # if, and, or, for, if, elif, if, except; the loop of `inner` counts for `inner` alone.
    assert branches(ast.parse(text).body[0]) == 8
