"""One step of training, on one batch or on several that lie in several processes or come one after the other.

Penalty and divergence are means over edges and rows. A step on several batches is the step on their union, so each
batch is weighted by the counts of all: sums over its rows and edges are divided by how many there are in all batches.
The Lagrangian is linear in both means, so that the gradients of the batches add up, within a process and, in one
message, across processes. (Wrapped in `DistributedDataParallel`, means of means would come out, and gates called from
hooks are not in its forward.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphmask.fitting.training import Training
from graphmask.gates.passes import Gated
from graphmask.gates.probe import Probe


@dataclass
class _Part:
    """One batch of a step, after both passes of the model."""

    gates: list[Gated]
    rows: int
    divergence: Tensor  #: [] summed over rows
    loss: Tensor  #: [] the same, or another number with the same gradients

    @classmethod
    def of(cls, training: Training, batch: Any) -> _Part:
        original, masked, gates = training.passes.both(batch, training.activate, train_gates=not training.settling)
        divergence = training.constrained(training.subject.divergence(original, masked))
        total = divergence.sum()
        return cls(gates, len(divergence), total.detach(), total)

    def let_go_of_the_model(self, probe: Probe) -> None:
        """Keep the slopes of the loss at gates and baselines in place of the pass that it came from.

        What each batch counts is known only when all have run, and the passes of many may be too much to keep.
        """
        gates = [z for gate in self.gates for z in gate.pieces if z.requires_grad]
        wanted = [*gates, *(baseline for baseline in probe.learned if baseline.requires_grad)]
        slopes: Sequence[Tensor | None] = ()
        if self.loss.requires_grad and wanted:
            slopes = torch.autograd.grad(self.loss, wanted, allow_unused=True)
        terms = [(slope * at).sum() for slope, at in zip(slopes, wanted, strict=False) if slope is not None]
        self.loss = torch.stack(terms).sum() if terms else self.divergence


def take_step(training: Training, mine: Sequence[Any]) -> tuple[float, list[float]]:
    """One step of Adam on the Lagrangian of the union of all processes' batches, of which ``mine`` are this one's.

    Returns the divergence and the mean gate per site.
    """
    probe, constraint, settling = training.probe, training.constraint, training.settling
    training.begin_step()
    parts = []
    for batch in mine:
        parts.append(_Part.of(training, batch))
        if len(mine) > 1:
            parts[-1].let_go_of_the_model(probe)
    rows, divergence, edges = _totals(training, parts)
    training.check_finite(divergence)
    if not settling:
        constraint.tolerance = training.target()
    training.forget_gradients()
    figures = [0.0] * len(probe.sites)
    for part in parts:
        loss = part.loss / rows
        if not settling:
            loss = constraint.loss(training.penalty(part.gates, edges), loss, divergence)
        if loss.requires_grad:  # not so for a batch without edges
            loss.backward()
        for site, gate in enumerate(part.gates):
            if gate:
                figures[site] += float(gate.total(gate.value.detach()) / edges[site])
    gates = _add_up(training, figures)
    if not settling:
        constraint.update(divergence)
    training.optimiser.step()
    training.step += 1
    return divergence, [gate if count else 1.0 for gate, count in zip(gates, edges, strict=True)]


def _totals(training: Training, parts: Sequence[_Part]) -> tuple[float, float, list[float]]:
    """The number of rows of all batches, their mean divergence, and their number of edges per site."""
    mine = [float(sum(part.rows for part in parts)), sum(float(part.divergence) for part in parts)]
    mine += [float(sum(part.gates[site].count() for part in parts)) for site in range(len(training.probe.sites))]
    if training.team.size > 1:
        mine = training.team.sum(torch.tensor(mine, dtype=torch.double)).tolist()
    rows, divergence, *edges = mine
    return rows, divergence / rows, edges


def _add_up(training: Training, figures: list[float]) -> list[float]:
    """The sum of all processes' figures, and of their gradients.

    A gradient is None where no process has one, so that Adam leaves those parameters alone.
    """
    if training.team.size == 1:
        return figures
    parameters = list(training.probe.parameters())
    device = parameters[0].device
    has = [float(p.grad is not None) for p in parameters]
    flat = torch.cat(
        [torch.tensor([*figures, *has], device=device, dtype=torch.double)]
        + [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in parameters]
    )
    sizes = [len(figures), len(has), *(p.numel() for p in parameters)]
    summed, there, *grads = training.team.sum(flat).split(sizes)
    for parameter, grad, any_has in zip(parameters, grads, there.tolist(), strict=True):
        parameter.grad = grad.view_as(parameter).to(parameter.dtype) if any_has else None
    return summed.tolist()
