"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, without an empty line after it."""
    first, *others = (f"| {' | '.join(line)} |\n" for line in [header, *rows])
    return "".join([first, f"|{'---|' * len(header)}\n", *others])
