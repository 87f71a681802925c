"""From locations to hard choices: per site, the threshold that keeps the fewest edges within the tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.batches import Forward
from graphmask.distributed import ALONE, Team, shares
from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.kernels import LIMIT
from graphmask.probe import Probe
from graphmask.trace import Trace

#: Examples that validation looks at: enough for a rate of one in a thousand to show.
EXAMPLES = 2000
#: Distance between thresholds tried.
STEP = 0.25
#: Share of a site's kept edges not worth fighting for.
SLACK = 0.02
#: Keeps every edge.
KEEP_ALL = -LIMIT - 1
#: Keeping this share, nothing is chosen.
NEARLY_ALL = 0.99


@dataclass(frozen=True)
class Verdict:
    """What hard gates do to the model on validation data."""

    divergence: float
    flips: float
    retained: tuple[float, ...]  #: per site

    @property
    def sparsity(self) -> float:
        """The objective: share of open gates, mean over sites."""
        return sum(self.retained) / len(self.retained)

    @property
    def all_open(self) -> bool:
        """It explains nothing."""
        return self.sparsity >= NEARLY_ALL

    @property
    def undecided(self) -> bool:
        """No site chooses among its edges: each keeps all or none of them, and some do keep all."""
        return max(self.retained) >= NEARLY_ALL and not any(
            1 - NEARLY_ALL < share < NEARLY_ALL for share in self.retained
        )

    def within(self, tolerance: float, flips: float = 1.0) -> bool:
        """Feasible: on average as close as asked, and no more predictions changed than ``flips`` times that."""
        return self.divergence <= tolerance and self.flips <= flips * tolerance


class Validation:
    """Originals and locations of some batches, computed once; any thresholds can then be tried by masked passes.

    A team shares out the batches. What is said of them is said of all, so that every process decides alike.
    """

    team: Team = ALONE

    def __init__(
        self,
        probe: Probe,
        model: nn.Module,
        forward: Forward,
        divergence: Divergence,
        loader: Iterable[Any],
        team: Team = ALONE,
    ) -> None:
        self.probe, self.model, self.forward, self.divergence, self.team = probe, model, forward, divergence, team
        self.batches: list[tuple[Any, Trace]] = []
        examples, bad = 0.0, 0.0
        for mine in shares(loader, team):
            seen = torch.zeros(2, dtype=torch.double)
            for batch in mine:
                original = probe.original(model, forward, batch)
                self.batches.append((batch, original))
                # Rows of one graph (tokens of a sentence) are no examples of their own; those of a single graph are.
                graphs = getattr(batch, "num_graphs", 1)
                seen[0] += graphs if graphs > 1 else original.output.shape[0]
                seen[1] += not bool(torch.isfinite(original.output).all())
            examples, bad = (torch.tensor([examples, bad], dtype=torch.double) + team.sum(seen)).tolist()
            if bad:
                raise GraphMaskError("Expected finite model outputs on validation data, got NaN or infinity.")
            if examples >= EXAMPLES:
                break
        self._known: dict[tuple[float, ...], Verdict] = {}

    def _sum(self, *values: float) -> list[float]:
        return self.team.sum(torch.tensor(values, dtype=torch.double)).tolist()

    def shares(self, site: int) -> tuple[Tensor, Tensor, Tensor]:
        """Thresholds, the share of the site's edges kept at each, and the mean location of the dropped."""
        grid = torch.arange(-LIMIT + STEP / 2, LIMIT, STEP, dtype=torch.double)
        found = [original.values[site][original.carried[site]] for _, original in self.batches]
        locations = torch.cat(found).sort().values.double().cpu() if found else grid[:0]
        below = torch.searchsorted(locations, grid, right=True)
        sums = torch.cat([torch.zeros(1, dtype=torch.double), locations.cumsum(0)])
        dropped, sums = self.team.sum(torch.stack([below.double(), sums[below]]))
        (count,) = self._sum(locations.numel())
        if not count:
            return grid, torch.zeros_like(grid), torch.zeros_like(grid)
        return grid, 1 - dropped / count, sums / count

    def share(self, site: int, threshold: float) -> float:
        """Share of the site's edges above the threshold."""
        kept, carried = self._sum(
            sum(int((original.values[site] > threshold).sum()) for _, original in self.batches),
            sum(int(original.carried[site].sum()) for _, original in self.batches),
        )
        return kept / max(carried, 1)

    def gap(self, site: int) -> float:
        """The threshold that best divides the site's locations in two groups (Otsu's criterion)."""
        grid, kept, dropped_sum = self.shares(site)
        dropped = 1 - kept
        total, carried = self._sum(
            sum(float(o.values[site][o.carried[site]].double().sum()) for _, o in self.batches),
            sum(int(o.carried[site].sum()) for _, o in self.batches),
        )
        total /= max(carried, 1)
        between = (total * dropped - dropped_sum) ** 2 / (kept * dropped).clamp_min(1e-12)
        best = between >= between.max() * (1 - 1e-6)  # a plateau: take its middle
        return float(grid[best].mean())

    def levels(self, site: int) -> list[float]:
        """Thresholds worth trying, rising, one per plateau; the first keeps everything."""
        grid, kept, _ = self.shares(site)
        levels, share = [float(KEEP_ALL)], 1.0
        plateau: list[float] = []
        for threshold, now in zip(grid.tolist(), kept.tolist(), strict=True):
            if share - now > 5e-4:
                if plateau:
                    levels.append(sum(plateau) / len(plateau))
                plateau, share = [], now
            if share < 1.0:
                plateau.append(threshold)
        return [*levels, sum(plateau) / len(plateau)] if plateau else levels

    def verdict(self, thresholds: Sequence[float]) -> Verdict:
        """Hard-mask every edge whose location is at or below its site's threshold."""
        key = tuple(thresholds)
        if key not in self._known:
            self._known[key] = self._measure(torch.tensor(key)[:, None])
        return self._known[key]

    def clear_flips(self, thresholds: Sequence[float], tolerance: float) -> float:
        """Share of rows whose prediction changed and that diverge by more than the tolerance.

        The others were undecided: by what counts as the same prediction, they are the same.
        """
        changed = rows = 0.0
        for batch, original in self.batches:
            kept = original.values > torch.tensor(list(thresholds))[:, None].to(original.values.device)
            masked = self.probe.masked(self.model, self.forward, batch, original.edge_map, kept)
            far = self.divergence(original.output, masked) > tolerance
            changed += float((self.divergence.flips(original.output, masked) & far).sum())
            rows += masked.shape[0]
        changed, rows = self._sum(changed, rows)
        return changed / rows

    def _measure(self, thresholds: Tensor) -> Verdict:
        divergence = flips = rows = 0.0
        kept_count = torch.zeros(thresholds.shape[0], dtype=torch.double)
        carried = torch.zeros(thresholds.shape[0], dtype=torch.double)
        for batch, original in self.batches:
            kept = original.values > thresholds.to(original.values.device)
            masked = self.probe.masked(self.model, self.forward, batch, original.edge_map, kept)
            divergence += float(self.divergence(original.output, masked).sum())
            flips += float(self.divergence.flips(original.output, masked).sum())
            rows += masked.shape[0]
            kept_count += kept.sum(1).cpu()
            carried += original.carried.sum(1).cpu()
        divergence, flips, rows = self._sum(divergence, flips, rows)
        kept_count, carried = self.team.sum(torch.stack([kept_count, carried]))
        retained = (kept_count / carried.clamp_min(1)).tolist()
        return Verdict(divergence / rows, flips / rows, tuple(retained))


