"""A fit in progress: gates that start open are made sparse under the divergence constraint, then hard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.fitting.calibration import (
    EXAMPLES,
    FEW_OFFSETS,
    KEEP_ALL,
    OFFSETS,
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
from graphmask.gates.passes import Gated, Passes
from graphmask.gates.probe import Probe
from graphmask.graphs.sites import titles
from graphmask.ops.kernels import LIMIT
from graphmask.tapping.subject import Subject
from graphmask.team import ALONE, Team

__all__ = ["PAPER", "RECIPES", "Epoch", "History", "Recipe", "Training", "Verdict"]

#: Steps from one in which stand-ins for logits learn to the next, before settling.
LOGITS_EVERY = 4
#: Steps between two verdicts on hard gates.
STEPS_PER_VERDICT = 50
#: Steps in which the learning rate rises to its height.
WARM = 20
#: The learning rate falls to zero over this last share of the noisy phase.
DECAY = 0.4
#: Share of the noisy phase after which hard gates on held-out data must be within the tolerance.
JUDGED_FROM = 0.6
#: The value to which their upper bound is driven, as a share of the tolerance: a little below `MARGIN`.
WANTED = 0.8
#: Bounds of the caution. It may be below 1, because noisy gates may diverge more than hard ones.
BOLD, TIMID = 0.4, 10.0
#: With several sites, the noisy phase is extended once the target has risen, while the mean divergence is below this
#: share of the tolerance; at most by this multiple of the steps.
SLACK, LONGEST = 0.5, 1.5
#: ... and unless, at the lowest noise, no site's share of hard gates moved by more than this over these verdicts.
VERDICTS_STILL, STILL = 8, 0.003
#: The scale of the noise at the end of a phase that was extended by its own length or more, as a share of the first.
LAST_NOISE = 0.5
#: When snapshots for other tolerances are taken, as shares of the rise of the target.
RUNGS = (0.25, 0.5, 0.75)


class Training:
    """One fit of a probe, with everything that changes from step to step, so that it can be saved and resumed."""

    def __init__(
        self,
        probe: Probe,
        subject: Subject,
        tolerance: float,
        recipe: Recipe,
        seed: int,
        steps: int,
        team: Team = ALONE,
        accumulate: int = 1,
        *,
        recompute: bool = False,
        noise: float = 1.0,
    ) -> None:
        self.probe, self.subject, self.passes = probe, subject, Passes(probe, subject, recompute=recompute)
        self.tolerance, self.recipe, self.seed, self.steps = tolerance, recipe, seed, steps
        self.team, self.accumulate, self.first_noise = team, accumulate, noise
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
        self.drawn_out = 0  # steps by which the noisy phase was extended
        self.judged = 0  # step of the last verdict
        self.sums = torch.zeros(2 + len(probe.sites), dtype=torch.double)  # since then: steps, divergence, gates
        self.caution = 1.0  # the target is divided by it, where held-out data or hard gates diverge more
        self.hard: list[float] = [0.0] * len(probe.sites)  # thresholds while settling
        self.rungs: list[dict[str, Tensor]] = []  # snapshots of the probe; in the end, the last state too
        self.history = History(
            tolerance=tolerance,
            sites=tuple(site.name for site in probe.sites),
            titles=titles(probe.sites),
            unseen=subject.unseen,
        )

    # Where in the schedule -----------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """The position in the schedule: steps taken, less those by which the noisy phase was extended."""
        return self.step - self.drawn_out

    @property
    def settling(self) -> bool:
        return self.clock >= (1 - self.recipe.settle) * self.steps

    @property
    def progress(self) -> float:
        """0 at the start of the noisy phase, 1 at its end."""
        return min(self.clock / ((1 - self.recipe.settle) * self.steps), 1.0)

    def target(self) -> float:
        """The target divergence. It rises, so that the least important messages are dropped first for every seed."""
        first, last = self.recipe.first_aim, self.recipe.last_aim
        aim: float = first * (last / first) ** min(self.progress / self.recipe.risen, 1.0)
        return aim * self.tolerance / self.caution

    @property
    def noise(self) -> float:
        """The scale of the noise. It falls while the noisy phase is extended: gates come closer to hard ones."""
        return self.first_noise * max(1.0 - (1.0 - LAST_NOISE) * self.drawn_out / self.steps, LAST_NOISE)

    def rate(self) -> float:
        """The learning rate as a share of its highest value."""
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
        """[E'] of each edge: how far its location is above the lowest; of samples, the probability of being open.

        A price that is linear in the location moves wide open gates as much as half-open ones. Where a gate settles
        depends on the cost of shutting it, on a logarithmic scale, so locations rank edges.
        """
        if self.recipe.sampled:
            return hard_concrete.probability_open(gate.location / hard_concrete.WIDTH)
        return (gate.location + LIMIT) / (2 * LIMIT)

    def weight(self, opened: int) -> float:
        """The factor of one site's mean price, where ``opened`` sites have gates and edges."""
        return self.recipe.penalty_scale if self.recipe.sampled else 1 / opened

    def penalty(self, gates: list[Gated], edges: Sequence[float] | None = None) -> Tensor:
        """The price of open gates: mean over edges; then the mean over sites, or the authors' scaled sum.

        Where ``gates`` are only a part of a step's gates, ``edges`` counts the edges of all, per site.
        """
        edges = [gate.count() for gate in gates] if edges is None else edges
        opened = [site for site in range(self.open_from, len(gates)) if edges[site]]
        prices = [gates[site].total(self.price(gates[site])) / edges[site] for site in opened if gates[site]]
        if not prices:  # a batch without edges
            return torch.zeros(())
        return torch.stack(prices).sum() * self.weight(len(opened))

    def constrained(self, divergence: Tensor) -> Tensor:
        """[rows] the constrained quantity: the divergence; in the authors' loss, its excess over the tolerance."""
        return torch.relu(divergence - self.tolerance) if self.recipe.sampled else divergence

    def begin_step(self) -> None:
        """Set the learning rates. Stand-ins for logits learn only at some steps: their gradient takes another pass."""
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

    def forget_gradients(self) -> None:
        for group in self.optimiser.param_groups:  # as zero_grad, whose bookkeeping small models notice
            for parameter in group["params"]:
                parameter.grad = None

    # Verdicts ------------------------------------------------------------------------------------------------

    @property
    def thresholds(self) -> list[float]:
        """The thresholds that gates are trained for."""
        if not self.recipe.sampled:
            return self.hard
        even = hard_concrete.EVEN * hard_concrete.WIDTH
        return [KEEP_ALL if site < self.open_from else even for site in range(len(self.probe.sites))]

    def judge(self, loader: Iterable[Any], held_out: Sequence[Iterable[Any]], examples: int) -> Judge:
        *others, trained = [
            Validation(
                self.probe,
                self.subject,
                batches,
                self.tolerance,
                self.team,
                examples,
                self.passes.originals,
            )
            for batches in (*held_out, loader)
        ]
        return Judge(others, trained)

    def review(self, judge: Judge) -> Verdict:
        """Judge hard gates; lower the target where they, or held-out data, diverge more than training batches.

        At first, while many gates are undecided, only the difference between held-out and training data counts: it
        restrains gates that are overfitted to single nodes.
        """
        verdict = judge.verdict(self.thresholds)
        if self.progress < JUDGED_FROM:
            self.caution = (self.caution * min(judge.gap(self.thresholds), 5.0)) ** 0.5
        else:
            change = min(max(verdict.upper / (WANTED * self.tolerance), 0.7), 1.5)
            self.caution = min(max(self.caution * change, BOLD), TIMID)
        if len(self.rungs) < len(RUNGS) and self.progress >= RUNGS[len(self.rungs)] * self.recipe.risen:
            self.rungs.append(snapshot(self.probe))
        if self.unfinished(verdict):
            self.drawn_out += self.step - self.judged
        return verdict

    def unfinished(self, verdict: Verdict) -> bool:
        """Whether the target has risen and much tolerance is left. One site's choice may have to wait for another's."""
        if self.recipe.sampled or self.progress < self.recipe.risen or len(self.probe.sites) < 2:
            return False
        if self.drawn_out >= LONGEST * self.steps or verdict.mean >= SLACK * self.tolerance:
            return False
        return not self.stands_still(verdict)

    def stands_still(self, verdict: Verdict) -> bool:
        """Whether hard gates have kept the same shares for some time although the noise is at its lowest."""
        if self.noise > LAST_NOISE * self.first_noise:
            return False
        recent = [epoch.verdict.retained for epoch in self.history.epochs[1 - VERDICTS_STILL :]] + [verdict.retained]
        if len(recent) < VERDICTS_STILL:
            return False
        return all(max(shares) - min(shares) <= STILL for shares in zip(*recent, strict=True))

    @property
    def due(self) -> bool:
        """Whether a verdict is due before the next step."""
        return self.step - self.judged >= STEPS_PER_VERDICT and not self.settling

    def record(self, verdict: Verdict) -> None:
        self.judged = self.step
        mean, *gates = (self.sums[1:] / self.sums[0].clamp_min(1)).tolist()
        fine = self.open_from == 0 and verdict.meets(self.tolerance)
        self.history.epochs.append(Epoch(self.epoch, mean, self.constraint.multiplier, gates, verdict, fine))
        self.sums.zero_()

    def finish(self, loader: Iterable[Any], held_out: Sequence[Iterable[Any]]) -> None:
        """Judge the last state and the snapshots with several thresholds, and take the best."""
        self.rungs = [*self.rungs, snapshot(self.probe)]
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
        """All states to choose from; first the last state with the thresholds it was trained for."""
        last = judge()
        candidates = [Candidate(tuple(self.thresholds), last.verdict(self.thresholds))]
        if self.recipe.sampled:
            return candidates
        candidates += shifted(last, self.thresholds, OFFSETS)
        candidates += shifted(last, [KEEP_ALL] * len(self.probe.sites), [0.0])
        for rung, snapshot in enumerate(self.rungs[:-1]):
            self.probe.load_state_dict(snapshot)
            candidates += shifted(judge(), [0.0] * len(self.probe.sites), FEW_OFFSETS, rung)
        self.probe.load_state_dict(self.rungs[-1])
        return candidates


def take(probe: Probe, chosen: Candidate, rungs: list[dict[str, Tensor]], history: History) -> None:
    """Make a candidate the state of the probe. From then on P(z != 0) > 1/2 means kept, at every site."""
    probe.load_state_dict(rungs[chosen.rung])
    for site, threshold in enumerate(chosen.thresholds):
        probe.gate(site).shift.fill_(threshold - hard_concrete.EVEN)
    history.verdict = chosen.verdict
    history.feasible = chosen.verdict.holds(history.tolerance) and not chosen.verdict.all_open


def snapshot(probe: Probe) -> dict[str, Tensor]:
    """A copy of all gates and baselines."""
    return {name: value.clone() for name, value in probe.state_dict().items()}
