"""Checks of batches and of loaders. The functions that read batches can be imported from here too.

`reading` asks what is in a batch, `forwards` calls models on it, `splits` says where its graphs lie; their names are
importable from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.graphs.forwards import (
    Forward,
    call,
    check_cached,
    check_forward,
    check_precision,
    default_forward,
    in_precision,
)
from graphmask.graphs.layout import Layout, Types
from graphmask.graphs.reading import (
    GRAPHS,
    adapter,
    attribute,
    edge_index_of,
    edge_map_of,
    has_edges,
    items,
    labels_of,
    num_nodes_of,
    repeat,
    seeds_of,
    split,
    tensor,
    types_of,
    unsplit,
)
from graphmask.graphs.splits import Split

__all__ = [
    "GRAPHS",
    "Forward",
    "Layout",
    "Split",
    "adapter",
    "attribute",
    "call",
    "check",
    "check_cached",
    "check_forward",
    "check_loader",
    "check_precision",
    "default_forward",
    "edge_index_of",
    "edge_map_of",
    "first_few",
    "has_edges",
    "in_precision",
    "items",
    "labels_of",
    "num_nodes_of",
    "repeat",
    "scan",
    "seeds_of",
    "split",
    "tensor",
    "types_of",
    "unsplit",
]


def check(batch: Any, where: str = "the batch") -> None:
    """Raise for a graph on which no model can be explained."""
    adapter(batch).check_edges(batch, where)
    for name, value in items(batch):
        if isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided:
            # One sum tells of most tensors that all is finite; only a sum that is not is looked into.
            bad = 0 if isfinite(float(value.detach().sum())) else int((~torch.isfinite(value)).sum())
            if bad:
                raise GraphMaskError(
                    f"Expected finite numbers in {name!r} of {where}, got {bad} that are NaN or infinite."
                )


def check_loader(loader: Any, name: str) -> None:
    if not isinstance(loader, Iterable) or isinstance(loader, (*GRAPHS, Mapping, Tensor, str)):
        raise GraphMaskError(
            f"Expected {name} to be an iterable of batches (a DataLoader, a list), got {type(loader).__name__}. "
            "For one graph pass [data]."
        )


def scan(loader: Iterable[Any], name: str) -> int:
    """Check every batch before any work starts; returns the number of batches."""
    check_loader(loader, name)
    count = 0
    for count, batch in enumerate(loader, start=1):
        check(batch, f"batch {count - 1} of {name}")
    if count == 0:
        raise GraphMaskError(f"Expected {name} to hold at least one batch, found none. Is it a spent iterator?")
    if iter(loader) is loader:
        raise GraphMaskError(
            f"Expected {name} to be iterable again and again, got an iterator that is spent after one pass. "
            "Pass a DataLoader or a list."
        )
    return count


def first_few(loader: Iterable[Any], count: int) -> tuple[list[Any], Types | None]:
    """The first few batches that have edges, and the types of all; the first has edges of the most types.

    Sites are found on that first one, because a layer of an edge type that a batch lacks is not called.
    """
    batches: list[Any] = []
    types: Types | None = None
    best, most = None, -1
    for batch in loader:
        here = types_of(batch)
        if here is not None:
            types, kinds = here if types is None else types.join(here), adapter(batch).kinds(batch)
            best, most = (batch, kinds) if kinds > most else (best, most)
        if len(batches) < count and has_edges(batch):
            batches.append(batch)
        if len(batches) == count and here is None:
            break
    if best is not None and batches:
        batches = [best, *(batch for batch in batches if batch is not best)][:count]
    if not batches:
        raise GraphMaskError("Expected at least one batch with edges in the loader, found none.")
    return batches, types
