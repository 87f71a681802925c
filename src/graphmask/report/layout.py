"""Where the nodes of a graph go on the page.

Computed here rather than in the browser, so that the same explanation always gives the same picture. Shapes a
reader knows are drawn as such: a star around its hub, a tree or feed-forward graph in columns with messages
flowing to the right. Everything else is placed by stress majorisation (distances on the page follow distances
in the graph), written out in numpy because networkx's own version needs SciPy, which we do not depend on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

Edge = tuple[int, int]
Points = dict[int, tuple[float, float]]

GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
# Stress majorisation holds all pairs in memory; beyond this a picture is a texture anyway.
LARGEST_STRESS_COMPONENT = 500


@dataclass(frozen=True)
class Layout:
    """Positions in pixels inside a ``width`` x ``height`` box; ``radius`` is the size of a node."""

    positions: Points
    loop_angles: dict[int, float]  # direction in which a self-loop leaves its node, in radians
    bends: list[float]  # per edge: 0 straight; else sideways offset; for self-loops 0, 1, 2 ... outwards
    width: float
    height: float
    radius: float
    columns: bool  # one component, drawn in columns from left to right


def layout(nodes: Sequence[int], edges: Sequence[Edge], label_length: int = 2) -> Layout:
    """Place ``nodes``; ``edges`` may hold duplicates and self-loops. Deterministic, always finite."""
    unit = 15.0 if len(nodes) <= 30 else 12.0 if len(nodes) <= 80 else 9.0
    # Labels of up to three characters fit inside a node; longer ones stand outside and need room.
    outside = label_length > 3
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(nodes))
    graph.add_edges_from(sorted({(u, v) for u, v in edges if u != v}))
    components = sorted(nx.weakly_connected_components(graph), key=lambda c: (-len(c), min(c)))
    placed, columns = [], False
    for component in components:
        points, columns = _component(_ordered_subgraph(graph, sorted(component)), unit)
        placed.append(points)
    columns = columns and len(placed) == 1
    label_width = min(label_length, 14) * (6.8 if columns else 3.4) if outside else 0.0
    margin = (unit * 1.8 + label_width, unit * 1.8 + (12 if outside else 0))
    gap = (unit * 2.8 + label_width, unit * 2.8 + (16 if outside else 0))
    positions, width, height = _pack(placed, gap, margin)
    angles = loop_angles(positions, edges)
    return Layout(positions, angles, bends(edges), width, height, unit * (0.62 if outside else 1), columns)


def bends(edges: Sequence[Edge]) -> list[float]:
    """Sideways offset of each edge, so that parallel and reciprocal edges lie beside each other.

    Offsets are relative to the edge's own direction: a reciprocal pair gets the same value twice and so bends
    apart.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (u, v) in enumerate(edges):
        groups.setdefault((min(u, v), max(u, v)), []).append(index)
    result = [0.0] * len(edges)
    for (low, high), members in groups.items():
        for number, index in enumerate(members):
            if low == high:
                result[index] = float(number)
            else:
                offset = number - (len(members) - 1) / 2
                result[index] = offset if edges[index][0] == low else -offset
    return result


def _ordered_subgraph(graph: nx.DiGraph, nodes: list[int]) -> nx.DiGraph:
    """A copy, because networkx's subgraph views iterate in the order of a set."""
    part = nx.DiGraph()
    part.add_nodes_from(nodes)
    part.add_edges_from((u, v) for u in nodes for v in sorted(graph.successors(u)))
    return part


def _component(graph: nx.DiGraph, unit: float) -> tuple[Points, bool]:
    """Positions of a connected graph, and whether they form columns."""
    n = graph.number_of_nodes()
    if n == 1:
        return {next(iter(graph)): (0.0, 0.0)}, False
    undirected = graph.to_undirected()
    if undirected.number_of_edges() == n - 1:
        tree = _tree(graph, undirected, unit)
        if tree is not None:
            return tree
    points = _feed_forward(graph, unit)
    if points is not None:
        return points, True
    arrange = _stress if n <= LARGEST_STRESS_COMPONENT else _sunflower
    return arrange(undirected, unit), False


