"""Locks on a store: one writer per rank, all with the same number of processes, none during a compaction."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphmask import files, locks
from graphmask.errors import CannotWrite, GraphMaskError

_LOCK = re.compile(r"\.writer-(\d+)-of-(\d+)\.lock")


@contextmanager
def writing(folder: Path, rank: int, world: int) -> Iterator[None]:
    """Hold the lock of this rank; the system releases it if the process is killed."""
    try:
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except CannotWrite as error:
        if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
            raise GraphMaskError(f"Expected a folder to write to at {folder}, found a file.") from None
        raise
    mine = folder / f".writer-{rank}-of-{world}.lock"
    with locks.held(folder, folder, alone=False), locks.held_file(mine, folder):
        _check_world(folder, world)
        yield


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock that excludes all writers."""
    with locks.held(folder, folder, alone=True):
        yield


def _check_world(folder: Path, world: int) -> None:
    """Raise if a running writer was told another number of processes: some batches would be explained twice."""
    for path in folder.iterdir():
        match = _LOCK.fullmatch(path.name)
        if match and int(match[2]) != world:
            with suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDONLY)
                try:
                    if not locks.lock(handle, alone=False):
                        raise GraphMaskError(
                            f"Expected all that write to {folder} to be {world} processes, found one of {match[2]} at "
                            "it. Wait for it, or start all with the same number."
                        )
                    path.unlink(missing_ok=True)  # of a kill
                finally:
                    os.close(handle)
