"""Do explanations run through the sentences that people call the evidence? Beyond the paper, which had no such data.

An edge is *evidence* if both its mentions lie in evidence sentences. Only graphs with edges of both kinds can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.ground_truth import area
from graphmask.analysis.paths import edges_on_paths_of
from graphmask.analysis.side_by_side import side_by_side
from graphmask.analysis.tables import share, table
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars


def agreement(methods: Mapping[str, Iterable[Explanation]]) -> polars.DataFrame:
    """Per method, over the graphs that can tell.

    Columns:
        method, graphs.
        edges: share of all edges that are evidence: the precision of choosing at random.
        precision: share of the kept edges (at any layer) that are.
        recall: share of the evidence edges that are kept.
        path_precision: share of the edges on kept paths from the subject to the predicted answer that are.
        auc: chance that an evidence edge scores higher (at its best layer) than another of its graph; mean of graphs.
        margin: half the width of the 95 % interval of auc.
    """
    rows = []
    for name, explanations in methods.items():
        edges = evidence = kept = hits = on = on_hits = 0
        areas: list[float] = []
        for explanation in explanations:
            truth = evidence_edges(explanation)
            if truth is None:
                continue
            chosen, path = explanation.kept.any(0), on_paths(explanation)
            edges += len(truth)
            evidence += int(truth.sum())
            kept += int(chosen.sum())
            hits += int((chosen & truth).sum())
            on += int(path.sum())
            on_hits += int((path & truth).sum())
            areas.append(area(explanation.scores.max(0).values, truth))
        aucs = torch.tensor(areas, dtype=torch.double)
        margin = 1.96 * float(aucs.std()) / len(areas) ** 0.5 if len(areas) > 1 else None
        shares = share(evidence, edges), share(hits, kept), share(hits, evidence), share(on_hits, on)
        rows.append((name, len(areas), *shares, float(aucs.mean()) if areas else None, margin))
    columns = {"edges": float, "precision": float, "recall": float, "path_precision": float}
    return table({"method": str, "graphs": int} | columns | {"auc": float, "margin": float}, rows)


def evidence_edges(explanation: Explanation) -> Tensor | None:
    """bool [E]; None if all edges are, or none is."""
    info = explanation.info
    within = torch.zeros(explanation.num_nodes, dtype=torch.bool)
    for node, (document, *_) in enumerate(info["mentions"]):
        within[node] = document in info["evidence"]
    truth = within[explanation.edge_index].all(0)
    return truth if bool(truth.any()) and not bool(truth.all()) else None


def on_paths(explanation: Explanation) -> Tensor:
    """bool [E]: on a kept path from a mention of the subject to one of the predicted answer, at any layer."""
    (block,) = side_by_side([explanation])
    return edges_on_paths_of(block, "subject_nodes", "predicted_nodes", persist=True).any(0)
