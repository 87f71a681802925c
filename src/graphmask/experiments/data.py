"""Where corpora and word vectors are found: none of them can be shipped with the library."""

from __future__ import annotations

import os
from pathlib import Path

from graphmask.errors import GraphMaskError

VARIABLE = "GRAPHMASK_DATA"
GLOVE = Path("embeddings") / "glove.6B.100d.fp16.npz"


def folder() -> Path:
    """The folder that `GRAPHMASK_DATA` names; without it, ``graphmask`` in the user's cache folder."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
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
    if name.startswith("qa"):
        return "docs/studies/qa.md says where the questions come from."
    return "docs/data.md says where they come from."


def glove() -> Path | None:
    """The file of word vectors; None where there is none, which runs say, and write down as ``word_vectors``."""
    path = folder() / GLOVE
    return path if path.exists() else None
