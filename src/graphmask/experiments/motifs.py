"""Sets whose answer is known because it was planted: motifs attached to base graphs, and infections along paths.

Node sets are one large graph (`y` [N]); graph sets are many small ones (`y` [1]). All edges of motif sets go both
ways. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

Pairs = list[tuple[int, int]]
Rng = np.random.Generator


def cycle(size: int) -> Pairs:
    return [(node, (node + 1) % size) for node in range(size)]


def grid(side: int) -> Pairs:
    across = [(side * row + column, side * row + column + 1) for row in range(side) for column in range(side - 1)]
    return across + [(node, node + side) for node in range(side * (side - 1))]


#: A square whose upper two corners carry a roof; node 4 is the top.
HOUSE: Pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)]
#: Middle, bottom, top: what the nodes of BA-Shapes are classified by.
HOUSE_ROLES = (1, 1, 2, 2, 3)
#: Two nodes, each tied to the same three others.
CRANE: Pairs = [(1, 0), (1, 2), (1, 4), (3, 0), (3, 2), (3, 4)]


def tree(depth: int) -> Pairs:
    """Balanced, two children per node; 2^(depth + 1) - 1 nodes."""
    return [((node - 1) // 2, node) for node in range(1, 2 ** (depth + 1) - 1)]


def ladder(length: int) -> Pairs:
    rails = [(node, node + 2) for node in range(2 * length - 2)]
    return rails + [(2 * rung, 2 * rung + 1) for rung in range(length)]


def wheel(size: int) -> Pairs:
    """A hub (node 0) and a rim of ``size - 1``."""
    return [(0, node) for node in range(1, size)] + [(a + 1, b + 1) for a, b in cycle(size - 1)]


def barabasi_albert(nodes: int, edges: int, rng: Rng) -> Pairs:
    """Every new node is tied to ``edges`` others, each drawn in proportion to its degree."""
    pairs: Pairs = []
    ends: list[int] = []  # every node as often as it has edges
    hosts: Sequence[int] = range(edges)
    for node in range(edges, nodes):
        pairs += [(host, node) for host in hosts]
        ends += [*hosts, *[node] * edges]
        chosen: set[int] = set()
        while len(chosen) < edges:
            chosen.add(ends[int(rng.integers(len(ends)))])
        hosts = sorted(chosen)
    return pairs


def size_of(pairs: Pairs) -> int:
    return 1 + max(max(pair) for pair in pairs)


def attach(base: Pairs, motifs: Sequence[Pairs], rng: Rng, noise: int = 0) -> Data:
    """The base graph, each motif tied by one edge to a node of it, and ``noise`` random edges between any two nodes.

    ``motif`` [N] and ``gold`` [E] number the motif a node or edge belongs to, -1 where it belongs to none.
    """
    nodes = size_of(base)
    hosts = rng.choice(nodes, len(motifs), replace=len(motifs) > nodes)
    pairs, owner, node_owner = list(base), [-1] * len(base), [-1] * nodes
    for number, (motif, host) in enumerate(zip(motifs, hosts.tolist(), strict=True)):
        size = size_of(motif)
        pairs += [(a + nodes, b + nodes) for a, b in motif]
        pairs.append((host, nodes + int(rng.integers(size))))
        owner += [number] * len(motif) + [-1]
        node_owner += [number] * size
        nodes += size
    known = {frozenset(pair) for pair in pairs}
    for _ in range(noise):
        a, b = rng.choice(nodes, 2, replace=False).tolist()
        if frozenset((a, b)) not in known:
            known.add(frozenset((a, b)))
            pairs.append((a, b))
            owner.append(-1)
    one_way, gold = torch.tensor(pairs).t(), torch.tensor(owner)
    return Data(
        edge_index=torch.cat([one_way, one_way.flip(0)], 1), gold=gold.repeat(2), motif=torch.tensor(node_owner)
    )


# One large graph, nodes are classified ----------------------------------------------------------------------


def _roles(data: Data, roles: Sequence[int]) -> Tensor:
    """0 in the base; in motifs, which all are alike and come after it, the role of the node."""
    inside = data.motif >= 0
    y = torch.zeros(len(data.motif), dtype=torch.long)
    y[inside] = torch.tensor(roles).repeat(int(inside.sum()) // len(roles))
    return y


def _ones(data: Data, width: int = 10) -> Data:
    data.x = torch.ones(len(data.motif), width)
    return data


def ba_shapes(seed: int) -> Data:
    """300 nodes by preferential attachment and 80 houses; the label is the role of a node in its house."""
    rng = np.random.default_rng(seed)
    data = attach(barabasi_albert(300, 5, rng), [HOUSE] * 80, rng)
    data.y = _roles(data, HOUSE_ROLES)
    return _ones(data)


def ba_community(seed: int) -> Data:
    """Two BA-Shapes with 70 random edges between them; features tell the two apart, labels are role and community."""
    first, second = ba_shapes(seed), ba_shapes(seed + 10)
    rng = np.random.default_rng(seed)
    nodes, motifs = len(first.y), int(first.motif.max()) + 1
    across = torch.tensor([[int(rng.integers(nodes)), nodes + int(rng.integers(nodes))] for _ in range(70)]).unique(
        dim=0
    )
    bridge = torch.cat([across, across.flip(1)]).t()
    centre = torch.tensor([-1.0, 1.0]).repeat_interleave(nodes)[:, None]
    noise = torch.from_numpy(rng.normal(0, 0.5, (2 * nodes, 10))).float()

    def numbered(values: Tensor) -> Tensor:
        return torch.where(values >= 0, values + motifs, values)

    return Data(
        x=centre + noise,
        edge_index=torch.cat([first.edge_index, second.edge_index + nodes, bridge], 1),
        gold=torch.cat([first.gold, numbered(second.gold), torch.full((bridge.shape[1],), -1)]),
        motif=torch.cat([first.motif, numbered(second.motif)]),
        y=torch.cat([first.y, second.y + 4]),
    )


def tree_cycles(seed: int) -> Data:
    """A balanced binary tree of 511 nodes and 60 cycles of six; is a node in a cycle?"""
    data = attach(tree(8), [cycle(6)] * 60, np.random.default_rng(seed), 9)
    data.y = (data.motif >= 0).long()
    return _ones(data)


def tree_grid(seed: int) -> Data:
    """A balanced binary tree of 511 nodes and 80 grids of three by three; is a node in a grid?"""
    data = attach(tree(8), [grid(3)] * 80, np.random.default_rng(seed), 12)
    data.y = (data.motif >= 0).long()
    return _ones(data)


def infection(seed: int, nodes: int = 1000, degree: float = 4.0, infected: int = 50, longest: int = 4) -> Data:
    """How many steps is a node away from the nearest infected one, along directed edges? (Faber et al., KDD 2021)

    ``y`` is the distance, ``longest + 1`` for all that are farther. ``parent`` [N] is the edge by which the infection
    arrives, -1 where there is none or where not exactly one shortest path leads to the node: only of the others is
    the answer known.
    """
    rng = np.random.default_rng(seed)
    pairs = torch.from_numpy(rng.integers(nodes, size=(int(nodes * degree), 2)))
    edge_index = pairs[pairs[:, 0] != pairs[:, 1]].unique(dim=0).t().contiguous()
    sick = torch.from_numpy(rng.permutation(nodes)[:infected])
    source, target = edge_index
    y = torch.full((nodes,), longest + 1)
    y[sick] = 0
    ways = (y == 0).long()  # shortest paths, by number
    parent = torch.full((nodes,), -1)
    for step in range(1, longest + 1):
        front = (y[source] == step - 1) & (y[target] > longest)
        y[target[front]] = step
        arriving = (y[source] == step - 1) & (y[target] == step)
        ways = ways.index_add(0, target[arriving], ways[source[arriving]])
        parent[target[arriving]] = arriving.nonzero().view(-1)
    parent[(ways != 1) | (y == 0)] = -1
    state = torch.zeros(nodes, dtype=torch.long).index_fill(0, sick, 1)
    return Data(x=torch.nn.functional.one_hot(state, 2).float(), edge_index=edge_index, y=y, parent=parent)


def path_to(data: Data, node: int) -> Tensor:
    """bool [E]: the edges by which the infection reaches a node."""
    gold = torch.zeros(data.edge_index.shape[1], dtype=torch.bool)
    edge = int(data.parent[node])
    while edge >= 0:
        gold[edge] = True
        edge = int(data.parent[data.edge_index[0, edge]])
    return gold


# Many small graphs, graphs are classified -------------------------------------------------------------------


def _graph(base: Pairs, motif: Pairs, label: int, rng: Rng, noise: int = 0) -> Data:
    data = attach(base, [motif], rng, noise)
    return Data(
        edge_index=data.edge_index, gold=data.gold >= 0, y=torch.tensor([label]), x=torch.ones(len(data.motif), 1)
    )


def ba_2motifs(seed: int, graphs: int = 1000) -> list[Data]:
    """20 nodes by preferential attachment with a house (label 0) or a cycle of five (1), in turns."""
    rng = np.random.default_rng(seed)
    return [
        _graph(barabasi_albert(20, 1, rng), (HOUSE, cycle(5))[label], label, rng)
        for label in (np.arange(graphs) % 2).tolist()
    ]


BASES: tuple[Callable[[Rng], Pairs], ...] = (
    lambda rng: tree(int(rng.integers(3, 5))),
    lambda rng: ladder(int(rng.integers(8, 12))),
    lambda rng: wheel(int(rng.integers(15, 20))),
)
SPMOTIFS: tuple[Pairs, ...] = (cycle(5), HOUSE, CRANE)


def spmotif(seed: int, bias: float = 1 / 3, graphs: int = 3000) -> list[Data]:
    """A base (tree, ladder, wheel) with a motif (cycle, house, crane), which is the label (Wu et al., ICLR 2022).

    Label and base agree with probability ``bias``, the other two bases share the rest: 1/3 is no bias at all.
    """
    rng = np.random.default_rng(seed)
    drawn = []
    for label in (np.arange(graphs) % 3).tolist():
        shift = 0 if rng.random() < bias else int(rng.integers(1, 3))
        base = BASES[(label + shift) % 3](rng)
        drawn.append(_graph(base, SPMOTIFS[label], label, rng))
    return drawn
