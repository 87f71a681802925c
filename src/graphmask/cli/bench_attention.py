"""`graphmask bench sequences` and `bench reactions`: the attention of transformers against what is known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask.cli.common import Json, Seed, console, show, write_json
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


def reactions(
    part: Annotated[str, typer.Option(help="choose (on one half of the reactions), then report (on the other).")],
    wheel: Annotated[Path | None, typer.Option(help="Wheel or folder of rxnmapper; by default as installed.")] = None,
    data: Annotated[Path | None, typer.Option(help="CSV of mapped reactions; found through GRAPHMASK_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Folder in which a stopped run goes on.")] = Path("out/reactions"),
    json: Json = None,
    seed: Seed = 0,
    longest: Annotated[int, typer.Option(help="Longest reaction, in tokens.")] = 48,
    fit: Annotated[int, typer.Option(help="Masked atoms to fit gates on.")] = 400,
    questions: Annotated[int, typer.Option(help="Reactions to choose by; all of the other half are reported on.")] = 64,
    epochs: Annotated[int | None, typer.Option(help="Passes of the fit; by default as GraphMask.fit does.")] = None,
) -> None:
    """RXNMapper's ALBERT: do messages into a masked product atom come from the atom that chemists say it is?"""
    from graphmask.experiments.bench.reactions import Size, measure, rows
    from graphmask.experiments.reactions.smiles import HALVES

    check_known("a part", part, HALVES)
    size = Size(seed=seed, longest=longest, fit=fit, questions=questions, epochs=epochs)
    figures = measure(part, out, size, wheel, data, say=lambda words: console.print(words, highlight=False))
    show(f"the source of a masked atom, half {part}", *rows(figures))
    console.print(f"the model fills in {figures['accuracy']:.1%} of the masked atoms", highlight=False)
    write_json(json, figures)
