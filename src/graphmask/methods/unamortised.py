"""Non-amortised GraphMask: free gates and baselines for every graph anew, in hindsight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.gates.networks import INITIAL_LOCATION
from graphmask.ops.kernels import LIMIT

#: Messages of a graph that are tried one by one at the end, at most.
PRUNED = 256


class Unamortised(Method):
    """GraphMask without the gate network: one free location per edge and site of every graph.

    The objective is GraphMask's: few open gates, divergence within tolerance, each graph with a multiplier of its own.
    Gates are hard in the forward pass and soft in the backward pass, and the sparsest state within tolerance that was
    met is taken, and pruned. It sees what it explains, answer included, so that it may
    find a cheaper way to the same answer than the model's own.

    Args:
        steps, learning_rate: of Adam.
        free_baselines: learn a baseline per graph and site as well. Alone it can then carry the answer, and nothing
            at all is kept; otherwise baselines are zero.
    """

    name = "unamortised"
    seeded = True

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        steps: int = 300,
        learning_rate: float = 0.1,
        free_baselines: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, **kwargs)
        self.steps, self.learning_rate, self.free_baselines = steps, learning_rate, free_baselines

    def choose(self, case: Case) -> Choice:
        carried, owner = case.trace.carried, case.split.edge_graph
        share = carried / case.gates_per_graph(carried).clamp_min(1)[owner]
        location = nn.Parameter(INITIAL_LOCATION + 0.1 * case.normal(self.seed))
        baselines = case.zeros()
        groups: list[dict[str, Any]] = [{"params": [location]}]
        if self.free_baselines:
            baselines = [nn.Parameter(zero.expand(case.split.count, -1).clone()) for zero in baselines]
            groups.append({"params": baselines, "lr": self.learning_rate / 10})
        optimiser = torch.optim.Adam(groups, lr=self.learning_rate)
        multiplier = torch.ones(case.split.count, device=owner.device)
        best, fewest = carried, case.gates_per_graph(carried)
        best_baselines = [baseline.detach().clone() for baseline in baselines]
        for _ in range(self.steps):
            with torch.enable_grad():
                soft = torch.sigmoid(location)
                hard = (location > 0) & carried
                z = (hard + (soft - soft.detach())) * carried  # in this order: exactly 0 or 1
                distance = case.distance(case.run(z, baselines))
                loss = (case.sum_per_graph(soft * share) + multiplier * distance) / (1 + multiplier)
                optimiser.zero_grad()
                loss.sum().backward()
            with torch.no_grad():
                count = case.gates_per_graph(hard)
                better = (distance <= self.tolerance) & (count < fewest)
                best, fewest = torch.where(better[owner], hard, best), torch.where(better, count, fewest)
                if self.free_baselines:
                    for best_baseline, baseline in zip(best_baselines, baselines, strict=True):
                        best_baseline[better] = baseline[better]
                optimiser.step()
                location.clamp_(-LIMIT, LIMIT)
                error = ((distance - self.tolerance) / self.tolerance).clamp(-1, 3)
                multiplier = (multiplier * (0.05 * error).exp()).clamp(0.01, 100)
        scores = torch.sigmoid(location.detach()) * carried
        return Choice(scores, self._pruned(case, best, scores, best_baselines), best_baselines)

    @torch.no_grad()
    def _pruned(self, case: Case, kept: Tensor, scores: Tensor, baselines: list[Tensor]) -> Tensor:
        """Drop messages one by one, lowest score first, each if the divergence is within tolerance without it."""
        order, owner = case.gate_order(scores, kept), case.split.edge_graph
        for turn in range(min(int(case.gates_per_graph(kept).max()), PRUNED) if len(owner) else 0):
            tried = kept & (order != turn)
            enough = case.distance(case.run(tried, baselines)) <= self.tolerance
            kept = torch.where(enough[owner], tried, kept)
        return kept
