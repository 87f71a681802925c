"""Which edge type a layer's call sends along, and which of the user's edges it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import is_sparse

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap, EdgeType, Matched, effective_edges


class HeteroEdgeMap(EdgeMap):
    """An `EdgeMap` of edges of several types, one type after the other; nodes are numbered consecutively across types.

    A layer may number nodes within each type (HeteroConv, to_hetero, HANConv), in its own order over all types
    (HGTConv), or consecutively across types (a model that calls `to_homogeneous`). The edge type of a call is
    recognised by the layer's inputs: a dictionary by type; the very tensor of a type; then by its module's name; then
    by the edges. Types with the same edges are taken in turn.
    """

    def __init__(self, edge_index: Tensor, types: Sequence[EdgeType], local: Sequence[Tensor]) -> None:
        super().__init__(edge_index)
        sizes = torch.tensor([edges.shape[1] for edges in local], dtype=torch.long)
        self.edge_type = torch.arange(len(types)).repeat_interleave(sizes).to(edge_index.device)
        positions_of = torch.arange(edge_index.shape[1], device=edge_index.device).split(sizes.tolist())
        self._init(types, local, positions_of)

    def _init(self, types: Sequence[EdgeType], local: Sequence[Tensor], positions_of: Sequence[Tensor]) -> None:
        self.all_types = tuple(types)
        self.parts = {
            kind: (EdgeMap(edges), positions) for kind, edges, positions in zip(types, local, positions_of, strict=True)
        }
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
        positions_of = [(edge_type == number).nonzero().view(-1) for number in range(len(types))]
        starts = [torch.tensor([[first[a]], [first[b]]], device=edge_index.device) for a, _, b in types]
        local = [edge_index[:, positions] - start for positions, start in zip(positions_of, starts, strict=True)]
        new._init(types, local, positions_of)
        return new

    def restart(self) -> None:
        self.turns.clear()

    def has_edges(self, types: Sequence[EdgeType]) -> bool:
        return any(kind in self.parts and self.parts[kind][1].numel() > 0 for kind in types)

    def __call__(
        self, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str, nodes: int | None = None
    ) -> Matched:
        by_type = next((value for value in inputs if self._is_by_type(value, name)), None)
        if by_type is not None:
            return self._by_type(by_type, effective, inputs, ordinal, name)
        if ordinal == 0 or not inputs or name not in self.chosen:
            self.chosen[name] = self._choose(effective, inputs, name)
        kind = self.chosen[name]
        if kind is not None:
            return self._of(kind, effective, inputs, ordinal, name)
        return self.whole(effective, inputs, ordinal, name)

    def _of(self, kind: EdgeType, effective: Tensor, inputs: tuple[Any, ...], ordinal: int, name: str) -> Matched:
        edges, positions = self.parts[kind]
        local = edges(effective, inputs, ordinal, name)
        if local.edges is not None:
            positions = torch.cat([positions, positions.new_full((1,), -1)])[local.edges]
        return Matched(positions, local.flipped, (kind,), self._layer(name))

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
    ) -> Matched:
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
                matches = [self._of(kind, mine, (), 0, name) for kind, mine in zip(kinds, edges, strict=True)]
                together = torch.cat([part.edges for part in matches if part.edges is not None])
                return matches[-1]._replace(edges=together, types=tuple(kinds))
        here = kinds[ordinal % len(kinds)]
        return self._of(here if here in one or not one else one[0], effective, inputs, ordinal, name)

    # A layer that is given one ----------------------------------------------------------------------------------

    def _choose(self, effective: Tensor, inputs: tuple[Any, ...], name: str) -> EdgeType | None:
        """The edge type; None for all of them, numbered across types."""
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
        """A module's name without its edge type."""
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
    """The names that `HeteroConv` and `to_hetero` give to modules of an edge type."""
    plain = "__".join(kind)
    for sign in " -:":
        plain = plain.replace(sign, "_")
    return f"<{'___'.join(kind)}>".replace(".", "#"), plain
