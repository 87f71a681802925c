"""One batch under explanation: run its graphs with some messages replaced, and measure how far each output moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.devices import back, double
from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward, Split
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.groups import rank_within
from graphmask.tapping import gradients, masking
from graphmask.tapping.pooling import pools
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import Trace

#: Copies of a small graph that are run at once, and edges in them.
MOST_COPIES, EDGES_AT_ONCE = 256, 20_000
#: Gates [K, L, E] that are made at once.
GATES_AT_ONCE = 1 << 22


@dataclass
class Choice:
    """What a method chose for a batch, before it is verified."""

    scores: Tensor  #: float [L, E], higher means more needed
    kept: Tensor  #: bool [L, E]
    baselines: Sequence[Tensor]  #: per site what replaces a dropped message, [D] or, one per graph, [G, D]


@dataclass
class _Copies:
    batch: Any
    edge_map: EdgeMap
    count: int
    order: Tensor | None = None  #: [K * E] where each edge of the first copy, of the second, ... lies; None: in order


@dataclass
class Case:
    """``L`` sites, ``E`` edges, ``G`` graphs. Gates are ``[L, E]``, baselines ``[D]`` or ``[G, D]`` per site."""

    subject: Subject  #: the model, with the sites of this batch
    tolerance: float
    batch: Any
    trace: Trace
    whole: bool = False  #: explained as one, however many graphs there are
    read: Tensor | None = None  #: bool [N] the nodes that the rows asked about are made from; None: any may be

    @property
    def model(self) -> nn.Module:
        return self.subject.model

    @property
    def forward(self) -> Forward:
        """How the model is called; ``case.subject(batch)`` calls it, and checks what comes back."""
        return self.subject.forward

    @property
    def divergence(self) -> Divergence:
        return self.subject.divergence

    @cached_property
    def split(self) -> Split:
        """Which graph each edge, node and output row belongs to."""
        trace = self.trace
        rows, edges = trace.output.shape[0], trace.edge_map.edge_index
        if self.whole or edges is None:
            return batches.unsplit(self.batch, trace.edge_index, rows)
        nodes = trace.nodes if trace.sizes is None else trace.sizes
        split = batches.split(self.batch, edges, rows, trace.edge_graph, trace.graphs, nodes)
        return with_features(split, self.batch, trace.edge_map)

    @cached_property
    def rank(self) -> Tensor:
        """[E] position of every edge among those of its graph: the same however graphs are batched."""
        return rank_within(self.split.edge_graph, self.split.count)

    def zeros(self) -> list[Tensor]:
        """The baseline of methods that simply leave messages out."""
        return self.trace.left_out()

    def run(self, gates: Tensor, baselines: Sequence[Tensor], *, exchange: torch.Generator | None = None) -> Tensor:
        """The masked model's output, with gradients to gates and baselines if they require any; see `messages.Mask`."""
        if gates.shape[-1] != self.trace.edge_map.total:
            raise GraphMaskError(
                f"Expected {self.trace.edge_map.total} gates per site, those of input features included, got "
                f"{gates.shape[-1]}. Measure with a method that was made without features=...."
            )
        trace, graph = self.trace, self.split.edge_graph if any(b.dim() > 1 for b in baselines) else None
        if graph is not None and not graph.numel():  # a layer's own self-loops belong to no edge's graph
            baselines, graph = [b[0] if b.dim() > 1 else b for b in baselines], None
        output = masking.run(
            self.subject,
            self.batch,
            trace.edge_map,
            gates,
            baselines,
            graph_of_edge=graph,
            exchange=exchange,
        )
        gradients.check_passed(trace.output, output, gates.requires_grad)
        return output

    @torch.no_grad()
    def run_many(self, gates: Tensor, baselines: Sequence[Tensor]) -> Iterator[Tensor]:
        """The outputs with each of ``gates`` [K, L, E], baselines [D]: as many at once as one pass has room for."""
        copies = self._copies
        if copies is None:
            yield from (self.run(some, baselines) for some in gates)
            return
        at_once = copies.count
        for some in gates.split(at_once):
            full = torch.cat([some, some[:1].expand(at_once - len(some), -1, -1)])  # one size: one map of the edges
            wide = full.transpose(0, 1).flatten(1)
            if copies.order is not None:
                wide = torch.empty_like(wide).index_copy_(1, copies.order, wide)
            output = masking.run(self.subject, copies.batch, copies.edge_map, wide, baselines)
            yield from output.view(at_once, *self.trace.output.shape)[: len(some)]

    @cached_property
    def _copies(self) -> _Copies | None:
        """The batch several times side by side; None if it cannot be repeated, or the model's outputs then differ."""
        edges = max(self.trace.edge_index.shape[1], 1)
        count = min(MOST_COPIES, EDGES_AT_ONCE // edges)
        if count < 2 or self.split.count != 1:
            return None  # a batch of many graphs fills a pass already
        if self.trace.output.shape[0] != 1 and pools(self.model):
            return None  # a pooling that is not told which graph a node is of would choose among all copies
        batch = batches.repeat(self.batch, count)
        edge_index = None if batch is None else batches.edge_index_of(batch)
        if batch is None or edge_index is None:
            return None
        copies = _Copies(batch, self.subject.edge_map(batch), count)
        copy_of = with_features(batches.split(batch, edge_index, count), batch, copies.edge_map).edge_graph
        if bool((copy_of.diff() < 0).any()):  # edges lie type after type, not copy after copy
            copies.order = copy_of.argsort(stable=True)
        whole = torch.ones(len(self.trace.sites), len(copy_of), dtype=torch.bool, device=edge_index.device)
        try:
            output = masking.run(self.subject, batch, copies.edge_map, whole, self.zeros())
        except (RuntimeError, ValueError, TypeError, IndexError):  # the graph by itself was taken without complaint
            return None
        tiled = self.trace.output.repeat(count, *[1] * (self.trace.output.dim() - 1))
        alike = output.shape == tiled.shape and torch.allclose(output, tiled, rtol=1e-4, atol=1e-5)
        return copies if alike else None

    def in_turns(self, count: int) -> Iterator[Tensor]:
        """The numbers from 0 to ``count``, in groups whose gates [K, L, E] do not take too much memory."""
        size = max(1, min(MOST_COPIES, GATES_AT_ONCE // max(self.trace.values.numel(), 1)))
        device = self.trace.output.device
        return (torch.arange(start, min(start + size, count), device=device) for start in range(0, count, size))

    # Gates by graph ----------------------------------------------------------------------------------------

    def gate_rank(self, gates: Tensor) -> Tensor:
        """[L, E] for each of ``gates`` (bool) how many of its graph come before it, site after site; others -1."""
        owner = self.split.edge_graph.expand(len(gates), -1)[gates]
        return torch.full(gates.shape, -1, device=gates.device).masked_scatter(
            gates, rank_within(owner, self.split.count)
        )

    def gate_order(self, values: Tensor, gates: Tensor) -> Tensor:
        """[L, E] for each of ``gates``, how many of its graph have a lower value; elsewhere a larger number."""
        at = gates.nonzero()
        owner, order = self.split.edge_graph[at[:, 1]], values[gates].argsort(stable=True)
        rank = torch.empty_like(owner)
        rank[order] = rank_within(owner[order], self.split.count)
        return torch.full(gates.shape, gates.numel(), device=gates.device).masked_scatter(gates, rank)

    def sum_per_graph(self, per_gate: Tensor) -> Tensor:
        """[L, E] -> [G]"""
        return per_gate.new_zeros(self.split.count).index_add(0, self.split.edge_graph, per_gate.sum(0))

    def gates_per_graph(self, gates: Tensor) -> Tensor:
        """[G] how many of ``gates`` (bool)"""
        return self.sum_per_graph(gates.long())

    def normalised(self, values: Tensor) -> Tensor:
        """[L, E] divided by the largest of each graph: from 0 to 1."""
        top = values.max(0).values if len(values) else values.sum(0)
        largest = top.new_zeros(self.split.count).scatter_reduce(0, self.split.edge_graph, top, "amax")
        return values / torch.where(largest > 0, largest, 1)[self.split.edge_graph]

    def uniform(self, seed: int) -> Tensor:
        """[L, E] random numbers in (0, 1) that depend on the graph and the edge's number in it, not on the batch."""
        trace, split = self.trace, self.split
        edges = split.within(trace.edge_index)
        known = batches.tensor(self.batch, "edge_type")
        kind = edges[0] if known is None or known.shape != split.edge_graph.shape else known.long()
        here = _scramble(edges[0] + _scramble(edges[1] + _scramble(kind + _scramble(self.rank + seed))))
        whole = torch.zeros(split.count, dtype=torch.long, device=here.device).index_add(0, split.edge_graph, here)
        sites = torch.arange(len(trace.sites), device=here.device)[:, None]
        mixed = _scramble(_scramble(whole[split.edge_graph] + self.rank) + sites)
        return double((mixed >> 11) & ((1 << 52) - 1)).add(0.5).div(1 << 52).to(trace.output.dtype).to(here.device)

    def normal(self, seed: int) -> Tensor:
        """[L, E] standard normal numbers that depend on the graph and the edge's number in it, not on the batch."""
        return (
            torch.special.ndtri(double(self.uniform(seed)).clamp(1e-12, 1 - 1e-12))
            .to(self.trace.output.dtype)
            .to(self.trace.output.device)
        )

    def cut(self, scores: Tensor, threshold: float, baselines: Sequence[Tensor] | None = None) -> Choice:
        """Keep what scores above the threshold; a message that is not carried is never kept."""
        scores = scores.where(self.trace.carried, torch.zeros_like(scores))
        kept = self.trace.carried & (scores > threshold)
        return Choice(scores, kept, self.zeros() if baselines is None else baselines)

    def best(self, scores: Tensor, shares: Sequence[float]) -> Iterator[Tensor]:
        """For each share bool [L, E]: this share of every graph's messages, highest scores first, rounded up."""
        carried, owner = self.trace.carried, self.split.edge_graph
        rank = self.gate_order(-scores, carried)
        total = double(self.gates_per_graph(carried))
        for share in shares:
            yield carried & (rank < back((share * total - 1e-9).ceil().long(), rank.device)[owner])

    # Outputs by graph --------------------------------------------------------------------------------------

    def per_graph(self, per_row: Tensor) -> Tensor:
        """[G] or [G, n] means over the output rows of each graph, summed in float64: a graph may have many rows."""
        split = self.split
        if split.row_each:
            return per_row
        values = double(per_row)
        graph, counts = split.row_graph.to(values.device), split.rows_of_each.to(values.device)
        sums = values.new_zeros(split.count, *values.shape[1:]).index_add_(0, graph, values)
        means = sums / (counts if sums.dim() == 1 else counts[:, None])
        return back(means, per_row.device).to(per_row.dtype)

    def distance(self, output: Tensor) -> Tensor:
        """[G] divergence from the original output."""
        return self.per_graph(self.divergence(self.trace.output, output))

    def flips(self, output: Tensor) -> Tensor:
        """[G] share of output rows whose prediction changed."""
        return self.per_graph(self.divergence.flips(self.trace.output, output).float())

    def distance_and_flips(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """[G] both at once."""
        distance = self.divergence(self.trace.output, output)
        flips = self.divergence.flips(self.trace.output, output).float()
        means = self.per_graph(torch.stack([distance, flips], 1))
        return means[:, 0].to(distance.dtype), means[:, 1].float()


def with_features(split: Split, batch: Any, edge_map: EdgeMap) -> Split:
    """The split with the graphs of the gates of input features, which follow those of the edges."""
    if edge_map.more is None:
        return split
    node_graph = batches.tensor(batch, "batch")
    nodes = edge_map.more[0].long()
    owner = torch.zeros_like(nodes) if split.count == 1 or node_graph is None else node_graph[nodes]
    return replace(split, edge_graph=torch.cat([split.edge_graph, owner]))


def _scramble(number: Tensor) -> Tensor:
    """Well-mixed bits (the finaliser of SplitMix64; integers wrap around)."""
    number = number + -7046029254386353131
    number = (number ^ ((number >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    number = (number ^ ((number >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return number ^ ((number >> 31) & 0x1FFFFFFFF)
