"""The probe: all gates and baselines of one model.

First the original model runs and every gate is computed from its states; then the model runs again with the gates
applied. So the inputs of a gate depend neither on masking nor on anything above its site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.gates.networks import Gate, SiteSpec, build
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.sites import Site
from graphmask.ops.moments import Moments
from graphmask.tapping import masking
from graphmask.tapping.stand_ins import Seen, observe, see_added
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import Trace, record
from graphmask.team import ALONE, Team


class Probe(nn.Module):
    """Gate networks and baselines, one of each per site."""

    scales: Tensor

    def __init__(self, sites: tuple[Site, ...], specs: Sequence[SiteSpec], hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.sites = sites
        self.specs = tuple(specs)
        self.hidden = hidden
        self.gates = nn.ModuleList([build(spec, hidden, generator) for spec in specs])
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
        """All trained replacements of dropped edges."""
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
        subject: Subject,
        batch: Any,
        hidden: int,
        seed: int,
        sees: Callable[[SiteSpec], SiteSpec] = lambda spec: spec,
        more: Sequence[Any] = (),
    ) -> tuple[Probe, Tensor]:
        """Find the sites by running the model once, and the scale of all inputs from its messages.

        ``sees`` may remove inputs of the gates; with ``more`` batches, the scale is that of all batches together.
        """
        sites, messages, output = observe(replace(subject, sites=None), batch)
        subject = subject.at(sites)
        if any(site.stand_in.inputs for site in sites):  # what these arguments are is known only now
            messages = observe(subject, batch)[1]
        specs = [sees(SiteSpec.of(messages[site])) for site in sorted(messages)]
        outputs = [output]
        for other in more:  # twice, since messages of many batches may be too much to keep
            _, seen, output = observe(subject, other)
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
                messages = observe(subject, seen_in)[1]
            for site, pieces in messages.items():
                seen_of[site].add(pieces)
                for key, moments in probe.gate(site).moments(pieces).items():
                    inputs[site].setdefault(key, []).append(moments)
            see_added(subject, seen_in, seen_of)
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
        self, subject: Subject, some: Sequence[Sequence[Any]], tolerance: float, team: Team = ALONE
    ) -> None:
        """Start each site's baseline at zero or at the mean message, whichever leaves more rows within tolerance.

        Which is better depends on the model: the mean where it averages over neighbours, possibly zero where it sums. A
        random quarter of the messages is replaced, and the rows within tolerance are counted. Every item of ``some`` is
        a step: this process's batches of it.
        """
        generator = torch.Generator().manual_seed(0)
        candidates = [torch.zeros_like(mean) for mean in self.means], self.means
        unnoticed = torch.zeros(2, len(self.sites))
        for mine in some:
            originals = [self.original(subject, batch) for batch in mine]
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
                        masked = self.masked(subject, batch, original.edge_map, kept)
                        distance = subject.divergence(original.output, masked)
                        unnoticed[choice, site] += (distance <= tolerance).sum().cpu()
        unnoticed = team.sum(unnoticed)
        for site, mean in enumerate(self.means):
            better = bool(unnoticed[1, site] > unnoticed[0, site])
            self.baselines[site].copy_(mean if better else torch.zeros_like(mean))

    def original(self, subject: Subject, batch: Any) -> Trace:
        """The first pass when explaining: outputs and locations."""
        return record(subject.at(self.sites), batch, lambda messages: self.gate(messages.site)(messages))

    @torch.no_grad()
    def masked(self, subject: Subject, batch: Any, edges: Tensor | EdgeMap, gates: Tensor) -> Tensor:
        """The second pass, with gates ``[L, E]`` for the user's edges."""
        return masking.run(subject.at(self.sites), batch, edges, gates, [b.detach() for b in self.stand_ins()])