def calibrate(validation: Validation, sites: int, tolerance: float, flips: float = 1.0) -> list[float]:
    """Per-site thresholds: from a feasible start where all sites drop something, advance site by site.

    Together, because sites depend on each other: dropping at one alone may be infeasible where dropping at both
    is not. Two starts are tried, every site's gap less as much as it takes, and one threshold for all (gates of all
    sites were trained against one price); the sparser end wins. Among thresholds that keep the same edges, the middle
    is taken, where unseen edges are least likely to fall on the wrong side.
    """
    levels = [validation.levels(site) for site in range(sites)]
    gaps = [validation.gap(site) for site in range(sites)]

    def verdict(position: Sequence[int]) -> Verdict:
        return validation.verdict([levels[site][position[site]] for site in range(sites)])

    def feasible(position: Sequence[int]) -> bool:
        return verdict(position).within(tolerance, flips)

    def advance(chosen: list[int]) -> list[int]:
        for _ in range(2 if sites > 1 else 1):
            for site in range(sites):
                # From the sparsest down: between two feasible thresholds there may be infeasible ones.
                for level in range(len(levels[site]) - 1, chosen[site], -1):
                    if feasible([*chosen[:site], level, *chosen[site + 1 :]]):
                        chosen = [*chosen[:site], level, *chosen[site + 1 :]]
                        break
        return chosen

    from_gaps = [min(range(len(levels[s])), key=lambda i: abs(levels[s][i] - gaps[s])) for s in range(sites)]
    while not feasible(from_gaps) and any(from_gaps):
        from_gaps = [max(level - 1, 0) for level in from_gaps]
    chosen = advance(from_gaps)
    if sites > 1:
        other = advance(_in_turns(_common(levels, feasible), levels, verdict, feasible))
        if verdict(other).sparsity < (1 - SLACK) * verdict(chosen).sparsity:
            chosen = other
    return [_relax(validation, site, levels[site][chosen[site]]) for site in range(sites)]


def _common(levels: list[list[float]], feasible: Callable[[Sequence[int]], bool]) -> list[int]:
    """The highest threshold for all sites that is feasible, by bisection, as positions in their levels."""
    thresholds = sorted({level for found in levels for level in found})
    low, high = 0, len(thresholds)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if feasible(_positions(levels, thresholds[middle])) else (low, middle)
    return _positions(levels, thresholds[low])


def _positions(levels: list[list[float]], threshold: float) -> list[int]:
    return [max(at for at, level in enumerate(found) if level <= threshold) for found in levels]


def _in_turns(
    chosen: list[int],
    levels: list[list[float]],
    verdict: Callable[[Sequence[int]], Verdict],
    feasible: Callable[[Sequence[int]], bool],
) -> list[int]:
    """Raise the threshold of one site by one level, the one that gains most, as long as that is feasible."""
    while True:
        steps = [
            [*chosen[:site], level + 1, *chosen[site + 1 :]]
            for site, level in enumerate(chosen)
            if level + 1 < len(levels[site])
        ]
        steps = [step for step in steps if feasible(step)]
        if not steps:
            return chosen
        chosen = min(steps, key=lambda step: verdict(step).sparsity)


def _relax(validation: Validation, site: int, threshold: float) -> float:
    """The middle of the thresholds, up to this one, at which hardly more edges are kept.

    The last per cent of sparsity costs most of the tolerance: it is taken from edges that do matter.
    """
    grid, kept, _ = validation.shares(site)
    now = validation.share(site, threshold)
    stretch = grid[(grid <= threshold) & (kept <= now * (1 + SLACK))]
    return float(stretch.mean()) if stretch.numel() else threshold
