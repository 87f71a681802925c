"""Where figures come from: the day, the commit of the measured code, versions, and the machine."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError

#: What a measurement depends on. Changes to pages and tests leave figures as they are.
MEASURED = ("src", "setup.py", "pyproject.toml", "constraints.txt")
PACKAGES = ("torch", "torch_geometric", "graphmask")
#: The checkout that this code runs from. An installed copy has none, and then nothing is recorded.
ROOT = Path(__file__).parents[5]


def git(root: Path, *arguments: str) -> str | None:
    """What git says, without the last line break; None where it fails or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def whole_history(root: Path) -> bool:
    """Is this a checkout with all commits, in which an unknown one means something? A copy has one commit, or none."""
    count = git(root, "rev-list", "--count", "HEAD")
    return git(root, "rev-parse", "--is-shallow-repository") == "false" and count not in (None, "0", "1")


def known(root: Path, commit: Any) -> bool:
    """Is this the full name of a commit that the present state was made from?"""
    named = isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit)
    return bool(named) and git(root, "merge-base", "--is-ancestor", commit, "HEAD") is not None


def commit(root: Path | None = None) -> str:
    """The last commit that changed what is measured; an error where files differ from it.

    Figures of code that no commit has could not be measured again.
    """
    root = root or ROOT
    changed = git(root, "status", "--porcelain", "--", *MEASURED)
    if changed is None:
        raise GraphMaskError(f"Expected a git checkout at {root}, found none. Figures are recorded with their commit.")
    if changed:
        names = ", ".join(line[3:] for line in changed.splitlines()[:5])
        raise GraphMaskError(f"Expected all code to be committed before it is measured, found changes in {names}.")
    last = git(root, "log", "-1", "--format=%H", "--", *MEASURED)
    if not last:
        raise GraphMaskError(f"Expected a commit of the code at {root}, found none.")
    return last


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, Any]:
    """What times depend on, as far as it says nothing of whose machine it is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "processor": platform.machine(),
        "load": round(os.getloadavg()[0], 1),  # of the minute before: others may have used the machine too
    }


def origin(command: str) -> dict[str, Any]:
    """Of figures that ``command`` is about to measure."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
    }
