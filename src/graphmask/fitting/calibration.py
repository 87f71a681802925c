"""From locations to hard choices: what hard gates do to the model on some data, and the choice of thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphmask.devices import double
from graphmask.errors import GraphMaskError
from graphmask.gates.originals import Originals
from graphmask.gates.probe import Probe
from graphmask.ops.kernels import LIMIT
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import Trace
from graphmask.team import ALONE, Team, shares

#: Examples for the final verdict, of held-out and of training data each, and for those during training.
EXAMPLES, SOME_EXAMPLES = 1500, 500
#: Standard errors of the mean that are added to a measured divergence before it is compared with the tolerance.
ERRORS = 2.0
#: Share of the tolerance that this upper bound may take up.
MARGIN = 0.85
#: Thresholds that keep every edge, and none.
KEEP_ALL, DROP_ALL = -LIMIT - 1, LIMIT + 1
#: Distance of other thresholds from the bounds of locations: many lie on a bound, where rounding would decide.
CLEAR = 0.1
#: A state that keeps this share or more has chosen nothing.
NEARLY_ALL = 0.99
#: Candidates that keep at most this share of all messages more than the sparsest one count as equally sparse.
TIE = 0.01
#: Bounds that differ by more than this share of the tolerance differ clearly.
CLEARLY = 0.05
#: Offsets from the trained thresholds that are tried, the same at all sites.
OFFSETS = (-3.0, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: The same for snapshots, which are taken during training.
FEW_OFFSETS = (-0.5, 0.0, 0.5)


@dataclass(frozen=True)
class Verdict:
    """What hard gates do to the model on some data."""

    divergence: float  #: mean over rows
    flips: float  #: share of rows whose prediction changes
    retained: tuple[float, ...]  #: share of open gates, per site
    error: float = 0.0  #: standard error of the mean divergence
    within: float = 1.0  #: share of rows whose own divergence is within the tolerance
    held_out: float = 0.0  #: mean divergence over the rows of held-out data alone
    held_out_error: float = 0.0  #: standard error of that mean

    @property
    def share(self) -> float:
        """The objective: share of open gates, mean over sites."""
        return sum(self.retained) / len(self.retained)

    @property
    def all_open(self) -> bool:
        """True if (nearly) everything is kept, which explains nothing."""
        return self.share >= NEARLY_ALL

    @property
    def mean(self) -> float:
        """The mean divergence over all rows, or over held-out rows if that is larger."""
        return max(self.divergence, self.held_out)

    @property
    def upper(self) -> float:
        """A confidence bound on the mean divergence, from all rows, or from held-out rows alone if that is larger."""
        return max(self.divergence + ERRORS * self.error, self.held_out + ERRORS * self.held_out_error)

    def holds(self, tolerance: float) -> bool:
        """True if the means themselves are within the tolerance."""
        return self.mean <= tolerance

    def meets(self, tolerance: float) -> bool:
        """True if the upper bound is within the tolerance less a margin, because other data may diverge more."""
        return self.upper <= MARGIN * tolerance


class Tally:
    """Sums over rows and edges from which a verdict is computed; tallies of several data sets can be added."""

    def __init__(self, sums: Tensor) -> None:
        self.sums = sums  #: rows, divergence, its square, flips, within; kept per site; carried per site

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.sums + other.sums)

    @property
    def rows(self) -> float:
        return float(self.sums[0])

    def verdict(self) -> Verdict:
        count, divergence, squares, flips, within = self.sums[:5].tolist()
        kept, carried = self.sums[5:].view(2, -1)
        mean = divergence / count
        variance = max(squares / count - mean**2, 0.0)
        retained = torch.where(carried > 0, kept / carried.clamp_min(1), 0.0)
        return Verdict(mean, flips / count, tuple(retained.tolist()), (variance / count) ** 0.5, within / count)


class Validation:
    """Original runs and locations of some batches, computed once; then any thresholds can be tried by masked runs.

    The processes of a team share out the batches and add up their counts, so that all of them decide alike.
    """

    def __init__(
        self,
        probe: Probe,
        subject: Subject,
        loader: Iterable[Any],
        tolerance: float,
        team: Team = ALONE,
        examples: int = EXAMPLES,
        originals: Originals | None = None,
    ) -> None:
        originals = Originals(subject.at(probe.sites), probe.specs) if originals is None else originals
        self.probe, self.subject, self.divergence, self.team = probe, subject, subject.divergence, team
        self.tolerance = tolerance
        self.batches: list[tuple[Any, Trace]] = []
        total, bad = 0.0, 0.0
        for mine in shares(loader, team):
            seen = torch.zeros(2, dtype=torch.double)
            for batch in mine:
                original = originals.trace(batch, lambda messages: probe.gate(messages.site)(messages))
                self.batches.append((batch, original))
                # Rows of one graph (tokens of a sentence) are no examples of their own; those of a single graph are.
                graphs = getattr(batch, "num_graphs", 1)
                seen[0] += graphs if graphs > 1 else original.output.shape[0]
                seen[1] += not bool(torch.isfinite(original.output).all())
            total, bad = (torch.tensor([total, bad], dtype=torch.double) + team.sum(seen)).tolist()
            if bad:
                raise GraphMaskError("Expected finite model outputs on validation data, got NaN or infinity.")
            if total >= examples:
                break

    def count(self, thresholds: Sequence[float]) -> Tensor:
        """[L] how many gates are open. Equal numbers mean the same gates, since a higher threshold keeps a subset."""
        limits = torch.tensor(list(thresholds))[:, None]
        counts = [(original.values > limits.to(original.values.device)).sum(1).cpu() for _, original in self.batches]
        return self.team.sum(sum(counts, start=torch.zeros(len(self.probe.sites), dtype=torch.long)))

    def measure(self, thresholds: Sequence[float]) -> Tally:
        """Drop every edge whose location is at or below its site's threshold, run the model, and tally the result."""
        sites = len(self.probe.sites)
        sums = torch.zeros(5 + 2 * sites, dtype=torch.double)
        limits = torch.tensor(list(thresholds))[:, None]
        for batch, original in self.batches:
            opened = original.values > limits.to(original.values.device)
            masked = self.probe.masked(self.subject, batch, original.edge_map, opened)
            divergence = double(self.divergence(original.output, masked))
            flips = self.divergence.flips(original.output, masked)
            of_rows = [divergence.sum(), (divergence**2).sum(), flips.sum(), (divergence <= self.tolerance).sum()]
            sums[0] += masked.shape[0]
            sums[1:5] += torch.stack([value.cpu().double() for value in of_rows])
            sums[5:] += torch.cat([opened.sum(1), original.carried.sum(1)]).cpu()
        return Tally(self.team.sum(sums))


