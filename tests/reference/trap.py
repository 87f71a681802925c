"""A pickle that tells whether anybody has unpickled it."""

from __future__ import annotations

from collections.abc import Callable


class Trap:
    """Unpickling it would be noticed."""

    sprung = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return Trap.spring, ()

    @staticmethod
    def spring() -> None:
        Trap.sprung = True
