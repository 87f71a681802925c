"""Matches the edges of a layer's call to the user's edges.

Layers rearrange the graph before they send: they append self-loops, drop and re-append those of the input, or send
relation by relation. Masks must refer to the edges that the user knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import is_sparse, to_edge_index

from graphmask.errors import GraphMaskError

EdgeType = tuple[str, str, str]


class Matched(NamedTuple):
    """The user's edges that one call of a layer sends along."""

    edges: Tensor | None  #: [E'] positions, -1 for self-loops the layer added; None: the same edges in the same order
    flipped: bool = False  #: the call sends against the direction of the edges
    types: tuple[EdgeType, ...] | None = None  #: the edge types that it sends along, where that is known
    layer: str = ""  #: the name that its module shares with modules that send along other edge types at the same time


SAME = Matched(None)


class EdgeMap:
    """Maps a layer's effective ``[2, E']`` to positions in the user's ``edge_index``.

    Without ``edge_index``, the effective edges of the first call are taken as the user's.
    """

    edge_type: Tensor | None = None  #: [E] of a heterogeneous graph
    all_types: tuple[EdgeType, ...] = ()  #: what the numbers in edge_type stand for
    nodes: int | None = None  #: of the graph, where that is known
    more: Tensor | None = None  #: [2, M] gates that follow those of the edges, told as edges: of input features

    def __init__(self, edge_index: Tensor | None) -> None:
        self.edge_index = edge_index
        self.pairs: Any = None  #: `attention.Pairs`, the last ones, where the edges are those of attention
        self._last: tuple[Tensor, Matched] | None = None

    @property
    def count(self) -> int:
        return 0 if self.edge_index is None else self.edge_index.shape[1]

    @property
    def ends(self) -> Tensor | None:
        """[2, E + M] the ends of everything that has gates."""
        if self.edge_index is None or self.more is None:
            return self.edge_index
        return torch.cat([self.edge_index, self.more], 1)

    @property
    def total(self) -> int:
        """The number of these gates."""
        return self.count + (0 if self.more is None else self.more.shape[1])

    def restart(self) -> None:
        """Forget the previous run of the model."""

    def has_edges(self, types: Sequence[EdgeType]) -> bool:
        """Whether there are edges of any of these types."""
        return self.count > 0

    def __call__(
        self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str, nodes: int | None = None
    ) -> Matched:
        """Match the edges of a call of module ``name``, its ``ordinal``-th in this forward, which got ``inputs``.

        ``nodes`` is how many the layer sees, where that is known.
        """
        if self.edge_index is None:
            self.edge_index = effective
        mine, count = self.edge_index, self.count
        if effective is mine:
            return SAME
        if nodes is not None and self.nodes is not None and nodes < self.nodes:
            self._check_numbers(effective, inputs, nodes, name)
        extra = effective.shape[1] - count
        # Deep models repeat the same rearrangement in every layer, and every run: match once.
        if extra > 0 and self._last is not None and torch.equal(self._last[0], effective):
            return self._last[1]
        if extra >= 0 and torch.equal(effective[:, :count], mine):
            if extra == 0:
                return SAME
            if bool((effective[0, count:] == effective[1, count:]).all()):
                positions = torch.full((effective.shape[1],), -1, device=effective.device)
                positions[:count] = torch.arange(count, device=effective.device)
                return self._remembered(effective, Matched(positions))
        if extra < 0:
            of_relation = self._by_relation(effective, inputs, ordinal)
            if of_relation is not None:
                return of_relation
        if self._last is not None and torch.equal(self._last[0], effective):
            return self._last[1]
        moved = self._loops_moved(effective)
        matched = self._by_ends(effective, name) if moved is None else Matched(moved)
        return self._remembered(effective, matched)

    def _check_numbers(self, effective: Tensor, inputs: tuple[Any, ...], nodes: int, name: str) -> None:
        """Raise where a layer sees fewer nodes than there are, because it is unknown which ones these are.

        This does not apply where the layer gets all edges, or a part of the user's own tensor (`trim_to_layer`): then
        the numbers are unchanged.
        """
        assert self.edge_index is not None
        if torch.equal(effective[:, : self.count], self.edge_index) or any(map(is_sparse, inputs)):
            return
        mine = self.edge_index.untyped_storage().data_ptr()
        given = [value for value in (effective, *inputs) if isinstance(value, Tensor)]
        if any(value.untyped_storage().data_ptr() == mine for value in given):
            return
        raise GraphMaskError(
            f"Expected module {name!r} to see the {self.nodes} nodes of the graph that was passed in, got {nodes}: "
            "which ones cannot be known. TopKPooling and SAGPooling are followed. With any other pooling, "
            "explain the part of the model below it, or pool before the model is called and pass the pooled graph."
        )

    def _remembered(self, effective: Tensor, found: Matched) -> Matched:
        self._last = effective, found
        return found

    def _by_ends(self, effective: Tensor, name: str) -> Matched:
        """Match by endpoints, in either direction; raises for edges that are not the user's."""
        assert self.edge_index is not None
        mine, others = self.edge_index, effective[0] != effective[1]
        flipped = _turned(mine, effective)
        positions = match(mine, effective.flip(0) if flipped else effective)
        strangers = (positions < 0) & others
        if bool(strangers.any()) and not flipped:
            positions, flipped = match(mine, effective.flip(0)), True
            if bool(((positions < 0) & others).any()):
                u, v = effective[:, strangers][:, 0].tolist()
                raise GraphMaskError(
                    f"Expected module {name!r} to send along edges of the graph that was passed in (or self-loops), "
                    f"got {int(strangers.sum())} other edges, for instance ({u}, {v}). "
                    "Pass the graph as the layers see it: do the rewiring before the model is called. "
                    "(A layer with cached=True sends along the first graph it ever saw: set its cached to False.)"
                )
        return Matched(positions, flipped)

    def _loops_moved(self, effective: Tensor) -> Tensor | None:
        """The commonest rearrangement, without sorting: self-loops taken out and one per node appended."""
        assert self.edge_index is not None
        mine = self.edge_index
        loops = mine[0] == mine[1]
        others = (~loops).nonzero().view(-1)
        tail = effective[:, others.numel() :]
        nodes = torch.arange(tail.shape[1], device=tail.device)
        if tail.shape[1] == 0 or not torch.equal(tail[0], nodes) or not torch.equal(tail[1], nodes):
            return None
        kept = effective[:, : others.numel()]
        if not all(torch.equal(mine[end].index_select(0, others), kept[end]) for end in (0, 1)):
            return None
        at = loops.nonzero().view(-1).flip(0)  # the first of several loops at a node is written last, and stays
        if at.numel() and int(mine[0, at].max()) >= tail.shape[1]:
            return None
        loop_of = torch.full_like(nodes, -1)
        loop_of[mine[0, at]] = at
        return torch.cat([others, loop_of])

    def _by_relation(self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int) -> Matched | None:
        """Match the edges of one relation, as layers select them that send relation by relation.

        Endpoints alone would not distinguish two edges between the same nodes. ``ordinal`` is the first guess of the
        relation.
        """
        assert self.edge_index is not None
        for types in inputs:
            if not isinstance(types, Tensor) or types.is_floating_point() or types.shape != (self.count,):
                continue
            for relation in _first(ordinal, types):
                positions = (types == relation).nonzero().view(-1)
                if positions.numel() != effective.shape[1]:
                    continue
                chosen = self.edge_index[:, positions]
                flipped = not torch.equal(chosen, effective)
                if not flipped or torch.equal(chosen.flip(0), effective):
                    return Matched(positions, flipped)
        return None


