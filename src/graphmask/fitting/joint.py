"""One step of training on batches that lie in several processes, or come one after the other: as on their union.

Penalty and divergence are means over edges and rows, so that sums and counts are added up, not means. What the gates
must do follows from counts that are known only when all batches have run. Hence two halves: each batch runs the model
and gives the slope of its divergence at the gates, which lets go of the model's part of the graph; then the slopes,
weighted by the counts of all, go through the gate networks. Their few gradients are added up in one message; wrapped
in `DistributedDataParallel`, means of means would come out, and gates called from hooks are not in its forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graphmask.divergence import Divergence
from graphmask.fitting.constraint import Constraint
from graphmask.gates.probe import Gated, Probe
from graphmask.graphs.batches import Forward
from graphmask.team import Team


class Training(Protocol):
    """What a step needs of `graphmask.fitting.training.Training`, which calls it and so stands above it."""

    step: int

    @property
    def probe(self) -> Probe: ...
    @property
    def model(self) -> nn.Module: ...
    @property
    def forward(self) -> Forward: ...
    @property
    def divergence(self) -> Divergence: ...
    @property
    def constraint(self) -> Constraint: ...
    @property
    def optimiser(self) -> torch.optim.Optimizer: ...
    @property
    def team(self) -> Team: ...
    @property
    def seed(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def settling(self) -> bool: ...
    @property
    def open_from(self) -> int: ...
    def activate(self, location: Tensor, site: int) -> Tensor: ...
    def begin_step(self) -> None: ...
    def check_finite(self, divergence: float) -> None: ...
    def constrained(self, divergence: Tensor) -> Tensor: ...
    def forget_gradients(self) -> None: ...
    def price(self, gate: Gated) -> Tensor: ...
    def target(self) -> float: ...
    def weight(self, opened: int) -> float: ...


def seed(training: Training) -> int:
    """Of what gates draw in this epoch: not the same in two processes, and the same when resumed."""
    return (training.seed * 1_000_003 + training.epoch) * 65_537 + training.team.rank


@dataclass
class _Half:
    """What is left of a batch after its first half."""

    gates: list[Gated]
    values: list[Tensor]  #: gate values, still connected to the gate networks ...
    slopes: list[Tensor]  #: ... and of the summed divergence at each
    baselines: list[Tensor | None]  #: likewise, of the baselines
    sums: Tensor  #: rows, their divergence; per site edges, their gate values


def step(training: Training, mine: list[Any]) -> tuple[float, list[float]]:
    """One step of Adam on the union of all processes' batches; see `Training.train_on`."""
    probe, constraint = training.probe, training.constraint
    training.begin_step()
    halves = [_first_half(training, batch) for batch in mine]
    none = torch.zeros(2 + 2 * len(probe.sites), dtype=torch.double)
    sums = training.team.sum(sum((half.sums for half in halves), start=none))
    rows, value = float(sums[0]), float(sums[1] / sums[0])
    edges, gates = sums[2:].view(2, -1)
    training.check_finite(value)
    if training.settling:
        price, weight = 0.0, 1.0
    else:
        constraint.tolerance = training.target()
        price, weight = constraint.weights()
        constraint.update(value)
    opened = max(int((edges[training.open_from :] > 0).sum()), 1)
    training.forget_gradients()
    for half in halves:
        terms = [(slope * z).sum() * (weight / rows) for z, slope in zip(half.values, half.slopes, strict=True)]
        if not training.settling:
            terms += [
                gate.total(training.price(gate)) * (price * training.weight(opened) / float(edges[site]))
                for site, gate in enumerate(half.gates)
                if gate and site >= training.open_from
            ]
        if terms:
            torch.stack(terms).sum().backward()
        for baseline, slope in zip(probe.learned, half.baselines, strict=True):
            if slope is not None:
                grad = slope * (weight / rows)
                baseline.grad = grad if baseline.grad is None else baseline.grad + grad
    _add_up(training)
    training.optimiser.step()
    training.step += 1
    means = torch.where(edges > 0, gates / edges.clamp_min(1), 1.0)
    return value, means.tolist()


def _first_half(training: Training, batch: Any) -> _Half:
    probe = training.probe
    original, masked, gates = probe.train_step(
        training.model, training.forward, batch, training.activate, train_gates=not training.settling
    )
    values = [z for gate in gates for z in gate.pieces if z.requires_grad]
    divergence = training.constrained(training.divergence(original, masked))
    total = divergence.sum()
    wanted = [*values, *(baseline for baseline in probe.learned if baseline.requires_grad)]
    found: list[Tensor | None] = [None] * len(wanted)
    if total.requires_grad and wanted:
        found = list(torch.autograd.grad(total, wanted, allow_unused=True))
    slopes = [torch.zeros_like(z) if slope is None else slope for z, slope in zip(values, found, strict=False)]
    rest = iter(found[len(values) :])
    baselines = [next(rest) if baseline.requires_grad else None for baseline in probe.learned]
    counts = [gate.count() if gate else 0.0 for gate in gates]
    opened = [float(gate.total(gate.value.detach())) if gate else 0.0 for gate in gates]
    about = torch.tensor([len(divergence), float(total.detach()), *counts, *opened], dtype=torch.double)
    return _Half(gates, values, slopes, baselines, about)


def _add_up(training: Training) -> None:
    """The gradients of all processes; None where none has any, so that Adam leaves those parameters alone."""
    parameters = list(training.probe.parameters())
    flat = torch.cat(
        [torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device).double()]
        + [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in parameters]
    )
    there, *grads = training.team.sum(flat).split([len(parameters), *(p.numel() for p in parameters)])
    for parameter, grad, any_has in zip(parameters, grads, there.tolist(), strict=True):
        parameter.grad = grad.view_as(parameter).to(parameter.dtype) if any_has else None
