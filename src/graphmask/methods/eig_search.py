"""EiG-Search (Lu et al., ICML 2024): edges ranked one by one, then the best prefix of that ranking."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.devices import back, double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method


class EiGSearch(Method):
    r"""Subgraphs induced by edges, searched in linear time, per graph and without training.

    An edge is scored by its linear gradient, the slope of the log-probability of the predicted class between the graph
    with and without it. Of the edges in the order of their scores, the prefix is kept that maximises what it is worth:

    .. math:: s_e = \log p(G) - \log p(G \setminus e), \qquad
        S = \mathrm{arg}\max_{\text{prefixes}} \; \mathrm{Fid}_+ - \mathrm{Fid}_- = p(S) - p(G \setminus S)

    An edge is in, or not, at all layers alike. For regressions, minus the divergence stands for the log-probability.
    Scores are divided by the largest of the graph, negative ones are zero. Every edge is taken by itself; the authors
    treat the two directions of an undirected edge as one.

    Args:
        sparsity: the share of edges that is left out at least; .7 is the authors' default.
        least: the shortest prefix.
    """

    name = "eig_search"

    def __init__(self, model: nn.Module, *args: Any, sparsity: float = 0.7, least: int = 2, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if not 0 <= sparsity < 1:
            raise GraphMaskError(f"Expected a sparsity from 0 to below 1, got {sparsity!r}.")
        if least < 1:
            raise GraphMaskError(f"Expected a shortest prefix of at least one edge, got {least}.")
        self.sparsity, self.least = sparsity, least

    @torch.no_grad()
    def choose(self, case: Case) -> Choice:
        carried, owner = case.trace.carried, case.split.edge_graph
        sent = carried.any(0)
        scores = self.slopes(case)
        rank = case.gate_order(-scores[None], sent[None])[0]
        kept = carried & (rank < self._best_prefix(case, rank)[owner])
        return Choice(case.normalised(scores.clamp_min(0) * carried), kept, case.zeros())

    def likelihood(self, case: Case, output: Tensor) -> Tensor:
        """[G] log-probability of what the original predicts, mean over output rows."""
        return -case.per_graph(self.divergence.own_loss(case.trace.output, output))

    def slopes(self, case: Case) -> Tensor:
        """[E] what each edge is worth by itself."""
        carried, owner = case.trace.carried, case.split.edge_graph
        sent = carried.any(0)
        turn_of = case.gate_rank(sent[None])[0]
        whole = self.likelihood(case, case.trace.output)
        worth = case.trace.output.new_zeros(len(owner))
        for turns in case.in_turns(int(turn_of.max()) + 1 if turn_of.numel() else 0):
            hit = turn_of == turns[:, None]  # [K, E]
            for output, gone in zip(case.run_many(carried & ~hit[:, None], case.zeros()), hit, strict=True):
                lost = (whole - self.likelihood(case, output)).to(worth.dtype)
                worth = torch.where(gone, lost[owner], worth)
        return worth

    def _best_prefix(self, case: Case, rank: Tensor) -> Tensor:
        """[G] how many edges of each graph are kept."""
        carried = case.trace.carried
        edges = case.gates_per_graph(carried.any(0)[None])
        most = back(((1 - self.sparsity) * double(edges) + 1e-9).floor().long(), edges.device).clamp_min(self.least)
        most = torch.minimum(most, edges)
        first = torch.minimum(torch.full_like(most, self.least), edges)
        best, value = first.clone(), torch.full_like(double(most), -torch.inf)
        longest = int(most.max()) if most.numel() else 0
        for turns in case.in_turns(max(longest - self.least + 1, 0)):
            size = self.least + turns
            inside = rank < size[:, None]
            pairs = zip(
                size.tolist(),
                case.run_many(carried & inside[:, None], case.zeros()),
                case.run_many(carried & ~inside[:, None], case.zeros()),
                strict=True,
            )
            for count, alone, without in pairs:
                worth = double(self.likelihood(case, alone).exp() - self.likelihood(case, without).exp())
                better = (worth > value + 1e-9) & (count <= most).to(worth.device)
                best, value = torch.where(back(better, best.device), count, best), torch.where(better, worth, value)
        return best
