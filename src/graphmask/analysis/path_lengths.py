"""How much of the way between two nodes is retained, by its length and by token distance (section 6).

For every source and target (a predicate and its roles) take the shortest path of the input graph, along the direction
of the messages. Retained are the last of its edges: as many as form a chain of kept messages at rising sites that ends
in the target. A model with L sites can thus retain at most L edges of a path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.side_by_side import Block, Key, Nodes, look_up, nodes_of, none_found
from graphmask.analysis.tables import table
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars


def kept_by_path_length(
    explanations: Iterable[Explanation],
    sources: Nodes,
    targets: Nodes,
    *,
    group: Key | None = None,
    longest: int | None = None,
    persist: bool = True,
) -> polars.DataFrame:
    """Share of paths with 0, 1, 2, ... edges retained, by path length (the paper's table 3).

    Pairs of nodes that the graph does not connect have no path and are left out, as is a node with itself. Where
    several shortest paths connect a pair, the one that is retained most counts.

    Args:
        sources, targets: node numbers, a key of ``explanation.info`` that holds them, or a function.
        group: splits the graphs, as text.
        longest: longer paths count as being this long.
        persist: a node may hold its state over a site.

    Columns:
        group: null without a grouping.
        length: edges of the path.
        retained: how many of them, from the end, are.
        paths: how many such paths.
        share: of the paths of this group and length.
    """
    counts: Counter[tuple[str | None, int, int]] = Counter()
    for name, length, retained, _ in _pairs(explanations, sources, targets, group, None, persist):
        counts[name, length if longest is None else min(length, longest), retained] += 1
    total: Counter[tuple[str | None, int]] = Counter()
    for (name, length, _), count in counts.items():
        total[name, length] += count
    rows = [(*key, count, count / total[key[:2]]) for key, count in counts.items()]
    columns = {"group": str, "length": int, "retained": int, "paths": int, "share": float}
    return table(columns, rows).sort("group", "length", "retained")


def kept_by_distance(
    explanations: Iterable[Explanation],
    sources: Nodes,
    targets: Nodes,
    *,
    positions: Key | None = None,
    group: Key | None = None,
    persist: bool = True,
) -> polars.DataFrame:
    """Share of paths of which at least the last edge is retained, by token distance (the paper's figure 4).

    Args:
        positions: a key of ``explanation.info``, or a function, for the token position of every node; by default the
            node's number. The distance is that of the positions of source and target.
        others: as in `kept_by_path_length`.

    Columns:
        group: null without a grouping.
        distance: of the source's position from the target's, without its sign.
        paths: how many.
        retained: of how many at least one edge is.
        share: retained / paths.
    """
    counts: dict[tuple[str | None, int], list[int]] = {}
    for name, _, retained, distance in _pairs(explanations, sources, targets, group, positions, persist):
        tally = counts.setdefault((name, distance), [0, 0])
        tally[0] += 1
        tally[1] += retained > 0
    rows = [(*key, paths, retained, retained / paths) for key, (paths, retained) in counts.items()]
    columns = {"group": str, "distance": int, "paths": int, "retained": int, "share": float}
    return table(columns, rows).sort("group", "distance")


def _pairs(
    explanations: Iterable[Explanation],
    sources: Nodes,
    targets: Nodes,
    group: Key | None,
    positions: Key | None,
    persist: bool,
) -> Iterator[tuple[str | None, int, int, int]]:
    """For every connected pair: group, length of the path, edges retained, distance of the positions."""
    explanation = None
    for explanation in explanations:
        name = None if group is None else str(look_up(explanation, group))
        block = Block.of([explanation])
        starts, ends = sorted(set(nodes_of(explanation, sources))), sorted(set(nodes_of(explanation, targets)))
        position_of = _positions(explanation, positions, block.num_nodes)
        steps = _distances(block, torch.tensor(starts, dtype=torch.long))
        connected = [(s, end) for s, start in enumerate(starts) for end in ends if end != start and steps[s, end] > 0]
        if not connected:
            continue
        start, end = torch.tensor(connected).t()
        retained = _retained(block, steps[start], end, persist).tolist()
        for (s, target), kept in zip(connected, retained, strict=True):
            yield name, int(steps[s, target]), kept, abs(position_of[starts[s]] - position_of[target])
    if explanation is None:
        raise none_found()


def _positions(explanation: Explanation, positions: Key | None, nodes: int) -> Sequence[int]:
    if positions is None:
        return range(nodes)
    position_of = look_up(explanation, positions)
    position_of = position_of.tolist() if isinstance(position_of, Tensor) else list(position_of)
    if len(position_of) < explanation.num_nodes:
        raise GraphMaskError(f"Expected a position for each of {explanation.num_nodes} nodes, got {len(position_of)}.")
    return position_of


def _distances(block: Block, starts: Tensor) -> Tensor:
    """[S, N] edges on the shortest path from each start, -1 where there is none: breadth first, all starts at once."""
    source, target = block.source[block.carried], block.target[block.carried]
    steps = torch.full((len(starts), block.num_nodes), -1)
    frontier = torch.zeros_like(steps, dtype=torch.bool)
    frontier[torch.arange(len(starts)), starts] = True
    distance = 0
    while bool(frontier.any()):
        steps[frontier] = distance
        reached = torch.zeros_like(steps).index_add(1, target, frontier[:, source].long())
        frontier = (reached > 0) & (steps < 0)
        distance += 1
    return steps


def _retained(block: Block, steps: Tensor, end: Tensor, persist: bool) -> Tensor:
    """[P] for pairs with the distances ``steps`` [P, N] from their source: edges retained before their ``end`` [P]."""
    pairs = torch.arange(len(end))
    at = torch.zeros_like(steps, dtype=torch.bool)  # nodes from which kept messages lead to the end, on shortest paths
    at[pairs, end] = True
    closest = steps[pairs, end]
    length = closest
    for site in reversed(range(block.sites)):
        source, target = block.source[site, block.kept[site]], block.target[site, block.kept[site]]
        on = at[:, target] & (steps[:, source] >= 0) & (steps[:, source] == steps[:, target] - 1)
        new = torch.zeros_like(steps).index_add(1, source, on.long()) > 0
        nearest = torch.where(new, steps, length[:, None]).min(1).values
        closest = torch.minimum(closest, nearest)
        at = at | new if persist else new
    return length - closest
