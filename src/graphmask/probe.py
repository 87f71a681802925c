"""The probe: all gates and baselines of one model, and the two passes in which they are used.

First the original model runs and every gate is computed from its states; then the model runs again with
the gates applied. What a gate sees is thus never touched by masking, nor by anything above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import batches
from graphmask.batches import Forward
from graphmask.capture import Messages, Site, tap
from graphmask.divergence import Divergence
from graphmask.edges import EdgeMap
from graphmask.errors import GraphMaskError
from graphmask.gates import Gate, SiteSpec, build
from graphmask.masking import by_user_edges


@dataclass
class Original:
    """What the original pass over a batch left behind."""

    output: Tensor
    edge_map: EdgeMap  #: of the user's edges, for further runs over the same graph
    locations: Tensor  #: [L, E]; -inf where the site sends nothing along that edge
    carried: Tensor  #: bool [L, E]
    edge_type: Tensor | None  #: [E], from taps that know relations
    edge_graph: Tensor | None  #: [E], from taps that know the batch
    graphs: int | None
    nodes: int | None = None  #: per graph, where all have as many

    @property
    def edge_index(self) -> Tensor:
        """[2, E], the graph as the user passed it."""
        assert self.edge_map.edge_index is not None
        return self.edge_map.edge_index


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
        self._last_map: tuple[Tensor, int, EdgeMap] | None = None
        self.means: list[Tensor] = []  # mean message per site, while fitting
        self.register_buffer("scales", torch.ones(len(specs)))  # spread of the messages, per site
        self.baselines = nn.ParameterList([nn.Parameter(torch.zeros(spec.message)) for spec in specs])

    def gate(self, site: int) -> Gate:
        return self.gates[site]  # type: ignore[return-value]

    @classmethod
    @torch.no_grad()
    def discover(cls, model: nn.Module, forward: Forward, batch: Any, hidden: int, seed: int) -> tuple[Probe, Tensor]:
        """Find the sites by running the model once; take the scale of everything from its messages."""
        found: dict[int, list[Messages]] = {}

        def visit(messages: Messages) -> None:
            found.setdefault(messages.site, []).append(messages)

        with tap(model, visit, batches.edge_index_of(batch)) as state:
            output = batches.call(forward, model, batch)
        if not state.sites:
            raise GraphMaskError(
                "Expected the model to pass messages when it runs, but none of its message passing layers or taps "
                "was called through hooks. Does its forward bypass them?"
            )
        probe = cls(tuple(state.sites), [SiteSpec.of(found[site]) for site in sorted(found)], hidden, seed)
        probe.to(output.device)
        for site, pieces in found.items():
            probe.gate(site).standardise(pieces)
            if pieces[0].matrix is not None:
                call = pieces[0].matrix
                b, r, _, sender = call.entries
                rows = call.messages[b, r if call.messages.shape[1] > 1 else torch.zeros_like(r), sender]
            else:
                rows = torch.cat([m.flat() for m in pieces])
            if rows.shape[0]:
                probe.means.append(rows.mean(0))
                probe.scales[site] = rows.var(0, unbiased=False).mean().sqrt()
            else:
                probe.means.append(torch.zeros_like(probe.baselines[site]))
        return probe, output

    @torch.no_grad()
    def mean_baselines(self) -> None:
        for baseline, mean in zip(self.baselines, self.means, strict=True):
            baseline.copy_(mean)

    @torch.no_grad()
    def start_baselines(
        self, model: nn.Module, forward: Forward, some: Sequence[Any], divergence: Divergence, tolerance: float
    ) -> None:
        """Per site, start from zero or from the mean message: whichever goes unnoticed more often.

        Which is neutral depends on the model: where degrees are normalised away the mean is, where messages are
        summed zero may be. A random quarter of the messages is replaced; rows within tolerance are counted.
        """
        generator = torch.Generator().manual_seed(0)
        candidates = [torch.zeros_like(mean) for mean in self.means], self.means
        unnoticed = torch.zeros(2, len(self.sites))
        for batch in some:
            original = self.original(model, forward, batch)
            for site in range(len(self.sites)):
                kept = torch.ones_like(original.carried)
                kept[site] = (torch.rand(kept.shape[1], generator=generator) < 0.75).to(kept.device)
                for choice, baselines in enumerate(candidates):
                    self.baselines[site].copy_(baselines[site])
                    masked = self.masked(model, forward, batch, original.edge_map, kept)
                    unnoticed[choice, site] += (divergence(original.output, masked) <= tolerance).sum().cpu()
        for site, mean in enumerate(self.means):
            better = bool(unnoticed[1, site] > unnoticed[0, site])
            self.baselines[site].copy_(mean if better else torch.zeros_like(mean))

    def original(self, model: nn.Module, forward: Forward, batch: Any) -> Original:
        """Explain-time first pass: outputs and locations, no message kept longer than its layer needs it."""
        edge_index = batches.edge_index_of(batch)
        columns: list[tuple[int, Tensor | None, Tensor]] = []
        last: list[Messages] = []

        def visit(messages: Messages) -> None:
            positions, location = messages.to_user(self.gate(messages.site)(messages))
            columns.append((messages.site, positions, location))
            if messages.matrix is not None and not last:
                last.append(messages)

        with torch.no_grad(), tap(model, visit, edge_index, self.sites) as state:
            output = batches.call(forward, model, batch)
            state.check_complete()
        shape = (len(self.sites), state.edge_map.count)
        locations = torch.full(shape, -torch.inf, device=output.device)
        for site, positions, location in columns:
            locations[site, slice(None) if positions is None else positions] = location
        result = Original(output, state.edge_map, locations, locations > -torch.inf, None, None, None)
        if last:
            call = last[0].matrix
            assert call is not None
            result.edge_graph, result.edge_type = call.entries[0], call.entries[1]
            result.graphs, result.nodes = call.adjacency.shape[0], call.adjacency.shape[-1]
        return result

    def masked(self, model: nn.Module, forward: Forward, batch: Any, edges: Tensor | EdgeMap, gates: Tensor) -> Tensor:
        """Second pass, with gates ``[L, E]`` in terms of the user's edges."""
        visit = by_user_edges(gates, [b.detach() for b in self.baselines])
        with torch.no_grad(), tap(model, visit, edges, self.sites) as state:
            output = batches.call(forward, model, batch)
            state.check_complete()
        return output

    def _edge_map(self, edge_index: Tensor | None) -> EdgeMap:
        """The last one again if the graph is the same: training on one large graph maps its edges once."""
        if edge_index is None:
            return EdgeMap(None)
        if self._last_map is None or self._last_map[0] is not edge_index or self._last_map[1] != edge_index._version:
            self._last_map = (edge_index, edge_index._version, EdgeMap(edge_index))
        return self._last_map[2]

    def train_step(
        self,
        model: nn.Module,
        forward: Forward,
        batch: Any,
        activate: Callable[[Tensor, int], Tensor],
        *,
        train_gates: bool = True,
    ) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Both passes with gradients to the probe; ``activate(location, site)`` makes the gate values.

        Returns the two outputs and, per site, locations and gate values of the user's edges.
        """
        edge_map = self._edge_map(batches.edge_index_of(batch))
        gates: dict[tuple[int, int], Tensor] = {}
        mine: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.sites]
        # Both passes draw the same dropout: what differs between them is the masking alone.
        random_state = _random_state(self.scales.device)

        def capture(messages: Messages) -> None:
            with torch.set_grad_enabled(train_gates):
                location = self.gate(messages.site)(messages)
                z = activate(location, messages.site)
                if messages.edges is None:
                    mine[messages.site].append((location, z))
                else:
                    own = messages.edges < 0
                    mine[messages.site].append((location[~own], z[~own]))
                    z = torch.where(own, torch.ones_like(z), z)
                gates[messages.site, messages.piece] = z

        def mask(messages: Messages) -> tuple[Tensor, Tensor]:
            return gates[messages.site, messages.piece], self.baselines[messages.site]

        with torch.no_grad(), tap(model, capture, edge_map, self.sites) as state:
            original = batches.call(forward, model, batch)
            state.check_complete()
        _set_random_state(random_state)
        with tap(model, mask, edge_map, self.sites):
            masked = batches.call(forward, model, batch)
        locations, values = ([_join([pair[i] for pair in pairs]) for pairs in mine] for i in (0, 1))
        return original, masked, locations, values


def _join(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
