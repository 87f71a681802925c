"""Batches that come with other values, as in training loops: ``(batch, y)``, ``{"data": batch, "y": y}``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from graphmask.graphs import batches
from graphmask.graphs.batches import Forward


def graph_in(batch: Any) -> Any:
    """The single graph in a pair, a list or a dictionary; anything else unchanged."""
    if isinstance(batch, Mapping) and "edge_index" not in batch:
        parts = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    else:
        return batch
    graphs = [part for part in parts if isinstance(part, batches.GRAPHS)]
    return graphs[0] if len(graphs) == 1 else batch


class Taken:
    """A loader of the results of a function, called with each batch of another loader."""

    def __init__(self, loader: Iterable[Any], take: Callable[[Any], Any]) -> None:
        self.loader, self.take = loader, take
        if isinstance(loader, list | tuple) and len(loader) == 1:  # one large graph is moved to a device once
            self.loader, self.take = [take(loader[0])], lambda batch: batch

    def __iter__(self) -> Iterator[Any]:
        return map(self.take, self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


def graphs_of(loader: Iterable[Any], forward: Forward) -> Iterable[Any]:
    """A loader whose batches the default forward can take. A user's own forward is given what the loader gives."""
    return taken(loader, graph_in) if forward is batches.default_forward else loader


def taken(loader: Iterable[Any], take: Callable[[Any], Any]) -> Iterable[Any]:
    """A loader whose batches are what ``take`` makes of them."""
    if not isinstance(loader, Iterable) or isinstance(loader, (*batches.GRAPHS, Mapping, Tensor, str)):
        return loader  # no loader at all: refused elsewhere, by its own name
    return loader if iter(loader) is loader else Taken(loader, take)  # one that is spent after one pass, likewise


class Repeatable:
    """A loader that returns the same batches in the same order every time, even if the inner loader shuffles."""

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed

    def __iter__(self) -> Iterator[Any]:
        torch.manual_seed(self.seed)
        return iter(self.loader)
