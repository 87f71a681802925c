"""Many explanations, seen once: totals over all of them, and the few that a reader should look at."""

from __future__ import annotations

import hashlib
import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from graphmask.explanation import Explanation
from graphmask.report.metadata import error_of
from graphmask.report.page import Table, number, percent


@dataclass
class Totals:
    """Running sums; :meth:`add` each explanation once."""

    count: int = 0
    faithful: int = 0
    same_prediction: int = 0
    kept: int = 0
    carried: int = 0
    retained: float = 0.0  #: sum of the shares
    divergence: float = 0.0  #: sum of the finite ones
    largest: float = -math.inf
    reopened: int = 0
    known: int = 0  #: explanations with a label to compare with
    wrong: int = 0
    sites: tuple[str, ...] | None = None  #: None before the first, () when they differ
    per_site: list[list[int]] = field(default_factory=list)  #: kept and carried

    def add(self, explanation: Explanation) -> None:
        kept, carried = explanation.kept.sum(1).tolist(), explanation.carried.sum(1).tolist()
        self.count += 1
        self.faithful += explanation.faithful
        self.same_prediction += explanation.same_prediction
        self.kept += sum(kept)
        self.carried += sum(carried)
        self.retained += sum(kept) / max(sum(carried), 1)
        if math.isfinite(explanation.divergence):
            self.divergence += explanation.divergence
        self.largest = max(self.largest, _size(explanation.divergence))
        self.reopened += explanation.reopened
        error = error_of(explanation)
        self.known += error is not None
        self.wrong += bool(error)
        if self.sites is None:
            self.sites, self.per_site = explanation.sites, [[0, 0] for _ in explanation.sites]
        elif self.sites != explanation.sites:
            self.sites, self.per_site = (), []
        for totals, k, c in zip(self.per_site, kept, carried, strict=False):
            totals[0] += k
            totals[1] += c

    @property
    def verdict(self) -> str:
        """In words and numbers."""
        if not self.count:
            return "There are no explanations here."
        share = f"the model keeps {percent(self.kept / max(self.carried, 1))} of its messages"
        if self.count == 1:
            same = "and its answer stays the same" if self.same_prediction else "but its answer CHANGES"
            within = "within" if self.faithful else "NOT within"
            return f"T{share[1:]}, {same} when the others are replaced ({within} tolerance)."
        words = (
            f"In these {self.count:,} graphs {share}. {self.faithful:,} of {self.count:,} explanations are within "
            "tolerance when the model is run without the others"
        )
        changed = self.count - self.same_prediction
        if changed:
            return f"{words}; {changed:,} {'prediction changes' if changed == 1 else 'predictions change'}."
        return f"{words}, and no prediction changes."

    @property
    def figures(self) -> list[tuple[str, str]]:
        """(number, what it is) for the top of the page; with a single explanation its card says it all."""
        if self.count < 2:
            return []
        result = [
            (f"{self.faithful:,} of {self.count:,}", "faithful"),
            (f"{self.same_prediction:,} of {self.count:,}", "same prediction"),
            (percent(self.retained / self.count), "retained, mean of graphs"),
            (number(self.divergence / self.count) if math.isfinite(self.largest) else "∞", "mean divergence"),
            (number(self.largest), "largest divergence"),
        ]
        if self.known:
            result.append((f"{self.known - self.wrong:,} of {self.known:,}", "right before masking"))
        return result

    @property
    def layers(self) -> Table | None:
        """What each layer keeps; None where the models' layers differ."""
        if not self.sites:
            return None
        rows: list[list[str | float]] = [
            [name, kept, carried, percent(kept / max(carried, 1))]
            for name, (kept, carried) in zip(self.sites, self.per_site, strict=True)
        ]
        return Table("Messages kept, layer by layer", ["layer", "kept", "of", "share"], rows)


class Chosen(NamedTuple):
    number: int  #: position in the stream
    explanation: Explanation
    reasons: tuple[str, ...]  #: empty when all are shown


class Gallery:
    """At most ``size`` explanations of a stream: the extremes of every kind, the rest drawn evenly.

    Holds twice that many at most, however long the stream is. The same stream gives the same gallery: what is
    drawn is decided by a hash of the position.
    """

    KINDS = ("a wrong prediction", "its large divergence", "how much is kept", "how little is kept")
    DRAWN = "being drawn by lot"

    def __init__(self, size: int = 200) -> None:
        self.size = max(size, 0)
        self.count = 0
        self.quota = max(1, self.size // (len(self.KINDS) + 1))
        # Smallest key on top: it leaves first. Positions are unique, so explanations are never compared.
        self.heaps: list[list[tuple[float, int, Explanation]]] = [[] for _ in (*self.KINDS, self.DRAWN)]

    def add(self, explanation: Explanation) -> None:
        at, self.count = self.count, self.count + 1
        retained = explanation.retained
        keys = (error_of(explanation) or None, _size(explanation.divergence), retained, -retained, _lot(at))
        for kind, (heap, key) in enumerate(zip(self.heaps, keys, strict=True)):
            if key is not None:
                room = self.size if kind == len(self.KINDS) else min(self.quota, self.size)
                # Of equals the earlier one stays.
                _push(heap, (key, -at, explanation), room)

    def chosen(self) -> list[Chosen]:
        """In the order of the stream."""
        ranked = [sorted(heap, key=lambda entry: entry[:2], reverse=True) for heap in self.heaps]
        reasons: dict[int, list[str]] = {}
        held: dict[int, Explanation] = {}
        candidates = [
            (kind, entry)
            for rank in range(self.quota)
            for kind, best in enumerate(ranked[:-1])
            for entry in best[rank : rank + 1]
        ]
        candidates += [(len(self.KINDS), entry) for entry in ranked[-1]]
        for kind, (_, negative, explanation) in candidates:
            if -negative in held or len(held) < self.size:
                held[-negative] = explanation
                if kind < len(self.KINDS) or -negative not in reasons:
                    reasons.setdefault(-negative, []).append((*self.KINDS, self.DRAWN)[kind])
        everything = self.count <= self.size
        return [Chosen(at, held[at], () if everything else tuple(reasons[at])) for at in sorted(held)]


def _push(heap: list[tuple[float, int, Explanation]], entry: tuple[float, int, Explanation], room: int) -> None:
    if len(heap) < room:
        heapq.heappush(heap, entry)
    elif heap and entry[:2] > heap[0][:2]:
        heapq.heapreplace(heap, entry)


def _size(divergence: float) -> float:
    """Not a number is worse than any number."""
    return math.inf if math.isnan(divergence) else divergence


def _lot(position: int) -> float:
    digest = hashlib.sha256(f"graphmask {position}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
