"""The command line: one file per command, thin."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from graphmask import launch
from graphmask.cli import analyse, bench, compare, data, demo, report, run, store
from graphmask.errors import GraphMaskError

app = typer.Typer(
    help="Which edges did a graph neural network use, at which layer, and can I believe that?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("analyse")(analyse.analyse)
app.command("report")(report.report)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(store.app, name="store")


def main() -> None:
    try:
        if launch.launched() > 1 and sys.argv[1:2] != ["run"]:
            raise GraphMaskError(
                "Expected `graphmask run` in several processes, got another command. Start that one by itself."
            )
        app()
    except GraphMaskError as error:
        Console(stderr=True).print(f"graphmask: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
