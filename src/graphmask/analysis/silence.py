"""Is what was dropped without influence? Its content is exchanged, and edges that no layer keeps are deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.analysis.scoring import studied
from graphmask.analysis.tables import table
from graphmask.devices import double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case
from graphmask.explaining.method import Method
from graphmask.graphs import batches

if TYPE_CHECKING:
    import polars


def silence(
    method: Method, loader: Iterable[Any], *, draws: int = 3, seed: int = 0, allow_infeasible: bool = False
) -> polars.DataFrame:
    """Does the content of dropped messages influence the masked model? All figures should be zero, up to rounding.

    At every layer the dropped edges of a batch exchange at random what the layer sees of them: the state of the sender,
    the relation, attributes and weights, and with them the attention logit. That they exist, and where they arrive, is
    left as it is: degrees are meant to remain. What a model computes before a `MessageTap` is not seen.

    Columns:
        exchange: which of the ``draws``.
        divergence: between the masked output and the one after the exchange, mean over graphs.
        largest: of a single graph.
        flips: share of output rows whose prediction changed.
        moved: largest difference of any output.
    """
    sums = torch.zeros(draws, 2, dtype=torch.double)
    most = torch.zeros(draws, 2, dtype=torch.double)
    graphs = 0
    with studied(method, loader, allow_infeasible) as cases:
        for number, (case, choice) in enumerate(cases):
            graphs += case.split.count
            with torch.no_grad():
                masked = case.run(choice.kept, choice.baselines)
                for draw in range(draws):
                    generator = torch.Generator().manual_seed((seed * 1_000_003 + number) * draws + draw)
                    other = case.run(choice.kept, choice.baselines, exchange=generator)
                    distance = case.per_graph(case.divergence(masked, other)).clamp_min(0).cpu().double()
                    changed = case.per_graph(case.divergence.flips(masked, other).float()).cpu().double()
                    sums[draw] += torch.stack([distance.sum(), changed.sum()])
                    moved = (other - masked).abs().max().cpu().double()
                    most[draw] = torch.maximum(most[draw], torch.stack([distance.max(), moved]))
    rows = [
        (draw, float(sums[draw, 0]) / graphs, float(most[draw, 0]), float(sums[draw, 1]) / graphs, float(most[draw, 1]))
        for draw in range(draws)
    ]
    return table({"exchange": int, "divergence": float, "largest": float, "flips": float, "moved": float}, rows)


def deletion(
    method: Method, loader: Iterable[Any], *, draws: int = 3, seed: int = 0, allow_infeasible: bool = False
) -> polars.DataFrame:
    """The model itself, unmasked, on graphs from which edges are really deleted.

    Without the edges that no layer keeps the output should hardly change, without those that are kept it should.
    Deleting is more than dropping: degrees change, and no baseline is put in place. So a change here is not by itself a
    fault of the explanation; if the dropped edges matter as much as random ones, it is.

    Columns:
        deleted: "never kept" are the edges that no layer keeps; "random" as many of each graph, mean of ``draws``;
            "kept" are those that some layer keeps.
        edges: share of all edges that is deleted.
        divergence: between the original output and the one without these edges, mean over graphs.
        flips: share of output rows whose prediction changed.
    """
    names = ("never kept", "random", "kept")
    sums = torch.zeros(len(names), 3, dtype=torch.double)
    edges = graphs = 0
    generator = torch.Generator().manual_seed(seed)
    with studied(method, loader, allow_infeasible) as cases:
        for case, choice in cases:
            sent, kept = case.trace.carried.any(0), choice.kept.any(0)
            edges, graphs = edges + int(sent.sum()), graphs + case.split.count
            never = sent & ~kept
            for row, gone in ((0, never), (2, kept)):
                sums[row] += _without(case, gone)
            for _ in range(draws):
                sums[1] += _without(case, _as_many(case, sent, never, generator)) / draws
    scale = torch.tensor([max(edges, 1), graphs, graphs], dtype=torch.double)
    rows = [(name, *row) for name, row in zip(names, (sums / scale).tolist(), strict=True)]
    return table({"deleted": str, "edges": float, "divergence": float, "flips": float}, rows)


def _as_many(case: Case, sent: Tensor, never: Tensor, generator: torch.Generator) -> Tensor:
    """bool [E] as many edges of every graph as ``never`` has, at random."""
    owner = case.split.edge_graph
    wanted = torch.bincount(owner[never], minlength=case.split.count)
    draws = torch.rand(len(owner), generator=generator).to(owner.device)
    order = case.gate_order(draws[None], sent[None])[0]
    return sent & (order < wanted[owner])


@torch.no_grad()
def _without(case: Case, gone: Tensor) -> Tensor:
    """[3] number of edges deleted, and sums over graphs of divergence and flips."""
    output = case.subject(_deleted(case.batch, gone))
    distance, flips = case.distance(output).clamp_min(0), case.flips(output)
    return torch.stack([gone.sum().cpu().double(), double(distance).sum().cpu(), double(flips).sum().cpu()])


def _deleted(batch: Any, gone: Tensor) -> Any:
    """The batch without these edges."""
    left = batches.adapter(batch).without_edges(batch, gone)
    if left is None:
        raise GraphMaskError(
            "Expected a Data, a HeteroData or a dictionary with its edges in edge_index, so that some can be deleted, "
            f"got {batches.adapter(batch).contents(batch)}: adjacency matrices or sparse tensors? Leave `deletion` out."
        )
    return left
