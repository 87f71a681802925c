"""README and docs, brought up to date with the file of figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from graphmask.experiments.bench.figures import pages, record, results, tables
from graphmask.files import write_bytes


def all_tables(figures: Path) -> dict[str, Callable[[], str]]:
    sections = record.read(figures)
    return {**tables.makers(sections), "results": lambda: results.markdown(sections)}


def write(root: Path, figures: Path, *, check: bool = False) -> list[Path]:
    """The pages whose tables differed from the figures; without ``check`` they are written anew."""
    made = all_tables(figures)
    texts = {page: page.read_text() for page in pages.all_pages(root)}
    new = {page: pages.filled(text, made, page.name) for page, text in texts.items()}  # before anything is written
    changed = [page for page, text in new.items() if text != texts[page]]
    for page in [] if check else changed:
        write_bytes(page, new[page].encode())
    return [page.relative_to(root) for page in changed]
