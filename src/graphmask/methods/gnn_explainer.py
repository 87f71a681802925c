"""GNNExplainer (Ying et al. 2019) with a soft mask per site, optimised for every graph anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method

EPS = 1e-15


class GNNExplainer(Method):
    r"""Free masks :math:`\sigma(M)` on every edge and site, trained to keep the predicted answer with small masks.

    .. math:: -\log p(\hat y \mid \sigma(M)) + a \sum \sigma(M) + b \, \mathrm{mean}\, H(\sigma(M))

    All graphs of a batch are optimised at once, each independently of the others.

    Args:
        steps, learning_rate: of Adam.
        size: a, the price of a mask, summed over edges and sites.
        entropy: b, the price of an undecided mask, mean over edges and sites.
    """

    name = "gnn_explainer"
    seeded = True
    soft = True

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        steps: int = 300,
        learning_rate: float = 0.1,
        size: float = 0.1,
        entropy: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, **kwargs)
        self.steps, self.learning_rate, self.size, self.entropy = steps, learning_rate, size, entropy

    def start(self, case: Case) -> Tensor:
        """[L, E] small random values."""
        return 0.1 * case.normal(self.seed)

    def choose(self, case: Case) -> Choice:
        carried = case.trace.carried
        count = case.gates_per_graph(carried).clamp_min(1)
        owner = case.split.edge_graph
        mask = nn.Parameter(self.start(case))
        optimiser = torch.optim.Adam([mask], lr=self.learning_rate)
        zeros = case.zeros()
        with torch.enable_grad():
            for _ in range(self.steps):
                z = torch.sigmoid(mask) * carried
                loss = self.divergence.own_loss(case.trace.output, case.run(z, zeros))
                undecided = -z * (z + EPS).log() - (1 - z) * (1 - z + EPS).log()
                # Every graph's loss is its own: their sum has the gradients each would have alone.
                total = case.per_graph(loss).sum() + self.size * z.sum()
                total = total + self.entropy * (undecided * carried / count[owner]).sum()
                optimiser.zero_grad()
                total.backward()
                optimiser.step()
        return case.cut(torch.sigmoid(mask.detach()) * carried, self.threshold)
