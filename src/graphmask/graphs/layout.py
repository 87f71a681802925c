"""A heterogeneous batch as one graph: the nodes of all types numbered through, and so the edges, type after type.

Everything that works on ``[L, E]`` then works on it as on any other graph; ``edge_type`` [E] says what is what.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeType, effective_edges
from graphmask.graphs.hetero_edges import HeteroEdgeMap


class Types(NamedTuple):
    """What the data of one model is made of; the numbers of types in explanations are positions in here."""

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
        """Of the edge types, for people."""
        return [" ".join(kind) for kind in self.edge_types]


@dataclass
class Layout:
    """Where in the one graph a node or an edge of each type lies."""

    types: Types
    counts: list[int]  #: nodes per node type
    local: list[Tensor]  #: [2, E_t] per edge type, nodes numbered within their types

    @classmethod
    def of(cls, batch: HeteroData) -> Layout:
        types = types_of(batch)
        counts = [_num_nodes(batch, name) or 0 for name in types.node_types]
        return cls(types, counts, [effective_edges(_raw_edges(batch, kind)) for kind in types.edge_types])

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
    kinds = tuple(kind for kind in batch.edge_types if _raw_edges(batch, kind) is not None)
    named = [name for source, _, target in kinds for name in (source, target)]
    return Types(tuple(dict.fromkeys([*batch.node_types, *named])), kinds)


def _raw_edges(batch: HeteroData, kind: EdgeType) -> Any:
    store = batch[kind]
    return next((store[name] for name in ("edge_index", "adj_t") if store.get(name) is not None), None)


def _num_nodes(batch: HeteroData, name: str) -> int | None:
    if name not in batch.node_types:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where PyG can only guess it says so, and gives None
        found: int | None = batch[name].num_nodes
    return found


def agreed(known: Types | None, found: Types | None, where: str, fitted: bool) -> Types | None:
    """The types a method knows, or on its first batch those of the batch; raises for a batch of other types."""
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


# Reading a batch -----------------------------------------------------------------------------------------------


def attribute(batch: HeteroData, name: str) -> Any:
    """What a model's argument of this name means: a dictionary by type, or something of the whole graph."""
    key = name.removesuffix("_dict")
    if key == name and key in batch._global_store:
        return batch._global_store[key]
    found = batch.collect(key, allow_empty=True)
    if key == "batch" and not found:  # one graph
        found = {
            kind: torch.zeros(_num_nodes(batch, kind) or 0, dtype=torch.long, device=_device(batch))
            for kind in batch.node_types
        }
    return found or None


def items(batch: HeteroData) -> list[tuple[str, Any]]:
    """Everything in it, by names like ``author.x`` and ``author__writes__paper.edge_attr``."""
    found = [(key, value) for key, value in batch._global_store.items()]
    for kind in [*batch.node_types, *batch.edge_types]:
        name = kind if isinstance(kind, str) else "__".join(kind)
        found += [(f"{name}.{key}", value) for key, value in batch[kind].items()]
    return found


def labels(batch: HeteroData, rows: int) -> tuple[Tensor | None, Tensor | None]:
    """What is known of the output rows, and the graph of each: of the whole graphs, or of the only type that fits."""
    y = batch._global_store.get("y")
    if isinstance(y, Tensor):
        return y, None
    stores = [batch[name] for name in batch.node_types if isinstance(batch[name].get("y"), Tensor)]
    fitting = [store for store in stores if store["y"].shape[:1] == (rows,)]
    return (fitting[0]["y"], fitting[0].get("batch")) if len(fitting) == 1 else (None, None)


def _device(batch: HeteroData) -> torch.device | None:
    return next((value.device for _, value in items(batch) if isinstance(value, Tensor)), None)


def check(batch: HeteroData, where: str) -> None:
    """Raise for edges that cannot be, naming their type."""
    for kind in batch.edge_types:
        raw = _raw_edges(batch, kind)
        if not isinstance(raw, Tensor) or raw.layout != torch.strided:
            continue
        if raw.dtype not in (torch.int64, torch.int32) or raw.dim() != 2 or raw.shape[0] != 2:
            raise GraphMaskError(
                f"Expected edge_index of edge type {kind} of {where} to be int64 of shape [2, E], got {raw.dtype} of "
                f"shape {tuple(raw.shape)}."
            )
        for end, name, row in zip(("source", "target"), (kind[0], kind[2]), raw, strict=True):
            nodes = _num_nodes(batch, name)
            if nodes is None:
                raise GraphMaskError(
                    f"Expected node type {name!r}, which edge type {kind} of {where} names, to have x or num_nodes, "
                    "found neither."
                )
            low, high = (int(value) for value in row.aminmax()) if row.numel() else (0, -1)
            if low < 0 or high >= nodes:
                raise GraphMaskError(
                    f"Expected the {end} row of edge_index of edge type {kind} of {where} to name nodes 0 to "
                    f"{nodes - 1} of type {name!r}, got {low} to {high}."
                )


