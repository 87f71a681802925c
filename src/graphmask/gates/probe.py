"""The probe: all gates and baselines of one model, and the two passes in which they are used.

First the original model runs and every gate is computed from its states; then the model runs again with
the gates applied. What a gate sees is thus never touched by masking, nor by anything above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from graphmask.divergence import Divergence
from graphmask.gates.networks import Gate, SiteSpec, build
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.layout import Types
from graphmask.graphs.sites import Site
from graphmask.ops.moments import Moments
from graphmask.tapping import gradients, masking
from graphmask.tapping.capture import tap
from graphmask.tapping.messages import Answer, Call, Mask, Messages
from graphmask.tapping.stand_ins import Seen, observe, see_added
from graphmask.tapping.trace import Trace, record
from graphmask.team import ALONE, Team


@dataclass(frozen=True)
class Own:
    """A layer's own self-loops among its edges: they are never gated, and count nowhere."""

    loops: Tensor  #: [E'] 1 for these, 0 for the user's edges
    others: Tensor  #: [E'] the opposite
    number_of_others: float

    @classmethod
    def of(cls, edges: Tensor, like: Tensor) -> Own:
        """From positions in the user's edges, -1 for a loop of the layer's own."""
        others = (edges >= 0).to(like.dtype)
        return cls(1 - others, others, float(others.sum(dtype=torch.double)))

    @classmethod
    def none(cls, like: Tensor) -> Own:
        return cls(torch.zeros_like(like), torch.ones_like(like), float(like.numel()))

    @classmethod
    def join(cls, parts: list[Own]) -> Own:
        loops, others = torch.cat([part.loops for part in parts]), torch.cat([part.others for part in parts])
        return cls(loops, others, sum(part.number_of_others for part in parts))


@dataclass
class Gated:
    """The gates of a site while training."""

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
        """Over the user's edges."""
        return per_edge.sum() if self.own is None else per_edge @ self.own.others

    def count(self) -> float:
        return self.location.numel() if self.own is None else self.own.number_of_others

    def mean(self, per_edge: Tensor) -> Tensor:
        """Over the user's edges."""
        return per_edge.mean() if self.own is None else per_edge @ self.own.others / self.own.number_of_others

    def __bool__(self) -> bool:
        """Is there any edge?"""
        return self.count() > 0


class OriginalRun:
    """What the original model said of a batch: one large graph comes again at every step, and need not run anew.

    Only of a run that drew no random numbers, twice came to the same output, and sent messages that gates can
    see through their nodes: no messages are kept.
    """

    def __init__(self, batch: Any, specs: Sequence[SiteSpec]) -> None:
        self.batch, self.specs = batch, specs
        self.content = _content(batch)
        self.messages: list[Messages] = []
        self.output = torch.empty(0)
        self.pure = self.content is not None
        self.proven = False

    def see(self, messages: Messages) -> Messages:
        self.pure &= self.specs[messages.site].lifted and messages.lifted is not None
        if self.pure:
            shape_alone = messages.value.new_empty(()).expand(messages.value.shape)
            self.messages.append(replace(messages, value=shape_alone))
        return messages

    def is_of(self, batch: Any) -> bool:
        """The same object, and nothing in it was exchanged or overwritten."""
        return batch is self.batch and _content(batch) == self.content

    def repeats(self, before: OriginalRun | None) -> bool:
        return before is not None and before.is_of(self.batch) and torch.equal(before.output, self.output)


