"""Occlusion: leave out one message at a time and measure how far the output moves."""

from __future__ import annotations

import torch

from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method


class Occlusion(Method):
    r"""Score of an edge at a site: :math:`D[f(\mathcal G) \| f(\mathcal G \setminus (u, v)^{(k)})]`.

    Divided by the largest of the graph.
    """

    name = "occlusion"
    soft = True
    threshold = 0.1

    @torch.no_grad()
    def choose(self, case: Case) -> Choice:
        everything = case.trace.carried
        rank = case.gate_rank(everything)
        moved = torch.zeros_like(case.trace.values)
        for turns in case.in_turns(int(rank.max()) + 1 if rank.numel() else 0):
            gates = everything & (rank != turns[:, None, None])  # the gate with this number leaves every graph
            distances = torch.stack([case.distance(output) for output in case.run_many(gates, case.zeros())])
            hit = rank == turns[:, None, None]
            moved += (hit * distances[:, None, case.split.edge_graph]).sum(0)
        return case.cut(case.normalised(moved.clamp_min(0)), self.threshold)
