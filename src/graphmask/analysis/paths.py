"""Retained paths: how many, which, of which pattern, and which edges lie on them (section 5).

A path is a chain of kept messages at rising sites: a message kept at one site is continued by one that its receiver
sends at a later site. With ``persist`` a node may hold its state over a site (most layers connect a node with
itself); without, consecutive hops are at consecutive sites and the last hop is at the last site.

Paths from given ``sources`` are all chains whose first message a source sends, at whatever site. Without ``sources``
they are those to which no hop can be prepended, as `Explanation.paths` lists them. They end in any of the
``targets``; without ``targets`` in any node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphmask.analysis.side_by_side import NO_TYPE, Block, Nodes, nodes_of, number_of_nodes, side_by_side
from graphmask.analysis.tables import load_polars, share, table
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation, Hop
from graphmask.graphs.sites import layers_of

if TYPE_CHECKING:
    import polars

Array = np.ndarray[Any, Any]


# One graph -------------------------------------------------------------------------------------------------------


def paths_into(explanation: Explanation, *, sources: Sequence[int] | None = None, persist: bool = True) -> list[int]:
    r"""For every node the number of retained paths that end in it; exact, in time :math:`O(L (N + E))`.

    With :math:`P_k(u)` the number of ways to arrive in u before site k (1 for a start), site k adds
    :math:`\sum_{(u, v) \text{ kept at } k} P_k(u)` to the paths that end in v.
    """
    ended: list[int] = _arrivals(explanation, sources, persist)[1].tolist()
    return ended


def count_paths(
    explanation: Explanation,
    *,
    sources: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    persist: bool = True,
) -> int:
    """The number of retained paths from ``sources`` to ``targets``; the module's docstring says what a path is."""
    into = paths_into(explanation, sources=sources, persist=persist)
    nodes = range(len(into)) if targets is None else set(nodes_of(explanation, targets))
    return sum(into[node] for node in nodes)


def list_paths(
    explanation: Explanation,
    *,
    sources: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    persist: bool = True,
    limit: int = 1000,
) -> list[tuple[Hop, ...]]:
    """The paths that `count_paths` counts, longest first; at most ``limit``, found without trying dead ends."""
    if limit < 1:
        raise GraphMaskError(f"Expected a limit of at least 1, got {limit}.")
    before, _ = _arrivals(explanation, sources, persist)
    starts = None if sources is None else set(nodes_of(explanation, sources))
    incoming: dict[tuple[int, int], list[Hop]] = {}
    for layer, (sites, *ends) in enumerate(_hops(explanation)):
        useful = before[layer][ends[1]] > 0  # some path arrives there, or begins
        for hop in zip(*(column[useful].tolist() for column in (sites, *ends)), strict=True):
            incoming.setdefault((layer, hop[-1]), []).append(Hop(*hop))
    paths: list[tuple[Hop, ...]] = []
    layers = layers_of(explanation.structure)
    last = layers[-1] + 1 if layers else 0
    nodes = range(number_of_nodes(explanation)) if targets is None else sorted(set(nodes_of(explanation, targets)))
    stack: list[tuple[int, int, tuple[Hop, ...]]] = [(last, node, ()) for node in reversed(nodes)]
    while stack and len(paths) < limit:
        layer, node, tail = stack.pop()
        below = range(layer) if persist else range(max(layer - 1, 0), layer)
        hops = [hop for k in below for hop in incoming.get((k, node), ())]
        stack += [(layers[hop.site], hop.source, (hop, *tail)) for hop in reversed(hops)]
        if tail and (not hops if starts is None else node in starts):
            paths.append(tail)
    return sorted(paths, key=len, reverse=True)


def _hops(explanation: Explanation) -> list[tuple[Array, Array, Array, Array]]:
    """Per layer the sites at which edges are kept, the edges, their senders and receivers."""
    edge_index, is_kept = explanation.edge_index.cpu().numpy(), explanation.kept.cpu().numpy()
    structure = explanation.structure
    layers = np.array(layers_of(structure), dtype=int)
    hops = []
    for layer in range(len({*layers.tolist()})):
        sites = np.flatnonzero(layers == layer)
        at, edges = is_kept[sites].nonzero()
        source, target = edge_index[::-1, edges] if structure[sites[0]].reverse else edge_index[:, edges]
        hops.append((sites[at], edges, source, target))
    return hops


def _arrivals(explanation: Explanation, sources: Sequence[int] | None, persist: bool) -> tuple[list[Array], Array]:
    """Per layer [N]: ways to be in a node before it, a start among them; and [N] the paths that end in a node.

    Arrays of Python's integers: the number of paths may be exponential in the number of layers.
    """
    nodes = number_of_nodes(explanation)
    ended, reached = np.zeros(nodes, dtype=object), np.zeros(nodes, dtype=bool)
    given = np.zeros(nodes, dtype=int)
    if sources is not None:
        given[nodes_of(explanation, sources)] = 1
    before = []
    for _, _, source, target in _hops(explanation):
        start = (~reached).astype(int) if sources is None else given
        before.append(ended + start)
        arriving = np.zeros(nodes, dtype=object)
        np.add.at(arriving, target, before[-1][source])
        hit = np.zeros(nodes, dtype=bool)
        hit[target] = True
        ended, reached = (ended + arriving, reached | hit) if persist else (arriving, hit)
    return before, ended


# Many graphs -----------------------------------------------------------------------------------------------------


