"""`graphmask data ...`: make data sets from sources that are public but not part of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask.cli.common import say, show

app = typer.Typer(help="Make data sets from their public sources.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Without it a group of one command would lose the command's name."""


@app.command("build-ewt")
def build_ewt(
    ud: Annotated[Path, typer.Option(help="Trees: not-to-release/sources of UD_English-EWT.")],
    propbank: Annotated[Path, typer.Option(help="Skeletons: data/google/ewt of propbank-release.")],
    out: Annotated[Path, typer.Option(help="Folder for the .conll09 files.")],
    lists: Annotated[Path | None, typer.Option(help="Folder of files.train, files.dev, ...; near --ud.")] = None,
) -> None:
    """Join Universal Dependencies trees with PropBank predicates into CoNLL-2009 files."""
    from graphmask.experiments.srl import ewt

    built = ewt.build(ud, propbank, out, lists)
    show(
        "English Web Treebank: trees with predicates",
        ["file", "sentences", "predicates", "arguments", "left out"],
        [[made.path, made.sentences, made.predicates, made.arguments, len(made.skipped)] for made in built.values()],
    )
    for made in built.values():
        for reason in made.skipped:
            say(f"left out: {reason}")
