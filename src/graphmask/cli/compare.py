"""`graphmask compare WHAT`: all methods on one model, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from graphmask.cli import names as known
from graphmask.cli.common import Json, Out, say, show, write_json


def compare(
    what: Annotated[
        str, typer.Argument(help=f"One of {', '.join(known.TASKS)}; or FILE.py:function for a model of your own.")
    ],
    names: Annotated[
        str, typer.Option("--methods", help=f"Separated by commas; all by default: {', '.join(known.METHODS)}.")
    ] = "",
    seeds: Annotated[
        int | None, typer.Option(help="Of fits; of a task also models and graphs are new for each. 5, or 3 of a file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    metrics: Annotated[str, typer.Option(help="Of a file: separated by commas; all by default.")] = "",
    out: Out = Path("out/compare"),
    json: Json = None,
) -> None:
    """Compare methods with the known answer, by what they do to the model, and by their cost.

    A function FILE.py:function takes nothing and returns (model, loader), or a dictionary of arguments of
    `graphmask.compare`: model, loader, validation, test, gold, forward, ...
    """
    if seeds is not None:
        known.check_least("--seeds", seeds, 1)
    if ":" in what or what.endswith(".py"):
        _file(what, _listed(names), seeds, seed, _listed(metrics), out, json)
        return
    known.check("a task, or FILE.py:function,", what, known.TASKS)
    wanted = [known.check("a method", name, known.METHODS) for name in _listed(names)]
    _task(what, wanted, 5 if seeds is None else seeds, seed, out, json)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _file(
    where: str, names: list[str], seeds: int | None, seed: int, metrics: list[str], out: Path, json: Path | None
) -> None:
    from graphmask.comparing import compare as compare_methods
    from graphmask.comparing.from_file import arguments
    from graphmask.comparing.page import tables
    from graphmask.comparing.plot import picture

    given: dict[str, Any] = arguments(where)
    if names:
        given["methods"] = names
    if metrics:
        given["metrics"] = metrics
    if seeds is not None or "seeds" not in given:
        given["seeds"] = range(seed, seed + (seeds or 3))
    result = compare_methods(**given)
    for caption, header, rows in tables(result):
        show(caption, header, rows)
    for line in [f"{name} was not compared. {why}" for name, why in result.not_applicable.items()] + result.notes:
        say(line)
    page = result.to_html(out / "comparison.html")
    say(f"page: {page}\nchart: {picture(result, out / 'comparison.png')}")
    write_json(json, result.to_json(out / "comparison.json"))


def _task(task: str, names: list[str], seeds: int, seed: int, out: Path, json: Path | None) -> None:
    from graphmask import experiments
    from graphmask.experiments.bench.compare import markdown, measure, not_applicable, tables
    from graphmask.files import write_bytes
    from graphmask.report.figures import comparison, side_by_side

    figures, examples, graphs = measure(task, names, range(seed, seed + seeds))
    for title, header, rows in tables(figures):
        show(f"{task}, {seeds} seed(s): {title}", header, rows)
    for line in not_applicable(figures):
        say(line)
    table = out / f"{task}.md"
    write_bytes(table, markdown(figures).encode())
    # Where much must be kept there is more to see.
    best = max(range(len(graphs)), key=lambda number: int(graphs[number].gold.sum()))
    _, edges, notes = experiments.get(task).describe(graphs[best])
    picture = side_by_side(
        out / f"{task}_example.png",
        {name: explanations[best] for name, explanations in examples.items()},
        colours=edges,
        question=" ".join(notes),
    )
    chart = comparison(out / f"{task}_methods.png", figures)
    say(f"table: {table}\none graph, method by method: {picture}\nchart: {chart}")
    write_json(json, figures)
