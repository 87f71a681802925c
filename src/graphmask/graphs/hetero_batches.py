"""Batches of heterogeneous graphs, PyG's `HeteroData`, each read as one graph: see `layout`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, HeteroData

from graphmask.errors import GraphMaskError
from graphmask.graphs.adapter import Adapter
from graphmask.graphs.edges import EdgeType
from graphmask.graphs.hetero_edges import HeteroEdgeMap
from graphmask.graphs.layout import Layout, Types, num_nodes, raw_edges, types_of
from graphmask.graphs.splits import Split


class Hetero(Adapter):
    by_type = True

    def features(self, batch: HeteroData, name: str) -> None:
        return None

    def with_value(self, batch: HeteroData, name: str, value: Tensor) -> Any:
        raise GraphMaskError(f"Expected a graph with one type of nodes whose {name!r} can be replaced, got HeteroData.")

    def attribute(self, batch: HeteroData, name: str) -> Any:
        """What a model's argument of this name means: a dictionary by type, or something of the whole graph."""
        key = name.removesuffix("_dict")
        if key == name and key in batch._global_store:
            return batch._global_store[key]
        by_type = batch.collect(key, allow_empty=True)
        if key == "batch" and not by_type:  # one graph
            by_type = {
                kind: torch.zeros(num_nodes(batch, kind) or 0, dtype=torch.long, device=self._device(batch))
                for kind in batch.node_types
            }
        return by_type or None

    def items(self, batch: HeteroData) -> list[tuple[str, Any]]:
        """Everything in it, by names like ``author.x`` and ``author__writes__paper.edge_attr``."""
        items = [(key, value) for key, value in batch._global_store.items()]
        for kind in [*batch.node_types, *batch.edge_types]:
            name = kind if isinstance(kind, str) else "__".join(kind)
            items += [(f"{name}.{key}", value) for key, value in batch[kind].items()]
        return items

    def contents(self, batch: HeteroData) -> str:
        return f"HeteroData with {', '.join(sorted({name.rsplit('.', 1)[-1] for name, _ in self.items(batch)}))}"

    def edge_index(self, batch: HeteroData) -> Tensor:
        return Layout.of(batch).edge_index()

    def edge_map(self, batch: HeteroData) -> HeteroEdgeMap:
        return Layout.of(batch).edge_map()

    def num_nodes(self, batch: HeteroData, edge_index: Tensor | None) -> int:
        return sum(Layout.of(batch).counts)

    def types(self, batch: HeteroData) -> Types:
        return types_of(batch)

    def kinds(self, batch: HeteroData) -> int:
        return sum(edges.shape[1] > 0 for edges in Layout.of(batch).local)

    def first_nodes(self, batch: HeteroData, count: int) -> list[int]:
        layout = Layout.of(batch)
        return [first for first, size in zip(layout.first.values(), layout.counts, strict=True) if size == count]

    def labels(self, batch: HeteroData, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Of the whole graphs, or of the only node type that has as many as there are rows."""
        y = batch._global_store.get("y")
        if isinstance(y, Tensor):
            return y, None
        stores = [batch[name] for name in batch.node_types if isinstance(batch[name].get("y"), Tensor)]
        fitting = [store for store in stores if store["y"].shape[:1] == (rows,)]
        return (fitting[0]["y"], fitting[0].get("batch")) if len(fitting) == 1 else (None, None)

    def check_edges(self, batch: HeteroData, where: str) -> None:
        """Raise for edges that cannot be, naming their type."""
        for kind in batch.edge_types:
            raw = raw_edges(batch, kind)
            if not isinstance(raw, Tensor) or raw.layout != torch.strided:
                continue
            if raw.dtype not in (torch.int64, torch.int32) or raw.dim() != 2 or raw.shape[0] != 2:
                raise GraphMaskError(
                    f"Expected edge_index of edge type {kind} of {where} to be int64 of shape [2, E], got "
                    f"{raw.dtype} of shape {tuple(raw.shape)}."
                )
            for end, name, row in zip(("source", "target"), (kind[0], kind[2]), raw, strict=True):
                nodes = num_nodes(batch, name)
                if nodes is None:
                    raise GraphMaskError(
                        f"Expected node type {name!r}, which edge type {kind} of {where} names, to have x or "
                        "num_nodes, found neither."
                    )
                low, high = (int(value) for value in row.aminmax()) if row.numel() else (0, -1)
                if low < 0 or high >= nodes:
                    raise GraphMaskError(
                        f"Expected the {end} row of edge_index of edge type {kind} of {where} to name nodes 0 to "
                        f"{nodes - 1} of type {name!r}, got {low} to {high}."
                    )

    def split(self, batch: HeteroData, edge_index: Tensor, rows: int) -> Split:
        layout = Layout.of(batch)
        device = self._device(batch) or torch.device("cpu")
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
        node_number = []
        for number, graph in enumerate(owner.values()):
            start = sizes[:, number].cumsum(0) - sizes[:, number]
            node_number.append(torch.arange(len(graph), device=device) - start[graph] + before[graph, number])
        if count == 1:
            row_graph = torch.zeros(rows, dtype=torch.long, device=device)
        else:
            row_graph = _row_graph(batch, rows, count, owner, dict(zip(layout.types.edge_types, whose, strict=True)))
        return Split(edge_graph, row_graph, sizes[:, 0], count, torch.cat(node_number), sizes)

    def sizes(self, batch: HeteroData) -> Tensor:
        return torch.tensor([Layout.of(batch).counts])

    def single(self, batch: HeteroData) -> HeteroData:
        return batch.get_example(0) if isinstance(batch, Batch) else batch

    def without_edges(self, batch: HeteroData, gone: Tensor) -> HeteroData:
        layout = Layout.of(batch)
        parts = (~gone).split([edges.shape[1] for edges in layout.local])
        return batch.edge_subgraph(dict(zip(layout.types.edge_types, parts, strict=True)))

    def _device(self, batch: HeteroData) -> torch.device | None:
        return next((value.device for _, value in self.items(batch) if isinstance(value, Tensor)), None)


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
        expected = ", ".join(f"{name} ({len(graph)})" for name, graph in [*readings, *sent])
        raise GraphMaskError(
            f"Expected output rows to be one of {expected}, got {rows} rows: cannot tell which row belongs to which "
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
