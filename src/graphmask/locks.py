"""Locks between processes that write to the same file or folder; the system releases those of a killed process.

Where the system has no locks (not a Unix, some network file systems), nothing is locked and no error is raised.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphmask import files
from graphmask.errors import GraphMaskError

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone_at(path: str | Path | None, rank: int = 0, world: int = 1) -> Iterator[None]:
    """Hold the lock of a process that writes to this file or into this folder; of several processes, each its own.

    Without a path nothing is locked.
    """
    if path is None:
        yield
        return
    path = Path(path)
    name = f".{path.name}.lock" if world == 1 else f".{path.name}.{rank}-of-{world}.lock"
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with held_file(path.parent / name, path):
        yield


@contextmanager
def held_file(lock: Path, guarded: Path) -> Iterator[None]:
    """Hold a lock file, which exists only while it is held; ``guarded`` is the file or folder it protects."""
    while True:
        with held(lock, guarded, alone=True, create=True) as handle:
            try:
                if not os.path.samestat(os.stat(lock), os.fstat(handle)):
                    continue
            except FileNotFoundError:
                continue  # the one before us took it away just now
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


@contextmanager
def held(path: Path, guarded: Path, *, alone: bool, create: bool = False) -> Iterator[int]:
    """Hold the lock of a file or a folder, alone or with others who share it."""
    with files.writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o666)
    try:
        if not lock(handle, alone):
            raise GraphMaskError(
                f"Expected to write to {guarded} alone, found another process at it. Wait for it, or write elsewhere."
            )
        yield handle
    finally:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a loader's workers have the handle too
        os.close(handle)


def lock(handle: int, alone: bool) -> bool:
    """Take the lock, if nobody else has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a network file system without locks
    return True
