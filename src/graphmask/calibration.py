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


#: Thresholds tried; the lowest keeps everything (locations lie in [-LIMIT, LIMIT]).
LEVELS = [-LIMIT - 1, *(round(-LIMIT + 0.25 * step, 2) for step in range(1, int(8 * LIMIT)))]


def calibrate(validation: Validation, sites: int, tolerance: float) -> list[float]:
    """Per-site thresholds, by coordinate descent.

    Start where all sites share one threshold; then, site by site, move to the level that keeps the fewest
    edges while the whole stays within tolerance. Neighbouring levels that keep the same edges form a plateau:
    its middle is taken, where unseen edges are least likely to fall on the wrong side.
    """

    def feasible(levels: list[int]) -> bool:
        return validation.verdict([LEVELS[level] for level in levels]).within(tolerance)

    low, high = 0, len(LEVELS) - 1  # keeping everything is feasible: the output is the original's
    while low < high:
        middle = (low + high + 1) // 2
        if feasible([middle] * sites):
            low = middle
        else:
            high = middle - 1
    chosen = [low] * sites
    for _ in range(2 if sites > 1 else 0):
        for site in range(sites):
            level = chosen[site]
            while level + 1 < len(LEVELS) and feasible([*chosen[:site], level + 1, *chosen[site + 1 :]]):
                level += 1
            chosen[site] = level
    return [LEVELS[_middle(validation, chosen, site)] for site in range(sites)]


def _middle(validation: Validation, chosen: list[int], site: int) -> int:
    """The middle of the levels below the chosen one that keep (nearly) as few edges at this site."""

    def retained(level: int) -> float:
        thresholds = LEVELS[level]
        kept = sum(int((original.locations[site] > thresholds).sum()) for _, original in validation.batches)
        return kept / max(sum(int(original.carried[site].sum()) for _, original in validation.batches), 1)

    top = level = chosen[site]
    while level > 0 and retained(level - 1) - retained(top) <= 0.002 * max(retained(top), 0.05):
        level -= 1
    return (top + level + 1) // 2
