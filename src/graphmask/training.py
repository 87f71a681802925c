"""The training loop: gates that start open are made sparse under the divergence constraint, then hard."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import hard_concrete, joint
from graphmask.batches import Forward
from graphmask.calibration import KEEP_ALL, SLACK, Validation, Verdict, calibrate
from graphmask.constraint import Constraint, LagrangianConstraint, MultiplicativeConstraint
from graphmask.distributed import ALONE, Team, shares
from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.probe import Gated, Probe


@dataclass(frozen=True)
class Recipe:
    """How gates are trained. The defaults train reliably without tuning: `docs/recipe.md` has the ablation.

    Three phases, as shares of the steps: *soft* gates under a linear penalty (``warm``), soft gates under an ever
    more concave penalty, and *settling*: gates are hard and fixed, baselines adapt to them. Then thresholds are
    calibrated.
    """

    name: str = "concave"
    steps: int = 1000  #: per site, at least, in whole epochs; from the fourth site on no more
    learning_rate: float = 3e-3
    baseline_rate: float = 1e-2  #: in units of the messages' spread
    warm: float = 0.3
    concavity: float = 0.1  #: a at the end; 1 at the start (see `Training.penalty`)
    frozen_baselines: float = 0.5  #: share of the steps in which baselines stay where they start
    start: str = "auto"  #: baselines start at "zero", at the "mean" message, or at what goes unnoticed more often
    settle: float = 0.15
    calibrated: bool = True
    margin: float = 0.5  #: calibrate to this share of the tolerance: validation data are not the test data
    flips: float = 1.0  #: share of predictions that may change, in tolerances; more where a model is often undecided
    sampled: bool = False  #: Hard Concrete samples instead of soft gates
    lagrangian: bool = False  #: the paper's multiplier instead of the multiplicative one
    open_every: int = 0  #: epochs after which the next lower site is opened; 0 opens all at once
    patience: int = 4  #: verdicts without a sparser feasible state before the soft phase ends early

    def total_steps(self, sites: int) -> int:
        return self.steps * min(max(sites, 1), 3)


#: Hard Concrete sampling, Lagrangian by RMSprop, sites opened top-down: the paper's appendices B and C.
PAPER = Recipe(
    name="paper",
    learning_rate=1e-4,
    baseline_rate=1e-4,
    frozen_baselines=0.0,
    start="zero",
    settle=0.0,
    calibrated=False,
    margin=1.0,
    sampled=True,
    lagrangian=True,
    open_every=1,
)
RECIPES = {"concave": Recipe(), "paper": PAPER}


#: Aiming this low without any choice found, soft gates have a way around hard ones.
HOPELESS = 0.2
#: Times the divergence aimed at: nearer than that, hard gates and baselines still come to terms.
FAR_OFF = 10
#: A margin that keeps this much more (its inverse) is not worth it.
COSTLY = 0.5
#: Steps from one in which stand-ins for logits learn to the next, before settling.
LOGITS_EVERY = 4
#: A verdict costs two runs over the validation data: short epochs share one.
STEPS_PER_VERDICT = 100


@dataclass
class Epoch:
    """One line of the history: training means since the last, and the hard-gate verdict on validation data."""

    epoch: int
    divergence: float
    multiplier: float
    gates: list[float]  #: mean gate per site while training
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

    last_look: Validation | None = None  #: at the validation data, when all steps are done

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
        team: Team = ALONE,
        accumulate: int = 1,
    ) -> None:
        self.probe, self.model, self.forward, self.divergence = probe, model, forward, divergence
        self.tolerance, self.recipe, self.seed, self.steps = tolerance, recipe, seed, steps
        self.team, self.accumulate = team, accumulate
        constraint = LagrangianConstraint if recipe.lagrangian else MultiplicativeConstraint
        self.constraint: Constraint = constraint(tolerance)
        groups: list[dict[str, Any]] = [{"params": list(probe.gates.parameters())}]
        for baseline, scale in zip(probe.baselines, probe.scales.tolist(), strict=True):
            # Messages may be of any size: a baseline moves in units of their spread.
            groups.append({"params": [baseline], "lr": recipe.baseline_rate * max(scale, 1e-6)})
        for site, logits in probe.logits.items():
            groups.append({"params": [logits], "lr": recipe.baseline_rate * max(probe.spreads.get(site, 1.0), 1e-6)})
        self.optimiser = torch.optim.Adam(groups, lr=recipe.learning_rate, fused=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.step = 0
        self.epoch = 0
        self.judged = 0  # step of the last verdict
        self.sums = torch.zeros(2 + len(probe.sites), dtype=torch.double)  # since then: steps, divergence, gates
        self.open_from = 0
        self.thresholds: list[float] | None = None  # set when settling begins
        self.history = History()
        self.best: tuple[dict[str, Tensor], list[float], Verdict] | None = None
        self.stale = 0  # verdicts since the best was found
        self.tightness = 1.0  # share of the target aimed at, where hard gates ask for less than soft ones
        self.starts = [baseline.detach().clone() for baseline in probe.learned]
        self.bare = False  # baselines are back at their start, and learn no more until gates are settled

    # One step ----------------------------------------------------------------------------------------------

    @property
    def settling(self) -> bool:
        return self.step >= (1 - self.recipe.settle) * self.steps

    @property
    def ripe(self) -> bool:
        """Before, the price of half-open gates is still rising: thresholds are not worth the search."""
        return self.step > self.steps / 2

    def rise(self) -> float:
        """0 while warm, then rising to 1 until settling."""
        end = 1 - self.recipe.settle
        return min(max(self.step / self.steps - self.recipe.warm, 0.0) / (end - self.recipe.warm), 1.0)

    def concavity(self) -> float:
        """a: 1 while warm, then falling geometrically."""
        return self.recipe.concavity ** self.rise()

    def target(self) -> float:
        """The divergence aimed at: all of the tolerance at first, in the end what calibration will allow."""
        return self.tightness * self.tolerance * (1 - (1 - self.recipe.margin) * self.rise())

    def activate(self, location: Tensor, site: int) -> Tensor:
        """Gate values in [0, 1] for training."""
        if site < self.open_from:  # not opened yet: the layer runs as the original
            return torch.ones_like(location)
        if self.thresholds is not None:
            return (location > self.thresholds[site]).to(location.dtype)
        if self.recipe.sampled:
            return hard_concrete.sample(location, self.generator)
        return torch.sigmoid(location)

    def penalty(self, gates: list[Gated]) -> Tensor:
        r"""The price of open gates: mean over edges, then over opened sites.

        Sampled gates pay their probability of being non-zero. Soft gates pay :math:`(1 + a) z / (z + a)`, which for
        small a approaches the L0 norm: a half-open gate lets its message through, so it must cost as a whole one.
        """
        opened = [gate for gate in gates[self.open_from :] if gate]
        if not opened:  # a batch without edges
            return torch.zeros(())
        return torch.stack([g.mean(self.price(g)) for g in opened]).mean()

    def price(self, gate: Gated) -> Tensor:
        """[E'] of each edge; see `penalty`."""
        if self.recipe.sampled:
            return hard_concrete.probability_open(gate.location)
        a = self.concavity()
        return (1 + a) * gate.value / (gate.value + a)

    def thaw(self) -> None:
        """Baselines stay where they start for a while."""
        late = self.step >= self.recipe.frozen_baselines * self.steps
        free = self.settling or (late and not self.bare)
        for baseline in self.probe.baselines:
            baseline.requires_grad_(free)
        for logits in self.probe.logits.values():
            # Their gradient takes another pass over all messages: not at every step.
            logits.requires_grad_(free and (self.settling or self.step % LOGITS_EVERY == 0))

    def check_finite(self, divergence: float) -> None:
        if divergence != divergence or divergence == torch.inf:
            raise GraphMaskError(
                "Expected finite model outputs, got NaN or infinity. Check the model on this data without GraphMask."
            )

    def train_on(self, batch: Any) -> tuple[float, list[float]]:
        """One step of Adam on the Lagrangian; returns the divergence and the mean gate per site."""
        self.thaw()
        original, masked, gates = self.probe.train_step(
            self.model, self.forward, batch, self.activate, train_gates=self.thresholds is None
        )
        divergence = self.divergence(original, masked).mean()
        value = float(divergence.detach())
        self.check_finite(value)
        if self.thresholds is not None:
            loss = divergence
        else:
            self.constraint.tolerance = self.target()
            loss = self.constraint.loss(self.penalty(gates), divergence)
            self.constraint.update(value)
        self.forget_gradients()
        if loss.requires_grad:  # not so for a batch without edges
            loss.backward()
            self.optimiser.step()
        self.step += 1
        return value, [float(gate.mean(gate.value.detach())) if gate else 1.0 for gate in gates]

    def forget_gradients(self) -> None:
        for group in self.optimiser.param_groups:  # as zero_grad, whose bookkeeping small models notice
            for parameter in group["params"]:
                parameter.grad = None

    @property
    def joint(self) -> bool:
        """Are there several batches to a step?"""
        return self.team.size * self.accumulate > 1

    def take_step(self, mine: list[Any]) -> tuple[float, list[float]]:
        """On this process's batches of the next step."""
        return joint.step(self, mine) if self.joint else self.train_on(*mine)

    # Epochs ------------------------------------------------------------------------------------------------

    def within(self, verdict: Verdict, tolerance: float) -> bool:
        return verdict.within(tolerance, self.recipe.flips)

    def look_at(self, loader: Iterable[Any]) -> Validation:
        if self.last_look is not None:
            return self.last_look
        found = Validation(self.probe, self.model, self.forward, self.divergence, loader, self.team)
        if self.step >= self.steps:  # nothing changes any more: the last verdict and `finish` look at the same
            self.last_look = found
        return found

    def validate(self, loader: Iterable[Any]) -> tuple[list[float], Verdict]:
        """The thresholds hard gates would use now, and what they do to the model."""
        validation = self.look_at(loader)
        sites = range(len(self.probe.sites))
        if self.recipe.sampled:
            thresholds = [KEEP_ALL if site < self.open_from else hard_concrete.EVEN for site in sites]
        else:
            thresholds = self.thresholds or [validation.gap(site) for site in sites]
        if self.recipe.calibrated and self.ripe:
            at_gap = validation.verdict(thresholds)
            if self.within(at_gap, self.recipe.margin * self.tolerance):
                self.tightness = min(self.tightness / 0.9, 1.0)
            else:
                before, thresholds = thresholds, self.calibrate(validation)
                costly = at_gap.sparsity < COSTLY * validation.verdict(thresholds).sparsity
                if costly and not self.close(validation, before):
                    self.tighten(at_gap)
        return thresholds, validation.verdict(thresholds)

    def tighten(self, verdict: Verdict) -> None:
        """Hard gates are too far off, and no threshold near theirs helps: aim lower."""
        excess = max(verdict.divergence, verdict.flips / self.recipe.flips) / (self.recipe.margin * self.tolerance)
        self.tightness *= min(max(1 / max(excess, 1e-6), 0.5), 0.9)
        nothing = self.best is None or self.best[2].undecided
        if nothing and excess > FAR_OFF and self.tightness < HOPELESS and not self.bare:
            # Baselines that have learnt make up for half-open gates at any aim: begin again without.
            self.bare, self.tightness, self.last_look = True, 0.5, None
            with torch.no_grad():
                for baseline, start in zip(self.probe.learned, self.starts, strict=True):
                    baseline.copy_(start)

    def calibrate(self, validation: Validation) -> list[float]:
        """Thresholds with a margin; where that leaves nothing to drop, with half of it, then with none."""
        for share in (self.recipe.margin, (1 + self.recipe.margin) / 2, 1.0):
            budget = share * self.tolerance
            thresholds = calibrate(validation, len(self.probe.sites), budget, self.recipe.flips)
            if not validation.verdict(thresholds).all_open:
                break
        return thresholds

    def begin_settling(self, loader: Iterable[Any]) -> None:
        """From now on gates are hard, divided at the gap of their locations: what baselines must adapt to."""
        validation = self.look_at(loader)
        self.thresholds = [validation.gap(site) for site in range(len(self.probe.sites))]

    def rank(self, verdict: Verdict) -> tuple[int, float]:
        """Lower is better: first states that drop something, with a margin if possible, then the sparser."""
        if verdict.all_open:
            return 2, verdict.sparsity
        return int(not self.within(verdict, self.recipe.margin * self.tolerance)), verdict.sparsity

    def close(self, validation: Validation, thresholds: list[float]) -> bool:
        """Within all of the tolerance, changed predictions aside on which the model was undecided."""
        if validation.verdict(thresholds).divergence > self.tolerance:
            return False
        return validation.clear_flips(thresholds, self.tolerance) <= self.recipe.flips * self.tolerance

    def keep_best(self, thresholds: list[float], verdict: Verdict) -> bool:
        """Remember the state if it is feasible and better than any before."""
        feasible = self.within(verdict, self.tolerance if self.ripe else self.recipe.margin * self.tolerance)
        self.stale += self.ripe
        if feasible and (self.best is None or self.rank(verdict) < self.rank(self.best[2])):
            if self.best is None or verdict.sparsity < 0.99 * self.best[2].sparsity:
                self.stale = 0
            self.best = copy.deepcopy(self.probe.state_dict()), thresholds, verdict
        if self.best is None or self.best[2].undecided:
            self.stale = 0  # nothing has been found yet that could be given up for
        return feasible

    def stop_early(self) -> None:
        """Nothing is gained any more: go on with settling."""
        if self.stale >= self.recipe.patience and not self.settling:
            self.step = math.ceil((1 - self.recipe.settle) * self.steps)

    def finish(self, loader: Iterable[Any]) -> None:
        """Calibrate the last state, prefer the best so far if it is sparser, and shift the gates accordingly."""
        self.probe.forget()
        taken = False
        if self.recipe.calibrated:
            validation = self.look_at(loader)
            thresholds = self.calibrate(validation)
            verdict = validation.verdict(thresholds)
            if self.thresholds is not None:
                # Half of the tolerance is a margin, not an end: gates that settled within all of it are not thrown
                # open because nothing between them and (nearly) everything is within half.
                settled, best = validation.verdict(self.thresholds), verdict if self.best is None else self.best[2]
                costly = settled.sparsity < COSTLY * min(verdict.sparsity, best.sparsity)
                if costly and self.close(validation, self.thresholds):
                    thresholds, verdict, taken = self.thresholds, settled, True
        else:
            thresholds, verdict = self.validate(loader)
        # A hair's breadth of sparsity does not make up for baselines that have not settled.
        accepted = taken or self.within(verdict, self.tolerance)
        if (
            self.best is not None
            and not taken
            and not (
                accepted
                and self.rank(verdict)[0] <= self.rank(self.best[2])[0]
                and verdict.sparsity <= (1 + SLACK) * self.best[2].sparsity
            )
        ):
            state, thresholds, verdict = self.best
            self.probe.load_state_dict(state)
            accepted = self.within(verdict, self.tolerance)
        for site, threshold in enumerate(thresholds):
            # Afterwards P(z != 0) > 1/2 means kept, for every site and recipe.
            self.probe.gate(site).shift.fill_(threshold - hard_concrete.EVEN)
        self.history.verdict = verdict
        self.history.feasible = accepted


def run(
    training: Training,
    loader: Iterable[Any],
    validation: Iterable[Any],
    *,
    mode: Callable[[bool], None],
    on_step: Callable[[Training, float, list[float]], None] = lambda *_: None,
    on_epoch: Callable[[Training], None] = lambda *_: None,
) -> History:
    """Read it top to bottom: for every epoch, for every batch, a step; then a verdict; at the end, calibration.

    ``mode(True)`` puts the model in the state for training gates, ``mode(False)`` in that for judging them.
    """
    sites = len(training.probe.sites)
    started = time.perf_counter()
    while training.step < training.steps:
        if training.recipe.open_every:
            training.open_from = max(sites - 1 - training.epoch // training.recipe.open_every, 0)
        # The loader's shuffle and the dropout of an epoch depend on nothing before it: a resumed fit goes on alike.
        torch.manual_seed(training.seed * 1_000_003 + training.epoch)
        if training.joint:
            training.generator.manual_seed(joint.seed(training))
        mode(True)
        for mine in shares(loader, training.team, training.accumulate):
            if training.settling and training.thresholds is None and training.recipe.settle:
                mode(False)
                training.begin_settling(validation)
                mode(True)
            divergence, gates = training.take_step(mine)
            training.sums += torch.tensor([1.0, divergence, *gates], dtype=torch.double)
            on_step(training, divergence, gates)
        training.epoch += 1
        training.team.align(training.probe)  # should machines round differently
        if training.step - training.judged >= STEPS_PER_VERDICT or training.step >= training.steps:
            training.judged = training.step
            mode(False)
            thresholds, verdict = training.validate(validation)
            feasible = training.open_from == 0 and training.keep_best(thresholds, verdict)
            mean, *gates = (training.sums[1:] / training.sums[0]).tolist()
            record = Epoch(training.epoch, mean, training.constraint.multiplier, gates, verdict, feasible)
            training.history.epochs.append(record)
            training.sums.zero_()
            training.stop_early()
        training.history.seconds += time.perf_counter() - started
        started = time.perf_counter()
        training.history.steps = training.step
        on_epoch(training)
    mode(False)
    training.finish(validation)
    training.history.seconds += time.perf_counter() - started
    return training.history
