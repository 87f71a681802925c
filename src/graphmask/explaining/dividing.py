"""Turns what was chosen for a batch into one explanation per graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from graphmask.explained_features import Features
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.pieces import Alike
from graphmask.explaining.repairing import Repaired
from graphmask.explanation import Explanation, build_all
from graphmask.explanation_contents import ASKED, UNREPAIRED, UNSEEN
from graphmask.graphs import batches
from graphmask.graphs.edges import EdgeMap
from graphmask.hetero_explanation import HeteroExplanation, nodes_by_type, notes


def divide(
    case: Case,
    choice: Choice,
    repaired: Repaired,
    method: str,
    overturning: tuple[Tensor, Tensor] | None = None,
    alike: Alike | None = None,
) -> list[Explanation]:
    """One Explanation per graph of the batch; ``overturning`` is what `repairing.counterfactual` returns.

    Sentences of one length have the same pairs, which are stored once, also across batches that share ``alike``.
    """
    trace, split, masked = case.trace, case.split, repaired.masked
    divergence, flips = case.distance_and_flips(masked)
    types, asked, edge_type = case.subject.types, case.subject.rows, _edge_type(case)
    info = _info(case, repaired)
    local = split.within(trace.edge_index)
    features: Iterable[Any] = repeat(None)
    if case.subject.features is not None:
        features = _features(case, choice, overturning)
        case, choice, local, overturning = _without_features(case, choice, local, overturning)
        trace, split = case.trace, case.split
    nodes = _nodes_per_graph(case)
    baselines = [baseline.detach().clone() for baseline in choice.baselines]
    edges, rows = _divider(split.edge_graph, split.count), _divider(split.row_graph, split.count)
    known: Callable[[Tensor], Tensor] = (alike or Alike()) if trace.sizes is not None else _as_it_is
    columns: dict[str, Iterable[Any]] = {
        "edge_index": map(known, edges(local, 1)),
        "kept": edges(choice.kept, 1),
        "scores": edges(choice.scores, 1),
        "carried": map(known, edges(trace.carried, 1)),
        "edge_type": repeat(None) if edge_type is None else map(known, edges(edge_type, 0)),
        "original": rows(trace.output, 0),
        "masked": rows(masked, 0),
        "divergence": divergence.clamp_min(0).tolist(),  # rounding may leave -1e-11
        "flips": flips.tolist(),
        "reopened": repaired.reopened.tolist(),
        "baselines": zip(*(b if b.dim() > 1 else repeat(b) for b in baselines), strict=False),
        "num_nodes": nodes,
        "tolerance": repeat(case.tolerance),
        "structure": repeat(trace.sites),
        "method": repeat(method),
        "index": repeat(None if asked is None else asked.rows),
        "precision": repeat(case.subject.precision),
        "counterfactual": repeat(None),
        "features": features,
        "info": info,
    }
    if overturning is not None:
        gates, there = overturning
        parts = zip(edges(gates, 1), there.tolist(), strict=True)
        columns["counterfactual"] = (part if is_there else None for part, is_there in parts)
    if types is None:
        return build_all(Explanation, columns)
    typed = {"num_nodes_dict": nodes_by_type(case.batch, split), "edge_types": repeat(types.edge_types)}
    return build_all(HeteroExplanation, columns | typed)


def _info(case: Case, repaired: Repaired) -> list[dict[str, Any]]:
    """What an explanation carries in ``info`` beside its numbers."""
    count, asked = case.split.count, case.subject.rows
    info = notes(case.batch, count) if case.subject.types is None else [{} for _ in range(count)]
    for own, why in zip(info, repaired.why, strict=True):
        if why is not None:
            own[UNREPAIRED] = why
        if case.subject.unseen:
            own[UNSEEN] = list(case.subject.unseen)
    if asked is not None and asked.nodes:
        info[0][ASKED] = list(asked.nodes)
    return info


def _features(case: Case, choice: Choice, overturning: tuple[Tensor, Tensor] | None) -> list[Features]:
    """Of each graph, what was chosen of its input features: the first site, whose gates follow those of the edges."""
    tap, split, first = case.subject.features, case.split, case.trace.edge_map.count
    assert tap is not None
    own = _divider(split.edge_graph[first:], split.count)
    baseline = choice.baselines[0].detach().clone()
    width = len(baseline) if tap.each else 1

    def parts(gates: Tensor) -> Sequence[Tensor]:
        per_graph = own(gates[0, first:], 0)
        return [part.view(-1, width) for part in per_graph] if tap.each else per_graph

    columns = zip(parts(choice.kept), parts(choice.scores), parts(case.trace.carried), strict=True)
    made = [Features(tap.kind, kept, scores, carried, baseline) for kept, scores, carried in columns]
    if overturning is not None:
        for features, needed, is_there in zip(made, parts(overturning[0]), overturning[1].tolist(), strict=True):
            features.counterfactual = needed if is_there else None
    return made


def _without_features(
    case: Case, choice: Choice, local: Tensor, overturning: tuple[Tensor, Tensor] | None
) -> tuple[Case, Choice, Tensor, tuple[Tensor, Tensor] | None]:
    """The same, about messages alone."""
    count, trace = case.trace.edge_map.count, case.trace
    edge_map = EdgeMap(trace.edge_map.edge_index)
    kept, scores, carried = (gates[1:, :count] for gates in (choice.kept, choice.scores, trace.carried))
    trace = replace(trace, edge_map=edge_map, carried=carried, sites=trace.sites[1:])
    if overturning is not None:
        overturning = overturning[0][1:, :count], overturning[1]
    return replace(case, trace=trace), Choice(scores, kept, choice.baselines[1:]), local[:, :count], overturning


def _as_it_is(part: Tensor) -> Tensor:
    return part


def _divider(owner: Tensor, count: int) -> Callable[[Tensor, int], Sequence[Tensor]]:
    """Divides a tensor along a dimension among its owners; without a copy where those of each lie together."""
    if count == 1:
        return lambda value, dim: (value,)
    sizes = torch.bincount(owner, minlength=count).tolist()
    if bool((owner[1:] >= owner[:-1]).all()):
        return lambda value, dim: value.split(sizes, dim)
    order = owner.argsort(stable=True)
    return lambda value, dim: value.index_select(dim, order).split(sizes, dim)


def _edge_type(case: Case) -> Tensor | None:
    """[E] the relation of every edge, where there are several."""
    trace, types = case.trace, case.subject.types
    # Of attention, heads are the types, and are read in few bytes; the user's own types stay as they are.
    relations = batches.tensor(case.batch, "edge_type") if trace.edge_type is None else trace.edge_type.long()
    if relations is None or relations.shape != (trace.edge_map.count,):
        return None
    if types is None:
        return relations
    numbers = [types.edge_types.index(kind) for kind in trace.edge_map.all_types]
    return torch.tensor(numbers, dtype=torch.long, device=relations.device)[relations]


def _nodes_per_graph(case: Case) -> list[int]:
    trace, count = case.trace, case.split.count
    if case.split.sizes is not None:
        return case.split.sizes.sum(1).tolist()
    if trace.sizes is not None:
        return [int(trace.sizes.sum())] if case.whole else trace.sizes.tolist()
    if trace.graphs is not None and trace.nodes is not None:
        return [trace.nodes * trace.graphs // count] * count
    node_graph = batches.tensor(case.batch, "batch")
    if node_graph is not None and node_graph.numel() and not case.whole:
        return torch.bincount(node_graph, minlength=count).tolist()
    known = batches.num_nodes_of(case.batch, trace.edge_index)
    highest = int(trace.edge_index.max()) + 1 if trace.edge_index.numel() else 0
    return [max(known or 0, highest)]