class Judge:
    """Judges thresholds on held-out and on training data together.

    A few held-out graphs are a small sample, and training graphs understate the divergence where the gates, or the
    model, are overfitted to them. So the bound must hold for both together and for held-out data alone. ``held_out`` is
    validation data, what was split off the loader, or both, in this order.
    """

    def __init__(self, held_out: Sequence[Validation], trained: Validation) -> None:
        self.held_out, self.trained, self.team = held_out, trained, trained.team
        self._known: dict[tuple[int, ...], tuple[list[Tally], Tally]] = {}  # by the numbers of open gates

    def _tallies(self, thresholds: Sequence[float]) -> tuple[list[Tally], Tally]:
        key = tuple(torch.cat([part.count(thresholds) for part in (*self.held_out, self.trained)]).tolist())
        if key not in self._known:
            self._known[key] = [part.measure(thresholds) for part in self.held_out], self.trained.measure(thresholds)
        return self._known[key]

    def verdict(self, thresholds: Sequence[float]) -> Verdict:
        held_out, trained = self._tallies(thresholds)
        return together(new_data(held_out), trained)

    def gap(self, thresholds: Sequence[float]) -> float:
        """The divergence on held-out data over that on training data; 1 if it is not significantly larger."""
        tallies, trained = self._tallies(thresholds)
        held_out = new_data(tallies)
        if held_out is None or not significantly_worse(held_out, trained):
            return 1.0
        return held_out.verdict().divergence / max(trained.verdict().divergence, 1e-12)


def new_data(held_out: Sequence[Tally]) -> Tally | None:
    """The tally that represents new data: validation data, with or without what was split off the loader.

    The model was usually trained on the loader's data, split-off data included. Where it is more certain on data that
    it was trained on, they understate the divergence on new data; so whichever of the two has the larger bound counts.
    """
    if len(held_out) < 2:
        return held_out[0] if held_out else None
    validation, split_off = held_out
    return max(validation, validation + split_off, key=lambda tally: tally.verdict().upper)


def significantly_worse(held_out: Tally, trained: Tally) -> bool:
    """True if held-out data diverge more than training data, by more than two standard errors of the difference."""
    if not held_out.rows or not trained.rows:
        return bool(held_out.rows)
    alone, other = held_out.verdict(), trained.verdict()
    return alone.divergence - other.divergence > ERRORS * (alone.error**2 + other.error**2) ** 0.5


