"""Matches the edges of layers above a pooling to the user's edges.

TopKPooling and SAGPooling keep some nodes, renumber them, and keep the edges between them in their order. A layer above
knows only the new numbers, which in the user's graph belong to other nodes. So every graph that a run of the model
produces is recorded together with the user's edges that its edges correspond to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import is_sparse

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import SAME, EdgeMap, Matched, effective_edges


@dataclass
class _Graph:
    """One graph that layers of this run may send along: the user's, or one that a pooling produced."""

    given: Tensor  #: [2, E'] the very tensor that the model passes on
    nodes: int
    edges: EdgeMap | None  #: of its own edges; None where it is not known which of the user's they are
    matched: Matched = SAME  #: the user's edges that these are; all of them in the user's own graph
    why: str = ""  #: it is not known


class PooledGraphs:
    """The graphs of one run of a model, the user's first; empty until something is pooled.

    A masked run may keep other nodes than the original one. This needs no special treatment, since edges are identified
    by the user's positions in every run. A message that the original run did not send is not among those that an
    explanation keeps, and is replaced like dropped ones.
    """

    def __init__(self, edge_map: EdgeMap) -> None:
        self.edge_map = edge_map
        self.graphs: list[_Graph] = []

    def restart(self) -> None:
        """Forget the previous run of the model."""
        self.graphs.clear()

    def follow(self, name: str, nodes: int, edge_index: Tensor, pooled: Tensor, perm: Tensor | None, left: int) -> None:
        """Module ``name`` made a graph of ``left`` nodes from one of ``nodes``: its node k was ``perm[k]`` before.

        Without ``perm`` it is not known what the new nodes are. It is no error until a layer sends along them.
        """
        if not self.graphs:
            self.graphs.append(_Graph(edge_index, nodes, self.edge_map))
        why = f"nodes that module {name!r} has merged or numbered anew"
        if perm is not None:
            try:
                before = self(effective_edges(edge_index), (edge_index,), 0, name, nodes)
            except GraphMaskError as error:
                perm, why = None, f"the edges that module {name!r} has pooled, which cannot be followed ({error})"
            else:
                number = perm.new_full((nodes,), -1)
                number[perm] = torch.arange(len(perm), device=perm.device)
                ends = number[effective_edges(edge_index)]
                kept = (ends >= 0).all(0)
                if torch.equal(ends[:, kept], pooled):
                    edges = kept.nonzero().view(-1) if before.edges is None else before.edges[kept]
                    self.graphs.append(_Graph(pooled, left, EdgeMap(pooled), before._replace(edges=edges)))
                    return
        self.graphs.append(_Graph(pooled, left, None, why=why))

    def __call__(
        self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str, nodes: int | None
    ) -> Matched:
        """As `EdgeMap`; ``nodes`` is how many the layer sees, where that is known."""
        if not self.graphs:
            return self.edge_map(effective, inputs, ordinal, name, nodes)
        graph = self._graph_of([effective, *_edges_in(inputs)], nodes, name)
        if graph is self.graphs[0]:
            return self.edge_map(effective, inputs, ordinal, name, nodes)
        if graph.edges is None:
            raise GraphMaskError(
                f"Expected module {name!r} to send along edges of the graph that was passed in, got {graph.why}. Only "
                "TopKPooling and SAGPooling can be followed: explain the part of the model below the pooling, or pool "
                "before the model is called and pass the pooled graph."
            )
        local, below = graph.edges(effective, inputs, ordinal, name), graph.matched
        return below._replace(edges=_through(below.edges, local.edges), flipped=local.flipped != below.flipped)

    def rows(self, inputs: Sequence[Any], name: str) -> Tensor | None:
        """[E'] the user's edges that a layer's arguments have a row for; None in the user's own graph."""
        if not self.graphs:
            return None
        states = (value for value in inputs if isinstance(value, Tensor) and value.is_floating_point())
        first = next((value for value in states if value.dim() > 1), None)
        return self._graph_of(_edges_in(inputs), None if first is None else len(first), name).matched.edges

    def _graph_of(self, given: Sequence[Tensor], nodes: int | None, name: str) -> _Graph:
        """By the very tensor; otherwise by how many nodes there are, and then by the edges."""
        for graph in reversed(self.graphs):
            if any(edges is graph.given for edges in given):
                return graph
        base = self.graphs[0]
        if any(edges is self.edge_map.edge_index for edges in given):
            return base
        fitting = [graph for graph in self.graphs if nodes is None or graph.nodes == nodes]
        if len(fitting) != 1:
            equal = [g for g in fitting if any(torch.equal(effective_edges(g.given), edges) for edges in given)]
            if len(equal) != 1:
                sizes = ", ".join(str(graph.nodes) for graph in self.graphs)
                raise GraphMaskError(
                    f"Expected module {name!r}, which stands above a pooling, to see one of the graphs that the model "
                    f"made on the way (of {sizes} nodes), got edges between {nodes or 'an unknown number of'} nodes "
                    "that fit none of them, or several. Pass it the edge_index that the pooling returned."
                )
            fitting = equal
        return fitting[0]


def _through(below: Tensor | None, local: Tensor | None) -> Tensor | None:
    """Positions of positions; -1 stays -1."""
    if below is None or local is None:
        return local if below is None else below
    return torch.cat([below, below.new_full((1,), -1)])[local]


def _edges_in(inputs: Sequence[Any]) -> list[Tensor]:
    edges = []
    for value in inputs:
        integers = isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
        if isinstance(value, EdgeIndex) or (integers and value.dim() == 2 and value.shape[0] == 2) or is_sparse(value):
            edges.append(value if integers else effective_edges(value))
    return edges
