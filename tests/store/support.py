"""What the tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

from graphmask import Explanation, GraphMask, store
from laws.cases import BY_NAME, CLASSES, RELATIONS, WIDTH, random_graph
from laws.support import fitted, same


def equal(a: Explanation, b: Explanation) -> bool:
    """Bit for bit, in every field."""
    types = (a.edge_type is None) == (b.edge_type is None)
    if types and a.edge_type is not None and b.edge_type is not None:
        types = a.edge_type.dtype == b.edge_type.dtype and torch.equal(a.edge_type, b.edge_type)
    tensors = ("edge_index", "kept", "scores", "carried", "original", "masked")
    return (
        same(a, b)
        and types
        and all(getattr(a, name).dtype == getattr(b, name).dtype for name in tensors)
        and [x.dtype for x in a.baselines] == [x.dtype for x in b.baselines]
        and (a.structure, a.reopened, a.method, a.info) == (b.structure, b.reopened, b.method, b.info)
    )


def labelled(graph: Data, y: int) -> Data:
    graph.y = torch.tensor([y])
    return graph


def without_edges(seed: int) -> Data:
    graph = random_graph(seed)
    nothing = {name: graph[name][:0] for name in ("edge_type", "edge_attr", "edge_weight")}
    return Data(x=graph.x, edge_index=graph.edge_index[:, :0], **nothing)


def some_batches(count: int = 5) -> list[Batch]:
    """Three graphs each, the second of every other batch without edges, labels 0 to 2."""
    graphs = [
        labelled(without_edges(i) if i % 6 == 1 else random_graph(i), (i * i) % CLASSES) for i in range(3 * count)
    ]
    return [Batch.from_data_list(graphs[3 * i : 3 * i + 3]) for i in range(count)]


def explain(explainer: Any, loader: Any, out: Path, **options: Any) -> store.Store:
    options = {"allow_infeasible": True, "progress": False, "shard_rows": 150} | options
    return explainer.explain_all(loader, out=out, **options)


def tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    opened = store.open(folder)
    return opened.graphs.collect(), opened.edges.collect()


def assert_tables(folder: Path, other: Path) -> None:
    for a, b in zip(tables(folder), tables(other), strict=True):
        assert len(a) > 0
        assert a.equals(b)


def gcn() -> GraphMask:
    return fitted("GCN").explainer


class Partial(nn.Module):
    """The first layer sends along relation 0 alone, the second along all but relation 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = torch.tanh(self.first(x, edge_index[:, edge_type == 0]))
        return self.head(torch.tanh(self.second(x, edge_index[:, edge_type != RELATIONS - 1])))


def simple(seed: int) -> Data:
    return BY_NAME["AdjacencyTap dense"].graph(seed)


def words(batch: Batch) -> list[dict[str, Any]]:
    return [
        {
            "words": ["naïve", "日本語", "🕸", '"<b>'],
            "nodes": int((batch.batch == i).sum()),
            "deep": {"a": [1, None, 0.1]},
        }
        for i in range(batch.num_graphs)
    ]


def counted(explainer: GraphMask, out: Path, loader: Any = None) -> list[str]:
    """Which batches are explained by going on with a store."""
    seen = []

    def watched(batch: Any, repair: bool, where: str) -> list[Explanation]:
        seen.append(where)
        return type(explainer)._explain(explainer, batch, repair, where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explainer, "_explain", watched)
        explain(explainer, loader or some_batches(), out)
    return seen


def begun(explainer: Any, out: Path, batches: int = 2, **options: Any) -> None:
    """A store that was cut short after some batches, a shard each."""

    class Unplugged(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from list(super().__iter__())[:batches]
            raise ConnectionError

    with pytest.raises(ConnectionError):
        explain(explainer, Unplugged(some_batches()), out, **{"shard_rows": 1} | options)
    assert [len(shard.batches) for shard in store.open(out).shards] == [1] * batches