def together(held_out: Tally | None, trained: Tally) -> Verdict:
    """The verdict on held-out and training data together."""
    if held_out is None or not held_out.rows:
        return trained.verdict()
    alone = held_out.verdict()
    return replace((held_out + trained).verdict(), held_out=alone.divergence, held_out_error=alone.error)


@dataclass(frozen=True)
class Candidate:
    """A state that a fit may end with: thresholds for the gates of a rung (a snapshot), and the verdict on them."""

    thresholds: tuple[float, ...]
    verdict: Verdict
    rung: int = -1  #: number of the snapshot; -1 is the last state


def _fine(candidates: Sequence[Candidate], tolerance: float) -> list[Candidate]:
    """The candidates that drop something and whose bound meets the tolerance with a margin."""
    return [one for one in candidates if not one.verdict.all_open and one.verdict.meets(tolerance)]


def _first(candidates: Sequence[Candidate]) -> Candidate | None:
    """The sparsest candidate; among equally sparse ones, the one nearest to the trained thresholds."""
    return min(candidates, key=lambda one: (round(one.verdict.share, 6), sum(map(abs, one.thresholds))), default=None)


def sparsest(candidates: Sequence[Candidate], tolerance: float) -> Candidate | None:
    """The candidate that keeps least among those that drop something and meet the tolerance; None if there is none.

    Among candidates that keep equally much, the one nearest to the trained thresholds, where unseen edges are least
    likely to fall on the wrong side.
    """
    return _first(_fine(candidates, tolerance))


def surest(candidates: Sequence[Candidate], tolerance: float) -> Candidate | None:
    """Among candidates about as sparse as the sparsest, one whose bound is clearly lower; else the sparsest.

    The last messages that a threshold drops are those that gates are least certain of, and on other data they may be
    the ones that matter. None if no candidate meets the tolerance.
    """
    fine = _fine(candidates, tolerance)
    least = min((one.verdict.share for one in fine), default=0.0)
    ties = [one for one in fine if one.verdict.share <= least + TIE]
    bound = min((one.verdict.upper for one in ties), default=0.0) + CLEARLY * tolerance
    return _first([one for one in ties if one.verdict.upper <= bound])


def least_bound(candidates: Sequence[Candidate], tolerance: float) -> Candidate | None:
    """Of the candidates that drop something and whose means are within the tolerance, one with about the least bound.

    The sparsest of those whose bounds do not differ clearly from the least.
    """
    fine = [one for one in candidates if not one.verdict.all_open and one.verdict.holds(tolerance)]
    bound = min((one.verdict.upper for one in fine), default=0.0) + CLEARLY * tolerance
    return _first([one for one in fine if one.verdict.upper <= bound])


def choose(candidates: Sequence[Candidate], tolerance: float) -> Candidate | None:
    """The state that a fit ends with; None if no candidate drops something within the tolerance.

    The last state goes before snapshots, which were taken at a smaller target and keep much more. Among its candidates,
    those whose bound meets the tolerance with a margin go first, and of these the sparsest; then those whose means
    are within it, and of these one with about the least bound; then the snapshots in the same way. Thresholds that keep
    the whole of a site of which the trained ones drop a part are not considered.
    """
    last = [candidate for candidate in candidates if candidate.rung < 0]
    trained = min(last, key=lambda one: sum(map(abs, one.thresholds)), default=None)
    if trained is not None:
        last = [candidate for candidate in last if not _opens(candidate.verdict, trained.verdict)]
    for some in (last, [candidate for candidate in candidates if candidate.rung >= 0]):
        chosen = surest(some, tolerance) or least_bound(some, tolerance)
        if chosen is not None:
            return chosen
    return None


def _opens(verdict: Verdict, trained: Verdict) -> bool:
    """True if a site is kept as a whole although the trained thresholds drop a part of it."""
    pairs = zip(verdict.retained, trained.retained, strict=True)
    return any(share >= NEARLY_ALL > before for share, before in pairs)


def clear_of_bounds(threshold: float) -> float:
    """The threshold itself, or the nearest equivalent one that is away from the bounds of locations."""
    if threshold < -LIMIT:
        return KEEP_ALL
    if threshold >= LIMIT:
        return DROP_ALL
    return min(max(threshold, -LIMIT + CLEAR), LIMIT - CLEAR)


def shifted(judge: Judge, thresholds: Sequence[float], offsets: Sequence[float], rung: int = -1) -> list[Candidate]:
    """One candidate per offset of all thresholds."""
    moved = [tuple(clear_of_bounds(threshold + offset) for threshold in thresholds) for offset in offsets]
    return [Candidate(at, judge.verdict(at), rung) for at in moved]