def _tree(graph: nx.DiGraph, undirected: nx.Graph, unit: float) -> tuple[Points, bool] | None:
    root, flow = _root(graph, undirected)
    depth = nx.single_source_shortest_path_length(undirected, root)
    rows, leaves = _rows(undirected, root, depth)
    deepest = max(depth.values())
    if leaves == 1:  # a chain, read along the arrows
        return {v: ((flow or 1) * depth[v] * unit * 5.5, 0.0) for v in undirected}, False
    if deepest > 1 and flow and leaves <= 24:
        step = unit * (10 if deepest <= 3 else 7)
        return {v: (flow * depth[v] * step, rows[v] * unit * 2.7) for v in undirected}, True
    if deepest <= 3:
        step = max(unit * (8 if deepest == 1 else 6), leaves * unit * 3.1 / (2 * math.pi * deepest))
        start = math.pi if leaves == 2 else math.pi / 2  # two leaves lie side by side: names below do not touch lines
        angle = {v: rows[v] / leaves * 2 * math.pi - start for v in undirected}
        far = {v: depth[v] * step for v in undirected}
        return {v: (math.cos(a) * far[v], math.sin(a) * far[v]) for v, a in angle.items()}, False
    return None


def _root(graph: nx.DiGraph, undirected: nx.Graph) -> tuple[int, int]:
    """The root of a tree, and how its arrows go: towards the root (-1), away from it (1), or both ways (0)."""
    if graph.number_of_edges() == undirected.number_of_edges():
        sinks = [v for v in graph if graph.out_degree(v) == 0]
        if len(sinks) == 1:
            return sinks[0], -1
        sources = [v for v in graph if graph.in_degree(v) == 0]
        if len(sources) == 1:
            return sources[0], 1
    return min(nx.center(undirected)), 0


def _rows(undirected: nx.Graph, root: int, depth: dict[int, int]) -> tuple[dict[int, float], int]:
    """The row of each node (leaves below one another, others amid their children), and how many leaves there are."""
    children: dict[int, list[int]] = {v: [] for v in undirected}
    for v in undirected:
        if v != root:
            parent = next(u for u in undirected[v] if depth[u] < depth[v])
            children[parent].append(v)
    rows: dict[int, float] = {}
    leaves = 0
    for v in nx.dfs_postorder_nodes(undirected, root):
        if children[v]:
            rows[v] = sum(rows[c] for c in children[v]) / len(children[v])
        else:
            rows[v] = float(leaves)
            leaves += 1
    return rows, leaves


def _feed_forward(graph: nx.DiGraph, unit: float) -> Points | None:
    """Columns, when every edge goes from one generation to the next; None when the graph is not like that."""
    if not nx.is_directed_acyclic_graph(graph):
        return None
    columns = [sorted(generation) for generation in nx.topological_generations(graph)]
    level = {v: i for i, column in enumerate(columns) for v in column}
    if any(level[v] - level[u] != 1 for u, v in graph.edges) or max(map(len, columns)) > 20:
        return None
    undirected = graph.to_undirected(as_view=True)
    row = {v: i - (len(c) - 1) / 2 for c in columns for i, v in enumerate(c)}
    for sweep in range(12):  # barycentre ordering: each column sorted by where its neighbours are
        for column in columns if sweep % 2 == 0 else reversed(columns):
            centre = {v: sum(row[u] for u in undirected[v]) / max(1, len(undirected[v])) for v in column}
            column.sort(key=lambda v: (centre[v], v))
            row.update({v: i - (len(column) - 1) / 2 for i, v in enumerate(column)})
    return {v: (level[v] * unit * 9, row[v] * unit * 3) for v in graph}


