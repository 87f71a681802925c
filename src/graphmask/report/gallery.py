"""Many explanations, seen once: totals over all of them, and the few that a reader should look at."""

from __future__ import annotations

import hashlib
import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from graphmask.analysis.tally import Tally
from graphmask.explanation import Explanation
from graphmask.graphs.sites import layers_of
from graphmask.report.metadata import error_of
from graphmask.report.metadata import labels as labels_of
from graphmask.report.page import Table, number, percent

#: Kinds of edges, over all layers, that are counted one by one; and the largest graph whose edges are.
MOST_TYPES, LARGEST_TYPED = 400, 20_000


@dataclass
class Totals(Tally):
    """What a page says of all explanations together; :meth:`add` each once."""

    same_prediction: int = 0
    known: int = 0  #: explanations with a label to compare with
    wrong: int = 0
    titles: tuple[str, ...] = ()  #: the sites by readable names
    layers_by_number: list[str] = field(default_factory=list)  #: names of layers as analyses number them
    layer_numbers: tuple[int, ...] = ()  #: of the sites; some that each carry other edge types may be of one layer
    per_type: dict[tuple[int, str], list[int]] = field(default_factory=dict)  #: kept and carried by site and type
    type_names: dict[int, str | None] = field(default_factory=dict)  #: of numbers of types; None where names differ
    tolerance: float | None = None

    def add(self, explanation: Explanation) -> None:
        if self.sites is None:
            self.titles, self.layers_by_number = explanation.site_titles, _layer_names(explanation)
            self.layer_numbers = tuple(layers_of(explanation.structure))
        super().add(explanation)
        self.same_prediction += explanation.same_prediction
        self.tolerance = explanation.tolerance
        error = error_of(explanation)
        self.known += error is not None
        self.wrong += bool(error)
        if self.sites and len(self.per_type) <= MOST_TYPES and explanation.edge_index.shape[1] <= LARGEST_TYPED:
            self._add_types(explanation)

    def _add_types(self, explanation: Explanation) -> None:
        labels = labels_of(explanation).edges
        if labels is None:
            return
        numbers = [] if explanation.edge_type is None else explanation.edge_type.tolist()
        for value, label in dict(zip(numbers, labels, strict=False)).items():
            if self.type_names.setdefault(int(value), label) != label:
                self.type_names[int(value)] = None
        for site, (kept, carried) in enumerate(
            zip(explanation.kept.tolist(), explanation.carried.tolist(), strict=True)
        ):
            for label, k, c in zip(labels, kept, carried, strict=True):
                if c:
                    counts = self.per_type.setdefault((site, label), [0, 0])
                    counts[0] += k
                    counts[1] += 1

    @property
    def typed(self) -> bool:
        """Whether there are several types of edges, and few enough to be shown."""
        return len({label for _, label in self.per_type}) > 1 and len(self.per_type) <= MOST_TYPES

    def types_at(self, site: int) -> dict[str, tuple[int, int]]:
        """Kept and carried by type; nothing where all edges are of one type."""
        return {label: (k, c) for (at, label), (k, c) in self.per_type.items() if at == site} if self.typed else {}

    def layer_name(self, value: object) -> object:
        """A layer as the model calls it, in place of its number; None stands for all of them."""
        if value is None:
            return "all layers"
        names = self.layers_by_number
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else value

    def type_name(self, value: object) -> object:
        """A type by its name where all graphs agree on one."""
        if value is None:
            return "no type"
        known = self.type_names.get(value) if isinstance(value, int) else None
        return known or (f"type {value}" if isinstance(value, int) else value)

    @property
    def verdict(self) -> str:
        """In words and numbers."""
        if not self.count:
            return "There are no explanations here."
        share = f"the model keeps {percent(self.retained)} of its messages"
        if self.count == 1:
            within = "within" if self.faithful else "NOT within"
            same = "with the same prediction" if self.same_prediction else "with a CHANGED prediction"
            return f"T{share[1:]}; with the others replaced, its output stays {within} tolerance, {same}."
        words = (
            f"In these {self.count:,} graphs {share}. With the others replaced, {self.faithful:,} of {self.count:,} "
            "stay within tolerance"
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
        mean = number(self.divergence / self.count) if math.isfinite(self.divergence) else "∞"
        told = (
            (f"{self.known - self.wrong:,} of {self.known:,}", "right before masking")
            if self.known
            else (mean, f"mean divergence, tolerance {number(self.tolerance or 0.0)}")
        )
        return [
            (percent(self.retained), "of the messages kept"),
            (f"{self.faithful:,} of {self.count:,}", "within tolerance"),
            (f"{self.same_prediction:,} of {self.count:,}", "same prediction"),
            told,
        ]

    @property
    def layers(self) -> Table | None:
        """What each layer keeps; None where the models' layers differ."""
        if not self.sites:
            return None
        rows: list[list[str | float]] = [
            [name, kept, carried, percent(share)]
            for name, (kept, carried), share in zip(self.titles, self.per_site, self.retained_per_site, strict=True)
        ]
        return Table("Messages kept, layer by layer", ["layer", "kept", "of", "share"], rows)


def _layer_names(explanation: Explanation) -> list[str]:
    """Names by the number of the layer; sites that send at the same time, each along other edge types, share one."""
    names: dict[int, list[str]] = {}
    for name, site, layer in zip(
        explanation.site_titles, explanation.structure, layers_of(explanation.structure), strict=True
    ):
        names.setdefault(layer, []).append(site.layer or name)
    return [of_layer[0] for of_layer in names.values()]


class Chosen(NamedTuple):
    number: int  #: position in the stream
    explanation: Explanation
    reasons: tuple[str, ...]  #: empty when all are shown


class Gallery:
    """At most ``size`` explanations of a stream: the extremes of every kind, the rest drawn evenly.

    Holds twice that many at most, however long the stream is. The same stream gives the same gallery: what is
    drawn is decided by a hash of the position.
    """

    KINDS = ("its prediction is wrong", "its divergence is large", "much is kept", "little is kept")
    DRAWN = "it was drawn at random"

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
    """Sorts NaN behind every number."""
    return math.inf if math.isnan(divergence) else divergence


def _lot(position: int) -> float:
    digest = hashlib.sha256(f"graphmask {position}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
