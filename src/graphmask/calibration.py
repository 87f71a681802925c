"""From locations to hard choices: per site, the threshold that keeps the fewest edges within the tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.batches import Forward
from graphmask.divergence import Divergence
from graphmask.gates import LIMIT
from graphmask.probe import Original, Probe

#: Output rows that validation looks at: enough for a rate of one in a thousand to show.
ROWS = 2000


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

    def within(self, tolerance: float) -> bool:
        """Feasible: on average as close as asked, and no larger share of predictions changed than that."""
        return self.divergence <= tolerance and self.flips <= tolerance


class Validation:
    """Originals and locations of some batches, computed once; any thresholds can then be tried by masked passes."""

    def __init__(
        self, probe: Probe, model: nn.Module, forward: Forward, divergence: Divergence, loader: Iterable[Any]
    ) -> None:
        self.probe, self.model, self.forward, self.divergence = probe, model, forward, divergence
        self.batches: list[tuple[Any, Original]] = []
        rows = 0
        for batch in loader:
            original = probe.original(model, forward, batch)
            self.batches.append((batch, original))
            rows += original.output.shape[0]
            if rows >= ROWS:
                break
        self._known: dict[tuple[float, ...], Verdict] = {}

    def levels(self, site: int) -> list[float]:
        """Thresholds worth trying, rising, one per plateau; the first keeps everything."""
        locations = torch.cat([original.locations[site][original.carried[site]] for _, original in self.batches])
        grid = torch.arange(-LIMIT + STEP / 2, LIMIT, STEP)
        kept = (locations[None] > grid[:, None].to(locations.device)).double().mean(1).tolist()
        levels, plateau, share = [-LIMIT - 1], [], 1.0
        for threshold, now in zip(grid.tolist(), kept, strict=True):
            if share - now > 0.002 and plateau:
                levels.append(sum(plateau) / len(plateau))
                plateau = []
            if share - now > 0.002:
                share = now
            if share < 1.0:
                plateau.append(threshold)
        return [*levels, sum(plateau) / len(plateau)] if plateau else levels

    def verdict(self, thresholds: list[float]) -> Verdict:
        """Hard-mask every edge whose location is at or below its site's threshold."""
        key = tuple(thresholds)
        if key not in self._known:
            self._known[key] = self._measure(torch.tensor(thresholds)[:, None])
        return self._known[key]

    def _measure(self, thresholds: Tensor) -> Verdict:
        divergence = flips = rows = 0.0
        kept_count = torch.zeros(thresholds.shape[0])
        carried = torch.zeros(thresholds.shape[0])
        for batch, original in self.batches:
            kept = original.locations > thresholds.to(original.locations.device)
            masked = self.probe.masked(self.model, self.forward, batch, original.edge_index, kept)
            divergence += float(self.divergence(original.output, masked).sum())
            flips += float(self.divergence.flips(original.output, masked).sum())
            rows += masked.shape[0]
            kept_count += kept.sum(1).cpu()
            carried += original.carried.sum(1).cpu()
        retained = (kept_count / carried.clamp_min(1)).tolist()
        return Verdict(divergence / rows, flips / rows, tuple(retained))


#: Distance between thresholds tried.
STEP = 0.25


def calibrate(validation: Validation, sites: int, tolerance: float) -> list[float]:
    """Per-site thresholds: the sparsest choice within tolerance, by coordinate descent from keeping everything.

    The first round gives each site its share of the tolerance, so that no site spends it all; the second lets
    every site use what the others left. Neighbouring thresholds that keep the same edges form a plateau: its
    middle is taken, where unseen edges are least likely to fall on the wrong side.
    """
    levels = [validation.levels(site) for site in range(sites)]
    chosen = [0] * sites

    def verdict(position: dict[int, int]) -> Verdict:
        return validation.verdict([levels[site][position.get(site, chosen[site])] for site in range(sites)])

    rounds = [tolerance * (site + 1) / sites for site in range(sites)] + [tolerance] * (sites if sites > 1 else 0)
    for turn, budget in enumerate(rounds):
        site = turn % sites
        # From the sparsest down: between two feasible thresholds there may be infeasible ones.
        for level in range(len(levels[site]) - 1, chosen[site], -1):
            if verdict({site: level}).within(budget):
                chosen[site] = level
                break
    return [levels[site][chosen[site]] for site in range(sites)]
