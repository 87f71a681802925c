"""Options and output that commands share.

Modules of commands are all loaded for ``graphmask --help``, which must not wait for torch: they import what computes
inside their functions, and the names that help texts list stand in `names`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from graphmask import launch
from graphmask.errors import GraphMaskError
from graphmask.texts import visible

Seed = Annotated[int, typer.Option(help="Seed of data, model and gates.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
Out = Annotated[Path, typer.Option(help="Folder for what is written.")]

#: Of several processes one speaks and writes.
console = Console(quiet=not launch.first())


def check_folder(folder: Path) -> None:
    """Raise for a folder that is not there, before anything is imported that takes seconds."""
    if not folder.is_dir():
        raise GraphMaskError(
            f"Expected what graphmask run or explain_all(..., out=DIR) wrote at {folder}, found no such folder."
        )


def say(text: str) -> None:
    """Print the text as it is: no styles are taken from it, and controls in it (of a folder's name) are spelled out."""
    console.print(Text(visible(text, None)), highlight=False, soft_wrap=True)


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    from graphmask.files import write_bytes

    if path is not None and launch.first():
        write_bytes(path, (json.dumps(figures, indent=2) + "\n").encode())
        say(f"figures: {path}")


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A drawn table on a terminal, plain columns in a pipe."""
    say(visible(title))
    table = RichTable()
    for number, name in enumerate(header):
        table.add_column(Text(visible(name)), justify="left" if number == 0 else "right")
    for row in rows:  # as Text: square brackets in a label are no styles
        table.add_row(*(Text(f"{value:.4g}" if isinstance(value, float) else visible(str(value))) for value in row))
    (console if sys.stdout.isatty() else Console(width=140, quiet=console.quiet)).print(table)
