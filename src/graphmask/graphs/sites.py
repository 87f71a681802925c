"""Sites: the places of a model where messages flow, found once and named in every explanation."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from graphmask.graphs.edges import EdgeType

#: Names longer than this lose the parts that all sites share where people read them.
LONG_NAME = 24
#: The logit of an edge that takes no part in a softmax. Finite: where all edges of a node are dropped, no 0/0.
ABSENT = -1e30


@dataclass(frozen=True)
class StandIn:
    """What stands in for a dropped edge at a site: the parts of the site's baseline, one after the other.

    A dropped edge must be silent. Its message is replaced; where the layer compares edges with each other before it
    sends (a softmax, weighted degrees), so is what it is compared by; and where the layer goes on to treat messages by
    their relation, what stands in is added to the layer's output, so that it is the same for every edge.
    """

    #: How many numbers stand in place of the message, or, with ``behind``, are added to the layer's output. (Files do
    #: not say it where it is all there is; a site is the same without.)
    message: int = field(default=0, compare=False)
    behind: bool = False
    logits: int = 0  #: in place of what a softmax over edges compares, one per head
    inputs: tuple[tuple[str, int], ...] = ()  #: in place of the layer's arguments of these names, and how many numbers

    @property
    def others(self) -> int:
        """How many numbers follow those of the message."""
        return self.logits + sum(size for _, size in self.inputs)

    def left_out(self, like: Tensor) -> Tensor:
        """The baseline of methods that simply leave messages out: zeros, and no part in a softmax."""
        flat = like.new_zeros(self.message + self.others)
        # Half precision has no such number, and torch 2.6 refuses it: its least one is as good.
        flat[self.message : self.message + self.logits] = max(ABSENT, torch.finfo(like.dtype).min)
        return flat

    def with_message(self, message: Tensor) -> Tensor:
        """[..., D] -> the baseline with this in place of the message; otherwise as `left_out`."""
        if not self.others:
            return message
        rest = self.left_out(message)[self.message :]
        return torch.cat([message, rest.expand(*message.shape[:-1], -1)], -1)

    def message_of(self, flat: Tensor) -> Tensor:
        """[..., D] the first part of a baseline."""
        return flat[..., : flat.shape[-1] - self.others] if self.others else flat

    def logits_of(self, flat: Tensor) -> Tensor:
        """[..., H] the second part."""
        start = flat.shape[-1] - self.others
        return flat[..., start : start + self.logits]

    def inputs_of(self, flat: Tensor) -> dict[str, Tensor]:
        """The last part, by argument."""
        sizes = [size for _, size in self.inputs]
        parts = flat[..., flat.shape[-1] - sum(sizes) :].split(sizes, -1)
        return {name: part for (name, _), part in zip(self.inputs, parts, strict=True)}


@dataclass(frozen=True)
class Site:
    """One place where messages flow: the ``calls`` of a module that together carry each edge once.

    Usually one call. A layer that propagates relation by relation (RGCNConv) makes one call per relation. Input
    features, which are a site below all layers, are sent by no call.
    """

    name: str
    module: str
    calls: tuple[int, ...]
    reverse: bool = False  #: messages travel from the second row of edge_index to the first
    types: tuple[tuple[EdgeType, ...], ...] = ()  #: of a heterogeneous graph: the edge types that each call carries
    layer: str = ""  #: the same for sites next to each other that send at the same time, along other edge types each
    stand_in: StandIn = StandIn()  #: of a site that a file describes without: a message, and nothing else
    heads: str = ""  #: of attention: has each head gates of its own, or do they share them? See `attention.HEADS`
    #: The class of the module, to be shown; older files do not have it, and a site is the same without.
    kind: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Types and layer only where there are several types, a stand-in only where it is more than a message."""
        optional = ("types", "layer", "heads", "kind")
        entries = {key: value for key, value in asdict(self).items() if key not in optional or value}
        if self.calls and not (self.stand_in.behind or self.stand_in.others):  # of features, messages do not tell it
            del entries["stand_in"]
        return entries

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Site:
        types = tuple(tuple((a, r, b) for a, r, b in kinds) for kinds in value.get("types", ()))
        stand_in = dict(value.get("stand_in", {}))
        stand_in["inputs"] = tuple((str(name), operator.index(size)) for name, size in stand_in.get("inputs", ()))
        stand_in |= {key: operator.index(stand_in[key]) for key in ("message", "logits") if key in stand_in}
        names = (value["name"], value["module"], value.get("layer", ""), value.get("heads", ""), value.get("kind", ""))
        if not all(isinstance(name, str) for name in (*names, *(name for kinds in types for k in kinds for name in k))):
            raise TypeError(f"expected names of a site, found {names!r:.80}")
        if type(value["reverse"]) is not bool:
            raise TypeError(f"expected the direction of a site, found {value['reverse']!r:.80}")
        return cls(
            value["name"],
            value["module"],
            tuple(map(operator.index, value["calls"])),
            value["reverse"],
            types,
            value.get("layer", ""),
            StandIn(**stand_in),
            value.get("heads", ""),
            value.get("kind", ""),
        )

    def with_message(self, size: int) -> Site:
        """With the size of a message, where a file does not say it."""
        return self if self.stand_in.message else replace(self, stand_in=replace(self.stand_in, message=size))

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """All that it carries; nothing where the graph has one type of nodes."""
        return tuple(dict.fromkeys(kind for kinds in self.types for kind in kinds))


def layers_of(sites: Sequence[Site]) -> list[int]:
    """[L] the layer of every site. Sites that send at the same time, each along other edge types, are one layer."""
    layers: list[int] = []
    for number, site in enumerate(sites):
        last = sites[number - 1]
        same = number > 0 and site.layer != "" and (site.layer, site.reverse) == (last.layer, last.reverse)
        layers.append(layers[-1] + (not same) if layers else 0)
    return layers


def titles(sites: Sequence[Site]) -> tuple[str, ...]:
    """[L] a readable name per site, such as ``conv1 (GCNConv)``; the exact name where two would be the same.

    A site of one edge type is named after its layer and that type, ``first: author writes paper (SAGEConv)``, a
    repeated call ``conv, call 2 (GCNConv)``. Parts that all long dotted names share, at the beginning or at the end,
    are left out.
    """
    names = _shortened([site.module for site in sites])
    readable = [_title(site, name) for site, name in zip(sites, names, strict=True)]
    return tuple(readable) if len(set(readable)) == len(readable) else tuple(site.name for site in sites)


def _title(site: Site, name: str) -> str:
    repeat = site.name.removeprefix(f"{site.module}#")
    if site.layer and len(site.edge_types) == 1:
        name = f"{site.layer}: {' '.join(site.edge_types[0])}"
    elif repeat != site.name and repeat.isdigit():
        name += f", call {int(repeat) + 1}"
    return f"{name} ({site.kind})" if site.kind else name


def _shortened(names: Sequence[str]) -> list[str]:
    """Without the leading and trailing parts that all share; a number stays with the name before it: ``layer.0``."""
    parts = [name.split(".") for name in names]
    if len(set(names)) < 2 or max(map(len, names)) <= LONG_NAME:
        return list(names)
    shortest = min(map(len, parts))
    start = min(_shared(parts), shortest - 1)
    end = min(_shared([part[::-1] for part in parts]), shortest - start - 1)
    if start and any(part[start].isdigit() for part in parts):
        start -= 1
    return [".".join(part[start : len(part) - end]) for part in parts]


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """How many first entries all have in common."""
    return sum(1 for _ in takewhile(lambda some: len(set(some)) == 1, zip(*parts, strict=False)))
