"""The information bottleneck for messages (Schulz et al. 2020; appendix G of the paper)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.devices import random_states, set_random_states
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.gates.probe import Probe
from graphmask.graphs import batches
from graphmask.methods.amortised import Amortised
from graphmask.ops.moments import Moments
from graphmask.tapping import gradients
from graphmask.tapping.messages import Answer, Call, Mask, Messages
from graphmask.tapping.stand_ins import see
from graphmask.tapping.subject import Subject


class InformationBottleneck(Amortised):
    r"""A readout network says how much of each message to replace by noise.

    .. math::
        \tilde m = \lambda m + (1 - \lambda) \epsilon, \quad \epsilon \sim \mathcal N(\mu, \sigma^2), \qquad
        \mathcal L = D + \beta \, \mathrm{mean}\,\mathrm{KL}[\mathcal N(\lambda m + (1 - \lambda) \mu,
        (1 - \lambda)^2 \sigma^2) \,\|\, \mathcal N(\mu, \sigma^2)]

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
        self.means: list[Tensor] = []  #: of messages, per site
        self.deviations: list[Tensor] = []
        self.baselines: list[Tensor] = []  #: the mean of what is replaced, and of all else that stands in for an edge
        self.noise: list[Tensor] = []  #: deviation of what is replaced

    @torch.no_grad()
    def prepare(self, probe: Probe, subject: Subject, loader: Iterable[Any]) -> None:
        """Mean and standard deviation of every component of every site's messages, over all the data."""
        self.generator = torch.Generator(probe.scales.device).manual_seed(self.seed)
        seen = see(subject, loader)
        for site in seen:
            of_messages, replaced = Moments.union(site.messages), Moments.union(site.replaced)
            self.means.append(of_messages.mean.float())
            self.deviations.append(of_messages.deviation.float())
            self.baselines.append(site.mean().float())
            self.noise.append(replaced.deviation.float())

    def loss(self, probe: Probe, subject: Subject, batch: Any, progress: float) -> Tensor:
        shares: dict[tuple[int, int], Tensor] = {}
        information: list[list[Tensor]] = [[] for _ in probe.sites]
        random_state = random_states(subject.device)

        def capture(messages: Messages) -> None:
            if messages.attended is not None:
                raise GraphMaskError(
                    f"Expected messages along lists of edges, got attention at {probe.sites[messages.site].name!r}: "
                    "noise for every message of every pair would take a vector per pair. Use another method."
                )
            with torch.enable_grad():
                share = torch.sigmoid(probe.gate(messages.site)(messages))
                own = None if messages.edges is None else messages.edges < 0
                nats = self.information(share, messages.rows(), messages.site)
                information[messages.site].append(nats if own is None else nats[~own])
                shares[messages.site, messages.piece] = share if own is None else share.masked_fill(own, 1)

        def noisy(call: Call) -> Answer:
            mean, deviation = self.baselines[call.site], self.noise[call.site]
            size = (len(call.source), len(deviation))
            noise = deviation * torch.randn(size, generator=self.generator, device=deviation.device)
            rest = mean.new_zeros(len(noise), len(mean) - len(deviation))
            return shares[call.site, call.piece], mean + torch.cat([noise, rest], 1)

        edge_map = batches.edge_map_of(batch)
        with torch.no_grad(), subject.tap(capture, edge_map):
            original = subject(batch)
        set_random_states(random_state, subject.device)  # both passes draw the same dropout
        with subject.tap(Mask(noisy), edge_map):
            masked = subject(batch)
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
        return case.cut(torch.sigmoid(case.trace.values), self.threshold, self.baselines)
