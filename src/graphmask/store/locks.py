"""Locks on a folder: one writer per rank, all with the same number of processes, none during a compaction.

Where the system has no locks (not a Unix, some network file systems), nothing is locked and no error is raised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphmask import files
from graphmask.errors import CannotWrite, GraphMaskError

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

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
    with _held(folder, alone=False), _rank(folder, rank, world):
        _check_world(folder, world)
        yield


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock that excludes all writers."""
    with _held(folder, alone=True):
        yield


@contextmanager
def _held(path: Path, *, alone: bool, create: bool = False) -> Iterator[int]:
    with files.writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o666)
    try:
        if not _lock(handle, alone):
            raise GraphMaskError(
                f"Expected to write to {path.parent if create else path} alone, found another process at it. Wait for "
                "it, or write elsewhere."
            )
        yield handle
    finally:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a loader's workers have the handle too
        os.close(handle)


def _lock(handle: int, alone: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a network file system without locks
    return True


@contextmanager
def _rank(folder: Path, rank: int, world: int) -> Iterator[None]:
    path = folder / f".writer-{rank}-of-{world}.lock"
    while True:
        with _held(path, alone=True, create=True) as handle:
            try:
                if not os.path.samestat(os.stat(path), os.fstat(handle)):
                    continue
            except FileNotFoundError:
                continue  # the one before us took it away just now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _check_world(folder: Path, world: int) -> None:
    """Raise if a running writer was told another number of processes: some batches would be explained twice."""
    for path in folder.iterdir():
        match = _LOCK.fullmatch(path.name)
        if match and int(match[2]) != world:
            with suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDONLY)
                try:
                    if not _lock(handle, alone=False):
                        raise GraphMaskError(
                            f"Expected all that write to {folder} to be {world} processes, found one of {match[2]} at "
                            "it. Wait for it, or start all with the same number."
                        )
                    path.unlink(missing_ok=True)  # of a kill
                finally:
                    os.close(handle)
