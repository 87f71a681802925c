"""The two passes of a training step: the original model, whose states gates read, and the masked model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphmask.gates.joining import Joined
from graphmask.gates.originals import Originals
from graphmask.gates.probe import Probe
from graphmask.graphs import batches
from graphmask.graphs.edges import EdgeMap
from graphmask.ops.kernels import ALL
from graphmask.tapping import gradients
from graphmask.tapping.messages import Answer, Call, Mask, Messages
from graphmask.tapping.pooling import pools
from graphmask.tapping.subject import Subject


@dataclass(frozen=True)
class Own:
    """A layer's own self-loops among its edges: they are never gated or counted."""

    loops: Tensor  #: [E'] 1 for these, 0 for the user's edges
    others: Tensor  #: [E'] the opposite
    number_of_others: float

    @classmethod
    def of(cls, edges: Tensor, like: Tensor) -> Own:
        """From positions in the user's edges, which are -1 for a loop of the layer's own."""
        others = (edges >= 0).to(like.dtype)
        return cls(1 - others, others, float((edges >= 0).sum()))

    @classmethod
    def none(cls, like: Tensor) -> Own:
        return cls(torch.zeros_like(like), torch.ones_like(like), float(like.numel()))

    @classmethod
    def join(cls, parts: list[Own]) -> Own:
        loops, others = torch.cat([part.loops for part in parts]), torch.cat([part.others for part in parts])
        return cls(loops, others, sum(part.number_of_others for part in parts))


@dataclass
class Gated:
    """The gates of a site during training."""

    location: Tensor  #: [E']
    value: Tensor  #: [E'] gate values
    own: Own | None = None  #: which of the edges are not the user's
    pieces: tuple[Tensor, ...] = ()  #: the values, call by call, as messages were masked with them

    @classmethod
    def join(cls, parts: list[Gated]) -> Gated:
        if len(parts) == 1:
            return parts[0]
        if not parts:  # the layer of an edge type that the batch does not have
            return cls(torch.empty(0), torch.empty(0))
        own = Own.join([part.own or Own.none(part.value) for part in parts])
        pieces = tuple(part.value for part in parts)
        return cls(torch.cat([part.location for part in parts]), torch.cat(pieces), own, pieces)

    def total(self, per_edge: Tensor) -> Tensor:
        """The sum over the user's edges."""
        return per_edge.sum() if self.own is None else per_edge @ self.own.others

    def count(self) -> float:
        return self.location.numel() if self.own is None else self.own.number_of_others

    def mean(self, per_edge: Tensor) -> Tensor:
        """The mean over the user's edges."""
        return per_edge.mean() if self.own is None else per_edge @ self.own.others / self.own.number_of_others

    def __bool__(self) -> bool:
        """Whether there is any edge."""
        return self.count() > 0


class Passes:
    """Runs both passes for every step of one fit, and knows batches again that came before.

    Args:
        subject: the model; its sites are the probe's.
        recompute: layers run again in the backward pass instead of keeping their messages.
    """

    def __init__(self, probe: Probe, subject: Subject, *, recompute: bool = False) -> None:
        self.probe, self.subject, self.recompute = probe, subject.at(probe.sites), recompute
        self.originals = Originals(self.subject, probe.specs)
        self.pools = pools(subject.model)
        self.forget()

    def forget(self) -> None:
        """Release all batches."""
        self.originals.forget()
        self._last_map: tuple[Tensor, int, EdgeMap] | None = None
        self._last_own: tuple[Tensor, Own] | None = None

    def _edge_map(self, batch: Any) -> EdgeMap:
        """The last map if the graph is the same: training on one large graph matches its edges once."""
        edge_index = None if batches.adapter(batch).by_type else batches.edge_index_of(batch)
        if edge_index is None:
            return self.subject.edge_map(batch)
        if self._last_map is None or self._last_map[0] is not edge_index or self._last_map[1] != edge_index._version:
            self._last_map = (edge_index, edge_index._version, self.subject.edge_map(batch))
        return self._last_map[2]

    def _own(self, edges: Tensor, like: Tensor) -> Own:
        """The last object, where all layers, or all steps, have the same loops."""
        if self._last_own is None or self._last_own[0] is not edges:
            self._last_own = edges, Own.of(edges, like)
        return self._last_own[1]

    def both(
        self, batch: Any, activate: Callable[[Tensor, int], Tensor], *, train_gates: bool = True
    ) -> tuple[Tensor, Tensor, list[Gated]]:
        """Both passes with gradients to the probe; ``activate(location, site)`` makes the gate values.

        Returns the two outputs and the gates of every site.
        """
        probe, known = self.probe, self.originals.find(batch)
        edge_map = self._edge_map(batch) if known is None else known.edge_map
        answers: dict[tuple[int, int], tuple[Tensor, slice]] = {}
        where: dict[tuple[int, int], Tensor | None] = {}  # the user's edges that these gates are of
        gated: list[list[Gated]] = [[] for _ in probe.sites]

        def capture(messages: Messages) -> None:
            gate = probe.gate(messages.site)
            with torch.set_grad_enabled(train_gates):
                rows = gate.next_rows(messages)
                location = gate(messages, rows)
                z = activate(location, messages.site)
                own = None if messages.edges is None else self._own(messages.edges, z)
                if own is not None:
                    z = torch.addcmul(own.loops, z, own.others)  # 1 for these; masked_fill takes longer
                gated[messages.site].append(Gated(location, z, own, (z,)))
                calls = messages.divided(z, rows) if isinstance(messages, Joined) else [(messages, z, rows)]
                for call, part, some in calls:
                    answers[call.site, call.piece] = part, some
                    where[call.site, call.piece] = call.edges

        baselines = probe.stand_ins()

        def at(call: Call) -> Answer:
            z, rows = answers[call.site, call.piece]
            known = where[call.site, call.piece]
            if self.pools and not _same(known, call.edges):  # other nodes are kept than in the original run
                z, rows = _at_edges(z, known, call.edges, edge_map.count), ALL
            return z, baselines[call.site], rows

        def of_edges(site: int) -> Answer:
            gate = Gated.join(gated[site]).value
            edges = [mine for (number, _), mine in sorted(where.items()) if number == site and mine is not None]
            if edges:
                gate = gate.new_full((edge_map.count + 1,), float(not self.pools)).index_put((torch.cat(edges),), gate)[
                    :-1
                ]
            return gate, baselines[site]

        # Both passes draw the same dropout: what differs between them is the masking alone.
        original = self.originals.output(batch, edge_map, capture, known)
        mask = Mask(at, of_edges, lambda site: probe.logits[str(site)])
        with self.subject.tap(mask, edge_map, recompute=self.recompute):
            masked = self.subject(batch)
        gradients.check_passed(original, masked, any(z.requires_grad for z, _ in answers.values()))
        return original, masked, [Gated.join(parts) for parts in gated]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _at_edges(z: Tensor, known: Tensor | None, edges: Tensor | None, count: int) -> Tensor:
    """Gates ``z`` of the user's edges ``known``, told at ``edges``: shut where they have none, open at own loops."""
    known = torch.arange(len(z), device=z.device) if known is None else known
    whole = z.new_zeros(count + 1).index_put((known,), z)
    whole = torch.cat([whole[:-1], z.new_ones(1)])
    return whole[:-1] if edges is None else whole[edges]
