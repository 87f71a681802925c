"""The course of a fit, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphmask import hooks
from graphmask.fitting.calibration import Candidate, Verdict
from graphmask.words import first_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A fit that keeps at least, or at most, this share of all messages deserves a word.
NEARLY_ALL, NEARLY_NONE = 0.95, 0.002


@dataclass
class Epoch:
    """One line of the history: training means since the last line, and the verdict on hard gates."""

    epoch: int
    divergence: float
    multiplier: float
    gates: list[float]  #: mean gate per site while training
    verdict: Verdict
    feasible: bool  #: would this state meet the tolerance?


@dataclass
class History:
    """What happened in `fit`, and the verdict on the state that was taken."""

    epochs: list[Epoch] = field(default_factory=list)
    feasible: bool = False  #: a state was found that meets the tolerance and drops something
    verdict: Verdict | None = None
    steps: int = 0
    seconds: float = 0.0
    tolerance: float = 0.0
    sites: tuple[str, ...] = ()
    frontier: list[Candidate] = field(default_factory=list)  #: all states that were measured, for other tolerances
    titles: tuple[str, ...] = ()  #: the sites by names for people, such as ``conv1 (GCNConv)``
    unseen: tuple[str, ...] = ()  #: modules that can mix nodes by other ways than messages

    @property
    def names(self) -> tuple[str, ...]:
        """The readable names of the sites; histories in older files have only the exact ones."""
        return self.titles or self.sites

    @property
    def outcome(self) -> str:
        """One line on the chosen state."""
        if self.verdict is None:
            return "not fitted yet"
        within = "within" if self.verdict.divergence <= self.tolerance else "NOT within"
        return (
            f"{self.verdict.share:.1%} of the messages kept, {within} tolerance: divergence "
            f"{self.verdict.divergence:.3g} of {self.tolerance:.3g}"
        )

    def __repr__(self) -> str:
        return f"History({self.outcome}; {self.steps:,} steps, {self.seconds:.0f} s)"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw with matplotlib what hard gates kept and how far they diverged during the fit; returns the axes."""
        return hooks.report("plot.plot_history")(self, ax)

    def __str__(self) -> str:
        if self.verdict is None:
            return "GraphMask: not fitted yet."
        verdict = self.verdict
        shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(self.names, verdict.retained, strict=False))
        lines = [
            f"GraphMask: {self.steps:,} steps in {self.seconds:.0f} s.",
            f"Kept: {verdict.share:.1%} of the messages ({shares}).",
            f"Divergence {verdict.divergence:.3g} (upper bound {verdict.upper:.3g}), tolerance "
            f"{self.tolerance:.3g}; {verdict.within:.0%} of the rows are within tolerance, "
            f"{verdict.flips:.1%} change their prediction.",
        ]
        return "\n".join([*lines, *filter(None, [self.not_seen, self.advice()])])

    @property
    def not_seen(self) -> str:
        """A sentence on modules whose messages are not seen; empty where there are none."""
        if not self.unseen:
            return ""
        return (
            f"Not seen: what goes through {first_of(self.unseen, 5)}. It passes as it is and is not explained "
            "(docs/other_models.md)."
        )

    def advice(self) -> str:
        """Advice where the outcome says little about the model; empty otherwise."""
        verdict = self.verdict
        if verdict is None:
            return ""
        if verdict.divergence > self.tolerance:
            return (
                f"No state within tolerance was found: hard gates diverge by {verdict.divergence:.3g} of "
                f"{self.tolerance:.3g}. Fit for more epochs, or raise the tolerance."
            )
        if verdict.share >= NEARLY_ALL:
            return (
                f"Nearly everything is kept ({verdict.share:.1%}): within tolerance {self.tolerance:.3g} no choice "
                "was found. Raise the tolerance, fit for more epochs, or give more graphs to fit on."
            )
        if verdict.share <= NEARLY_NONE:
            return (
                f"Next to nothing is kept ({verdict.share:.2%}): within tolerance {self.tolerance:.3g} the model "
                "hardly needs its messages. Lower the tolerance, or check that its output depends on the edges."
            )
        return ""


@dataclass(frozen=True)
class Point:
    """One row of the frontier: what is kept at this tolerance."""

    tolerance: float  #: the smallest tolerance that this state meets
    kept: tuple[float, ...]  #: per site
    divergence: float
    flips: float
    within: float  #: share of rows within the tolerance that was fitted for


def points(candidates: Sequence[Candidate], margin: float) -> list[Point]:
    """The frontier: of all measured states, those that keep less than every state with a smaller divergence."""
    frontier: list[Point] = []
    least = float("inf")
    for candidate in sorted(candidates, key=lambda one: (one.verdict.upper, one.verdict.share)):
        verdict = candidate.verdict
        if verdict.share < least - 1e-9:
            least = verdict.share
            frontier.append(
                Point(verdict.upper / margin, verdict.retained, verdict.divergence, verdict.flips, verdict.within)
            )
    return frontier
