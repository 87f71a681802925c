"""Where corpora and word vectors are found: none of them can be shipped with the library."""

from __future__ import annotations

import os
from pathlib import Path

from graphmask.errors import GraphMaskError

VARIABLE = "GRAPHMASK_DATA"
NEARBY = Path("..") / "shared" / "data"
GLOVE = Path("embeddings") / "glove.6B.100d.fp16.npz"


def folder() -> Path:
    """What `GRAPHMASK_DATA` says; else `../shared/data` if it exists; else the user's cache folder."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    if NEARBY.is_dir():
        return NEARBY
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "graphmask"


def find(name: str) -> Path:
    """The file or folder `name`, for example ``srl-ewt/train.conll09``."""
    path = folder() / name
    if not path.exists():
        raise GraphMaskError(
            f"Expected data at {path}, found nothing there. "
            f"Set the environment variable {VARIABLE} to the folder that holds {name}, or pass --data DIR with files "
            f"of your own. {_how(name)}"
        )
    return path


def _how(name: str) -> str:
    """How to get these data, for those who have none."""
    if name.startswith("srl"):
        return "`graphmask data build-ewt --help` makes them from public sources; docs/studies/srl.md says which."
    return "docs/studies/qa.md says where the questions come from."


def glove() -> Path | None:
    """Word vectors where they are; a run without them says so in its figures by a lower score."""
    path = folder() / GLOVE
    return path if path.exists() else None
