"""The one exception this library raises on purpose, checks of names and numbers that end in it, and warnings."""

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class GraphMaskError(ValueError):
    """Says what was expected, what was found, and what to do about it."""


class CannotWrite(GraphMaskError, OSError):
    """A file or a folder could not be written: no room, no permission."""


def warn(message: str) -> None:
    """Warn at the line of the program that called this library: the caller of the outermost function of it."""
    level, here, frame = 1, 0, sys._getframe()
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
            here = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=here + 1)


def check_known(what: str, value: str, known: Iterable[str]) -> str:
    """The value, if it is among the known ones; else an error that names them and the one that was meant."""
    known = list(known)
    if value in known:
        return value
    close = get_close_matches(value, known, 1)
    meant = f" Did you mean {close[0]}?" if close else ""
    raise GraphMaskError(f"Expected {what} among {', '.join(known)}, got {value!r}.{meant}")


def check_least(option: str, value: int, least: int) -> int:
    """The value, if it is not below the least that makes sense."""
    if value < least:
        raise GraphMaskError(f"Expected {option} to be {least} or more, got {value}.")
    return value
