"""Lines of a text file with their numbers, and errors that say file and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from graphmask.errors import GraphMaskError

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    path: Path
    line: int

    def down(self, lines: int) -> Place:
        return Place(self.path, self.line + lines)

    def fail(self, expected: str, found: str, hint: str) -> NoReturn:
        raise GraphMaskError(f"{self.path}:{self.line}: expected {expected}, found {found}. {hint}")


def numbered(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Lines without their ends, counted from 1; ``what`` names the format in errors.

    Only a line feed, or a carriage return and a line feed, ends a line: web text holds characters that
    `str.splitlines` would take for ends of lines.
    """
    try:
        with open(path, "rb") as file:
            # A binary file is split at line feeds only, and lets us say in which line the encoding goes wrong.
            for number, raw in enumerate(file, 1):
                yield number, _decoded(raw, path, number).removesuffix("\n").removesuffix("\r")
    except OSError as error:
        Place(path, 1).fail(f"a {what} file", f"none to read ({error.strerror})", "Check the path.")


def blocks(path: Path, what: str) -> Iterator[tuple[Place, list[str]]]:
    """Runs of lines between blank lines, each with the place of its first line; an error if there is none."""
    block: list[str] = []
    first, empty = 1, True
    for number, line in numbered(path, what):
        if line:
            if not block:
                first = number
            block.append(line)
        elif block:
            yield Place(path, first), block
            block, empty = [], False
    if block:  # the last blank line is often forgotten
        yield Place(path, first), block
    elif empty:
        Place(path, 1).fail(f"a {what} file", "an empty one", "Was it copied or unpacked completely?")


def _decoded(raw: bytes, path: Path, number: int) -> str:
    if number == 1 and raw.startswith(BOM):
        Place(path, 1).fail("a file without a byte order mark", "one", "Save it as plain UTF-8.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        Place(path, number).fail(
            "UTF-8",
            f"the byte {raw[error.start]:#04x} at position {error.start + 1} of the line",
            "Convert the file, for example: iconv -f latin1 -t utf-8",
        )
