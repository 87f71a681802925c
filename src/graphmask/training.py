"""The training loop: open gates, make them sparse under the divergence constraint, sharpen, calibrate."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import hard_concrete
from graphmask.batches import Forward
from graphmask.calibration import Validation, Verdict, calibrate
from graphmask.constraint import Constraint, LagrangianConstraint, MultiplicativeConstraint
from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.probe import Probe


@dataclass(frozen=True)
class Recipe:
    """How gates are trained. The defaults train reliably without tuning; `docs/recipe.md` has the ablation."""

    name: str = "sharpen"
    steps: int = 2000  #: at least this many, in whole epochs
    learning_rate: float = 1e-3
    baseline_rate: float = 1e-2  #: in units of the messages' spread
    sampled: bool = False  #: Hard Concrete samples (the paper) or deterministic soft gates that sharpen
    warm: float = 0.3  #: share of the steps before sharpening starts
    sharpness: float = 6.0  #: reached at the end
    frozen_baselines: float = 0.5  #: share of the steps in which baselines keep the mean message
    concave: tuple[float, float] = (1.0, 0.1)
    binary: float = 0.0
    settle: float = 0.1
    harden: float = 1.0
    calibrated: bool = True
    margin: float = 0.5  #: calibrate to this share of the tolerance: validation data are not the test data
    lagrangian: bool = False  #: the paper's multiplier instead of the multiplicative one
    open_every: int = 0  #: epochs after which the next lower site is opened; 0 opens all at once
    patience: int = 0  #: epochs without a better feasible state before stopping; 0 runs to the end


PAPER = Recipe(
    name="paper",
    learning_rate=1e-4,
    sampled=True,
    frozen_baselines=0.0,
    calibrated=False,
    margin=1.0,
    lagrangian=True,
    open_every=1,
)
RECIPES = {"sharpen": Recipe(), "paper": PAPER}


@dataclass
class Epoch:
    """One line of the history: training means, and the hard-gate verdict on validation data."""

    epoch: int
    divergence: float
    multiplier: float
    open: list[float]  #: mean gate per site while training
    verdict: Verdict
    feasible: bool


@dataclass
class History:
    """What happened in `fit`, and the verdict on the state that was kept."""

    epochs: list[Epoch] = field(default_factory=list)
    feasible: bool = False
    verdict: Verdict | None = None
    steps: int = 0
    seconds: float = 0.0


class Training:
    """One fit of a probe: everything that changes from step to step, so that it can be saved and resumed."""

    def __init__(
        self,
        probe: Probe,
        model: nn.Module,
        forward: Forward,
        divergence: Divergence,
        tolerance: float,
        recipe: Recipe,
        seed: int,
        steps: int,
    ) -> None:
        self.probe, self.model, self.forward, self.divergence = probe, model, forward, divergence
        self.tolerance, self.recipe, self.seed, self.steps = tolerance, recipe, seed, steps
        self.constraint: Constraint = (LagrangianConstraint if recipe.lagrangian else MultiplicativeConstraint)(tolerance)
        groups = [{"params": list(probe.gates.parameters())}]
        for baseline, scale in zip(probe.baselines, probe.scales.tolist(), strict=True):
            # Messages may be of any size: a baseline moves in units of their spread.
            groups.append({"params": [baseline], "lr": recipe.baseline_rate * max(scale, 1e-6)})
        self.optimiser = torch.optim.Adam(groups, lr=recipe.learning_rate)
        self.generator = torch.Generator().manual_seed(seed)
        self.step = 0
        self.open_from = len(probe.sites) - 1 if recipe.open_every else 0
        self.history = History()
        self.best: dict[str, Tensor] | None = None
        self.best_verdict: Verdict | None = None

    # One step ----------------------------------------------------------------------------------------------

    def sharpness(self) -> float:
        """1 while warm, then rising linearly."""
        progress = self.step / max(self.steps, 1)
        rise = max(progress - self.recipe.warm, 0.0) / (1 - self.recipe.warm)
        return 1 + (self.recipe.sharpness - 1) * rise

    def rise(self) -> float:
        return max(self.step / max(self.steps, 1) - self.recipe.warm, 0.0) / (1 - self.recipe.warm)

    def concavity(self) -> float:
        lo, hi = self.recipe.concave
        return lo * (hi / lo) ** self.rise()

    def activate(self, location: Tensor, site: int) -> Tensor:
        """Gate values in [0, 1] for training."""
        if site < self.open_from:  # not opened yet: the layer runs as the original
            return torch.ones_like(location)
        if self.recipe.sampled:
            return hard_concrete.sample(location, self.generator)
        z = torch.sigmoid(self.sharpness() * location)
        rho = min(self.rise() / 0.85, 1.0) * self.recipe.harden
        if rho == 0:
            return z
        chosen = torch.rand(z.shape, generator=self.generator) < rho
        return z + (chosen * ((z > 0.5).to(z.dtype) - z)).detach()

    def settle_on(self, batch: Any) -> float:
        """One step for the baselines alone: at one site, drop a random share of the messages."""
        site = self.step % len(self.probe.sites)
        share = float(torch.rand((), generator=self.generator))

        def activate(location: Tensor, here: int) -> Tensor:
            if here != site:
                return torch.ones_like(location)
            return (torch.rand(location.shape, generator=self.generator) < share).to(location.dtype)

        for baseline in self.probe.baselines:
            baseline.requires_grad_(True)
        original, masked, _ = self.probe.train_step(self.model, self.forward, batch, activate)
        divergence = self.divergence(original, masked).mean()
        self.optimiser.zero_grad(set_to_none=True)
        divergence.backward()
        self.optimiser.step()
        self.step += 1
        return float(divergence.detach())

    def train_on(self, batch: Any) -> tuple[float, list[float]]:
        """One step of Adam on the Lagrangian; returns the divergence and the mean gate per site."""
        if self.step < self.recipe.settle * self.steps:
            return self.settle_on(batch), [1.0] * len(self.probe.sites)
        train_baselines = self.step >= self.recipe.frozen_baselines * self.steps
        for baseline in self.probe.baselines:
            baseline.requires_grad_(train_baselines)
        locations: dict[int, list[Tensor]] = {}

        def activate(location: Tensor, site: int) -> Tensor:
            locations.setdefault(site, []).append(location)
            return self.activate(location, site)

        original, masked, gates = self.probe.train_step(self.model, self.forward, batch, activate)
        if not bool(torch.isfinite(masked).all()) or not bool(torch.isfinite(original).all()):
            raise GraphMaskError(
                "Expected finite model outputs, got NaN or infinity. Check the model on this data without GraphMask."
            )
        divergence = self.divergence(original, masked).mean()
        shares = [gate.mean() for gate in gates if gate.numel()]
        penalty = self.penalty(gates, locations)
        loss = self.constraint.loss(penalty, divergence)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        value = float(divergence.detach())
        self.constraint.update(value)
        self.step += 1
        return value, [float(share.detach()) for share in shares]

    def penalty(self, gates: list[Tensor], locations: dict[int, list[Tensor]]) -> Tensor:
        """Expected share of open gates: mean over edges, then over the sites that are opened."""
        if not self.recipe.sampled:
            a = self.concavity()
            w = self.recipe.binary * self.rise()
            gates = [torch.cat([torch.sigmoid(self.sharpness() * l) for l in locations[site]]) for site in sorted(locations)]
            return torch.stack([((1 + a) * gate / (gate + a) + 4 * w * gate * (1 - gate)).mean() for gate in gates if gate.numel()]).mean()
        opened = [torch.cat(locations[site]) for site in sorted(locations) if site >= self.open_from]
        return torch.stack([hard_concrete.probability_open(part).mean() for part in opened if part.numel()]).mean()

    # Epochs ------------------------------------------------------------------------------------------------

    def hard_threshold(self) -> float:
        """Where an uncalibrated location turns from shut to open."""
        return hard_concrete.EVEN if self.recipe.sampled else 0.0

    def validate(self, loader: Iterable[Any]) -> tuple[Validation, Verdict]:
        validation = Validation(self.probe, self.model, self.forward, self.divergence, loader)
        thresholds = [self.hard_threshold()] * len(self.probe.sites)
        for site in range(self.open_from):
            thresholds[site] = -1e9
        return validation, validation.verdict(thresholds)

    def keep_best(self, verdict: Verdict) -> bool:
        """Remember the state if it is feasible and sparser than any before."""
        feasible = verdict.within(self.tolerance)
        if feasible and (self.best_verdict is None or verdict.sparsity < self.best_verdict.sparsity):
            self.best = copy.deepcopy(self.probe.state_dict())
            self.best_verdict = verdict
        return feasible

    def finish(self, loader: Iterable[Any]) -> None:
        """Calibrate the last state, choose between it and the best so far, and shift the gates accordingly."""
        sites = len(self.probe.sites)
        thresholds = [self.hard_threshold()] * sites
        if self.recipe.calibrated:
            validation = Validation(self.probe, self.model, self.forward, self.divergence, loader)
            thresholds = calibrate(validation, sites, self.recipe.margin * self.tolerance)
            verdict = validation.verdict(thresholds)
        else:
            verdict = self.best_verdict or self.history.epochs[-1].verdict
            if self.best is not None:
                self.probe.load_state_dict(self.best)
        for site, threshold in enumerate(thresholds):
            # Afterwards P(z != 0) > 1/2 means kept, for every site and recipe.
            self.probe.gate(site).shift.fill_(threshold - hard_concrete.EVEN)
        self.history.verdict = verdict
        self.history.feasible = verdict.within(self.tolerance)


def run(
    training: Training,
    loader: Iterable[Any],
    validation: Iterable[Any],
    epochs: int,
    *,
    first_epoch: int = 0,
    on_epoch: Callable[[Training, Epoch], None] = lambda *_: None,
    on_step: Callable[[Training, float, list[float]], None] = lambda *_: None,
    mode: Callable[[bool], None] = lambda _: None,
) -> History:
    """Read it top to bottom: for every epoch, for every batch, a step; then a verdict; at the end, calibration."""
    started = time.perf_counter()
    for epoch in range(first_epoch, epochs):
        if training.recipe.open_every:
            top = len(training.probe.sites) - 1
            training.open_from = max(top - epoch // training.recipe.open_every, 0)
        torch.manual_seed(training.seed * 1_000_003 + epoch)  # the loader's shuffle and the dropout of this epoch
        mode(True)
        total, weight, shares = 0.0, 0, torch.zeros(len(training.probe.sites))
        for batch in loader:
            divergence, gates = training.train_on(batch)
            total, weight, shares = total + divergence, weight + 1, shares + torch.tensor(gates)
            on_step(training, divergence, gates)
        mode(False)
        verdict = training.validate(validation)[1]
        feasible = training.keep_best(verdict) if training.open_from == 0 else False
        record = Epoch(
            epoch, total / weight, training.constraint.multiplier, (shares / weight).tolist(), verdict, feasible
        )
        training.history.epochs.append(record)
        on_epoch(training, record)
    training.finish(validation)
    training.history.steps = training.step
    training.history.seconds += time.perf_counter() - started
    return training.history
