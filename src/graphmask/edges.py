"""Which of the user's edges does a layer's edge belong to?

Layers rearrange the graph before they send: they append self-loops, drop and re-append those of the input,
or send relation by relation. Masks must be told in terms of the edges the user knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import is_sparse, to_edge_index

from graphmask.errors import GraphMaskError

EdgeType = tuple[str, str, str]


class EdgeMap:
    """Maps a layer's effective ``[2, E']`` to positions in the user's ``edge_index``.

    Without ``edge_index`` the first effective edges asked about become the user's.
    """

    edge_type: Tensor | None = None  #: [E] of a heterogeneous graph
    types: tuple[EdgeType, ...] | None = None  #: the edge types that the last call sent along, where that is known
    all_types: tuple[EdgeType, ...] = ()  #: what the numbers in edge_type stand for
    layer: str = ""  #: the name that the last call's module shares with those of other edge types at the same time

    def __init__(self, edge_index: Tensor | None) -> None:
        self.edge_index = edge_index
        self.flipped = False  #: did the last call send against the edges' direction?
        self._last: tuple[Tensor, Tensor, bool] | None = None

    @property
    def count(self) -> int:
        return 0 if self.edge_index is None else self.edge_index.shape[1]

    def restart(self) -> None:
        """A new run of the model begins."""

    def has_edges(self, types: Sequence[EdgeType]) -> bool:
        """Of any of these types?"""
        return self.count > 0

    def __call__(self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str) -> Tensor | None:
        """[E'] positions, -1 for self-loops the layer added; None when both are the same edges in the same order."""
        if self.edge_index is None:
            self.edge_index = effective
        mine, count = self.edge_index, self.count
        self.flipped = False
        if effective is mine:
            return None
        extra = effective.shape[1] - count
        if extra >= 0 and torch.equal(effective[:, :count], mine):
            if extra == 0:
                return None
            if bool((effective[0, count:] == effective[1, count:]).all()):
                positions = torch.full((effective.shape[1],), -1, device=effective.device)
                positions[:count] = torch.arange(count, device=effective.device)
                return positions
        if extra < 0:
            positions_of_relation = self._by_relation(effective, inputs, ordinal)
            if positions_of_relation is not None:
                return positions_of_relation
        # Deep models repeat the same rearrangement in every layer: match once.
        if self._last is not None and torch.equal(self._last[0], effective):
            self.flipped = self._last[2]
            return self._last[1]
        moved = self._loops_moved(effective)
        self.flipped = moved is None and _turned(mine, effective)
        positions = match(mine, effective.flip(0) if self.flipped else effective) if moved is None else moved
        strangers = (positions < 0) & (effective[0] != effective[1])
        if bool(strangers.any()) and not self.flipped:
            positions, self.flipped = match(mine, effective.flip(0)), True
            if bool(((positions < 0) & (effective[0] != effective[1])).any()):
                u, v = effective[:, strangers][:, 0].tolist()
                raise GraphMaskError(
                    f"Expected module {name!r} to send along edges of the graph that was passed in (or self-loops), "
                    f"got {int(strangers.sum())} other edges, for instance ({u}, {v}). "
                    "Pass the graph as the layers see it: do the rewiring before the model is called."
                )
        self._last = (effective, positions, self.flipped)
        return positions

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
        if not torch.equal(mine[:, others], effective[:, : others.numel()]):
            return None
        at = loops.nonzero().view(-1).flip(0)  # the first of several loops at a node is written last, and stays
        if at.numel() and int(mine[0, at].max()) >= tail.shape[1]:
            return None
        loop_of = torch.full_like(nodes, -1)
        loop_of[mine[0, at]] = at
        return torch.cat([others, loop_of])

    def _by_relation(self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int) -> Tensor | None:
        """Edges of one relation, as layers select them that send relation after relation.

        Endpoints alone would not tell two edges between the same nodes apart. ``ordinal`` is the first guess.
        """
        assert self.edge_index is not None
        for types in inputs:
            if not isinstance(types, Tensor) or types.is_floating_point() or types.shape != (self.count,):
                continue
            relations = torch.unique(types)
            for relation in [ordinal, *relations.tolist()]:
                positions = (types == relation).nonzero().view(-1)
                if positions.numel() != effective.shape[1]:
                    continue
                chosen = self.edge_index[:, positions]
                self.flipped = not torch.equal(chosen, effective)
                if not self.flipped or torch.equal(chosen.flip(0), effective):
                    return positions
        self.flipped = False
        return None


def _turned(mine: Tensor, effective: Tensor) -> bool:
    """Are these my edges in my order, but each turned around?

    Where every edge has its reverse, endpoints alone would not tell, and a batch of several graphs would be
    read in another way than each of them.
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
    found = torch.where(my_keys[at] == keys, my_order[at], -1)
    # Past the last duplicate, the clamp may land on an equal key that is already taken.
    taken = nth >= torch.searchsorted(my_keys, keys, right=True) - torch.searchsorted(my_keys, keys)
    return torch.empty_like(found).scatter_(0, order, found.masked_fill(taken, -1))


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


class HeteroEdgeMap(EdgeMap):
    """The same for edges of several types, laid end to end with their nodes numbered through.

    A layer knows edges by their type's own numbers (HeteroConv, to_hetero, HANConv), by numbers of its own over all
    types (HGTConv), or numbered through (a model that calls `to_homogeneous`). Which type a call is about is told by
    the layer's inputs: a dictionary by type; the very tensor of a type; then by its module's name; then by the edges.
    Types that have the same edges are taken in turn.
    """

    def __init__(self, edge_index: Tensor, types: Sequence[EdgeType], local: Sequence[Tensor]) -> None:
        super().__init__(edge_index)
        sizes = torch.tensor([edges.shape[1] for edges in local], dtype=torch.long)
        self.edge_type = torch.arange(len(types)).repeat_interleave(sizes).to(edge_index.device)
        places = torch.arange(edge_index.shape[1], device=edge_index.device).split(sizes.tolist())
        self._init(types, local, places)

    def _init(self, types: Sequence[EdgeType], local: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        self.all_types = tuple(types)
        self.parts = {kind: (EdgeMap(edges), place) for kind, edges, place in zip(types, local, places, strict=True)}
        self.whole = EdgeMap(self.edge_index)
        self.spelt = {spelling: kind for kind in types for spelling in _spellings(kind)}
        self.turns: Counter[tuple[EdgeType, ...]] = Counter()
        self.chosen: dict[str, EdgeType | None] = {}  # by the module that sends

    @classmethod
    def numbered(
        cls, edge_index: Tensor, edge_type: Tensor, types: Sequence[EdgeType], first: Mapping[str, int]
    ) -> HeteroEdgeMap:
        """From edges in any order; ``first`` node of every node type."""
        new = cls(edge_index[:, :0], (), ())
        new.edge_index, new.edge_type = edge_index, edge_type
        places = [(edge_type == number).nonzero().view(-1) for number in range(len(types))]
        starts = [torch.tensor([[first[a]], [first[b]]], device=edge_index.device) for a, _, b in types]
        local = [edge_index[:, place] - start for place, start in zip(places, starts, strict=True)]
        new._init(types, local, places)
        return new

    def restart(self) -> None:
        self.turns.clear()

    def has_edges(self, types: Sequence[EdgeType]) -> bool:
        return any(kind in self.parts and self.parts[kind][1].numel() > 0 for kind in types)

    def __call__(self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str) -> Tensor | None:
        self.types, self.layer, self.flipped = None, "", False
        by_type = next((value for value in inputs if self._is_by_type(value, name)), None)
        if by_type is not None:
            return self._by_type(by_type, effective, inputs, ordinal, name)
        if ordinal == 0 or not inputs or name not in self.chosen:
            self.chosen[name] = self._choose(effective, inputs, name)
        kind = self.chosen[name]
        if kind is not None:
            return self._of(kind, effective, inputs, ordinal, name)
        positions = self.whole(effective, inputs, ordinal, name)
        self.flipped = self.whole.flipped
        return positions

    def _of(self, kind: EdgeType, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str) -> Tensor:
        edges, place = self.parts[kind]
        local = edges(effective, inputs, ordinal, name)
        self.types, self.layer, self.flipped = (kind,), self._layer(name), edges.flipped
        return place if local is None else torch.cat([place, place.new_full((1,), -1)])[local]

    # A layer that is given all types at once ---------------------------------------------------------------------

    def _is_by_type(self, value: Any, name: str) -> bool:
        """Edges by edge type?"""
        if not isinstance(value, Mapping) or not value:
            return False
        keys = [key for key in value if isinstance(key, tuple) and len(key) == 3]
        if len(keys) < len(value) or not all(_is_edges(edges) for edges in value.values()):
            return False
        other = [key for key in keys if key not in self.parts]
        if other:
            raise GraphMaskError(
                f"Expected module {name!r} to send along edge types of the batch, {', '.join(map(str, self.parts))}, "
                f"got {other[0]}. Put its edges into the batch, before the model is called."
            )
        return True

    def _by_type(
        self, given: Mapping[EdgeType, Any], effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str
    ) -> Tensor:
        """Type after type (HANConv), or all in one call with nodes numbered by the layer (HGTConv)."""
        kinds = list(given)
        edges = [effective_edges(value) for value in given.values()]
        one = [kind for kind, mine in zip(kinds, edges, strict=True) if mine is effective]
        if not one and sum(mine.shape[1] for mine in edges) == effective.shape[1]:
            shifts = [
                part - mine
                for part, mine in zip(effective.split([mine.shape[1] for mine in edges], 1), edges, strict=True)
            ]
            if all(bool((shift == shift[:, :1]).all()) for shift in shifts):
                self.types = tuple(kinds)
                return torch.cat([self.parts[kind][1] for kind in kinds])
        here = kinds[ordinal % len(kinds)]
        return self._of(here if here in one or not one else one[0], effective, inputs, ordinal, name)

    # A layer that is given one ----------------------------------------------------------------------------------

    def _choose(self, effective: Tensor, inputs: tuple[Any, ...], name: str) -> EdgeType | None:
        """The edge type; None for all of them, numbered through."""
        assert self.edge_index is not None
        given = [effective, *(effective_edges(value) for value in inputs if _is_edges(value))]
        named = [self.spelt[part] for part in name.split(".") if part in self.spelt][-1:]
        very = [kind for kind, (part, _) in self.parts.items() if any(part.edge_index is edges for edges in given)]
        if very:
            return self._in_turn(very, named)
        equal = [
            kind
            for kind, (part, _) in self.parts.items()
            if part.edge_index is not None and any(torch.equal(part.edge_index, edges) for edges in given)
        ]
        if set(named) & set(equal):
            return named[0]
        if any(torch.equal(self.edge_index, edges) for edges in given) and not (named and len(self.parts) == 1):
            return None
        if named and self._fits(named[0], effective, inputs, name):
            return named[0]
        fitting = equal or [kind for kind in self.parts if self._fits(kind, effective, inputs, name)]
        return self._in_turn(fitting, named) if fitting else None

    def _fits(self, kind: EdgeType, effective: Tensor, inputs: tuple[Any, ...], name: str) -> bool:
        try:
            self.parts[kind][0](effective, inputs, 0, name)
        except GraphMaskError:
            return False
        return True

    def _in_turn(self, kinds: list[EdgeType], named: list[EdgeType]) -> EdgeType:
        if set(named) & set(kinds):
            return named[0]
        turn = self.turns[tuple(kinds)]
        self.turns[tuple(kinds)] += len(kinds) > 1
        return kinds[turn % len(kinds)]

    def _layer(self, name: str) -> str:
        """What is left of a module's name without its edge type."""
        parts = name.split(".")
        at = max((number for number, part in enumerate(parts) if part in self.spelt), default=None)
        if at is None:
            return ""
        before = parts[: at - 1] if at > 1 and parts[at - 1] == "convs" else parts[:at]
        return ".".join([*before, *parts[at + 1 :]]) or "model"


def _is_edges(value: Any) -> bool:
    if isinstance(value, EdgeIndex) or is_sparse(value):
        return True
    integers = isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
    return integers and value.dim() == 2 and value.shape[0] == 2


def _spellings(kind: EdgeType) -> tuple[str, str]:
    """As `HeteroConv` and `to_hetero` name modules of an edge type."""
    plain = "__".join(kind)
    for sign in " -:":
        plain = plain.replace(sign, "_")
    return f"<{'___'.join(kind)}>".replace(".", "#"), plain
