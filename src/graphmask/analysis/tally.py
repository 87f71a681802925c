"""How much explanations keep and how far the masked model is from the original, over many of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from graphmask.explanation import Explanation


@dataclass
class Tally:
    """Running sums over explanations, which are added one by one and not held.

    Shares of messages are ratios of sums, so that a large graph counts for more than a small one. Divergence, flips
    and whether an explanation is faithful are means over explanations.
    """

    count: int = 0
    kept: int = 0
    carried: int = 0
    divergence: float = 0.0
    flips: float = 0.0
    faithful: int = 0
    sites: tuple[str, ...] | None = None  #: None before the first, () when they differ
    per_site: list[list[int]] = field(default_factory=list)  #: kept and carried

    @classmethod
    def of(cls, explanations: Iterable[Explanation]) -> Self:
        """The sums over all of them."""
        tally = cls()
        for explanation in explanations:
            tally.add(explanation)
        return tally

    def add(self, explanation: Explanation) -> None:
        kept, carried = explanation.kept.sum(1).tolist(), explanation.carried.sum(1).tolist()
        self.count += 1
        self.kept += sum(kept)
        self.carried += sum(carried)
        self.divergence += explanation.divergence
        self.flips += explanation.flips
        self.faithful += explanation.faithful
        if self.sites is None:
            self.sites, self.per_site = explanation.sites, [[0, 0] for _ in explanation.sites]
        elif self.sites != explanation.sites:
            self.sites, self.per_site = (), []
        for sums, k, c in zip(self.per_site, kept, carried, strict=False):
            sums[0] += k
            sums[1] += c

    @property
    def retained(self) -> float:
        """Messages kept over messages carried, of all explanations together."""
        return self.kept / max(self.carried, 1)

    @property
    def retained_per_site(self) -> list[float]:
        """The same at each site; empty where explanations differ in their sites."""
        return [kept / max(carried, 1) for kept, carried in self.per_site]

    @property
    def means(self) -> dict[str, Any]:
        """The shares and means by name."""
        return {
            "retained": self.retained,
            "retained_per_site": self.retained_per_site,
            **{name: getattr(self, name) / max(self.count, 1) for name in ("divergence", "flips", "faithful")},
        }
