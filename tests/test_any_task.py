"""The same script on every task: what it says is checked, and is what is known to be true."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from test_examples import load

TASKS = ("graph classifier", "node classifier", "link predictor", "regressor", "heterogeneous model")


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield load("any_task", patch)


@pytest.fixture(scope="module")
def results(example: ModuleType) -> dict[str, dict[str, Any]]:
    return {
        name: example.explain(model, loader, data, **settings) | {"data": data, "settings": settings}
        for name, (model, loader, data, settings) in example.tasks().items()
    }


@pytest.mark.parametrize("name", TASKS)
def test_task(results: dict[str, dict[str, Any]], name: str) -> None:
    assert set(results) == set(TASKS)
    result = results[name]
    explanation, data = result["explanation"], result["data"]
    assert explanation.faithful
    assert explanation.divergence <= explanation.tolerance
    assert result["difference"] < 1e-5  # the masked model says what the explanation says it does
    index = result["settings"].get("index")
    assert explanation.index == (None if index is None else (index,))
    assert explanation.original.shape[0] == 1
    # All answers depend on edges from nodes of colour 0 alone.
    senders = explanation.edge_index[0, explanation.kept[0]]
    assert len(senders) > 0
    x = torch.cat(list(data.x_dict.values())) if name == "heterogeneous model" else data.x
    assert bool((x[senders, 0] == 1).all())
    if name == "link predictor":
        receivers = explanation.edge_index[1, explanation.carried[0]]
        assert bool(torch.isin(receivers, data.edge_label_index[:, index]).all())


def test_it_is_short_and_knows_no_task(example: ModuleType) -> None:
    source = textwrap.dedent(inspect.getsource(example.explain))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = {node.lineno for statement in function.body[1:] for node in ast.walk(statement) if hasattr(node, "lineno")}
    assert len(lines) + 1 <= 20
    assert not any(word in source for word in ("edge_label_index", "batch", "mse", "Graphs", "Links", "isinstance"))
