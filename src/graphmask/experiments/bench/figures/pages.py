"""Tables in pages: what stands between two markers is written by `graphmask bench tables`, the rest by people.

A marker is a comment, which readers of the rendered page do not see: `<!--figures:NAME-->` and `<!--end-->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from graphmask.errors import GraphMaskError

END = "<!--end-->"


def begin(name: str) -> str:
    return f"<!--figures:{name}-->"


_MARKED = re.compile(r"<!--figures:(?P<name>[\w.]+)-->\n(?P<content>.*?)<!--end-->", re.S)


def marked(text: str) -> dict[str, str]:
    """The names of the tables of a page, and what stands there now."""
    return {found["name"]: found["content"] for found in _MARKED.finditer(text)}


def put(text: str, name: str, content: str) -> str:
    """The page with the content of one marked table replaced."""
    new = f"{begin(name)}\n\n{content.strip()}\n\n{END}"
    return _MARKED.sub(lambda found: new if found["name"] == name else found[0], text)


def filled(text: str, tables: Mapping[str, Callable[[], str]], page: str = "the page") -> str:
    """The page with every marked table as it would be written now."""
    names = marked(text)
    if not text.count("<!--figures:") == text.count(END) == len(names):
        raise GraphMaskError(f"Expected every table of {page} once, with its {END}, found a marker without.")
    for name in names:
        if name not in tables:
            raise GraphMaskError(f"Expected tables among {', '.join(tables)} in {page}, found {name!r}.")
        text = put(text, name, tables[name]())
    return text


def all_pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
