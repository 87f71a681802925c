"""Progress bars on standard error, which disappear when they are done; rich is imported for the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


def bar(title: str = "", *, enabled: bool) -> Progress:
    """A bar with its count and the time it will take; with a ``title``, the task's description comes last."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    described = TextColumn("{task.description}", markup=False)  # square brackets in a name are no styles
    parts = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    columns = (TextColumn(title), *parts, described) if title else (described, *parts)
    return Progress(*columns, console=Console(stderr=True), disable=not enabled, transient=True)


@contextmanager
def steps(total: int, *, enabled: bool) -> Iterator[Callable[[str], None]]:
    """A bar for a known number of named steps; call the function that it yields when a step begins."""
    with bar(enabled=enabled) as shown:
        task = shown.add_task("", total=total)
        begun = 0

        def begin(what: str) -> None:
            nonlocal begun
            shown.update(task, description=what, completed=begun)
            begun += 1

        yield begin


def through(items: Iterable[T], what: str, *, enabled: bool) -> Iterator[T]:
    """The items one by one, with a bar that counts them, and shows the total where the items have a length."""
    with bar(enabled=enabled) as shown:
        task = shown.add_task(what, total=len(items) if isinstance(items, Sized) else None)
        for item in items:
            yield item
            shown.advance(task)
