"""`graphmask store ...`: compact or verify a folder of explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmask.cli.common import check_folder, say

app = typer.Typer(help="Look after a store of explanations.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="What explain_all(..., out=DIR) wrote.")]


@app.command("compact")
def compact(folder: Folder) -> None:
    """Merge small shards, and put those of several processes in the order of the loader."""
    check_folder(folder)
    from graphmask import store

    before = len(store.open(folder).shards)
    made = store.compact(folder)
    say(f"{before:,} shards are now {len(made.shards):,}: {made!r}")


@app.command("verify")
def verify(folder: Folder) -> None:
    """Read all files and compare them with the hashes that were written with them."""
    check_folder(folder)
    from graphmask import store

    opened = store.open(folder)
    opened.verify()
    say(f"as written: {opened!r}")
