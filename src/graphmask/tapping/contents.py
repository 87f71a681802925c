"""What a model's modules hold, remembered and put back.

Most of it is dictionaries: every module has a dozen for hooks, nearly all of them empty. They are read and compared
all at once and not one by one, which small models would notice at every call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, compress, islice
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = frozenset({type(None), bool, int, float, str})
_DICTS = frozenset({dict, OrderedDict})
_CONTAINERS = _DICTS | {list, set}
_MUTABLE = (dict, list, set, tuple, Tensor)  # a tuple may hold what can change


class Contents:
    """Everything in these dictionaries that can change in place, at any depth, as it is now."""

    def __init__(self, dictionaries: list[dict[Any, Any]]) -> None:
        self.dictionaries: list[_Dictionaries] = []
        self.containers: list[Any] = []  # in these dictionaries
        others: list[Any] = []
        seen = set(map(id, dictionaries))
        while dictionaries:
            level = _Dictionaries(dictionaries)
            self.dictionaries.append(level)
            are_containers, are_others = _changeable(tuple(map(type, level.values)))
            others += compress(level.values, are_others)
            containers = [*compress(level.values, are_containers)]
            self.containers += containers
            dictionaries = []
            for value in filter(None, containers):
                if type(value) not in _DICTS:
                    others.append(value)
                elif id(value) not in seen:
                    seen.add(id(value))
                    dictionaries.append(value)
        self.filled = set(map(id, filter(None, self.containers)))
        self.others = _remember(others)

    def put_back(self) -> None:
        for value in filter(None, self.containers):
            if id(value) not in self.filled:
                value.clear()
        for level in self.dictionaries:
            level.put_back()
        for value, content in self.others:
            _put_back(value, content)


class _Dictionaries:
    """Dictionaries, and their names and values, laid end to end."""

    def __init__(self, dictionaries: list[dict[Any, Any]]) -> None:
        self.dictionaries = dictionaries
        self.sizes = [*map(len, dictionaries)]
        self.names, self.values = self.now()

    def now(self) -> tuple[list[Any], list[Any]]:
        values = chain.from_iterable([dictionary.values() for dictionary in self.dictionaries])
        return [*chain.from_iterable(self.dictionaries)], [*values]

    def put_back(self) -> None:
        names, values = self.now()
        if len(values) == len(self.values) and all(map(is_, values, self.values)) and names == self.names:
            return
        entries = zip(self.names, self.values, strict=True)
        for dictionary, size in zip(self.dictionaries, self.sizes, strict=True):
            _put_back(dictionary, dict(islice(entries, size)))


@lru_cache(maxsize=256)
def _changeable(kinds: tuple[type, ...]) -> tuple[list[bool], list[bool]]:
    """Which values of these types are containers, and which of the others can change or hold what can."""
    others = [kind not in _PLAIN | _CONTAINERS and issubclass(kind, _MUTABLE) for kind in kinds]
    return [kind in _CONTAINERS for kind in kinds], others


def _remember(stack: list[Any]) -> list[tuple[Any, Any]]:
    """These values and what is in them, each with a copy of what it holds now."""
    filled: dict[int, tuple[Any, Any]] = {}
    while stack:
        value = stack.pop()
        if id(value) in filled:
            continue
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not isinstance(value, nn.Parameter):
                filled[id(value)] = value, value.detach().clone()
            continue
        content = dict(value) if isinstance(value, dict) else list(value)
        filled[id(value)] = value, content
        inner: Iterable[Any] = content.values() if isinstance(content, dict) else content
        stack += [one for one in inner if type(one) not in _PLAIN and isinstance(one, _MUTABLE)]
    return list(filled.values())


def _put_back(value: Any, content: Any) -> None:
    if isinstance(value, dict):
        if list(value) != list(content):  # emptied only then: the order of entries is the user's too
            value.clear()
        value.update(content)
    elif isinstance(value, list):
        value[:] = content
    elif isinstance(value, set):
        # Only what differs: a set filled anew may come out in another order, even with the same elements.
        value.difference_update(value.difference(content))
        value.update(content)
    elif isinstance(value, Tensor) and not torch.equal(value, content):
        with torch.no_grad():
            value.copy_(content)
