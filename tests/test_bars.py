"""One module draws progress bars."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

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


def test_items_are_counted_as_they_are_used() -> None:
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        made = []
        real = bars.bar
        patch.setattr(bars, "bar", lambda *args, **kwargs: made.append(real(*args, **kwargs)) or made[-1])
        for item in bars.through(["a", "b"], "letters", enabled=False):
            (task,) = made[0].tasks
            seen.append((item, task.completed, task.total, task.description))
        assert made[0].tasks[0].completed == 2
        assert list(bars.through(iter("xyz"), "letters", enabled=False)) == ["x", "y", "z"]
        assert made[1].tasks[0].total is None
    assert seen == [("a", 0, 2, "letters"), ("b", 1, 2, "letters")]


#: A second's work.
SHORT = {"experiments/bench/matrix.py", "experiments/bench/small.py", "experiments/bench/first.py"}


def test_every_measurement_has_a_bar() -> None:
    """A module of the benchmarks that has a function `measure` draws a bar in it, or in what it calls it for."""
    bare = set()
    for path in (SRC / "experiments/bench").rglob("*.py"):
        tree = ast.parse(path.read_text())
        measures = any(
            isinstance(node, ast.FunctionDef) and node.name in ("measure", "measure_all") for node in tree.body
        )
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("graphmask.bars", "graphmask")
            for alias in node.names
        }
        if measures and not names & {"steps", "through", "bars"}:
            bare.add(path.relative_to(SRC).as_posix())
    # One fit of one model of the battery: `run.measure_all` has the bar over all of them.
    # And the ablation calls that once per variant.
    assert bare == SHORT | {"experiments/bench/battery/measure.py", "experiments/bench/ablation.py"}


def test_long_steps_of_commands_show_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting, explaining to a folder, analysing, reporting, comparing, training star and relay: each asks for one."""
    import torch
    from torch import nn
    from torch_geometric.data import Data
    from torch_geometric.nn import GCNConv

    import graphmask
    from graphmask import GraphMask
    from graphmask.analysis import everything
    from graphmask.cli import tables
    from graphmask.experiments import star_graphs
    from graphmask.report.build import write_report
    from graphmask.store import writing
    from reference.hasty import HASTY

    shown: list[bool] = []
    real = bars.bar

    def watched(title: str = "", *, enabled: bool) -> object:
        shown.append(enabled)
        return real(title, enabled=False)

    for name, module in list(sys.modules.items()):
        if name.startswith("graphmask") and vars(module).get("bar") is real:
            monkeypatch.setattr(module, "bar", watched)

    # That of a store is for terminals only.
    monkeypatch.setattr(writing, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))

    def bars_of(work: Callable[[], object]) -> list[bool]:
        shown.clear()
        work()
        return list(shown)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = GCNConv(3, 2)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv(x, edge_index)

    generator = torch.Generator().manual_seed(0)
    data = [
        Data(x=torch.randn(5, 3, generator=generator), edge_index=torch.randint(5, (2, 9), generator=generator))
        for _ in range(4)
    ]
    explainer = GraphMask(Model().eval(), recipe=HASTY)
    assert bars_of(lambda: explainer.fit(data)) == [True]
    assert bars_of(lambda: explainer.explain_all(data, out=tmp_path / "store", allow_infeasible=True)) == [True]
    opened = graphmask.store.open(tmp_path / "store")
    assert bars_of(lambda: tables.collect(everything.of_store(opened)[:2])) == [True]
    assert bars_of(lambda: write_report(tmp_path / "page.html", opened, progress=True)) == [True, True]
    assert bars_of(lambda: write_report(tmp_path / "page.html", opened)) == [False, False]
    assert bars_of(lambda: star_graphs.train(seed=0, graphs=64, progress=True)) == [True]
    assert bars_of(lambda: graphmask.compare(explainer.model, data[:3], methods=["random"], seeds=1)) == [True]
