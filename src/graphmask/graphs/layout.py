"""A heterogeneous batch as one graph: nodes and edges are numbered consecutively across types.

Everything that works on ``[L, E]`` then works on it as on any other graph; ``edge_type`` [E] has the type of each edge.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeType, effective_edges
from graphmask.graphs.hetero_edges import HeteroEdgeMap


class Types(NamedTuple):
    """The node and edge types of one model's data; explanations refer to types by their positions in here."""

    node_types: tuple[str, ...]
    edge_types: tuple[EdgeType, ...]

    @classmethod
    def from_json(cls, value: Sequence[Sequence[Any]] | None) -> Types | None:
        return None if value is None else cls(tuple(value[0]), tuple((a, r, b) for a, r, b in value[1]))

    def join(self, other: Types) -> Types:
        nodes = dict.fromkeys([*self.node_types, *other.node_types])
        return Types(tuple(nodes), tuple(dict.fromkeys([*self.edge_types, *other.edge_types])))

    @property
    def names(self) -> list[str]:
        """Readable names of the edge types."""
        return [" ".join(kind) for kind in self.edge_types]


@dataclass
class Layout:
    """The positions of each type's nodes and edges in the one graph."""

    types: Types
    counts: list[int]  #: nodes per node type
    local: list[Tensor]  #: [2, E_t] per edge type, nodes numbered within their types

    @classmethod
    def of(cls, batch: HeteroData) -> Layout:
        types = types_of(batch)
        counts = [num_nodes(batch, name) or 0 for name in types.node_types]
        return cls(types, counts, [effective_edges(raw_edges(batch, kind)) for kind in types.edge_types])

    @property
    def first(self) -> dict[str, int]:
        """The number of each type's first node."""
        starts = [sum(self.counts[:n]) for n in range(len(self.counts))]
        return dict(zip(self.types.node_types, starts, strict=True))

    def edge_index(self) -> Tensor:
        """[2, E]"""
        first, parts = self.first, []
        for (source, _, target), edges in zip(self.types.edge_types, self.local, strict=True):
            parts.append(edges + torch.tensor([[first[source]], [first[target]]], device=edges.device))
        return torch.cat(parts, 1) if parts else torch.zeros(2, 0, dtype=torch.long)

    def edge_map(self) -> HeteroEdgeMap:
        return HeteroEdgeMap(self.edge_index(), self.types.edge_types, self.local)


def types_of(batch: HeteroData) -> Types:
    kinds = tuple(kind for kind in batch.edge_types if raw_edges(batch, kind) is not None)
    named = [name for source, _, target in kinds for name in (source, target)]
    return Types(tuple(dict.fromkeys([*batch.node_types, *named])), kinds)


def raw_edges(batch: HeteroData, kind: EdgeType) -> Any:
    store = batch[kind]
    return next((store[name] for name in ("edge_index", "adj_t") if store.get(name) is not None), None)


def num_nodes(batch: HeteroData, name: str) -> int | None:
    if name not in batch.node_types:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where PyG can only guess it says so, and gives None
        count: int | None = batch[name].num_nodes
    return count


def agreed(known: Types | None, found: Types | None, where: str, fitted: bool) -> Types | None:
    """The types that a method already knows, or those of its first batch; raises if a batch has other types."""
    if known is None and not (fitted and found):
        return found
    if known is None or found is None:
        expected, got = ("HeteroData", "no HeteroData") if known else ("a homogeneous graph", "HeteroData")
        raise GraphMaskError(f"Expected {where} to be {expected}, as when the sites were found, got {got}.")
    for what, mine, theirs in zip(("node", "edge"), known, found, strict=True):
        other = [kind for kind in theirs if kind not in mine]
        if other:
            raise GraphMaskError(
                f"Expected {what} types of {where} among {', '.join(map(repr, mine))}, as when the sites were found, "
                f"got {other[0]!r}. Fit on (or explain first) a batch that has it, or remove it."
            )
    return known