def edges_on_paths(
    explanations: Iterable[Explanation],
    *,
    sources: Nodes | None = None,
    targets: Nodes | None = None,
    persist: bool = True,
) -> polars.DataFrame:
    """Share of the retained edges that lie on a path from ``sources`` (to ``targets``), per layer (section 5).

    ``sources`` and ``targets`` are node numbers, a key of ``explanation.info`` that holds them, or a function of the
    explanation.

    Columns:
        layer: null for all layers together.
        kept: retained edges.
        on_paths: those on a path.
        share: on_paths / kept.
    """
    counts: Tensor | None = None
    for block in side_by_side(explanations):
        lie = edges_on_paths_of(block, sources, targets, persist)
        block_counts = torch.stack([block.kept.sum(1), lie.sum(1)], 1)
        counts = block_counts if counts is None else counts + block_counts
    assert counts is not None
    rows = [
        (layer if layer < len(counts) else None, kept, on, share(on, kept))
        for layer, (kept, on) in enumerate([*counts.tolist(), counts.sum(0).tolist()])
    ]
    return table({"layer": int, "kept": int, "on_paths": int, "share": float}, rows)


def edges_on_paths_of(block: Block, sources: Nodes | None, targets: Nodes | None, persist: bool) -> Tensor:
    """bool [L, E]: kept, sent by a node that paths lead to, and received by one from which they lead on."""
    start, end = block.nodes(sources), block.nodes(targets)
    lie = block.kept.clone()
    reached = torch.zeros_like(start)
    for site in range(block.sites):
        if sources is not None:
            lie[site] &= (reached | start)[block.source[site]]
        hit = torch.zeros_like(start)
        hit[block.target[site, lie[site]]] = True
        reached = reached | hit if persist else hit
    for site in reversed(range(block.sites)):
        lie[site] &= end[block.target[site]]
        hit = torch.zeros_like(end)
        hit[block.source[site, lie[site]]] = True
        end = end | hit if persist else hit
    return lie


def path_patterns(
    explanations: Iterable[Explanation],
    *,
    sources: Nodes | None = None,
    targets: Nodes | None = None,
    persist: bool = True,
) -> polars.DataFrame:
    """How many paths have which sequence of edge types, without listing any (section 5).

    Columns:
        pattern: edge types from the first hop to the last (null for edges without a type).
        length: hops.
        paths: how many; exact, or as floating point numbers if one is beyond 64 bits.
        share: of all paths.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for block in side_by_side(explanations):
        counts.update(_patterns(block, sources, targets, persist))
    pl = load_polars()
    total = sum(counts.values())
    number: Any = int if total < 2**63 else float
    rows = [
        ([None if kind == NO_TYPE else kind for kind in pattern], len(pattern), number(count), count / total)
        for pattern, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return table({"pattern": pl.List(pl.Int64), "length": int, "paths": number, "share": float}, rows)


def _patterns(block: Block, sources: Nodes | None, targets: Nodes | None, persist: bool) -> Counter[tuple[int, ...]]:
    """The sweep of `_arrivals` over rows (node, pattern, number of ways) instead of nodes."""
    given = None if sources is None else block.nodes(sources).numpy()
    reached = np.zeros(block.num_nodes, dtype=bool)
    types, kinds = np.unique(block.edge_type.numpy(), return_inverse=True)
    patterns: list[tuple[int, ...]] = [()]
    known = {(): 0}
    none = np.zeros(0, dtype=np.int64)
    node, pattern, ways = none, none, np.zeros(0, dtype=object)
    for site in range(block.sites):
        start = np.flatnonzero(~reached if given is None else given)
        edges = np.flatnonzero(block.kept[site].numpy())
        edges = edges[block.source[site].numpy()[edges].argsort(kind="stable")]
        source, target = block.source[site].numpy()[edges], block.target[site].numpy()[edges]
        # Every way to be in a node, with every message that the node sends.
        where = np.concatenate([node, start])
        so_far = np.concatenate([pattern, np.zeros(len(start), dtype=np.int64)])
        number = np.concatenate([ways, np.ones(len(start), dtype=object)])
        first, beyond = np.searchsorted(source, where, "left"), np.searchsorted(source, where, "right")
        fan = beyond - first
        row = np.arange(len(where)).repeat(fan)
        at = np.arange(len(row)) - (fan.cumsum() - fan).repeat(fan) + first.repeat(fan)
        longer, which = np.unique(so_far[row] * len(types) + kinds[edges[at]], return_inverse=True)
        names = [(*patterns[code // len(types)], int(types[code % len(types)])) for code in longer.tolist()]
        for name in names:
            if name not in known:
                known[name] = len(patterns)
                patterns.append(name)
        renamed = np.array([known[name] for name in names], dtype=np.int64)[which]
        hit = np.zeros(block.num_nodes, dtype=bool)
        hit[target] = True
        if persist:
            arrived = np.concatenate([node, target[at]]), np.concatenate([pattern, renamed])
            node, pattern, ways = _merged(*arrived, np.concatenate([ways, number[row]]), len(patterns))
            reached |= hit
        else:
            node, pattern, ways = _merged(target[at], renamed, number[row], len(patterns))
            reached = hit
    counts: Counter[tuple[int, ...]] = Counter()
    ending = block.nodes(targets).numpy()[node]
    for code, number_of_ways in zip(pattern[ending].tolist(), ways[ending].tolist(), strict=True):
        counts[patterns[code]] += number_of_ways
    return counts


def _merged(node: Array, pattern: Array, ways: Array, patterns: int) -> tuple[Array, Array, Array]:
    """One row per node and pattern."""
    cells, cell = np.unique(node * patterns + pattern, return_inverse=True)
    total = np.zeros(len(cells), dtype=object)
    np.add.at(total, cell, ways)
    return cells // patterns, cells % patterns, total
