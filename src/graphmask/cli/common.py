"""Options and output that commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from graphmask.launch import first

if TYPE_CHECKING:
    from graphmask.experiments.runner import Run

Seed = Annotated[int, typer.Option(help="Seed of data, model and gates.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
Out = Annotated[Path, typer.Option(help="Folder for what is written.")]

#: Of several processes one speaks and writes.
console = Console(quiet=not first())


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None and first():
        from graphmask.files import write_bytes

        write_bytes(path, (json.dumps(figures, indent=2) + "\n").encode())
        console.print(f"figures: {path}", highlight=False)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for people on a terminal, plain columns in a pipe."""
    console.print(title, highlight=False, soft_wrap=True)
    table = RichTable()
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    (console if sys.stdout.isatty() else Console(width=140, quiet=console.quiet)).print(table)


def gold_rows(figures: dict[str, Any]) -> list[list[Any]]:
    """One row per site, and one for all: precision, recall, F1."""
    gold = figures["gold"]
    rows = [*gold["per_site"], {"site": "all", **{key: gold[key] for key in ("precision", "recall", "f1")}}]
    return [[row["site"], *(f"{row[key]:.1f}" for key in ("precision", "recall", "f1"))] for row in rows]


def write_task_page(path: Path, run: Run, name: str, examples: int = 6) -> Path:
    """The page of a run: a few fresh graphs explained as the figures are, without repair, with the gold."""
    from graphmask import experiments
    from graphmask.report.build import write_page
    from graphmask.report.page import Table

    task = experiments.get(name)
    graphs = task.generate(8 * examples, seed=run.figures["seed"] + 424_242, batch_size=1)
    # Where much must be kept there is more to see.
    graphs = sorted(graphs, key=lambda graph: -int(graph.gold.sum()))[:examples]
    explanations = [run.explainer.explain(graph, repair=False, allow_infeasible=True) for graph in graphs]
    labels = [task.describe(graph) for graph in graphs]
    figures = run.figures
    tables = [
        Table(
            "Kept edges against the known answer, per cent", ["site", "precision", "recall", "F1"], gold_rows(figures)
        ),
        Table(
            f"{len(run.explanations):,} fresh graphs, each run again without what was dropped",
            ["", "value"],
            [
                ["messages kept", f"{figures['retained']:.1%}"],
                ["mean divergence", f"{figures['divergence']:.2g} (tolerance {figures['tolerance']})"],
                ["predictions changed", f"{figures['flips']:.2%}"],
                ["explanations within tolerance", f"{figures['faithful']:.1%}"],
            ],
        ),
    ]
    return write_page(
        path,
        explanations,
        title=f"What the {name} model used",
        titles=[f"Graph {number + 1}" for number in range(len(graphs))],
        node_labels=[nodes for nodes, _, _ in labels],
        edge_labels=[edges for _, edges, _ in labels],
        gold=[graph.gold.t() for graph in graphs],
        notes=[notes for _, _, notes in labels],
        tables=tables,
    )
