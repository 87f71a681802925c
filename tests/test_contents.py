"""What modules hold comes back as the very objects that it was, whatever was done to it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from graphmask.tapping.contents import Contents


def test_equal_is_not_the_same() -> None:
    """Values that compare as equal are still other values: a flag that has become 1, a list that was written anew."""
    notes: list[int] = []
    held = {"flag": True, "notes": notes, "size": torch.ones(2)}
    size = held["size"]
    contents = Contents([held])
    held.update(flag=1, notes=[], size=torch.ones(2))
    contents.put_back()
    assert held["flag"] is True
    assert held["notes"] is notes
    assert held["size"] is size


def test_the_same_values_under_other_names() -> None:
    held = {"first": True, "second": None}
    contents = Contents([held])
    held["third"] = held.pop("second")
    contents.put_back()
    assert list(held.items()) == [("first", True), ("second", None)]


def test_hooks_in_their_order() -> None:
    """`prepend=True` moves a hook to the front, which the order of entries in memory does not show."""
    hooks = OrderedDict([(1, "a"), (2, "b")])
    contents = Contents([{"hooks": hooks, "other": OrderedDict()}])
    hooks.move_to_end(1)
    hooks[3] = "c"
    contents.put_back()
    assert list(hooks.items()) == [(1, "a"), (2, "b")]


def test_what_was_empty_and_what_was_not() -> None:
    empty: list[Any] = [[], {}, set(), OrderedDict()]
    filled: list[Any] = [[1], {1: [2]}, {1}, OrderedDict({1: {2}})]
    contents = Contents([dict(enumerate(empty + filled))])
    for value in empty:
        value.append(1) if isinstance(value, list) else value.add(1) if isinstance(value, set) else value.update({1: 1})
    filled[1][1].append(3)
    filled[3][1].add(3)
    for value in filled:
        value.clear()
    contents.put_back()
    assert empty == [[], {}, set(), {}]
    assert filled == [[1], {1: [2]}, {1}, {1: {2}}]


def test_dictionaries_that_hold_each_other() -> None:
    first: dict[str, Any] = {}
    second: dict[str, Any] = {"first": first}
    first["second"] = second
    contents = Contents([first])
    second.clear()
    first["more"] = 1
    contents.put_back()
    assert first == {"second": second}
    assert second["first"] is first
