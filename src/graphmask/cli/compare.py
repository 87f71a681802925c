"""`graphmask compare TASK`: all methods on one task, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask.cli import names as known
from graphmask.cli.common import Json, Out, console, show, write_json


def compare(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(known.TASKS)}.")],
    names: Annotated[
        str, typer.Option("--methods", help=f"Separated by commas; all by default: {', '.join(known.METHODS)}.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Models, fits and graphs are new for every seed.")] = 5,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    out: Out = Path("out/compare"),
    json: Json = None,
) -> None:
    """Compare methods with the known answer, by what they do to the model, and by their cost."""
    known.check("a task", task, known.TASKS)
    known.check_least("--seeds", seeds, 1)
    wanted = [known.check("a method", name.strip(), known.METHODS) for name in names.split(",") if name.strip()]
    from graphmask import experiments
    from graphmask.experiments.bench.compare import markdown, measure, not_applicable, tables
    from graphmask.files import write_bytes
    from graphmask.report.figures import comparison, side_by_side

    figures, examples, graphs = measure(task, wanted, range(seed, seed + seeds))
    for title, header, rows in tables(figures):
        show(f"{task}, {seeds} seed(s): {title}", header, rows)
    for line in not_applicable(figures):
        console.print(line, highlight=False)
    table = out / f"{task}.md"
    write_bytes(table, markdown(figures).encode())
    # Where much must be kept there is more to see.
    best = max(range(len(graphs)), key=lambda number: int(graphs[number].gold.sum()))
    _, edges, notes = experiments.get(task).describe(graphs[best])
    picture = side_by_side(
        out / f"{task}_example.png",
        {name: found[best] for name, found in examples.items()},
        colours=edges,
        question=" ".join(notes),
    )
    chart = comparison(out / f"{task}_methods.png", figures)
    console.print(f"table: {table}\none graph, method by method: {picture}\nchart: {chart}", highlight=False)
    write_json(json, figures)