class Probe(nn.Module):
    """Gate networks and baselines, one of each per site."""

    scales: Tensor

    def __init__(self, sites: tuple[Site, ...], specs: Sequence[SiteSpec], hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.sites = sites
        self.types: Types | None = None  # of heterogeneous data
        self.specs = tuple(specs)
        self.hidden = hidden
        self.gates = nn.ModuleList([build(spec, hidden, generator) for spec in specs])
        self._last_map: tuple[Tensor, int, EdgeMap] | None = None
        self._last_run: OriginalRun | None = None
        self._last_own: tuple[Tensor, Own] | None = None
        self.recompute = False  # in training: layers run again in the backward pass instead of keeping messages
        self.means: list[Tensor] = []  # mean message per site, while fitting
        self.register_buffer("scales", torch.ones(len(specs)))  # spread of the messages, per site
        # What stands in for a dropped edge: for its message, for its logits in a softmax, for arguments of its layer.
        sizes = [site.stand_in.message or spec.message for site, spec in zip(sites, specs, strict=True)]
        self.baselines = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])
        self.logits = nn.ParameterDict()
        self.spreads: dict[str, float] = {}  # of the logits, while fitting
        for number, site in enumerate(sites):
            if site.stand_in.logits:
                self.logits[str(number)] = nn.Parameter(torch.zeros(site.stand_in.logits))
            if site.stand_in.inputs:
                self.register_buffer(f"arguments_{number}", torch.zeros(sum(size for _, size in site.stand_in.inputs)))

    def gate(self, site: int) -> Gate:
        return self.gates[site]  # type: ignore[return-value]

    @property
    def learned(self) -> list[nn.Parameter]:
        """All that stands in for dropped edges and is trained."""
        return [*self.baselines, *self.logits.values()]

    def stand_in(self, site: int) -> Tensor:
        """The site's whole baseline; see `sites.StandIn`."""
        parts = [self.baselines[site]]
        if str(site) in self.logits:
            parts.append(self.logits[str(site)])
        if self.sites[site].stand_in.inputs:
            parts.append(self.get_buffer(f"arguments_{site}"))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def stand_ins(self) -> list[Tensor]:
        return [self.stand_in(site) for site in range(len(self.sites))]

    @classmethod
    @torch.no_grad()
    def discover(
        cls,
        model: nn.Module,
        forward: Forward,
        batch: Any,
        hidden: int,
        seed: int,
        sees: Callable[[SiteSpec], SiteSpec] = lambda spec: spec,
        more: Sequence[Any] = (),
        heads: str = "each",
    ) -> tuple[Probe, Tensor]:
        """Find the sites by running the model once; take the scale of everything from its messages.

        ``sees`` may narrow what the gates look at; with ``more`` batches, the scale is that of all together.
        """
        sites, found, output = observe(model, forward, batch, None, heads)
        if any(site.stand_in.inputs for site in sites):  # what these arguments are is known only now
            found = observe(model, forward, batch, sites)[1]
        specs = [sees(SiteSpec.of(found[site])) for site in sorted(found)]
        outputs = [output]
        for other in more:  # twice, since messages of many batches may be too much to keep
            _, seen, output = observe(model, forward, other, sites)
            if any(piece.source.numel() for pieces in seen.values() for piece in pieces):
                specs = [
                    spec.widened(SiteSpec.of(seen[site])) if site in seen else spec for site, spec in enumerate(specs)
                ]
            outputs.append(output)
        probe = cls(sites, specs, hidden, seed)
        probe.to(output.device)
        seen_of = [Seen(site.stand_in) for site in sites]
        inputs: list[dict[str, list[Moments]]] = [{} for _ in sites]
        for number, seen_in in enumerate((batch, *more)):
            if number:
                found = observe(model, forward, seen_in, sites)[1]
            for site, pieces in found.items():
                seen_of[site].add(pieces)
                for key, moments in probe.gate(site).moments(pieces).items():
                    inputs[site].setdefault(key, []).append(moments)
            see_added(model, forward, seen_in, sites, seen_of)
        for site, seen_here in enumerate(seen_of):
            probe.gate(site).take(inputs[site])
            probe._start_from(site, seen_here)
        return probe, torch.cat([output for output in outputs if output.shape[1:] == outputs[0].shape[1:]])

    @torch.no_grad()
    def _start_from(self, site: int, seen: Seen) -> None:
        """Scales, and where stand-ins start, from what was seen at a site."""
        mean = seen.mean().to(self.baselines[site])
        self.means.append(seen.stand_in.message_of(mean))
        if seen.replaced:
            self.scales[site] = Moments.union(seen.replaced).variance.mean().sqrt()
        if str(site) in self.logits and seen.logits:
            self.logits[str(site)].copy_(seen.stand_in.logits_of(mean))
            self.spreads[str(site)] = float(Moments.union(seen.logits).variance.mean().sqrt())
        if seen.stand_in.inputs:
            self.get_buffer(f"arguments_{site}").copy_(torch.cat([*seen.stand_in.inputs_of(mean).values()]))

    @torch.no_grad()
    def mean_baselines(self) -> None:
        for baseline, mean in zip(self.baselines, self.means, strict=True):
            baseline.copy_(mean)

    @torch.no_grad()
    def start_baselines(
        self,
        model: nn.Module,
        forward: Forward,
        some: Sequence[Sequence[Any]],
        divergence: Divergence,
        tolerance: float,
        team: Team = ALONE,
    ) -> None:
        """Per site, start from zero or from the mean message: whichever goes unnoticed more often.

        Which is neutral depends on the model: where degrees are normalised away the mean is, where messages are
        summed zero may be. A random quarter of the messages is replaced; rows within tolerance are counted.
        ``some`` are steps, each with this process's batches of it.
        """
        generator = torch.Generator().manual_seed(0)
        candidates = [torch.zeros_like(mean) for mean in self.means], self.means
        unnoticed = torch.zeros(2, len(self.sites))
        for mine in some:
            originals = [self.original(model, forward, batch) for batch in mine]
            counts = team.gather([original.carried.shape[1] for original in originals])
            edges = [theirs[turn] for turn in range(len(counts[0])) for theirs in counts if turn < len(theirs)]
            for site in range(len(self.sites)):
                # Drawn for all processes alike, batch after batch: as for one batch of all their graphs.
                draws = torch.rand(sum(edges), generator=generator).split(edges)[team.rank :: team.size]
                for batch, original, draw in zip(mine, originals, draws, strict=True):
                    kept = torch.ones_like(original.carried)
                    kept[site] = (draw < 0.75).to(kept.device)
                    for choice, baselines in enumerate(candidates):
                        self.baselines[site].copy_(baselines[site])
                        masked = self.masked(model, forward, batch, original.edge_map, kept)
                        unnoticed[choice, site] += (divergence(original.output, masked) <= tolerance).sum().cpu()
        unnoticed = team.sum(unnoticed)
        for site, mean in enumerate(self.means):
            better = bool(unnoticed[1, site] > unnoticed[0, site])
            self.baselines[site].copy_(mean if better else torch.zeros_like(mean))

    def original(self, model: nn.Module, forward: Forward, batch: Any) -> Trace:
        """Explain-time first pass: outputs and locations."""
        return record(model, forward, batch, self.sites, lambda messages: self.gate(messages.site)(messages))

    @torch.no_grad()
    def masked(self, model: nn.Module, forward: Forward, batch: Any, edges: Tensor | EdgeMap, gates: Tensor) -> Tensor:
        """Second pass, with gates ``[L, E]`` in terms of the user's edges."""
        return masking.run(model, forward, batch, edges, self.sites, gates, [b.detach() for b in self.stand_ins()])

    def forget(self) -> None:
        """Let go of the last batch."""
        self._last_map = self._last_run = self._last_own = None

    def _edge_map(self, batch: Any) -> EdgeMap:
        """The last one again if the graph is the same: training on one large graph maps its edges once."""
        edge_index = None if isinstance(batch, HeteroData) else batches.edge_index_of(batch)
        if edge_index is None:
            return batches.edge_map_of(batch)
        if self._last_map is None or self._last_map[0] is not edge_index or self._last_map[1] != edge_index._version:
            self._last_map = (edge_index, edge_index._version, EdgeMap(edge_index))
        return self._last_map[2]

    def _own(self, edges: Tensor, like: Tensor) -> Own:
        """The last one again where all layers, or all steps, have the same."""
        if self._last_own is None or self._last_own[0] is not edges:
            self._last_own = edges, Own.of(edges, like)
        return self._last_own[1]

    def train_step(
        self,
        model: nn.Module,
        forward: Forward,
        batch: Any,
        activate: Callable[[Tensor, int], Tensor],
        *,
        train_gates: bool = True,
    ) -> tuple[Tensor, Tensor, list[Gated]]:
        """Both passes with gradients to the probe; ``activate(location, site)`` makes the gate values.

        Returns the two outputs and the gates of every site.
        """
        edge_map = self._edge_map(batch)
        answers: dict[tuple[int, int], tuple[Tensor, slice]] = {}
        where: dict[tuple[int, int], Tensor | None] = {}  # the user's edges that these gates are of
        gated: list[list[Gated]] = [[] for _ in self.sites]

        def capture(messages: Messages) -> None:
            gate = self.gate(messages.site)
            with torch.set_grad_enabled(train_gates):
                rows = gate.next_rows(messages)
                location = gate(messages, rows)
                z = activate(location, messages.site)
                own = None if messages.edges is None else self._own(messages.edges, z)
                if own is not None:
                    z = torch.addcmul(own.loops, z, own.others)  # 1 for these; masked_fill takes longer
                gated[messages.site].append(Gated(location, z, own, (z,)))
                answers[messages.site, messages.piece] = z, rows
                where[messages.site, messages.piece] = messages.edges

        baselines = self.stand_ins()

        def at(call: Call) -> Answer:
            z, rows = answers[call.site, call.piece]
            return z, baselines[call.site], rows

        def of_edges(site: int) -> Answer:
            gate = Gated.join(gated[site]).value
            edges = [found for (number, _), found in sorted(where.items()) if number == site and found is not None]
            if edges:
                gate = gate.new_ones(edge_map.count + 1).index_put((torch.cat(edges),), gate)[:-1]
            return gate, baselines[site]

        original = self._original(model, forward, batch, edge_map, capture)
        mask = Mask(at, of_edges, lambda site: self.logits[str(site)])
        with tap(model, mask, edge_map, self.sites, recompute=self.recompute):
            masked = batches.call(forward, model, batch)
        gradients.check_passed(original, masked, any(z.requires_grad for z, _ in answers.values()))
        return original, masked, [Gated.join(parts) for parts in gated]

    def _original(
        self, model: nn.Module, forward: Forward, batch: Any, edge_map: EdgeMap, capture: Callable[[Messages], None]
    ) -> Tensor:
        """The output of the original model, whose messages are captured on the way; known ones are not run again."""
        # Both passes draw the same dropout: what differs between them is the masking alone.
        device = self.scales.device
        random_state = _random_state(device)
        known = self._last_run
        if known is not None and known.proven and known.is_of(batch):
            for messages in known.messages:
                capture(messages)
            return known.output
        run = OriginalRun(batch, self.specs)
        with torch.no_grad(), tap(model, lambda m: capture(run.see(m)), edge_map, self.sites) as state:
            run.output = batches.call(forward, model, batch)
            state.check_complete()
        run.pure &= all(torch.equal(*states) for states in zip(random_state, _random_state(device), strict=True))
        run.proven = run.repeats(known)
        self._last_run = run if run.pure else None
        _set_random_state(random_state, device)
        return run.output


def _content(batch: Any) -> list[Any] | None:
    """Equal lists, equal content of the same batch; None if it holds what cannot be compared at a glance."""
    values = [value for _, value in batches.items(batch)]
    if not all(value is None or isinstance(value, (Tensor, bool, int, float, str)) for value in values):
        return None
    return [(id(value), value._version) if isinstance(value, Tensor) else value for value in values]


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)
