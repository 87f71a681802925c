"""`graphmask analyse DIR`: every analysis that applies to a run, or to a store of explanations, as small tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from graphmask.cli.common import Json, check_folder, write_json
from graphmask.cli.tables import collect, write_tables
from graphmask.errors import GraphMaskError, check_least


def analyse(
    folder: Annotated[Path, typer.Argument(help="What `graphmask run` or explain_all(..., out=DIR) wrote.")],
    fits: Annotated[int, typer.Option(help="Fit this many times with other seeds and measure how far fits agree.")] = 1,
    rows: Annotated[int, typer.Option(help="Rows of a table to print; files have all.")] = 12,
    json: Json = None,
) -> None:
    """Which edge types, which paths, how stable, is what is kept needed: one table each, as CSV and JSON."""
    check_least("--fits", fits, 1)
    check_folder(folder)
    from graphmask import store
    from graphmask.analysis import everything
    from graphmask.experiments import folder as folders
    from graphmask.experiments.stages import one_thread
    from graphmask.files import read_json

    run = folders.read(folder) if folders.task_of(folder) else None
    if run is None and fits > 1:
        raise GraphMaskError(
            f"Expected the folder of a run for --fits, which has a model to fit to, found no {folders.FIGURES} in "
            f"{folder}. Try: graphmask run; or compare your own fits with graphmask.analysis.stability."
        )
    with one_thread(run is None or run.study.one_thread):
        tables = collect(run.study.tables(run, fits) if run else everything.of_store(store.open(folder)))
    write_tables(folder, tables, rows)
    if json is None:
        return
    if run is None:
        return write_json(json, {table.name: table.for_json() for table in tables})
    others: dict[str, Any] = read_json(json) if run.study.side_by_side and json.exists() else {}
    write_json(json, {**others, **run.study.summary(run, tables)})
