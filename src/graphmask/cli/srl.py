"""What `graphmask run srl` and `graphmask analyse` do for semantic role labelling."""

from __future__ import annotations

import json as js
from pathlib import Path

from graphmask.cli.common import console, show, write_json

TIMES = ("train_cpu_seconds", "fit_seconds")
ROWS = ("f1", "masked_f1", "f1_change", "retained", "divergence", "flips", "faithful", *TIMES)


def run(
    model: str,
    seed: int,
    tolerance: float | None,
    data: Path | None,
    preset: str,
    out: Path | None,
    json: Path | None,
    *,
    predicted: bool,
) -> None:
    from graphmask.experiments.srl import experiment
    from graphmask.store.files import require

    require()  # what is written at the end must not fail for a missing package
    out = out or Path("out") / f"srl-{model}"
    console.print(f"training and explaining the {model} labeller; an interrupted run goes on: {out}", highlight=False)
    found = experiment.run(
        model, out, folder=data, preset=preset, seed=seed, tolerance=tolerance, predicted=predicted
    ).figures
    show(f"srl, {model}, seed {seed}: test data", ["figure", "value"], [[key, found[key]] for key in ROWS])
    kinds = [[kind, row["examples"], row["f1"], row["masked_f1"]] for kind, row in found["by_kind"].items()]
    show("labelled F1 by kind of predicate", ["kind", "predicates", "original", "masked"], kinds)
    console.print(f"next: graphmask analyse {out} --fits 5 && graphmask report {out}", highlight=False)
    write_json(json, found)


def analyse(folder: Path, fits: int, rows: int, json: Path | None) -> None:
    """The study of section 6. In the JSON file the figures go under the model's name; the other model's stay."""
    from graphmask.cli.analyse import collect, write_tables
    from graphmask.experiments.srl import experiment, study

    run = experiment.read(folder)
    found = collect(study.tables(run, fits, progress=False), study.TABLES + 2 * (fits > 1))  # there is one bar already
    write_tables(folder, found, rows)
    if json is not None:
        before = js.loads(json.read_text()) if json.exists() else {}
        write_json(json, {**before, run.figures["model"]: study.figures(run, found)})
