"""Which heads of attention can be dropped altogether? Answered by running the model without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.analysis.scoring import studied
from graphmask.analysis.tables import share, table
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case
from graphmask.explaining.method import Method

if TYPE_CHECKING:
    import polars


def heads_dropped(method: Method, loader: Iterable[Any], *, allow_infeasible: bool = False) -> polars.DataFrame:
    """The model without one head, head by head, and without more and more of them at once.

    All messages of a head are replaced by the method's baselines, in every sentence, and all other messages are kept.
    Heads of which the method keeps the smallest share come first in `order`. The heads that can be dropped altogether
    are the longest beginning of that order whose mean divergence is within the method's tolerance when all of it is
    dropped at once.

    Args:
        method: fitted, on a model with attention.
        loader: batches; it is passed through twice.

    Columns:
        layer, head: head is null where all heads of a layer share their gates.
        edges, kept, probability: messages, those that the method keeps, and their quotient.
        divergence, flips: means over sentences, without this head alone.
        faithful: share of sentences within tolerance without this head alone.
        order: rank among heads, those of which least is kept first.
        divergence_so_far, flips_so_far: without this head and all before it.
        dropped: is it one of those that can be dropped altogether?
    """
    edges, kept = torch.zeros(0), torch.zeros(0)
    alone, graphs = torch.zeros(0), 0  # [3, L, H] sums over sentences
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            layers, heads = _shape(case)
            if not len(edges):
                edges, kept = torch.zeros(2, layers, heads, dtype=torch.double)
                alone = torch.zeros(3, layers, heads, dtype=torch.double)
            for counts, gates in ((edges, case.trace.carried), (kept, choice.kept)):
                counts += torch.stack([_per_head(case, row, heads) for row in gates])
            for layer in range(layers):
                for head in range(heads):
                    without = _without(case, [(layer, head)])
                    alone[:, layer, head] += _figures(case, without, choice.baselines, method.tolerance)
            graphs += case.split.count
    order = _order(kept / edges.clamp_min(1))
    so_far = torch.zeros(len(order), 3, dtype=torch.double)
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            for count in range(len(order)):
                gates = _without(case, order[: count + 1])
                so_far[count] += _figures(case, gates, choice.baselines, method.tolerance)
    within = (so_far[:, 0] / graphs <= method.tolerance).long().cumprod(0).bool()
    return _table(edges, kept, alone / graphs, order, so_far / graphs, within)


def _table(
    edges: Tensor, kept: Tensor, alone: Tensor, order: list[tuple[int, int]], so_far: Tensor, within: Tensor
) -> polars.DataFrame:
    """From [L, H] counts and means over sentences, and what follows in ``order``, to rows by layer and head."""
    rank = {pair: number for number, pair in enumerate(order)}
    rows = [
        (
            layer,
            head if edges.shape[1] > 1 else None,
            int(edges[layer, head]),
            int(kept[layer, head]),
            share(float(kept[layer, head]), float(edges[layer, head])),
            *alone[:, layer, head].tolist(),
            rank[layer, head],
            *so_far[rank[layer, head], :2].tolist(),
            bool(within[rank[layer, head]]),
        )
        for layer in range(edges.shape[0])
        for head in range(edges.shape[1])
    ]
    columns: dict[str, type] = {"layer": int, "head": int, "edges": int, "kept": int, "probability": float}
    columns |= {"divergence": float, "flips": float, "faithful": float, "order": int}
    return table(columns | {"divergence_so_far": float, "flips_so_far": float, "dropped": bool}, rows)


def _shape(case: Case) -> tuple[int, int]:
    """Layers, and heads that have gates of their own."""
    trace = case.trace
    if not all(site.heads for site in trace.sites):
        raise GraphMaskError(
            f"Expected a model whose messages are attention between tokens, got {trace.sites[0].name!r}, which is not. "
            "graphmask.analysis.layers_dropped drops whole layers of any model."
        )
    return len(trace.sites), 1 if trace.edge_type is None else int(trace.edge_type.max()) + 1


def _per_head(case: Case, gates: Tensor, heads: int) -> Tensor:
    """[E] -> [H] how many are open."""
    kind = case.trace.edge_type
    if kind is None:
        return gates.sum()[None].double().cpu()
    return torch.bincount(kind[gates], minlength=heads).double().cpu()


def _without(case: Case, heads: Iterable[tuple[int, int]]) -> Tensor:
    """bool [L, E], everything but these heads."""
    gates, kind = case.trace.carried.clone(), case.trace.edge_type
    for layer, head in heads:
        gates[layer] &= False if kind is None else kind != head
    return gates


@torch.no_grad()
def _figures(case: Case, gates: Tensor, baselines: Any, tolerance: float) -> Tensor:
    """[3] sums over sentences: divergence, flips, how many are within tolerance."""
    output = case.run(gates, baselines)
    distance = case.distance(output).double()
    figures = torch.stack([distance, case.flips(output).double(), (distance <= tolerance).double()])
    return figures.sum(1).cpu()


def _order(shares: Tensor) -> list[tuple[int, int]]:
    """Heads by the share that is kept of them, the smallest first; of equal ones, lower layers first."""
    pairs = [(layer, head) for layer in range(shares.shape[0]) for head in range(shares.shape[1])]
    return sorted(pairs, key=lambda pair: float(shares[pair]))
