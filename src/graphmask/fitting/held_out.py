"""Held-out data: batches that gates are judged on but not fitted to, split off the loader where too few are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset
from torch_geometric.loader import DataLoader as GraphLoader

from graphmask.graphs.wrapped_batches import Taken, graph_in

#: Examples that are enough to judge on; and the share of the loader's that is held out, at most, to get there.
ENOUGH, SHARE = 200, 0.15
#: A loader with fewer pieces (graphs, or batches where only these can be told apart) stays whole.
PIECES = 20


def divided(
    loader: Iterable[Any], validation: Iterable[Any] | None, together: int = 1
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """The batches to fit on, and those split off to judge on; ``loader`` itself and None if none are split off.

    A step takes ``together`` batches, and those of a list stay together. Lists lose some of their batches, PyTorch's
    and PyG's `DataLoader` some of their examples. Other loaders stay whole, because what a sampler or a stream will
    return is not known beforehand.
    """
    missing = ENOUGH - (0 if validation is None else sum(map(examples, validation)))
    return _split(loader, missing, together) if missing > 0 else (loader, None)


def _split(loader: Iterable[Any], missing: int, together: int) -> tuple[Iterable[Any], Iterable[Any] | None]:
    if isinstance(loader, Taken):
        fitted, judged = _split(loader.loader, missing, together)
        return (loader, None) if judged is None else (Taken(fitted, loader.take), Taken(judged, loader.take))
    if isinstance(loader, (list, tuple)):
        return _of_batches(loader, missing, together)
    if not isinstance(loader, DataLoader) or type(loader) not in (DataLoader, GraphLoader):
        return loader, None
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        return loader, None
    return _of_examples(loader, missing)


def examples(batch: Any) -> int:
    """How many graphs, or sentences, a batch has; where it is a single graph, its nodes may be the examples."""
    batch = graph_in(batch)
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if isinstance(ids, torch.Tensor) and ids.dim() > 1:
        return len(ids)
    graphs = getattr(batch, "num_graphs", 1)
    if graphs > 1:
        return int(graphs)
    rows = getattr(batch, "y", None)
    return len(rows) if isinstance(rows, torch.Tensor) and rows.dim() else 1


def _order(count: int) -> list[int]:
    """The order in which pieces are held out: the same for every seed, so that fits can be compared."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()


def _of_batches(loader: Sequence[Any], missing: int, together: int) -> tuple[list[Any], list[Any] | None]:
    groups = [loader[at : at + together] for at in range(0, len(loader), together)]
    if len(groups) < PIECES:
        return list(loader), None
    order, held, collected = _order(len(groups)), 0, 0
    while held < int(SHARE * len(groups)) and collected < missing:
        collected += sum(map(examples, groups[order[held]]))
        held += 1
    fitted, judged = ([batch for at in sorted(part) for batch in groups[at]] for part in (order[held:], order[:held]))
    return fitted, judged


def _of_examples(loader: DataLoader[Any], missing: int) -> tuple[Iterable[Any], Iterable[Any] | None]:
    data: Any = loader.dataset
    if len(data) < PIECES or loader.batch_size is None:
        return loader, None
    order, held = _order(len(data)), min(missing, int(SHARE * len(data)))

    def part(which: list[int], shuffle: bool, drop_last: bool) -> DataLoader[Any]:
        return DataLoader(
            Subset(data, sorted(which)),
            batch_size=loader.batch_size,
            shuffle=shuffle,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=drop_last,
            generator=loader.generator if shuffle else None,
            worker_init_fn=loader.worker_init_fn,
        )

    shuffled = isinstance(loader.sampler, RandomSampler)
    return part(order[held:], shuffled, loader.drop_last), part(order[:held], False, False)
