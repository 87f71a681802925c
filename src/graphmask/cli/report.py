"""`graphmask report DIR`: one HTML file about a run or a store of explanations, and its figures for a paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from graphmask.cli.common import check_folder, say


def report(
    folder: Annotated[Path, typer.Argument(help="What `graphmask run` or explain_all(..., out=DIR) wrote.")],
    out: Annotated[Path | None, typer.Option(help="The page; DIR/report.html by default.")] = None,
    examples: Annotated[int, typer.Option(help="Explanations to show, at most.")] = 200,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
) -> None:
    """Write one self-contained page, with the tables of `graphmask analyse` if it was run before."""
    check_folder(folder)
    from graphmask import store
    from graphmask.experiments import folder as folders
    from graphmask.experiments import task_page
    from graphmask.files import read_json
    from graphmask.report.analysed import draw
    from graphmask.report.build import write_report

    run = folders.figures_of(folder) if (folder / folders.FIGURES).exists() else None
    explanations = store.open(folder / folders.EXPLANATIONS if run else folder)
    known = folder / "analysis" / "tables.json"
    analysed: dict[str, Any] = read_json(known) if known.exists() else {}
    gold = None
    if run and "gold" in run:
        gold = task_page.gold_table(run)
    page = write_report(
        out or folder / "report.html",
        explanations,
        analysed=analysed,
        gold=gold,
        title=title or (f"What the {run['task']} model used" if run else "What the model used"),
        examples=examples,
        progress=sys.stderr.isatty(),  # a log would get empty lines
    )
    say(f"page: {page}")
    for figure in draw(folder / "figures", analysed):
        say(f"figure: {figure}")
    if not analysed:
        say(f"no analyses yet: graphmask analyse {folder}")
