"""The training loop: gates that start open are made sparse under the divergence constraint, then hard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.fitting import joint
from graphmask.fitting.calibration import (
    EXAMPLES,
    FEW_OFFSETS,
    KEEP_ALL,
    OFFSETS,
    SOME_EXAMPLES,
    Candidate,
    Judge,
    Validation,
    Verdict,
    choose,
    shifted,
)
from graphmask.fitting.constraint import Constraint, MultiplicativeConstraint, SoftplusConstraint
from graphmask.fitting.history import Epoch, History
from graphmask.fitting.recipe import PAPER, RECIPES, Recipe
from graphmask.gates import hard_concrete
from graphmask.gates.probe import Gated, Probe
from graphmask.graphs.batches import Forward
from graphmask.ops.kernels import LIMIT
from graphmask.team import ALONE, Team, shares

__all__ = ["PAPER", "RECIPES", "Epoch", "History", "Recipe", "Training", "Verdict", "run"]

#: Steps from one in which stand-ins for logits learn to the next, before settling.
LOGITS_EVERY = 4
#: Steps between two verdicts on hard gates.
STEPS_PER_VERDICT = 50
#: Steps in which the learning rate rises to its height.
WARM = 20
#: Share of the noisy phase, its end, in which the learning rate falls to zero.
DECAY = 0.5
#: Share of the noisy phase after which hard gates on held-out data are held to the tolerance.
JUDGED_FROM = 0.6
#: What their upper bound is to come to, as a share of the tolerance: somewhat less than what will be asked of it.
WANTED = 0.8
#: Bounds of the caution: the divergence of noisy gates may well be more than that of hard ones.
BOLD, TIMID = 0.4, 10.0
#: With several sites, the noisy phase is drawn out once the aim has risen, while the upper bound is below this share of
#: the tolerance; by so many times the steps at most.
SLACK, LONGEST = 0.5, 1.5
#: The scale of the noise at the end of a phase that was drawn out by its own length or more; it is 1 at first.
LAST_NOISE = 0.5
#: Snapshots for other tolerances, as shares of the rise.
RUNGS = (0.25, 0.5, 0.75)
#: Trials of keeping less at one site, at most; steps in which baselines adapt to each; and the upper bound of the
#: divergence before they have, in tolerances, up to which a trial is worth it.
TRIALS, TRIAL_STEPS, PLAUSIBLE = 6, 60, 4.0


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
        team: Team = ALONE,
        accumulate: int = 1,
    ) -> None:
        self.probe, self.model, self.forward, self.divergence = probe, model, forward, divergence
        self.tolerance, self.recipe, self.seed, self.steps = tolerance, recipe, seed, steps
        self.team, self.accumulate = team, accumulate
        self.constraint: Constraint = SoftplusConstraint() if recipe.sampled else MultiplicativeConstraint(tolerance)
        parameters: list[tuple[list[nn.Parameter], float]] = [(list(probe.gates.parameters()), recipe.learning_rate)]
        # Messages and logits may be of any size: what stands in for them moves in units of their spread.
        spreads = [*probe.scales.tolist(), *(probe.spreads.get(site, 1.0) for site in probe.logits)]
        for learned, spread in zip(probe.learned, spreads, strict=True):
            parameters.append(([learned], recipe.baseline_rate * max(spread, 1e-6)))
        groups = [{"params": which, "lr": height, "height": height} for which, height in parameters]
        self.optimiser = torch.optim.Adam(groups, lr=recipe.learning_rate, fused=True)
        self.generator = torch.Generator(probe.scales.device).manual_seed(seed)
        self.step = 0
        self.epoch = 0
        self.drawn_out = 0  # steps by which the noisy phase was drawn out
        self.judged = 0  # step of the last verdict
        self.sums = torch.zeros(2 + len(probe.sites), dtype=torch.double)  # since then: steps, divergence, gates
        self.caution = 1.0  # by how much less is aimed at: held-out data and hard gates may ask for it
        self.hard: list[float] = [0.0] * len(probe.sites)  # thresholds while settling
        self.rungs: list[dict[str, Tensor]] = []  # snapshots of the probe; in the end, the last state too
        self.history = History(tolerance=tolerance, sites=tuple(site.name for site in probe.sites))

    # Where in the schedule -----------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """The place in the schedule: steps, less those by which it was drawn out."""
        return self.step - self.drawn_out

    @property
    def settling(self) -> bool:
        return self.clock >= (1 - self.recipe.settle) * self.steps

    @property
    def progress(self) -> float:
        """0 at the start of the noisy phase, 1 at its end."""
        return min(self.clock / ((1 - self.recipe.settle) * self.steps), 1.0)

    def target(self) -> float:
        """The divergence aimed at: rising, so that what matters least is dropped first, whatever the seed."""
        first, last = self.recipe.first_aim, self.recipe.last_aim
        aim: float = first * (last / first) ** min(self.progress / self.recipe.risen, 1.0)
        return aim * self.tolerance / self.caution

    @property
    def noise(self) -> float:
        """Less and less while the phase is drawn out: hard gates do better than noisy ones then."""
        return max(1.0 - (1.0 - LAST_NOISE) * self.drawn_out / self.steps, LAST_NOISE)

    def rate(self) -> float:
        """Of learning, as a share of its height."""
        if self.recipe.sampled:
            return 1.0
        if self.settling:
            return (self.steps - self.clock) / (self.recipe.settle * self.steps)
        return min((self.step + 1) / WARM, 1.0, max((1 - self.progress) / DECAY, 0.0))

    @property
    def open_from(self) -> int:
        """The lowest site that has gates; the sampled recipe opens sites from the top down."""
        if not self.recipe.sampled:
            return 0
        sites = len(self.probe.sites)
        opened = 1 + int(sites * self.step / max(self.recipe.opened * self.steps, 1))
        return max(sites - opened, 0)

    # One step ------------------------------------------------------------------------------------------------

    def activate(self, location: Tensor, site: int) -> Tensor:
        """Gate values in [0, 1] for training."""
        if site < self.open_from:  # not opened yet: the layer runs as the original
            return torch.ones_like(location)
        if self.settling:
            return (location > self.hard[site]).to(location.dtype)
        if self.recipe.sampled:
            return hard_concrete.sample(location / hard_concrete.WIDTH, self.generator)
        return hard_concrete.noisy(location, self.noise, self.generator)

    def price(self, gate: Gated) -> Tensor:
        """[E'] of each edge: how far its location is from the lowest; of samples, the probability of being open.

        A price that is linear in the location moves wide open gates as much as half-open ones. Where a gate comes to
        rest follows from what shutting it costs, on a logarithmic scale: locations rank edges.
        """
        if self.recipe.sampled:
            return hard_concrete.probability_open(gate.location / hard_concrete.WIDTH)
        return (gate.location + LIMIT) / (2 * LIMIT)

    def weight(self, opened: int) -> float:
        """Of the mean price of one site, where so many sites have gates and edges."""
        return self.recipe.penalty_scale if self.recipe.sampled else 1 / opened

    def penalty(self, gates: list[Gated]) -> Tensor:
        """The price of open gates: mean over edges; then the mean over sites, or the authors' scaled sum."""
        opened = [gate for gate in gates[self.open_from :] if gate]
        if not opened:  # a batch without edges
            return torch.zeros(())
        return torch.stack([g.mean(self.price(g)) for g in opened]).sum() * self.weight(len(opened))

    def constrained(self, divergence: Tensor) -> Tensor:
        """[rows] what the constraint is on: the divergence; in the authors' loss, its excess over the tolerance."""
        return torch.relu(divergence - self.tolerance) if self.recipe.sampled else divergence

    def begin_step(self) -> None:
        """Set the rates; stand-ins for logits learn only at some steps: their gradient takes another pass."""
        rate = self.rate()
        for group in self.optimiser.param_groups:
            group["lr"] = group["height"] * rate
        for baseline in self.probe.baselines:
            baseline.requires_grad_(True)
        for logits in self.probe.logits.values():
            logits.requires_grad_(self.settling or self.step % LOGITS_EVERY == 0)

    def check_finite(self, divergence: float) -> None:
        if divergence != divergence or divergence == torch.inf:
            raise GraphMaskError(
                "Expected finite model outputs, got NaN or infinity. Check the model on this data without GraphMask."
            )

    def train_on(self, batch: Any) -> tuple[float, list[float]]:
        """One step of Adam on the Lagrangian; returns the divergence and the mean gate per site."""
        self.begin_step()
        original, masked, gates = self.probe.train_step(
            self.model, self.forward, batch, self.activate, train_gates=not self.settling
        )
        divergence = self.constrained(self.divergence(original, masked)).mean()
        value = float(divergence.detach())
        self.check_finite(value)
        if self.settling:
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

    def settle_again(self, batches: Iterator[list[Any]]) -> None:
        """Let baselines adapt to other thresholds, in fewer steps than at first."""
        length = self.recipe.settle * self.steps
        count = min(TRIAL_STEPS, math.ceil(length))
        for number in range(count):
            self.step = self.drawn_out + math.ceil(self.steps - length * (1 - number / count))
            self.take_step(next(batches))
        self.step = self.drawn_out + self.steps
        self.history.steps += count

    # Verdicts ------------------------------------------------------------------------------------------------

    @property
    def thresholds(self) -> list[float]:
        """Those that gates are trained for."""
        if not self.recipe.sampled:
            return self.hard
        even = hard_concrete.EVEN * hard_concrete.WIDTH
        return [KEEP_ALL if site < self.open_from else even for site in range(len(self.probe.sites))]

    def judge(self, loader: Iterable[Any], held_out: Iterable[Any] | None, examples: int) -> Judge:
        parts = [
            None
            if batches is None
            else Validation(
                self.probe,
                self.model,
                self.forward,
                self.divergence,
                batches,
                self.tolerance,
                self.team,
                examples,
            )
            for batches in (held_out, loader)
        ]
        assert parts[1] is not None
        return Judge(parts[0], parts[1])

    def review(self, judge: Judge) -> Verdict:
        """A verdict on hard gates; aim lower where they, or held-out data, do worse than training batches show.

        At first, while many gates are undecided, only the difference between held-out and training data counts:
        gates that learn single nodes by heart are held back by it.
        """
        verdict = judge.verdict(self.thresholds)
        if self.progress < JUDGED_FROM:
            self.caution = (self.caution * min(judge.gap(self.thresholds), 5.0)) ** 0.5
        else:
            change = min(max(verdict.upper / (WANTED * self.tolerance), 0.7), 1.5)
            self.caution = min(max(self.caution * change, BOLD), TIMID)
        if len(self.rungs) < len(RUNGS) and self.progress >= RUNGS[len(self.rungs)] * self.recipe.risen:
            self.rungs.append(_copy(self.probe))
        if self.unfinished(verdict):
            self.drawn_out += self.step - self.judged
        return verdict

    def unfinished(self, verdict: Verdict) -> bool:
        """Has the aim risen, and is there much tolerance to spare? One site's choice may wait for another's."""
        if self.recipe.sampled or self.progress < self.recipe.risen or len(self.probe.sites) < 2:
            return False
        return self.drawn_out < LONGEST * self.steps and verdict.upper < SLACK * self.tolerance

    @property
    def due(self) -> bool:
        """Is a verdict due before the next step?"""
        return self.step - self.judged >= STEPS_PER_VERDICT and not self.settling

    def record(self, verdict: Verdict) -> None:
        self.judged = self.step
        mean, *gates = (self.sums[1:] / self.sums[0].clamp_min(1)).tolist()
        fine = self.open_from == 0 and verdict.meets(self.tolerance)
        self.history.epochs.append(Epoch(self.epoch, mean, self.constraint.multiplier, gates, verdict, fine))
        self.sums.zero_()

    def finish(self, loader: Iterable[Any], held_out: Iterable[Any] | None) -> None:
        """Measure what the last state and the snapshots can do, and take the best."""
        self.rungs = [*self.rungs, _copy(self.probe)]
        candidates = self.candidates(lambda: self.judge(loader, held_out, EXAMPLES))
        self.history.frontier = candidates
        self.record(candidates[0].verdict)
        if self.recipe.sampled:
            take(self.probe, candidates[0], self.rungs, self.history)
            self.history.feasible = candidates[0].verdict.divergence <= self.tolerance
            return
        everything = max(candidates, key=lambda candidate: candidate.verdict.share)
        take(self.probe, choose(candidates, self.tolerance) or everything, self.rungs, self.history)

    def candidates(self, judge: Callable[[], Judge]) -> list[Candidate]:
        """First the last state with the thresholds it was trained for."""
        last = judge()
        found = [Candidate(tuple(self.thresholds), last.verdict(self.thresholds))]
        if self.recipe.sampled:
            return found
        found += shifted(last, self.thresholds, OFFSETS)
        found += shifted(last, [KEEP_ALL] * len(self.probe.sites), [0.0])
        for rung, snapshot in enumerate(self.rungs[:-1]):
            self.probe.load_state_dict(snapshot)
            found += shifted(judge(), [0.0] * len(self.probe.sites), FEW_OFFSETS, rung)
        self.probe.load_state_dict(self.rungs[-1])
        return found


def prune(training: Training, loader: Iterable[Any], held_out: Iterable[Any] | None) -> None:
    """Trials: raise the threshold of one site, let baselines adapt, and stay with that if the tolerance is met.

    A group of messages may be superfluous as a whole, once baselines know that it is gone, while every way there
    leads through states that are worse. Whether gates have come by such a way hangs on the seed; with the trials it
    does not. Those that would save most come first.
    """
    if not training.recipe.settle:
        return

    def judge() -> Judge:
        return training.judge(loader, held_out, SOME_EXAMPLES)

    before = judge()
    if not before.verdict(training.hard).meets(training.tolerance):
        return
    failed: set[tuple[int, float]] = set()
    batches = _endless(loader, training)
    for _ in range(TRIALS):
        trial = _next_trial(before, training.hard, training.tolerance, failed)
        if trial is None:
            break
        site, level = trial
        state, hard = _copy(training.probe), training.hard
        training.hard = [*hard[:site], level, *hard[site + 1 :]]
        training.settle_again(batches)
        after = judge()
        if after.verdict(training.hard).meets(training.tolerance):
            before, failed = after, set()
        else:
            training.probe.load_state_dict(state)
            training.hard = hard
            failed.add(trial)


def _next_trial(
    judge: Judge, hard: list[float], tolerance: float, failed: set[tuple[int, float]]
) -> tuple[int, float] | None:
    """The site and the threshold that save most, of those that have not failed and are not out of reach."""
    levels = [(less, site, level) for site, at in enumerate(hard) for level, less in judge.levels(site, at)]
    for _, site, level in sorted(levels, reverse=True):
        if (site, level) in failed:
            continue
        if judge.verdict([*hard[:site], level, *hard[site + 1 :]]).upper <= PLAUSIBLE * tolerance:
            return site, level
        failed.add((site, level))
    return None


def _endless(loader: Iterable[Any], training: Training) -> Iterator[list[Any]]:
    while True:
        yield from shares(loader, training.team, training.accumulate)


def take(probe: Probe, chosen: Candidate, rungs: list[dict[str, Tensor]], history: History) -> None:
    """Make a candidate the state of the probe: from now on P(z != 0) > 1/2 means kept, at every site."""
    probe.load_state_dict(rungs[chosen.rung])
    for site, threshold in enumerate(chosen.thresholds):
        probe.gate(site).shift.fill_(threshold - hard_concrete.EVEN)
    history.verdict = chosen.verdict
    history.feasible = chosen.verdict.holds(history.tolerance) and not chosen.verdict.all_open


def _copy(probe: Probe) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in probe.state_dict().items()}


