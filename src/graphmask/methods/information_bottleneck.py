"""The information bottleneck for messages (Schulz et al. 2020; appendix G of the paper)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import batches, gradients
from graphmask.capture import tap
from graphmask.case import Case, Choice
from graphmask.messages import Messages
from graphmask.methods.amortised import Amortised
from graphmask.probe import Probe


class InformationBottleneck(Amortised):
    r"""A readout network says how much of each message to replace by noise.

    .. math::
        \tilde m = \lambda m + (1 - \lambda) \epsilon, \quad \epsilon \sim \mathcal N(\mu, \sigma^2), \qquad
        \mathcal L = D + \beta \, \overline{\mathrm{KL}[\mathcal N(\lambda m + (1 - \lambda) \mu,
        (1 - \lambda)^2 \sigma^2) \,\|\, \mathcal N(\mu, \sigma^2)]}

    with the mean and variance of every site's messages over the data set. One :math:`\lambda` per edge and site, read
    out from source, target and message. When verified, a dropped message is replaced by the mean.

    Args:
        beta: the price of information.
        steps, learning_rate, hidden: of training.
    """

    name = "information_bottleneck"
    soft = True

    def __init__(self, model: nn.Module, *args: Any, beta: float = 0.1, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self.beta = beta
        self.means: list[Tensor] = []
        self.deviations: list[Tensor] = []

    @torch.no_grad()
    def prepare(self, probe: Probe, loader: Iterable[Any]) -> None:
        """Mean and standard deviation of every component of every site's messages, over all the data."""
        self.generator = torch.Generator().manual_seed(self.seed)
        moments = [torch.zeros(3, spec.message, dtype=torch.double) for spec in probe.specs]

        def visit(messages: Messages) -> None:
            rows = messages.rows().double()
            count = torch.full(rows.shape[1:], float(len(rows)), dtype=torch.double)
            moments[messages.site] += torch.stack([count, rows.sum(0), rows.square().sum(0)])

        for batch in loader:
            with tap(self.model, visit, batches.edge_map_of(batch), probe.sites):
                batches.call(self.forward, self.model, batch)
        self.means = [(total / count.clamp_min(1)).float() for count, total, _ in moments]
        self.deviations = [
            (squares / count.clamp_min(1) - (total / count.clamp_min(1)) ** 2).clamp_min(0).sqrt().float()
            for count, total, squares in moments
        ]

    def loss(self, probe: Probe, batch: Any, progress: float) -> Tensor:
        shares: dict[tuple[int, int], Tensor] = {}
        information: list[list[Tensor]] = [[] for _ in probe.sites]
        random_state = torch.get_rng_state()

        def capture(messages: Messages) -> None:
            with torch.enable_grad():
                share = torch.sigmoid(probe.gate(messages.site)(messages))
                own = None if messages.edges is None else messages.edges < 0
                nats = self.information(share, messages.rows(), messages.site)
                information[messages.site].append(nats if own is None else nats[~own])
                shares[messages.site, messages.piece] = share if own is None else share.masked_fill(own, 1)

        def noisy(messages: Messages) -> tuple[Tensor, Tensor]:
            mean, deviation = self.means[messages.site], self.deviations[messages.site]
            noise = mean + deviation * torch.randn(len(messages.source), len(mean), generator=self.generator)
            return shares[messages.site, messages.piece], noise

        edge_map = batches.edge_map_of(batch)
        with torch.no_grad(), tap(self.model, capture, edge_map, probe.sites):
            original = batches.call(self.forward, self.model, batch)
        torch.set_rng_state(random_state)  # both passes draw the same dropout
        with tap(self.model, noisy, edge_map, probe.sites):
            masked = batches.call(self.forward, self.model, batch)
        gradients.check_passed(original, masked, True)
        loss = self.divergence.own_loss(original, masked).mean()
        price = [part.mean() for part in map(torch.cat, filter(None, information)) if len(part)]
        return loss + self.beta * torch.stack(price).mean() if price else loss

    def information(self, share: Tensor, message: Tensor, site: int) -> Tensor:
        r"""[E'] the KL divergence in nats, mean over components."""
        deviation = self.deviations[site]
        scaled = (message - self.means[site]) / deviation.clamp_min(1e-6)
        scaled = scaled * (deviation > 1e-6)  # a component that never varies tells nothing
        rest = 1 - share[:, None]
        nats = -rest.log() + 0.5 * (rest.square() + (share[:, None] * scaled).square()) - 0.5
        return nats.mean(1)

    def choose(self, case: Case) -> Choice:
        return case.cut(torch.sigmoid(case.trace.values), self.threshold, self.means)
