"""What is measured for the documentation: a section is a command, run in a process of its own.

A section's folder has the origin, written before the command starts, and `figures.json`, which the command writes.
Where both are there nothing is measured again, so that a run that was killed goes on with the section it was in. The
folder belongs to one commit: figures of two states of the code are never put together.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.figures import origin, record
from graphmask.files import read_json, write_bytes

#: Quick ones first. ``{out}`` is the section's folder, where a command keeps what it goes on from.
SECTIONS: dict[str, str] = {
    "small": "graphmask bench small",
    "matrix": "graphmask bench matrix",
    "pages": "graphmask bench pages",
    "transformer": "graphmask bench transformer",
    "transformer_together": "graphmask bench transformer --heads together",
    "core": "graphmask bench core",
    "gold": "graphmask bench gold --seeds 20",
    "store": "graphmask bench store",
    "store_rows": "graphmask bench store --rows 1e8",
    "store_load": "graphmask bench store --load 200000",
    "store_kills": "graphmask bench store --kills 50",
    "store_kills_two": "graphmask bench store --kills 50 --writers 2",
    "scale": "graphmask bench scale --edges 1e7 --sections cost,peers,processes",
    "compare_star": "graphmask compare star --seeds 5 --out {out}",
    "compare_relay": "graphmask compare relay --seeds 5 --out {out}",
    "battery": "graphmask bench battery --out {out}",
    "leaderboard": "graphmask bench leaderboard --out {out}",
}
#: Measured by the studies' own commands, hours each; `graphmask bench record` files what they wrote.
STUDIES: dict[str, str] = {
    "srl": "graphmask analyse out/srl-lstm --fits 5",
    "qa": "graphmask analyse out/qa --fits 5",
}


def choose(only: str) -> list[str]:
    """The names of the sections of a run, checked."""
    wanted = [name for name in only.split(",") if name]
    for name in wanted:
        if name not in SECTIONS:
            raise GraphMaskError(f"Expected sections among {', '.join(SECTIONS)}, got {name!r}.")
    return wanted or list(SECTIONS)


def shown(command: str) -> str:
    """The command as a reader would type it."""
    return command.replace(" --out {out}", "")


def run(names: Sequence[str], out: Path, figures: Path, say: Callable[[str], None] = print) -> None:
    """Measure the sections one after the other, and record each as soon as it is done."""
    origin.commit()  # before any work: what is not committed is not recorded
    for name in names:
        about, source = measured(name, out / name, say)
        record.replace(figures, name, about, source)
        say(f"{name}: recorded in {figures}")


def measured(name: str, folder: Path, say: Callable[[str], None] = print) -> tuple[dict[str, Any], Path]:
    """The origin of a section's figures, and the file that has them."""
    command, source, started = SECTIONS[name], folder / "figures.json", folder / "origin.json"
    about = origin.origin(shown(command))
    if started.exists():
        before = read_json(started)
        if (before["command"], before["commit"]) != (about["command"], about["commit"]):
            raise GraphMaskError(
                f"Expected {folder} to be new or of `{about['command']}` at {about['commit'][:7]}, found it of "
                f"`{before['command']}` at {before['commit'][:7]}. Give another --out."
            )
        about = before
    if not source.exists():
        write_bytes(started, json.dumps(about, indent=1).encode())
        say(f"{name}: {about['command']}")
        words = [word.format(out=folder / "work") for word in command.split()[1:]]
        done = subprocess.run([sys.executable, "-m", "graphmask", *words, "--json", str(source)], check=False)
        if done.returncode:
            raise GraphMaskError(
                f"Expected `{about['command']}` to end well, but it ended with {done.returncode}; its own message is "
                "above. The same command goes on from here."
            )
    return about, source


def file(name: str, source: Path, figures: Path, command: str, commit: str) -> None:
    """Record what a command wrote earlier, or elsewhere, at a commit that the caller names (or the present one)."""
    known = SECTIONS | STUDIES
    if name not in known:
        raise GraphMaskError(f"Expected a section among {', '.join(known)}, got {name!r}.")
    about = origin.origin(command or shown(known[name]))
    if commit:
        whole = origin.git(origin.ROOT, "rev-parse", "--verify", f"{commit}^{{commit}}")
        if not origin.known(origin.ROOT, whole):
            raise GraphMaskError(f"Expected a commit that the present state was made from, got {commit!r}.")
        about["commit"] = whole
    record.replace(figures, name, about, source)
