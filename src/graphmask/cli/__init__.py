"""The command line: one file per command, thin. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from graphmask import launch
from graphmask.cli import analyse, bench, compare, data, demo, names, report, run, store
from graphmask.errors import GraphMaskError
from graphmask.texts import visible


class Commands(TyperGroup):
    """A group that says which command was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-"):
            names.check("a command", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    help="Which edges did a graph neural network use, at which layer, and can I believe that?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.add_typer(run.app, name="run")
app.command("compare")(compare.compare)
app.command("analyse")(analyse.analyse)
app.command("report")(report.report)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(store.app, name="store")


def _version(wanted: bool) -> None:
    if wanted:
        from graphmask.config import installed

        for name, value in installed().items():
            typer.echo(f"{name} {value}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show versions, and whether C is active; then stop."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    try:
        if launch.launched() > 1 and sys.argv[1:2] != ["run"]:
            raise GraphMaskError(
                "Expected `graphmask run` in several processes, got another command. Start that one by itself."
            )
        app(standalone_mode=True)
    except GraphMaskError as error:
        told = visible(f"graphmask: {error}")
        Console(stderr=True).print(told, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
