"""What a run of a study leaves in its folder, and how `analyse` and `report` find it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphmask import explainer as explaining
from graphmask import files, store, team
from graphmask.errors import GraphMaskError, check_known
from graphmask.experiments import study as studies
from graphmask.experiments.settings import STUDIES
from graphmask.experiments.study import EXPLAINER, EXPLANATIONS, FIGURES, MODEL, Context, Run


def task_of(path: Path) -> str | None:
    """Which task a folder is a finished run of; None if it is none."""
    return figures_of(path)["task"] if (path / FIGURES).exists() else None


def figures_of(path: Path, *needed: str) -> dict[str, Any]:
    """What `run.json` says, with these names in it."""
    figures = files.read_json(path / FIGURES)
    if not isinstance(figures, dict) or not isinstance(figures.get("task"), str) or not figures.keys() >= {*needed}:
        raise GraphMaskError(f"Expected the figures of a run at {path / FIGURES}, found a foreign file.")
    return figures


def check_free(path: Path, **wanted: Any) -> None:
    """Raise if the folder holds a finished run with other settings: before any work, not after."""
    if not (path / FIGURES).exists():
        return
    figures = figures_of(path)
    differ = [key for key, value in wanted.items() if figures.get(key) != value]
    if differ:
        asked, other = (", ".join(f"{key} {each.get(key)!r}" for key in differ) for each in (wanted, figures))
        raise GraphMaskError(
            f"Expected {path} to be free or to hold the same run ({asked}), found one with {other}. "
            "Pass another folder with --out, or delete this one."
        )


def write(path: Path, run: Run[Any, Any], *, progress: bool = True) -> store.Store:
    """A run that was made in memory: all explanations, then model, gates and figures."""
    first = team.first()
    # First: it is refused if the folder has explanations by another explainer, and then nothing is touched.
    written = run.study.write(run.corpus, run.model, run.explainer, path, progress=progress and first)
    if first:
        save(path, run)
    return written


def save(path: Path, run: Run[Any, Any]) -> None:
    """Model, gates and figures of a run whose explanations are in the folder."""
    about = {"task": run.study.settings.task, "seed": run.study.settings.seed}
    files.write(path / MODEL, "model", run.model.state_dict(), about)
    run.explainer.save(path / EXPLAINER)
    # Last: a folder with figures is complete.
    files.write_bytes(path / FIGURES, (json.dumps(run.figures, indent=2) + "\n").encode())


def read(path: Path) -> Run[Any, Any]:
    """A finished run, read back; data from files must still be where they were."""
    if not (path / FIGURES).is_file():
        raise GraphMaskError(f"Expected the folder of a finished run, found no {FIGURES} in {path}. Try: graphmask run")
    task = check_known("a task", figures_of(path)["task"], STUDIES)
    figures = figures_of(path, *STUDIES[task].recorded)
    with files.understood(path / FIGURES, "run"):
        study = studies.of(STUDIES[task].of_run(figures))
    tensors, _ = files.read(path / MODEL, "model")
    corpus = study.prepare(Context(path, progress=False), finished=path)
    with files.understood(path / FIGURES, "run"):
        model = study.make(corpus)
    with files.understood(path / MODEL, "model"):
        model.load_state_dict(tensors)
    model.eval()
    explainer = explaining.load(path / EXPLAINER, model, forward=study.forward)
    return Run(study, path, figures, corpus, model, explainer, store.open(path / EXPLANATIONS))
