"""Explanations against the known answer, and the known answer against the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphmask.analysis.ground_truth import Agreement
from graphmask.divergence import kl
from graphmask.explanation import Explanation
from graphmask.gates.probe import Probe
from graphmask.tapping.subject import Subject

#: Columns of `rows`.
HEADER = ["site", "precision", "recall", "F1"]


def rows(figures: Mapping[str, Any]) -> list[list[Any]]:
    """For people, of the figures of a run: one row per site, and one for all."""
    gold, keys = figures["gold"], ("precision", "recall", "f1")
    agreements = [*gold["per_site"], {"site": "all", **{key: gold[key] for key in keys}}]
    return [[row["site"], *(f"{row[key]:.1f}" for key in keys)] for row in agreements]


def compare(explanations: Iterable[Explanation], data: Sequence[Batch]) -> dict[str, Any]:
    """Kept edges of all explanations against ``gold`` [E, L] of the batches they were made from."""
    listed = list(explanations)
    kept = torch.cat([explanation.kept for explanation in listed], 1)
    gold = torch.cat([batch.gold for batch in data]).t()
    per_site = [
        {"site": name, **asdict(Agreement.of(kept[site], gold[site]))} for site, name in enumerate(listed[0].sites)
    ]
    return {**asdict(Agreement.of(kept, gold)), "per_site": per_site}


@torch.no_grad()
def check(model: nn.Module, probe: Probe, data: Sequence[Batch]) -> dict[str, Any]:
    """Is the gold right for this very model? Shown by running it.

    *Sufficient*: with every other message replaced by its baseline the output stays. *Necessary*: no gold edge is
    indifferent; dropping any single one moves the margin between the two answers (log odds), and dropping a random
    half changes predictions.
    """
    generator = torch.Generator().manual_seed(0)
    divergence, flips, half_flips, outputs = 0.0, 0.0, 0.0, 0
    moved: list[list[Tensor]] = [[] for _ in probe.sites]
    subject = Subject(model, sites=probe.sites)
    with subject.frozen():
        for batch in data:
            gold = batch.gold.t()
            original = subject(batch)
            kept_gold = probe.masked(subject, batch, batch.edge_index, gold)
            half = gold & (torch.rand(gold.shape, generator=generator) < 0.5)
            kept_half = probe.masked(subject, batch, batch.edge_index, half)
            divergence += float(kl(original, kept_gold).sum())
            flips += float((original.argmax(1) != kept_gold.argmax(1)).sum())
            half_flips += float((original.argmax(1) != kept_half.argmax(1)).sum())
            outputs += len(original)
            for site in range(len(probe.sites)):
                moved[site].append(_drop_one_by_one(subject, probe, batch, gold, site, original))
    smallest = [torch.cat(parts) for parts in moved]
    return {
        "sufficient": {"divergence": divergence / outputs, "flips": flips / outputs},
        "necessary": {
            "smallest_margin_change": [float(part.min()) for part in smallest],
            "median_margin_change": [float(part.median()) for part in smallest],
            "flips_without_half": half_flips / outputs,
        },
    }


def _drop_one_by_one(
    subject: Subject, probe: Probe, batch: Batch, gold: Tensor, site: int, reference: Tensor
) -> Tensor:
    """|change of margin| for every gold edge of a site, dropped alone; one edge per graph at a time."""
    edges = gold[site].nonzero().view(-1)
    graph = batch.batch[batch.edge_index[0, edges]]
    count = torch.bincount(graph, minlength=batch.num_graphs)
    rank = torch.arange(len(edges)) - (count.cumsum(0) - count)[graph]
    margin = reference[:, 1] - reference[:, 0]
    changes = torch.zeros(len(edges))
    for turn in range(int(count.max()) if len(edges) else 0):
        now = rank == turn
        kept = torch.ones_like(gold)
        kept[site, edges[now]] = False
        output = probe.masked(subject, batch, batch.edge_index, kept)
        changes[now] = ((output[:, 1] - output[:, 0]) - margin).abs()[graph[now]]
    return changes
