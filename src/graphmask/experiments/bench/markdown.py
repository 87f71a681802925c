"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from graphmask.texts import visible


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, without an empty line after it."""
    first, *others = (f"| {' | '.join(map(_cell, line))} |\n" for line in [header, *rows])
    return "".join([first, f"|{'---|' * len(header)}\n", *others])


def _cell(text: str) -> str:
    """Names may come from files: no text ends its cell or its line, and none is an element of HTML or a picture."""
    text = re.sub(r"\s*[\n\r\v\f\u0085\u2028\u2029]\s*", " ", text)
    text = re.sub(r"(?<!\\)\|", r"\\|", visible(text)).replace("![", "!\\[")
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", text)