def run(
    training: Training,
    loader: Iterable[Any],
    again: Iterable[Any],
    held_out: Iterable[Any] | None,
    *,
    mode: Callable[[bool], None],
    on_step: Callable[[Training, float, list[float]], None] = lambda *_: None,
    on_epoch: Callable[[Training], None] = lambda *_: None,
) -> History:
    """Read it top to bottom: for every epoch, for every batch, a step; now and then a verdict; at the end, a choice.

    ``mode(True)`` puts the model in the state for training gates, ``mode(False)`` in that for judging them; ``again``
    is the loader in an order of its own, ``held_out`` what else to judge on.
    """
    started = time.perf_counter()
    while training.clock < training.steps:
        # The loader's shuffle and the noise of an epoch depend on nothing before it: a resumed fit goes on alike.
        torch.manual_seed(training.seed * 1_000_003 + training.epoch)
        training.generator.manual_seed(joint.seed(training))
        mode(True)
        for mine in shares(loader, training.team, training.accumulate):
            if training.due:
                mode(False)
                with torch.random.fork_rng(devices=[]):
                    training.record(training.review(training.judge(again, held_out, SOME_EXAMPLES)))
                mode(True)
            divergence, gates = training.take_step(mine)
            training.sums += torch.tensor([1.0, divergence, *gates], dtype=torch.double)
            on_step(training, divergence, gates)
        training.epoch += 1
        training.team.align(training.probe)  # should machines round differently
        training.history.seconds += time.perf_counter() - started
        started = time.perf_counter()
        training.history.steps = training.step
        on_epoch(training)
    mode(False)
    with torch.random.fork_rng(devices=[]):
        prune(training, again, held_out)
    training.probe.forget()
    training.finish(again, held_out)
    training.history.seconds += time.perf_counter() - started
    return training.history
