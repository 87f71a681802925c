"""Slow, literal versions of the analyses: loops over graphs, layers and edges, and every combination tried."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphmask import Explanation
from reference.small import WIDTH, Small, pairs

Edge = tuple[int, int, int | None, bool]  # source, target, type, kept
Hop = tuple[int, int, int, int]  # site, edge, source, target


def sent(explanation: Explanation, layer: int) -> list[Edge]:
    """The messages of a layer."""
    found = []
    for edge in range(explanation.edge_index.shape[1]):
        if explanation.carried[layer, edge]:
            u, v = (int(n) for n in explanation.edge_index[:, edge])
            u, v = (v, u) if explanation.structure[layer].reverse else (u, v)
            kind = None if explanation.edge_type is None else int(explanation.edge_type[edge])
            found.append((u, v, kind, bool(explanation.kept[layer, edge])))
    return found


def layers_of(explanations: Sequence[Explanation]) -> range:
    return range(len(explanations[0].structure))


def order(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """Null comes first."""
    return tuple((row[name] is not None, row[name]) for name in names)


def quotient(part: float, whole: float) -> float | None:
    return None if whole == 0 else part / whole


# Edge types ----------------------------------------------------------------------------------------------------


def edge_types(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    everything = [(k, *edge) for e in explanations for k in layers_of(explanations) for edge in sent(e, k)]
    all_kept = sum(edge[4] for edge in everything)
    rows = []
    for layer, kind in {(edge[0], edge[3]) for edge in everything}:
        here = [edge for edge in everything if edge[0] == layer]
        mine = [edge for edge in here if edge[3] == kind]
        kept = sum(edge[4] for edge in mine)
        row = {"layer": layer, "type": kind, "edges": len(mine), "kept": kept, "share": quotient(kept, all_kept)}
        rows.append(row | {"base_rate": len(mine) / len(here), "probability": kept / len(mine)})
    return sorted(rows, key=lambda row: order(row, "layer", "type"))


def kept_by_type(
    explanations: Sequence[Explanation], group: Callable[[Explanation], str | None]
) -> list[dict[str, Any]]:
    rows = []
    for name in {group(e) for e in explanations}:
        graphs = [e for e in explanations if group(e) == name]
        for layer in [None, *layers_of(explanations)]:
            chosen = layers_of(explanations) if layer is None else [layer]
            here = [edge for e in graphs for k in chosen for edge in sent(e, k)]
            for kind in {edge[2] for edge in here}:
                kept = sum(edge[3] for edge in here if edge[2] == kind)
                edges = sum(edge[2] == kind for edge in here)
                occurs = sum(
                    any(edge[2] == kind for k in layers_of(explanations) for edge in sent(e, k)) for e in graphs
                )
                row = {"group": name, "layer": layer, "type": kind, "edges": edges, "kept": kept}
                row |= {"probability": kept / edges, "share": quotient(kept, sum(edge[3] for edge in here))}
                rows.append(row | {"graphs": occurs, "occurrence": occurs / len(graphs)})
    return sorted(rows, key=lambda row: order(row, "group", "layer", "type"))


def type_overlap(explanations: Sequence[Explanation], directed: bool) -> list[dict[str, Any]]:
    types = {edge[2] for e in explanations for k in layers_of(explanations) for edge in sent(e, k)}
    rows = []

    def beside(edge: Edge, others: Iterable[Edge]) -> bool:
        if directed:
            return any(edge[:2] == other[:2] for other in others)
        return any({edge[0], edge[1]} == {other[0], other[1]} for other in others)

    for layer in layers_of(explanations):
        for kind, other in itertools.permutations(types, 2):
            edges = kept = overlap = overlap_any = base = 0
            for e in explanations:
                mine = [edge for edge in sent(e, layer) if edge[2] == kind]
                theirs = [edge for edge in sent(e, layer) if edge[2] == other]
                kept_theirs = [edge for edge in theirs if edge[3]]
                edges += len(mine)
                kept += sum(edge[3] for edge in mine)
                overlap += sum(edge[3] and beside(edge, kept_theirs) for edge in mine)
                overlap_any += sum(edge[3] and beside(edge, theirs) for edge in mine)
                base += sum(beside(edge, theirs) for edge in mine)
            row = {"layer": layer, "type": kind, "other": other, "kept": kept, "overlap": quotient(overlap, kept)}
            row |= {"overlap_any": quotient(overlap_any, kept), "edges": edges, "base_rate": quotient(base, edges)}
            rows.append(row)
    return sorted(rows, key=lambda row: order(row, "layer", "type", "other"))


def inverses(explanations: Sequence[Explanation], inverse_types: dict[int, int] | None) -> list[dict[str, Any]]:
    def is_inverse(edge: Edge, other: Edge) -> bool:
        back = edge[0] == other[1] and edge[1] == other[0]
        return back and (inverse_types is None or (edge[2] in inverse_types and inverse_types[edge[2]] == other[2]))

    rows = []
    for layer in [*layers_of(explanations), None]:
        kept = both = edges = back = 0
        for e, k in itertools.product(explanations, layers_of(explanations) if layer is None else [layer]):
            here = [edge for edge in sent(e, k) if edge[0] != edge[1]]
            edges += len(here)
            kept += sum(edge[3] for edge in here)
            both += sum(edge[3] and any(o[3] and is_inverse(edge, o) for o in here) for edge in here)
            back += sum(any(is_inverse(edge, o) for o in here) for edge in here)
        row = {"layer": layer, "kept": kept, "both": both, "share": quotient(both, kept)}
        rows.append(row | {"edges": edges, "base_rate": quotient(back, edges)})
    return rows


# Paths ---------------------------------------------------------------------------------------------------------


def hops(explanation: Explanation) -> list[Hop]:
    found = []
    for site, edge in explanation.kept.nonzero().tolist():
        u, v = (int(n) for n in explanation.edge_index[:, edge])
        found.append((site, edge, v, u) if explanation.structure[site].reverse else (site, edge, u, v))
    return found


def chains(
    explanation: Explanation, sources: list[int] | None, targets: list[int] | None, persist: bool
) -> set[tuple[Hop, ...]]:
    """Every combination of kept messages that is a path."""
    kept, sites = hops(explanation), len(explanation.structure)

    def follows(first: Hop, second: Hop) -> bool:
        step = second[0] - first[0]
        return first[3] == second[2] and (step >= 1 if persist else step == 1)

    def is_path(chain: tuple[Hop, ...]) -> bool:
        first, last = chain[0], chain[-1]
        starts = not any(follows(hop, first) for hop in kept) if sources is None else first[2] in sources
        ends = (targets is None or last[3] in targets) and (persist or last[0] == sites - 1)
        return starts and ends and all(follows(a, b) for a, b in itertools.pairwise(chain))

    return {
        chain
        for length in range(1, sites + 1)
        for chosen in itertools.combinations(range(sites), length)
        for chain in itertools.product(*([hop for hop in kept if hop[0] == site] for site in chosen))
        if is_path(chain)
    }


def retained_paths(explanation: Explanation, source: int, target: int, persist: bool) -> tuple[int, int] | None:
    """Length of the shortest path, and the most edges of one, counted from its end, that are retained."""
    sites = len(explanation.structure)
    messages = [sent(explanation, k) for k in range(sites)]
    links = {edge[:2] for layer in messages for edge in layer}
    walks = [(source,)]
    while walks and not any(walk[-1] == target for walk in walks):
        longer = [(*walk, v) for walk in walks for u, v in links if u == walk[-1] and v not in walk]
        walks = longer
    walks = [walk for walk in walks if walk[-1] == target]
    if not walks or source == target:
        return None

    def retained(steps: Sequence[tuple[int, int]]) -> bool:
        for chosen in itertools.combinations(range(sites), len(steps)):
            if not persist and chosen != tuple(range(sites - len(steps), sites)):
                continue
            there = [
                any(edge[:2] == step and edge[3] for edge in messages[k]) for k, step in zip(chosen, steps, strict=True)
            ]
            if all(there):
                return True
        return False

    best = 0
    for walk in walks:
        steps = list(itertools.pairwise(walk))
        best = max([best, *(n for n in range(1, len(steps) + 1) if retained(steps[-n:]))])
    return len(walks[0]) - 1, best


# Attribution and stability -------------------------------------------------------------------------------------


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def attribution_by_layer(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    def kept(e: Explanation, layer: int) -> int:
        return sum(bool(flag) for flag in e.kept[layer])

    def mass(e: Explanation, layer: int) -> float:
        return sum(abs(float(score)) for score in e.scores[layer])

    layers = layers_of(explanations)
    rows = []
    for layer in layers:
        row: dict[str, Any] = {"layer": layer, "kept": sum(kept(e, layer) for e in explanations)}
        for name, amount in (("kept", kept), ("score", mass)):
            total = sum(amount(e, k) for e in explanations for k in layers)
            row[f"{name}_share"] = quotient(sum(amount(e, layer) for e in explanations), total)
            each = [(amount(e, layer), sum(amount(e, k) for k in layers)) for e in explanations]
            row[f"mean_{name}_share"] = mean([part / whole for part, whole in each if whole > 0])
        rows.append(row)
    return rows


def attribution_levels(explanations: Sequence[Explanation], levels: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for layer in layers_of(explanations):
        for level in levels:
            counts = []
            for e in explanations:
                scores = [float(s) for s, c in zip(e.scores[layer], e.carried[layer], strict=True) if c]
                counts.append((sum(score > level for score in scores), len(scores)))
            above, messages = (sum(column) for column in zip(*counts, strict=True))
            row = {"layer": layer, "level": level, "above": above, "messages": messages}
            share, each = quotient(above, messages), mean([a / m for a, m in counts if m])
            rows.append(row | {"share": share, "mean_share": each})
    return rows


def ratings(fits: Sequence[Sequence[Explanation]], layers: Iterable[int]) -> list[tuple[bool, ...]]:
    """Per gate what every fit says."""
    return [
        tuple(bool(e.kept[layer, edge]) for e in together)
        for together in zip(*fits, strict=True)
        for layer in layers
        for edge in range(together[0].edge_index.shape[1])
        if together[0].carried[layer, edge]
    ]


def jaccard(rated: list[tuple[bool, ...]], fits: int) -> float:
    values = []
    for a, b in itertools.combinations(range(fits), 2):
        both, either = sum(r[a] and r[b] for r in rated), sum(r[a] or r[b] for r in rated)
        values.append(both / either if either else 1.0)
    return sum(values) / len(values)


def agreement(rated: list[tuple[bool, ...]], fits: int) -> float:
    couples = list(itertools.combinations(range(fits), 2))
    return sum(r[a] == r[b] for r in rated for a, b in couples) / (len(rated) * len(couples))


# The model -----------------------------------------------------------------------------------------------------


def only_baselines(model: Small, data: Data, kept: Tensor, baselines: Sequence[Tensor]) -> Tensor:
    """[outputs] with zero along kept edges and the baseline along the others."""
    h = list(data.x)
    for site, keep in enumerate(model.keeps):
        inbox = [torch.zeros(WIDTH, dtype=torch.double) for _ in h]
        for edge, (_, v) in enumerate(pairs(data)):
            if not kept[site, edge]:
                inbox[v] = inbox[v] + baselines[site]
        h = [torch.tanh(total + keep @ own) for total, own in zip(inbox, h, strict=True)]
    return model.read @ (sum(h) / len(h))


def counts_of(values: Iterable[Any]) -> Counter[Any]:
    return Counter(values)