def _stress(graph: nx.Graph, unit: float) -> Points:
    nodes = list(graph)
    n = len(nodes)
    at = {v: i for i, v in enumerate(nodes)}
    distance = np.zeros((n, n))
    for u, row in nx.all_pairs_shortest_path_length(graph):
        for v, d in row.items():
            distance[at[u], at[v]] = d
    # Classical scaling gives the start (random starts fold the drawing); a spiral jitter parts twins.
    centring = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centring @ distance**2 @ centring)
    vectors = vectors * np.where(vectors[np.abs(vectors).argmax(0), np.arange(n)] < 0, -1, 1)
    points = (vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-9)))[:, ::-1]
    turn = np.arange(n) * GOLDEN_ANGLE
    points = points + 0.15 * np.stack([np.cos(turn), np.sin(turn)], 1)
    weight = 1 / (distance + np.eye(n)) ** 2 * (1 - np.eye(n))
    laplacian = np.diag(weight.sum(1)) - weight
    inverse = np.linalg.inv(laplacian + 1 / n)
    for _ in range(120):
        apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
        ratio = weight * distance / np.maximum(apart, 1e-6) * (1 - np.eye(n))
        points = inverse @ ((np.diag(ratio.sum(1)) - ratio) @ points)
    edge_length = np.median([np.linalg.norm(points[at[u]] - points[at[v]]) for u, v in graph.edges])
    points = points * (unit * 5.2 / max(float(edge_length), 1e-6))
    for _ in range(60):  # push overlapping nodes apart
        delta = points[:, None] - points[None]
        apart = np.maximum(np.linalg.norm(delta, axis=-1), 1e-6)
        push = np.maximum(0, unit * 3.1 - apart) * (1 - np.eye(n))
        if push.max() < 0.5:
            break
        points = points + 0.25 * (delta / apart[..., None] * push[..., None]).sum(1)
    return {v: (float(points[i, 0]), float(points[i, 1])) for v, i in at.items()}


def _sunflower(graph: nx.Graph, unit: float) -> Points:
    """Breadth-first from the busiest node along a spiral: linear time, even density, neighbours roughly near."""
    hub = max(graph, key=lambda v: (graph.degree(v), -v))
    order = [hub, *(v for _, v in nx.bfs_edges(graph, hub))]
    return {
        v: (
            math.cos(i * GOLDEN_ANGLE) * math.sqrt(i) * unit * 1.9,
            math.sin(i * GOLDEN_ANGLE) * math.sqrt(i) * unit * 1.9,
        )
        for i, v in enumerate(order)
    }


def _pack(
    components: Sequence[Points], gap: tuple[float, float], margin: tuple[float, float]
) -> tuple[Points, float, float]:
    """Put components side by side on shelves, largest first."""
    boxes = []
    for points in components:
        xs, ys = [p[0] for p in points.values()], [p[1] for p in points.values()]
        boxes.append((min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)))
    area = sum((w + gap[0]) * (h + gap[1]) for _, _, w, h in boxes)
    shelf_width = max([math.sqrt(area) * 1.3, *(w for _, _, w, _ in boxes)], default=0.0)
    positions: Points = {}
    x = y = shelf = widest = 0.0
    for points, (left, top, w, h) in zip(components, boxes, strict=True):
        if x > 0 and x + w > shelf_width:
            x, y, shelf = 0.0, y + shelf + gap[1], 0.0
        for v, (px, py) in points.items():
            positions[v] = (
                round(px - left + x + margin[0], 1),
                round(py - top + y + margin[1], 1),
            )
        widest, shelf = max(widest, x + w), max(shelf, h)
        x += w + gap[0]
    return positions, round(widest + 2 * margin[0], 1), round(y + shelf + 2 * margin[1], 1)


def loop_angles(positions: Points, edges: Sequence[Edge]) -> dict[int, float]:
    """Self-loops leave a node in the middle of the widest gap between its other edges."""
    near: dict[int, set[int]] = {u: set() for u, v in edges if u == v}
    for u, v in edges:
        for one, other in ((u, v), (v, u)):
            if u != v and one in near:
                near[one].add(other)
    result = {}
    for v, around in sorted(near.items()):
        x, y = positions[v]
        angles = sorted(math.atan2(positions[u][1] - y, positions[u][0] - x) for u in around)
        if not angles:
            result[v] = round(-math.pi / 2, 3)
            continue
        gaps = [(angles[(i + 1) % len(angles)] - a) % (2 * math.pi) or 2 * math.pi for i, a in enumerate(angles)]
        widest = max(range(len(gaps)), key=lambda i: (round(gaps[i], 6), -i))
        result[v] = round(angles[widest] + gaps[widest] / 2, 3)
    return result
