"""One batch under explanation: run its graphs with some messages replaced, and see how far each output moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import batches, masking
from graphmask.batches import Forward, Split
from graphmask.divergence import Divergence
from graphmask.trace import Trace


@dataclass
class Case:
    """``L`` sites, ``E`` edges, ``G`` graphs. Gates are ``[L, E]``, baselines ``[D]`` or ``[G, D]`` per site."""

    model: nn.Module
    forward: Forward
    divergence: Divergence
    tolerance: float
    batch: Any
    trace: Trace

    @cached_property
    def split(self) -> Split:
        """Which edges, nodes and output rows are whose."""
        trace = self.trace
        rows = trace.output.shape[0]
        return batches.split(self.batch, trace.edge_index, rows, trace.edge_graph, trace.graphs, trace.nodes)

    @cached_property
    def rank(self) -> Tensor:
        """[E] position of every edge among those of its graph: the same however graphs are batched."""
        return rank_within(self.split.edge_graph, self.split.count)

    def zeros(self) -> list[Tensor]:
        """The baseline of methods that simply leave messages out."""
        return [self.trace.output.new_zeros(width) for width in self.trace.widths]

    def run(self, gates: Tensor, baselines: Sequence[Tensor]) -> Tensor:
        """The masked model's output, with gradients to gates and baselines if they are wanted."""
        trace, graph = self.trace, self.split.edge_graph if any(b.dim() > 1 for b in baselines) else None
        return masking.run(
            self.model, self.forward, self.batch, trace.edge_map, trace.sites, gates, baselines, graph_of_edge=graph
        )

    def per_graph(self, per_row: Tensor) -> Tensor:
        """[G] means over the output rows of each graph."""
        split = self.split
        rows = torch.bincount(split.row_graph, minlength=split.count).clamp_min(1)
        return per_row.new_zeros(split.count).index_add(0, split.row_graph, per_row) / rows

    def distance(self, output: Tensor) -> Tensor:
        """[G] divergence from the original output."""
        return self.per_graph(self.divergence(self.trace.output, output))

    def flips(self, output: Tensor) -> Tensor:
        """[G] share of output rows whose prediction changed."""
        return self.per_graph(self.divergence.flips(self.trace.output, output).to(self.trace.output.dtype))

    @torch.no_grad()
    def reopen(
        self, kept: Tensor, scores: Tensor, baselines: Sequence[Tensor], masked: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Per graph, by bisection: the fewest dropped gates to reopen, best scores first, to be within tolerance.

        Returns the gates, the output with them, and how many were reopened [G].
        """
        dropped = (self.trace.carried & ~kept).nonzero()
        graph = self.split.edge_graph[dropped[:, 1]]
        order = scores[dropped[:, 0], dropped[:, 1]].argsort(descending=True, stable=True)
        rank = torch.empty_like(graph)
        rank[order] = rank_within(graph[order], self.split.count)
        count = torch.bincount(graph, minlength=self.split.count)

        def attempt(number: Tensor) -> tuple[Tensor, Tensor]:
            tried = kept.clone()
            tried[dropped[:, 0], dropped[:, 1]] = rank < number[graph]
            return tried, self.run(tried, baselines)

        low, high = torch.zeros_like(count), torch.where(self.distance(masked) <= self.tolerance, 0, count)
        while bool((low < high).any()):
            middle = (low + high) // 2
            enough = self.distance(attempt(middle)[1]) <= self.tolerance
            low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
            low = torch.minimum(low, high)
        return (*attempt(high), high.cpu())


def rank_within(group: Tensor, count: int) -> Tensor:
    """For each element, how many of the same group come before it."""
    sizes = torch.bincount(group, minlength=count)
    order = group.argsort(stable=True)
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - (sizes.cumsum(0) - sizes)[group[order]]
    return rank
