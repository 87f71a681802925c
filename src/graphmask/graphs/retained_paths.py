"""Paths: chains of kept messages that end in a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphmask.graphs.sites import Site, layers_of


class Hop(NamedTuple):
    """One kept message: edge ``source -> target`` (position ``edge``) at site number ``site``."""

    site: int
    edge: int
    source: int
    target: int


#: Kept messages by the layer that sends them and the node that receives them.
Incoming = dict[tuple[int, int], list[Hop]]


def passed_on(edge_index: Tensor, values: Tensor, structure: Sequence[Site], read: Tensor) -> Tensor:
    """[L, E] how much of every message reaches the nodes ``read`` (bool [N]); 0 where no path leads there.

    ``values`` [L, E] from 0 to 1 say how much of a message is sent; what reaches the end is their product along the
    best path. The search runs backwards from the last site to the first: messages to a node that is read are read, and
    so are the states of their senders. A node may keep its state over any site (skip and jumping connections). Sites
    are assumed to work in the order in which they were called; those of one layer send at the same time.
    """
    layers, passed = layers_of(structure), torch.zeros_like(values)
    arrives = read.to(values.dtype)
    for layer in reversed(range(max(layers, default=-1) + 1)):
        before = arrives.clone()
        for site in (number for number, at in enumerate(layers) if at == layer):
            sender, receiver = edge_index.flip(0) if structure[site].reverse else edge_index
            onward = before[receiver]
            if not structure[site].calls:  # features of an edge, which layers may send along either way
                onward = onward.maximum(before[sender])
            passed[site] = values[site] * onward
            arrives.scatter_reduce_(0, sender, passed[site], "amax")
    return passed


def reaching(
    edge_index: Tensor, kept: Tensor, structure: Sequence[Site], targets: Sequence[int] | None = None
) -> Tensor:
    """bool [L, E]: kept messages from which kept messages lead to one of the nodes ``targets``; by default, all."""
    if targets is None:
        return kept
    asked = edge_index.new_tensor(list(targets))
    # Numbered anew, because there may be any number of nodes without an edge.
    nodes, numbers = torch.cat([edge_index.flatten(), asked]).unique(return_inverse=True)
    read = torch.zeros(len(nodes), dtype=torch.bool, device=kept.device)
    read[numbers[edge_index.numel() :]] = True
    ends = numbers[: edge_index.numel()].view_as(edge_index)
    return passed_on(ends, kept.float(), structure, read) > 0


def incoming(
    edge_index: Tensor, kept: Tensor, structure: Sequence[Site], targets: Sequence[int] | None = None
) -> Incoming:
    """Index the kept messages once; with ``targets``, only those from which one of these nodes can be reached."""
    layers = layers_of(structure)
    index: Incoming = {}
    for site, messages in enumerate(reaching(edge_index, kept, structure, targets)):
        edges = messages.nonzero().view(-1)
        ends = edge_index[:, edges].flip(0) if structure[site].reverse else edge_index[:, edges]
        for edge, source, target in zip(edges.tolist(), *ends.tolist(), strict=True):
            index.setdefault((layers[site], target), []).append(Hop(site, edge, source, target))
    return index


def ending_in(
    target: int, index: Incoming, structure: Sequence[Site], *, limit: int = 1000, persist: bool = True
) -> list[tuple[Hop, ...]]:
    """Paths that end in ``target``, each as long as it can be, longest first; see `Explanation.paths`."""
    layers = layers_of(structure)
    paths: list[tuple[Hop, ...]] = []
    last = layers[-1] + 1 if layers else 0
    stack: list[tuple[int, int, tuple[Hop, ...]]] = [(last, target, ())]
    while stack and len(paths) < limit:
        layer, node, tail = stack.pop()
        below = range(layer) if persist else range(max(layer - 1, 0), layer)
        hops = [hop for k in below for hop in index.get((k, node), ())]
        # With persistence a hop two layers down is reached directly; that is one path, not several.
        stack += [(layers[hop.site], hop.source, (hop, *tail)) for hop in reversed(hops)]
        if not hops and tail:
            paths.append(tail)
    return sorted(paths, key=len, reverse=True)