# Dividing a batch ----------------------------------------------------------------------------------------------


@dataclass
class Division:
    """Where the graphs of a batch lie among the numbered-through nodes and edges."""

    edge_graph: Tensor  #: [E]
    row_graph: Tensor  #: [rows]
    place: Tensor  #: [N] a node's number within its graph, which numbers its types through likewise
    sizes: Tensor  #: [B, T] nodes of each node type


def divide(batch: HeteroData, rows: int) -> Division:
    layout = Layout.of(batch)
    device = _device(batch) or torch.device("cpu")
    owner: dict[str, Tensor] = {}
    for name, count in zip(layout.types.node_types, layout.counts, strict=True):
        known = batch[name].get("batch") if name in batch.node_types else None
        owner[name] = known if isinstance(known, Tensor) else torch.zeros(count, dtype=torch.long, device=device)
    highest = max((int(graph.max()) + 1 for graph in owner.values() if graph.numel()), default=1)
    count = max(highest, int(getattr(batch, "num_graphs", 1) or 1))
    whose = [owner[kind[0]][edges[0]] for kind, edges in zip(layout.types.edge_types, layout.local, strict=True)]
    edge_graph = torch.cat(whose) if whose else torch.zeros(0, dtype=torch.long, device=device)
    sizes = torch.stack([torch.bincount(owner[name], minlength=count) for name in owner], 1)
    # Within a graph, nodes of one type come after all of the types before it.
    before = sizes.cumsum(1) - sizes
    place = []
    for number, graph in enumerate(owner.values()):
        start = sizes[:, number].cumsum(0) - sizes[:, number]
        place.append(torch.arange(len(graph), device=device) - start[graph] + before[graph, number])
    if count == 1:
        row_graph = torch.zeros(rows, dtype=torch.long, device=device)
    else:
        row_graph = _row_graph(batch, rows, count, owner, dict(zip(layout.types.edge_types, whose, strict=True)))
    return Division(edge_graph, row_graph, torch.cat(place), sizes)


def _row_graph(
    batch: HeteroData, rows: int, count: int, owner: dict[str, Tensor], edges: dict[EdgeType, Tensor]
) -> Tensor:
    """Rows are whatever there are as many of, edges last; two readings that would differ are refused."""
    device = next(iter(owner.values())).device
    readings = [("the graphs", torch.arange(count, device=device))]
    readings += [(f"nodes of type {name!r}", graph) for name, graph in owner.items()]
    for kind in batch.edge_types:
        candidates = batch[kind].get("edge_label_index")
        if isinstance(candidates, Tensor):
            readings.append((f"candidate edges of type {kind}", owner[kind[0]][candidates[0]]))
    sent = [(f"edges of type {kind}", graph) for kind, graph in edges.items()]
    fitting = [(name, graph) for name, graph in readings if len(graph) == rows]
    fitting = fitting or [(name, graph) for name, graph in sent if len(graph) == rows]
    if not fitting:
        found = ", ".join(f"{name} ({len(graph)})" for name, graph in [*readings, *sent])
        raise GraphMaskError(
            f"Expected output rows to be one of {found}, got {rows} rows: cannot tell which row belongs to which "
            "graph. Use batches of one graph."
        )
    name, row_graph = fitting[0]
    for other, graph in fitting[1:]:
        if not torch.equal(graph, row_graph):
            raise GraphMaskError(
                f"Expected to tell which output row belongs to which graph, got {rows} rows, which may be {name} or "
                f"{other}. Use batches of one graph, or batches of another size."
            )
    return row_graph


def some(loader: Iterable[Any], usable: Any, count: int) -> tuple[list[Any], Types | None]:
    """The first few usable batches, and the types of all; first of them one with edges of as many types as any.

    Sites are found on that one: a layer of an edge type that it lacks would not be called.
    """
    found: list[Any] = []
    types: Types | None = None
    best, most = None, -1
    for batch in loader:
        hetero = isinstance(batch, HeteroData)
        if hetero:
            layout = Layout.of(batch)
            types = layout.types if types is None else types.join(layout.types)
            kinds = sum(edges.shape[1] > 0 for edges in layout.local)
            best, most = (batch, kinds) if kinds > most else (best, most)
        if len(found) < count and usable(batch):
            found.append(batch)
        if len(found) == count and not hetero:
            break
    if best is not None and found:
        found = [best, *(batch for batch in found if batch is not best)][:count]
    return found, types
