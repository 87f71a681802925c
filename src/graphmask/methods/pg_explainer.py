"""PGExplainer (Luo et al. 2020): one network over pairs of node states, one soft mask for all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.devices import random_states, set_random_states
from graphmask.explaining.case import Case, Choice
from graphmask.gates.networks import SiteSpec
from graphmask.gates.probe import Probe
from graphmask.methods.amortised import Amortised
from graphmask.tapping import gradients, masking
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import record


class PGExplainer(Amortised):
    r"""Amortised, soft, and with look-ahead: the mask of an edge is read off the states of its ends at the last layer.

    .. math:: z = \sigma((\log u - \log(1 - u) + \gamma) / \tau)

    One mask per edge is used at all layers, as in the paper it comes from; relation and edge attributes are seen too,
    because states alone would not tell two relations apart.

    Args:
        size: the price of an open mask, mean over edges.
        summed: the price is the sum over edges for each row of the output instead, as published.
        entropy: the price of an undecided one.
        temperature: at the start and at the end of training.
        steps, learning_rate, hidden: of training.
    """

    name = "pg_explainer"
    soft = True

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        size: float = 0.3,
        summed: bool = False,
        entropy: float = 0.1,
        temperature: tuple[float, float] = (5.0, 1.0),
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, **kwargs)
        self.size, self.summed, self.entropy, self.temperature = size, summed, entropy, temperature

    def sees(self, spec: SiteSpec) -> SiteSpec:
        return spec if spec.matrix else dataclasses.replace(spec, message=0, lifted=False)

    def prepare(self, probe: Probe, subject: Subject, loader: Iterable[Any]) -> None:
        self.generator = torch.Generator(probe.scales.device).manual_seed(self.seed)

    def loss(self, probe: Probe, subject: Subject, batch: Any, progress: float) -> Tensor:
        last = len(probe.sites) - 1
        random_state = random_states(subject.device)

        def look(messages: Messages) -> Tensor:
            if messages.site != last:
                return torch.zeros(messages.source.shape, device=messages.source.device)
            with torch.enable_grad():
                return probe.gate(last)(messages)

        trace = record(subject, batch, look)
        set_random_states(random_state, subject.device)  # both passes draw the same dropout
        location = trace.values[last].where(trace.carried[last], torch.tensor(0.0))
        u = torch.rand(location.shape, generator=self.generator, device=location.device).clamp(1e-6, 1 - 1e-6)
        first, final = self.temperature
        warmth = first * (final / first) ** progress
        z = torch.sigmoid((u.log() - (-u).log1p() + location) / warmth)
        masked = masking.run(subject, batch, trace.edge_map, z.expand(len(probe.sites), -1), trace.left_out())
        gradients.check_passed(trace.output, masked, z.requires_grad)
        soft = torch.sigmoid(location)
        undecided = -soft * (soft + 1e-15).log() - (1 - soft) * (1 - soft + 1e-15).log()
        each = len(soft) / max(len(trace.output), 1) if self.summed else 1.0
        price = (self.size * each * soft + self.entropy * undecided).mean() if soft.numel() else soft.sum()
        return self.divergence.own_loss(trace.output, masked).mean() + price

    def choose(self, case: Case) -> Choice:
        return case.cut(torch.sigmoid(case.trace.values[-1]) * case.trace.carried, self.threshold)
