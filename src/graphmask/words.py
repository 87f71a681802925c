"""Lists in words."""

from __future__ import annotations

from collections.abc import Sequence


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
