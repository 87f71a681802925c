"""Many explained graphs as one block, so that tables are computed for thousands of graphs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.graphs.sites import Site, layers_of
from graphmask.store import Store
from graphmask.store.pieces import Piece, pieces

#: A block is closed once it holds this many edges or graphs: memory is bounded whatever the number of explanations.
EDGES_AT_ONCE, GRAPHS_AT_ONCE = 1 << 16, 1 << 13
#: The type of edges in graphs without edge types; None in tables.
NO_TYPE = -(2**31)

#: What is looked up per explanation: a key of its ``info``, or a function of it.
Key = str | Callable[[Explanation], Any]
#: Node numbers, the same in every graph; a key of ``info`` that holds them; or a function of the explanation.
Nodes = Sequence[int] | Key


@dataclass
class Block:
    """``G`` graphs, ``E`` edges in all, ``L`` layers; nodes are numbered consecutively across graphs.

    Layers are sites; of heterogeneous models, sites of several edge types that send at the same time are one layer.
    """

    structure: tuple[Site, ...]
    source: Tensor  #: [L, E] node that sends: the second row of edge_index where a site runs against the edges
    target: Tensor  #: [L, E]
    kept: Tensor  #: bool [L, E]
    carried: Tensor  #: bool [L, E]
    scores: Tensor  #: [L, E]
    edge_type: Tensor  #: [E], NO_TYPE where there is none
    graph: Tensor  #: [E]
    first_node: Tensor  #: [G]
    num_nodes: int
    load: Callable[[], Sequence[Explanation]]

    @classmethod
    def of(cls, explanations: Sequence[Explanation]) -> Block:
        return cls._beside(
            explanations[0].structure,
            torch.tensor([number_of_nodes(explanation) for explanation in explanations]),
            torch.tensor([explanation.edge_index.shape[1] for explanation in explanations]),
            torch.cat([explanation.edge_index.cpu() for explanation in explanations], 1).long(),
            torch.cat([_types(explanation) for explanation in explanations]),
            torch.cat([explanation.kept.cpu() for explanation in explanations], 1),
            torch.cat([explanation.carried.cpu() for explanation in explanations], 1),
            torch.cat([explanation.scores.detach().cpu() for explanation in explanations], 1),
            lambda: explanations,
        )

    @classmethod
    def of_pieces(cls, pieces: Sequence[Piece]) -> Block:
        """The same from a store, without building its `Explanation` objects unless they are asked for."""
        counts = torch.cat([piece.num_edges for piece in pieces])
        edges = torch.cat([piece.edge_index for piece in pieces], 1)
        graph = torch.arange(len(counts)).repeat_interleave(counts)
        most = np.full(len(counts), -1)
        np.maximum.at(most, graph.numpy(), edges.amax(0).numpy())
        return cls._beside(
            pieces[0].store.structure,
            torch.maximum(torch.cat([piece.num_nodes for piece in pieces]), torch.from_numpy(most + 1)),
            counts,
            edges,
            torch.cat([_typed(piece.edge_type, piece.edge_index) for piece in pieces]),
            torch.cat([piece.kept for piece in pieces], 1),
            torch.cat([piece.carried for piece in pieces], 1),
            torch.cat([piece.scores for piece in pieces], 1),
            lambda: [explanation for piece in pieces for explanation in piece.explanations()],
        )

    @classmethod
    def _beside(
        cls,
        structure: tuple[Site, ...],
        sizes: Tensor,
        counts: Tensor,
        edges: Tensor,
        types: Tensor,
        kept: Tensor,
        carried: Tensor,
        scores: Tensor,
        load: Callable[[], Sequence[Explanation]],
    ) -> Block:
        """A block of graphs whose numbers of nodes and edges, [G] each, are given."""
        graph = torch.arange(len(counts)).repeat_interleave(counts)
        first_node = sizes.cumsum(0) - sizes
        both = edges + first_node[graph]
        layers = layers_of(structure)
        if len(layers) > 1 and layers[-1] + 1 < len(layers):
            # Sites that send at the same time, each along edge types of its own, are one layer: no edge is in two.
            to_layer = torch.tensor(layers)[:, None].expand(-1, kept.shape[1])
            empty = torch.zeros(layers[-1] + 1, kept.shape[1], dtype=torch.long)
            kept, carried = (empty.scatter_add(0, to_layer, value.long()) > 0 for value in (kept, carried))
            scores = empty.to(scores.dtype).scatter_add(0, to_layer, scores)
        first = [layers.index(layer) for layer in range(len(kept))]
        reverse = torch.tensor([structure[site].reverse for site in first], dtype=torch.long)
        ends = both[reverse], both[1 - reverse]
        return cls(structure, *ends, kept, carried, scores, types, graph, first_node, int(sizes.sum()), load)

    @cached_property
    def explanations(self) -> Sequence[Explanation]:
        return self.load()

    @property
    def graphs(self) -> int:
        return len(self.first_node)

    @property
    def sites(self) -> int:
        return len(self.kept)

    def nodes(self, which: Nodes | None) -> Tensor:
        """bool [N] True at these nodes; at all nodes if None."""
        if which is None:
            return torch.ones(self.num_nodes, dtype=torch.bool)
        chosen = torch.zeros(self.num_nodes, dtype=torch.bool)
        for explanation, first in zip(self.explanations, self.first_node.tolist(), strict=True):
            chosen[[first + node for node in nodes_of(explanation, which)]] = True
        return chosen


def side_by_side(explanations: Iterable[Explanation]) -> Iterator[Block]:
    """One pass over explanations of one model, in blocks; a store and a list give the same blocks."""
    if isinstance(explanations, Store):
        yield from map(Block.of_pieces, pieces(explanations, EDGES_AT_ONCE, GRAPHS_AT_ONCE))
        return
    first: Explanation | None = None
    waiting: list[Explanation] = []
    edges = 0
    for explanation in explanations:
        first = first or explanation
        check_same_sites(first, explanation)
        waiting.append(explanation)
        edges += explanation.edge_index.shape[1]
        if edges >= EDGES_AT_ONCE or len(waiting) >= GRAPHS_AT_ONCE:
            yield Block.of(waiting)
            waiting, edges = [], 0
    if first is None:
        raise none_found()
    if waiting:
        yield Block.of(waiting)


def none_found() -> GraphMaskError:
    return GraphMaskError("Expected at least one explanation, found none. Is it a spent iterator?")


def check_same_sites(first: Explanation | Block, other: Explanation | Block) -> None:
    if first.structure is other.structure:
        return
    expected, given = ([(site.name, site.reverse) for site in e.structure] for e in (first, other))
    if expected != given:
        names = [", ".join(site.name for site in e.structure) for e in (first, other)]
        raise GraphMaskError(
            f"Expected explanations of one model, with sites {names[0]}, got one with {names[1]}. Analyse each model's "
            "explanations by themselves."
        )


def number_of_nodes(explanation: Explanation) -> int:
    edges = explanation.edge_index
    return max(explanation.num_nodes, int(edges.max()) + 1 if edges.numel() else 0)


def _types(explanation: Explanation) -> Tensor:
    return _typed(explanation.edge_type, explanation.edge_index)


def _typed(edge_type: Tensor | None, edge_index: Tensor) -> Tensor:
    return torch.full((edge_index.shape[1],), NO_TYPE) if edge_type is None else edge_type.cpu().long()


def look_up(explanation: Explanation, key: Key) -> Any:
    if callable(key):
        return key(explanation)
    if key not in explanation.info:
        known = ", ".join(map(repr, explanation.info)) or "nothing"
        raise GraphMaskError(f"Expected {key!r} in explanation.info, found {known}. Or pass a function.")
    return explanation.info[key]


def nodes_of(explanation: Explanation, which: Nodes) -> list[int]:
    """Node numbers within one graph."""
    chosen = look_up(explanation, which) if isinstance(which, str) or callable(which) else which
    chosen = chosen.tolist() if isinstance(chosen, Tensor) else chosen
    nodes = [chosen] if isinstance(chosen, int) else [int(node) for node in chosen]
    count = number_of_nodes(explanation)
    wrong = [node for node in nodes if not 0 <= node < count]
    if wrong:
        raise GraphMaskError(f"Expected nodes from 0 to {count - 1}, got {wrong[0]}.")
    return nodes


def tally(*columns: Tensor) -> list[tuple[tuple[int, ...], int]]:
    """Every combination of values that occurs in the columns (long [n] each), and how often."""
    if not len(columns[0]):
        return []
    low = [int(column.min()) for column in columns]
    width = [int(column.max()) - least + 1 for column, least in zip(columns, low, strict=True)]
    size = 1
    for w in width:
        size *= w
    if size >= 1 << 62:
        rows, counts = torch.stack(columns, 1).unique(dim=0, return_counts=True)
    else:
        code = torch.zeros_like(columns[0])
        for column, least, w in zip(columns, low, width, strict=True):
            code = code * w + (column - least)
        if size <= 4 * len(code) + 1024:
            counts = torch.bincount(code)
            code = counts.nonzero().view(-1)
            counts = counts[code]
        else:
            code, counts = code.unique(return_counts=True)
        parts = []
        for least, w in zip(reversed(low), reversed(width), strict=True):
            parts.append(code % w + least)
            code = code // w
        rows = torch.stack(parts[::-1], 1)
    return [(tuple(row), count) for row, count in zip(rows.tolist(), counts.tolist(), strict=True)]
