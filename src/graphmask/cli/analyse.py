"""`graphmask analyse DIR`: every analysis that applies to a run, or to a store of explanations, as small tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphmask.bars import steps
from graphmask.cli.common import Json, write_json
from graphmask.cli.tables import write_tables
from graphmask.errors import GraphMaskError

if TYPE_CHECKING:
    from graphmask.analysis import everything


def analyse(
    folder: Annotated[Path, typer.Argument(help="What `graphmask run` or explain_all(..., out=DIR) wrote.")],
    fits: Annotated[int, typer.Option(help="Fit this many times with other seeds and measure how far fits agree.")] = 1,
    rows: Annotated[int, typer.Option(help="Rows of a table to print; files have all.")] = 12,
    json: Json = None,
) -> None:
    """Which edge types, which paths, how stable, is what is kept needed: one table each, as CSV and JSON."""
    if fits < 1:
        raise GraphMaskError(f"Expected --fits to be 1 or more, got {fits}.")
    from graphmask import store
    from graphmask.analysis import everything, stability
    from graphmask.cli import qa, srl
    from graphmask.experiments import folder as folders
    from graphmask.experiments import runner

    study = {"srl": srl.analyse, "qa": qa.analyse}.get(folders.task_of(folder) or "")
    if study:
        return study(folder, fits, rows, json)
    run = folders.read(folder) if folders.task_of(folder) else None
    if run is None and fits > 1:
        raise GraphMaskError(
            f"Expected the folder of a run for --fits, which has a model to fit to, found no {folders.FIGURES} in "
            f"{folder}. Try: graphmask run; or compare your own fits with graphmask.analysis.stability."
        )
    explanations = run.store if run else store.open(folder)
    found: list[everything.Named] = []
    tables = len(everything.STREAMED) + 1 + (len(everything.RUN_AGAIN) + fits - 1 if run else 0)
    with runner.one_thread(), steps(tables, enabled=True) as step:
        step("explanations")
        for table in everything.of_store(explanations):
            found.append(table)
            step(table.title)
        if run:
            for table in everything.of_model(run.explainer, run.test):
                found.append(table)
                step(table.title)
        if run and fits > 1:
            some, note = everything.sample(run.test)
            several = [run.explainer.explain_all(some, repair=False, allow_infeasible=True)]
            for seed in range(run.figures["seed"] + 1, run.figures["seed"] + fits):
                step(f"fit with seed {seed}")
                again = type(run.explainer)(
                    run.model, tolerance=run.explainer.tolerance, seed=seed, recipe=run.explainer.recipe
                )
                again.fit(*(runner.draw(run.name, run.figures["seed"], part) for part in (0, 1)), progress=False)
                several.append(again.explain_all(some, repair=False, allow_infeasible=True))
            found.append(everything.Named("stability", f"Agreement of {fits} fits", stability(several), note))
    write_json(json, write_tables(folder, found, rows))
