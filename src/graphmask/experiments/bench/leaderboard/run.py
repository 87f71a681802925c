"""The whole leaderboard: set by set, written as it comes, so that a run that was killed goes on where it was."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench.leaderboard import ours, shipped
from graphmask.experiments.bench.leaderboard.figures import FIGURES, summary
from graphmask.experiments.bench.leaderboard.sets import SETS, Board
from graphmask.files import write_bytes

#: Predictions explained per method and seed: as many as its time allows.
INSTANCES = {
    "graphmask": 60,
    "pyg_gnn_explainer": 10,
    "pyg_pg_explainer": 60,
    "pyg_graphmask_explainer": 1,
    "pyg_captum_explainer": 15,
    "random": 60,
}


def measure(
    sets: Sequence[str], methods: Sequence[str], seeds: int, out: Path, *, progress: bool = True
) -> dict[str, Any]:
    """Figures of every set in full; one file per set in ``out``, and what is there already is not measured again."""
    for kind, known, wanted in (("set", SETS, sets), ("method", INSTANCES, methods)):
        for name in wanted:
            if name not in known:
                raise GraphMaskError(f"Expected a {kind} among {', '.join(known)}, got {name!r}.")
    if seeds < 1:
        raise GraphMaskError(f"Expected at least one seed, got {seeds}.")
    by_set = {}
    with runner.one_thread(), steps(len(sets) * (len(methods) + 1), enabled=progress) as step:
        for name in sets:
            path = out / f"{name}.json"
            by_set[name] = _known(path, seeds)
            missing = [method for method in methods if method not in by_set[name]["methods"]]
            step(f"{name}: training the model")
            board = SETS[name]() if missing else None
            for method in methods:
                step(f"{name}: {method}")
                if board is not None and method in missing:
                    by_set[name] |= {"accuracy": board.accuracy}
                    by_set[name]["methods"][method] = _line(method, board, seeds)
                    write_bytes(path, (json.dumps(by_set[name], indent=2) + "\n").encode())
    return by_set


def _known(path: Path, seeds: int) -> dict[str, Any]:
    if path.exists():
        before = json.loads(path.read_text())
        if before["seeds"] == seeds:
            return before
    return {"seeds": seeds, "methods": {}}


def _line(method: str, board: Board, seeds: int) -> dict[str, Any]:
    questions = board.questions[: INSTANCES[method]]
    if method == "graphmask":
        fits = [ours.run(board, seed, questions) for seed in range(seeds)]
        return {
            **summary(questions, [fit.answers for fit in fits], [fit.ms for fit in fits]),
            "ms_alone": statistics.fmean(fit.ms_alone for fit in fits),
            "retained": [fit.retained for fit in fits],
            "feasible": [fit.feasible for fit in fits],
            "fit_seconds": [fit.seconds for fit in fits],
        }
    if method == "random":
        generator = torch.Generator().manual_seed(0)
        draws = [[torch.rand(len(q.gold), generator=generator) for q in questions] for _ in range(seeds)]
        return summary(questions, [shipped.judge(board, questions, draw) for draw in draws], [0.0])
    try:
        runs = [shipped.run(method, board, seed, questions) for seed in range(seeds)]
    except GraphMaskError as error:
        return {**dict.fromkeys(FIGURES), "error": str(error).split("\n")[0][:300]}
    answers = [shipped.judge(board, questions, run.scores) for run in runs]
    line = summary(questions, answers, [run.ms for run in runs])
    line["ms_alone"] = statistics.fmean(run.ms_alone for run in runs)
    notes = sorted({note for run in runs for note in run.notes})
    return {**line, **({"notes": notes} if notes else {})}


#: Beside the six figures: why there are none, and what else the page says of a method.
FURTHER = ("error", "notes", "ms_alone", "retained", "feasible", "fit_seconds")


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The JSON of the leaderboard: figures per set and method, and the accuracy of every set's model."""
    return {
        "accuracy": {name: about["accuracy"] for name, about in found.items()},
        "sets": {
            name: {
                method: {key: line[key] for key in sorted((*FIGURES, *FURTHER)) if key in line}
                for method, line in about["methods"].items()
            }
            for name, about in found.items()
        },
    }
