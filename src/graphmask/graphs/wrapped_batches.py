"""Batches that come with company, as training loops have them: ``(batch, y)``, ``{"data": batch, "y": y}``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from graphmask.graphs import batches
from graphmask.graphs.batches import Forward


def graph_in(batch: Any) -> Any:
    """The one graph of a pair, a list or a dictionary; anything else as it is."""
    if isinstance(batch, Mapping) and "edge_index" not in batch:
        parts = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    else:
        return batch
    graphs = [part for part in parts if isinstance(part, batches.GRAPHS)]
    return graphs[0] if len(graphs) == 1 else batch


class Graphs:
    """A loader's batches without their company, as often as the loader gives them."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return map(graph_in, self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


def graphs_of(loader: Iterable[Any], forward: Forward) -> Iterable[Any]:
    """A loader whose batches the default forward can take. A user's own forward is given what the loader gives."""
    if forward is not batches.default_forward or not isinstance(loader, Iterable):
        return loader
    if isinstance(loader, (*batches.GRAPHS, Mapping, Tensor, str)) or iter(loader) is loader:
        return loader  # no loader at all, or spent after one pass: both are refused elsewhere, by their own names
    return Graphs(loader)


class Repeatable:
    """A loader that gives the same batches in the same order every time, shuffled or not."""

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed

    def __iter__(self) -> Iterator[Any]:
        torch.manual_seed(self.seed)
        return iter(self.loader)
