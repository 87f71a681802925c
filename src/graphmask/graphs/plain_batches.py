"""Batches of graphs with one type of nodes: PyG's `Data`, mappings, tuples, objects with attributes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphmask.errors import GraphMaskError
from graphmask.graphs.adapter import Adapter
from graphmask.graphs.edges import EdgeMap, effective_edges
from graphmask.graphs.splits import Split, unclear, unsplit


class Plain(Adapter):
    by_type = False

    def attribute(self, batch: Any, name: str) -> Any:
        if not has_entries(batch.__class__):
            return getattr(batch, name, None)
        return (batch._store if isinstance(batch, Data) else batch).get(name)

    def _tensor(self, batch: Any, name: str) -> Tensor | None:
        value = self.attribute(batch, name)
        return value if isinstance(value, Tensor) else None

    def features(self, batch: Any, name: str) -> Tensor | None:
        if isinstance(batch, tuple) and not hasattr(batch, "_fields"):  # (x, edge_index, ...)
            first = batch[0] if name == "x" and batch else None
            return first if isinstance(first, Tensor) and first.is_floating_point() else None
        return self._tensor(batch, name)

    def with_value(self, batch: Any, name: str, value: Tensor) -> Any:
        if isinstance(batch, tuple):
            return batch._replace(**{name: value}) if hasattr(batch, "_replace") else (value, *batch[1:])
        if isinstance(batch, Mapping) and not isinstance(batch, dict):
            return {**batch, name: value}
        made = copy.copy(batch)
        if isinstance(batch, (dict, Data)):
            made[name] = value
        else:
            setattr(made, name, value)
        return made

    def items(self, batch: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(batch, Data):
            return [(key, batch[key]) for key in batch.keys()]  # noqa: SIM118 - Data is no mapping
        if isinstance(batch, Mapping):
            return [(str(key), value) for key, value in batch.items()]
        if isinstance(batch, tuple):
            return [(f"element {number}", value) for number, value in enumerate(batch)]
        return [(key, value) for key, value in vars(batch).items()] if hasattr(batch, "__dict__") else []

    def contents(self, batch: Any) -> str:
        if isinstance(batch, Data):
            return f"{type(batch).__name__} with {', '.join(sorted(batch.keys()))}"
        if isinstance(batch, Mapping):
            return f"a mapping with {', '.join(map(str, batch))}"
        return f"a {type(batch).__name__}"

    def edge_index(self, batch: Any) -> Tensor | None:
        for name in ("edge_index", "adj_t"):
            value = self.attribute(batch, name)
            if value is not None:
                return effective_edges(value)
        if isinstance(batch, tuple):
            for value in batch:
                if isinstance(value, Tensor) and value.dtype == torch.long and value.dim() == 2 and value.shape[0] == 2:
                    return value
        return None

    def edge_map(self, batch: Any) -> EdgeMap:
        edge_map, x = EdgeMap(self.edge_index(batch)), self._tensor(batch, "x")
        if edge_map.edge_index is not None and x is not None and x.dim() <= 2:  # of more, nodes may be any dimension
            edge_map.nodes = len(x)
        return edge_map

    def num_nodes(self, batch: Any, edge_index: Tensor | None) -> int | None:
        if isinstance(batch, Data):
            if isinstance(batch.get("x"), Tensor):
                return batch.num_nodes
            with warnings.catch_warnings():
                # Where PyG can only guess from edge_index it says so; here the guess will do.
                warnings.simplefilter("ignore")
                return batch.num_nodes
        x = self._tensor(batch, "x")
        if x is None and isinstance(batch, tuple) and len(batch) > 1 and batch[1] is edge_index:
            first = batch[0]  # (x, edge_index, ...)
            x = first if isinstance(first, Tensor) and first.is_floating_point() else None
        return None if x is None else x.shape[0]

    def types(self, batch: Any) -> None:
        return None

    def kinds(self, batch: Any) -> int:
        return 0

    def first_nodes(self, batch: Any, count: int) -> list[int]:
        return []

    def labels(self, batch: Any, rows: int) -> tuple[Tensor | None, Tensor | None]:
        return self._tensor(batch, "y"), self._tensor(batch, "batch")

    def check_edges(self, batch: Any, where: str) -> None:
        raw = self.edge_index(batch) if isinstance(batch, tuple) else self.attribute(batch, "edge_index")
        if not isinstance(raw, Tensor) or raw.layout != torch.strided:
            return  # a sparse matrix under that name is checked by its own constructor
        if raw.dtype not in (torch.int64, torch.int32) or raw.dim() != 2 or raw.shape[0] != 2:
            raise GraphMaskError(
                f"Expected edge_index of {where} to be int64 of shape [2, E], got {raw.dtype} of shape "
                f"{tuple(raw.shape)}."
            )
        nodes = self.num_nodes(batch, raw)
        if nodes == 0:
            raise GraphMaskError(
                f"Expected {where} to have nodes, found a graph without any. Leave such graphs out, for instance "
                "[data for data in dataset if data.num_nodes]."
            )
        if raw.numel() and nodes is not None:
            low, high = (int(end) for end in raw.aminmax())
            if low < 0 or (high >= nodes and not self._bipartite(batch)):
                raise GraphMaskError(
                    f"Expected edge_index of {where} to name nodes 0 to {nodes - 1}, got {low} to {high}."
                )

    def _bipartite(self, batch: Any) -> bool:
        return isinstance(self.attribute(batch, "x"), (tuple, list)) or self._tensor(batch, "x_src") is not None

    def split(self, batch: Any, edge_index: Tensor, rows: int) -> Split:
        device = edge_index.device
        node_graph = self._tensor(batch, "batch")
        if node_graph is None or node_graph.numel() == 0:
            return unsplit(edge_index, rows)
        count = max(int(node_graph.max()) + 1, int(getattr(batch, "num_graphs", 0) or 0))
        sizes = torch.bincount(node_graph, minlength=count)
        first_node = sizes.cumsum(0) - sizes
        node_number = None
        if bool((node_graph[1:] < node_graph[:-1]).any()):  # as in what `to_homogeneous` makes of a heterogeneous batch
            order = node_graph.argsort(stable=True)
            within = torch.arange(len(order), device=device) - first_node[node_graph[order]]
            node_number = torch.empty_like(order).scatter_(0, order, within)
        edge_graph = node_graph[edge_index[0]]
        candidates = self._tensor(batch, "edge_label_index")
        if rows == count:
            row_graph = torch.arange(count, device=device)
        elif rows == node_graph.shape[0]:
            row_graph = node_graph
        elif candidates is not None and rows == candidates.shape[1]:
            row_graph = node_graph[candidates[0]]
        elif rows == edge_index.shape[1]:
            row_graph = edge_graph
        else:
            raise unclear(rows, count)
        return Split(edge_graph, row_graph, first_node, count, node_number, row_each=rows == count)

    def sizes(self, batch: Any) -> None:
        return None

    def single(self, batch: Any) -> Any:
        if not isinstance(batch, Batch):
            return batch
        kept = {key: value for key, value in batch.clone().to_dict().items() if key not in {"batch", "ptr"}}
        return Data.from_dict(kept)

    def without_edges(self, batch: Any, gone: Tensor) -> Any:
        left, edge_index = ~gone, self._tensor(batch, "edge_index")
        if edge_index is None or edge_index.dim() != 2 or edge_index.shape[1] != len(gone):
            return None
        if isinstance(batch, Data):
            return batch.edge_subgraph(left)
        if not isinstance(batch, Mapping):
            return None
        nodes = self.num_nodes(batch, edge_index)
        return {key: _select(key, value, left, nodes) for key, value in batch.items()}


@lru_cache(maxsize=256)  # abstract classes are slow to say what is an instance of them
def has_entries(kind: type) -> bool:
    """Is a batch of this type read like a dictionary?"""
    return issubclass(kind, (Mapping, Data))


def _select(key: str, value: Any, left: Tensor, nodes: int | None) -> Any:
    """Rows of what is per edge; the edges themselves are columns."""
    if not isinstance(value, Tensor):
        return value
    if key == "edge_index":
        return value[:, left]
    per_edge = value.shape[:1] == left.shape and (nodes != len(left) or key.startswith("edge"))
    return value[left] if per_edge else value
