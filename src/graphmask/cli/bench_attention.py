"""`graphmask bench sequences`: the attention of transformers against what is known of it."""

from __future__ import annotations

from typing import Annotated

import typer

from graphmask.cli.common import Json, console, show, write_json
from graphmask.errors import check_known


def sequences(
    json: Json = None,
    seeds: Annotated[int, typer.Option(help="Seeds per task.")] = 10,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "recall,star,relay",
) -> None:
    """Trained transformers whose needed attention is known: agreement with it, seed by seed, as of gold."""
    from graphmask.experiments.bench.gold import rows, summary
    from graphmask.experiments.bench.sequences import measure
    from graphmask.experiments.sequences import TASKS

    wanted = tasks.split(",")
    for task in wanted:
        check_known("a task", task, TASKS)
    figures = measure(wanted, range(first, first + seeds))
    for task, runs in figures["tasks"].items():
        show(f"{task} as token sequences", *rows(runs))
        console.print(summary(task, runs), highlight=False)
    write_json(json, figures)
