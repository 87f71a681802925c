"""Where messages flow: the places of a model, found once and named in every explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphmask.edges import EdgeType


@dataclass(frozen=True)
class Site:
    """One place where messages flow: the ``calls`` of a module that together carry each edge once.

    Usually one call. A layer that propagates relation by relation (RGCNConv) makes one call per relation.
    """

    name: str
    module: str
    calls: tuple[int, ...]
    reverse: bool = False  #: messages travel from the second row of edge_index to the first
    types: tuple[tuple[EdgeType, ...], ...] = ()  #: of a heterogeneous graph: the edge types that each call carries
    layer: str = ""  #: the same for sites next to each other that send at the same time, along other edge types each

    def to_json(self) -> dict[str, Any]:
        """Types and layer only where there are several types: files say no more than they did before."""
        return {key: value for key, value in asdict(self).items() if key not in ("types", "layer") or value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Site:
        types = tuple(tuple((a, r, b) for a, r, b in kinds) for kinds in value.get("types", ()))
        return cls(
            value["name"], value["module"], tuple(value["calls"]), value["reverse"], types, value.get("layer", "")
        )

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """All that it carries; nothing where the graph has one type of nodes."""
        return tuple(dict.fromkeys(kind for kinds in self.types for kind in kinds))


def layers_of(sites: Sequence[Site]) -> list[int]:
    """[L] the layer of every site: sites that send at the same time, each along other edge types, are one layer."""
    found: list[int] = []
    for number, site in enumerate(sites):
        last = sites[number - 1]
        same = number > 0 and site.layer != "" and (site.layer, site.reverse) == (last.layer, last.reverse)
        found.append(found[-1] + (not same) if found else 0)
    return found
