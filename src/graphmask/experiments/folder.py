"""What a run of a task leaves in its folder, and how `analyse` and `report` find it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch_geometric.data import Batch

from graphmask import experiments, files, store, team
from graphmask import explainer as explaining
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.common import singles
from graphmask.explainer import GraphMask

FIGURES, MODEL, EXPLAINER, EXPLANATIONS = "run.json", "model.safetensors", "explainer.graphmask", "explanations"


@dataclass
class Folder:
    """A finished run, read back."""

    path: Path
    figures: dict[str, Any]
    task: ModuleType
    model: nn.Module
    explainer: GraphMask
    store: store.Store

    @property
    def name(self) -> str:
        return self.figures["task"]

    @property
    def test(self) -> list[Batch]:
        """The graphs that were explained, drawn again."""
        return runner.draw(self.name, self.figures["seed"], runner.TEST_PART)


def task_of(path: Path) -> str | None:
    """Which task a folder is a finished run of; None if it is none."""
    return figures_of(path)["task"] if (path / FIGURES).exists() else None


def figures_of(path: Path, *needed: str) -> dict[str, Any]:
    """What `run.json` says, with these names in it."""
    figures = files.read_json(path / FIGURES)
    if not isinstance(figures, dict) or not isinstance(figures.get("task"), str) or not figures.keys() >= {*needed}:
        raise GraphMaskError(f"Expected the figures of a run at {path / FIGURES}, found a foreign file.")
    return figures


def describe(name: str, batch: Batch) -> list[dict[str, Any]]:
    """For each graph of a batch what a reader wants to see beside it."""
    found = []
    for graph in singles(batch):
        nodes, edges, notes = experiments.get(name).describe(graph)
        found.append({"node_labels": nodes, "edge_labels": edges, "notes": notes, "gold": graph.gold.t().tolist()})
    return found


def check_free(path: Path, **wanted: Any) -> None:
    """Raise if the folder holds a finished run with other settings: before any work, not after."""
    if not (path / FIGURES).exists():
        return
    found = figures_of(path)
    differ = [key for key, value in wanted.items() if found.get(key) != value]
    if differ:
        asked, other = (", ".join(f"{key} {each.get(key)!r}" for key in differ) for each in (wanted, found))
        raise GraphMaskError(
            f"Expected {path} to be free or to hold the same run ({asked}), found one with {other}. "
            "Pass another folder with --out, or delete this one."
        )


def write(path: Path, run: runner.Run, *, progress: bool = True) -> store.Store:
    """All explanations, as the gates are, without repair: those that the figures are of; model, gates and figures."""
    name = run.figures["task"]
    first = team.first()
    # First: it is refused if the folder has explanations by another explainer, and then nothing is touched.
    written = run.explainer.explain_all(
        run.test,
        out=path / EXPLANATIONS,
        metadata=lambda batch: describe(name, batch),
        repair=False,
        allow_infeasible=True,
        progress=progress and first,
    )
    if first:
        files.write(path / MODEL, "model", run.model.state_dict(), {"task": name, "seed": run.figures["seed"]})
        run.explainer.save(path / EXPLAINER)
        # Last: a folder with figures is complete.
        files.write_bytes(path / FIGURES, (json.dumps(run.figures, indent=2) + "\n").encode())
    return written


def read(path: Path) -> Folder:
    if not (path / FIGURES).is_file():
        raise GraphMaskError(f"Expected the folder of a finished run, found no {FIGURES} in {path}. Try: graphmask run")
    figures = figures_of(path)
    task = experiments.get(figures["task"])
    tensors, _ = files.read(path / MODEL, "model")
    with files.understood(path / FIGURES, "run"):
        model = task.make(seed=figures["seed"])
    with files.understood(path / MODEL, "model"):
        model.load_state_dict(tensors)
    model.eval()
    return Folder(path, figures, task, model, explaining.load(path / EXPLAINER, model), store.open(path / EXPLANATIONS))