def _first(guess: int, types: Tensor) -> Iterator[int]:
    """A guess, and then all relations that there are."""
    yield guess
    yield from torch.unique(types).tolist()


def _turned(mine: Tensor, effective: Tensor) -> bool:
    """Whether ``effective`` are the edges ``mine`` in the same order, but each reversed.

    Where every edge has its reverse, endpoints alone do not decide this, and a batch of several graphs would be read
    differently from each of them.
    """
    mine, effective = (edges[:, edges[0] != edges[1]] for edges in (mine, effective))
    return torch.equal(mine.flip(0), effective) and not torch.equal(mine, effective)


def match(mine: Tensor, theirs: Tensor) -> Tensor:
    """For each column of ``theirs`` its position in ``mine``, -1 if none; the n-th duplicate takes the n-th."""
    if mine.shape[1] == 0 or theirs.shape[1] == 0:
        return torch.full((theirs.shape[1],), -1, device=theirs.device)
    mine, theirs = mine.long(), theirs.long()  # keys of int32 would overflow
    nodes = int(torch.maximum(mine.max(), theirs.max())) + 1
    my_keys, my_order = (mine[0] * nodes + mine[1]).sort(stable=True)
    keys, order = (theirs[0] * nodes + theirs[1]).sort(stable=True)
    nth = torch.arange(keys.numel(), device=keys.device) - torch.searchsorted(keys, keys)
    at = (torch.searchsorted(my_keys, keys) + nth).clamp_max(my_keys.numel() - 1)
    positions = torch.where(my_keys[at] == keys, my_order[at], -1)
    # Past the last duplicate, the clamp may land on an equal key that is already taken.
    taken = nth >= torch.searchsorted(my_keys, keys, right=True) - torch.searchsorted(my_keys, keys)
    return torch.empty_like(positions).scatter_(0, order, positions.masked_fill(taken, -1))


def effective_edges(edge_index: Any) -> Tensor:
    """[2, E'] in the order in which a layer makes its messages, whatever form the graph has."""
    if isinstance(edge_index, EdgeIndex):
        return edge_index.as_tensor()
    if is_sparse(edge_index):  # adj_t: rows receive, columns send
        if isinstance(edge_index, Tensor) and edge_index.layout == torch.sparse_coo:
            # Not to_edge_index, which declares the user's own tensor coalesced, in place and in the middle of a graph
            # of gradients.
            target, source = edge_index.coalesce().indices()
        else:
            target, source = to_edge_index(edge_index)[0]
        return torch.stack([source, target])
    return edge_index
