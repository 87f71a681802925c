"""Reads batches: every question is passed to the adapter for the batch's kind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from graphmask.graphs import splits
from graphmask.graphs.adapter import Adapter
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.hetero_batches import Hetero
from graphmask.graphs.layout import Types
from graphmask.graphs.plain_batches import Plain, has_entries
from graphmask.graphs.splits import Split

_PLAIN, _HETERO = Plain(), Hetero()
#: What PyTorch Geometric has for a graph, or a batch of graphs.
GRAPHS = (Data, HeteroData)


def adapter(batch: Any) -> Adapter:
    """The adapter for batches of this kind."""
    return _adapter(batch.__class__)


@lru_cache(maxsize=256)  # abstract classes are slow to say what is an instance of them
def _adapter(kind: type) -> Adapter:
    return _HETERO if issubclass(kind, HeteroData) else _PLAIN


def attribute(batch: Any, name: str) -> Any:
    """``batch.name`` or ``batch[name]``, of heterogeneous batches a dictionary by type; None when there is none."""
    return adapter(batch).attribute(batch, name)


def tensor(batch: Any, name: str) -> Tensor | None:
    value = attribute(batch, name)
    return value if isinstance(value, Tensor) else None


def items(batch: Any) -> Iterable[tuple[str, Any]]:
    return adapter(batch).items(batch)


def edge_index_of(batch: Any) -> Tensor | None:
    """The graph as the user passed it, [2, E]; None when only the model knows it (taps)."""
    return adapter(batch).edge_index(batch)


def edge_map_of(batch: Any) -> EdgeMap:
    """An object that matches the edges of a layer's call to the user's edges."""
    return adapter(batch).edge_map(batch)


def has_edges(batch: Any) -> bool:
    """Whether there are edges; True also if only the model knows the edges."""
    edge_index = edge_index_of(batch)
    return edge_index is None or edge_index.shape[1] > 0


def types_of(batch: Any) -> Types | None:
    """Node and edge types of a heterogeneous batch."""
    return adapter(batch).types(batch)


def num_nodes_of(batch: Any, edge_index: Tensor | None) -> int | None:
    return adapter(batch).num_nodes(batch, edge_index)


def labels_of(batch: Any, rows: int) -> tuple[Tensor | None, Tensor | None]:
    """``batch.y`` of graphs, nodes or output rows, and the graph of each where that is known."""
    return adapter(batch).labels(batch, rows)


def seeds_of(batch: Any) -> int | None:
    """How many seed nodes a sampled subgraph has; they come first, and the others are their surroundings.

    PyG's loaders mark such a batch by an integer ``batch_size`` beside ``n_id`` or ``input_id``. None for any other
    batch.
    """
    size = attribute(batch, "batch_size") if has_entries(batch.__class__) else None
    if not isinstance(size, int) or attribute(batch, "edge_label_index") is not None:
        return None
    sampled = any(attribute(batch, name) is not None for name in ("n_id", "input_id"))
    return size if sampled else None


def split(
    batch: Any,
    edge_index: Tensor,
    rows: int,
    graph_of_edge: Tensor | None = None,
    graphs: int | None = None,
    nodes: int | Tensor | None = None,
) -> Split:
    """Divide a batch into its graphs.

    ``graph_of_edge``, the number of ``graphs`` and of ``nodes`` in each come from taps that know them (adjacency
    matrices, attention).
    """
    if graph_of_edge is not None and graphs is not None and not adapter(batch).by_type:
        device = edge_index.device
        if rows % graphs:
            raise splits.unclear(rows, graphs)
        row_graph = torch.arange(graphs, device=device).repeat_interleave(rows // graphs)
        if isinstance(nodes, Tensor):
            return Split(graph_of_edge, row_graph, nodes.cumsum(0) - nodes, graphs, row_each=rows == graphs)
        return Split(graph_of_edge, row_graph, torch.arange(graphs, device=device) * (nodes or 0), graphs)
    return adapter(batch).split(batch, edge_index, rows)


def unsplit(batch: Any, edge_index: Tensor, rows: int) -> Split:
    """All of a batch as one graph."""
    return splits.unsplit(edge_index, rows, adapter(batch).sizes(batch))


def repeat(batch: Any, copies: int) -> Any:
    """One graph several times side by side, as PyG batches graphs; None if PyG cannot."""
    if not isinstance(batch, GRAPHS):
        return None
    try:
        return Batch.from_data_list([adapter(batch).single(batch)] * copies)
    except (RuntimeError, ValueError, TypeError):
        return None
