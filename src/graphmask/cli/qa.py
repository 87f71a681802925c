"""What `graphmask run qa` and `graphmask analyse` do for question answering."""

from __future__ import annotations

from pathlib import Path

from graphmask.cli.common import console, show, write_json

TIMES = ("train_cpu_seconds", "fit_seconds")
ROWS = (
    "accuracy",
    "prior",
    "masked_accuracy",
    "accuracy_change",
    "retained",
    "divergence",
    "flips",
    "faithful",
    *TIMES,
)


def run(
    seed: int, tolerance: float | None, data: Path | None, preset: str, out: Path | None, json: Path | None
) -> None:
    from graphmask.experiments.qa import experiment
    from graphmask.store.files import require

    require()  # what is written at the end must not fail for a missing package
    out = out or Path("out") / "qa"
    console.print(f"training and explaining Entity-GCN; an interrupted run goes on: {out}", highlight=False)
    found = experiment.run(out, folder=data, preset=preset, seed=seed, tolerance=tolerance).figures
    show(f"qa, seed {seed}: test data", ["figure", "value"], [[key, found[key]] for key in ROWS])
    show("accuracy of rules without a model", ["rule", "accuracy"], [list(row) for row in found["rules"].items()])
    lost = [[split, reason, count] for split, reasons in found["lost"].items() for reason, count in reasons.items()]
    if lost:
        show("questions that could not be used, and what was cut", ["part", "reason", "count"], lost)
    console.print(f"next: graphmask analyse {out} --fits 5 && graphmask report {out}", highlight=False)
    write_json(json, found)


def analyse(folder: Path, fits: int, rows: int, json: Path | None) -> None:
    """The study of section 5."""
    from graphmask.cli.analyse import collect, write_tables
    from graphmask.experiments.qa import experiment, study

    run = experiment.read(folder)
    found = collect(study.tables(run, fits, progress=False), study.TABLES + 3 * (fits > 1))  # there is one bar already
    write_tables(folder, found, rows)
    write_json(json, study.figures(run, found))
