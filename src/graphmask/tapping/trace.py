"""One run of the original model on a batch: its output, and one number per edge that was read from its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.sites import Site
from graphmask.tapping.attention import Attended
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject

#: Reads one number per edge [E'] off the messages of a call.
Look = Callable[[Messages], Tensor]


def nothing(messages: Messages) -> Tensor:
    """Zero for every edge, for runs of which only the output and the sites are needed."""
    return messages.source.new_zeros(messages.source.shape, dtype=torch.float)


@dataclass
class Trace:
    """The result of one run of the original model. ``L`` sites, ``E`` edges as the user passed them."""

    output: Tensor
    sites: tuple[Site, ...]
    edge_map: EdgeMap  #: of the user's edges, for further runs over the same graph
    values: Tensor  #: [L, E] what was read; -inf where the site sends nothing along that edge
    carried: Tensor  #: bool [L, E]; less than what was read where only some rows of the output are asked about
    edge_type: Tensor | None = None  #: [E], from heterogeneous graphs and taps that know relations
    edge_graph: Tensor | None = None  #: [E], from taps that know the batch
    graphs: int | None = None
    nodes: int | None = None  #: per graph, where all have as many
    sizes: Tensor | None = None  #: [G] nodes of each graph, from attention

    @property
    def edge_index(self) -> Tensor:
        """[2, E], the graph as the user passed it; where input features have gates too, these follow."""
        ends = self.edge_map.ends
        assert ends is not None
        return ends

    def left_out(self) -> list[Tensor]:
        """The baselines of methods that simply leave messages out."""
        return [site.stand_in.left_out(self.output) for site in self.sites]


#: What was read of a call: its site, the user's edges that it sends along (None: all, in order), and [E'] numbers.
Column = tuple[int, Tensor | None, Tensor]


def record(subject: Subject, batch: Any, look: Look, edge_map: EdgeMap | None = None) -> Trace:
    """Run the model; no message is kept longer than its layer needs it. Sites that are not known yet are found."""
    sites = subject.sites
    columns: list[Column] = []
    whole: list[Tensor] = []  # [L, E] at once, where all sites send along all edges in their order
    matrix: list[Messages] = []
    attended: list[Attended] = []

    def visit(messages: Messages) -> None:
        value = look(messages)
        if sites is not None and messages.attended is not None and messages.edges is None:
            if not whole:
                whole.append(value.new_full((len(sites), len(value)), -torch.inf))
            whole[0][messages.site] = value  # and not kept twice: there may be millions
        else:
            columns.append((messages.site, messages.edges, value))
        if messages.matrix is not None:
            matrix.append(messages)
        if messages.attended is not None and not attended:
            attended.append(messages.attended)

    with torch.no_grad(), subject.tap(visit, edge_map or subject.edge_map(batch)) as state:
        output = subject(batch)
        if not state.sites:
            raise no_messages()
        if sites is not None:
            state.check_complete()
    trace = traced(output, tuple(state.sites) if sites is None else sites, state.edge_map, columns, *whole)
    if matrix:
        call = matrix[0].matrix
        assert call is not None
        trace.edge_graph, trace.edge_type = call.entries[0], call.entries[1]
        trace.graphs, trace.nodes = call.adjacency.shape[0], call.adjacency.shape[-1]
    if attended:
        pairs = attended[0].pairs
        trace.edge_graph, trace.graphs, trace.sizes = pairs.edge_graph, pairs.shape[0], pairs.sizes
        trace.edge_type = pairs.edge_type if attended[0].relations > 1 else None
    return trace


def traced(
    output: Tensor, sites: tuple[Site, ...], edge_map: EdgeMap, columns: Sequence[Column], whole: Tensor | None = None
) -> Trace:
    """The trace from what was read at every call; ``whole`` [L, E] where some sites have all their numbers already."""
    if whole is not None and not columns:
        values = whole
    elif edge_map.more is None and _is_whole(columns, len(sites)):
        values = torch.stack([value for _, _, value in columns]).to(torch.get_default_dtype())
    else:  # one place more than edges, for the layers' own self-loops (-1)
        values = torch.full((len(sites), edge_map.total + 1), -torch.inf, device=output.device)
        if whole is not None:
            values[:, :-1] = whole
        for site, edges, value in columns:
            if edges is None:
                values[site, : edge_map.count] = value
            else:
                values[site].put_(edges, value.to(values.dtype))
        values = values[:, :-1]
    return Trace(output, sites, edge_map, values, values > -torch.inf, edge_map.edge_type)


def _is_whole(columns: Sequence[Column], sites: int) -> bool:
    """Is there one column for each site, in their order, with all edges?"""
    return 0 < sites == len(columns) and [site for site, edges, _ in columns if edges is None] == [*range(sites)]


def no_messages() -> GraphMaskError:
    return GraphMaskError(
        "Expected the model to pass messages when it runs, but none of its message passing layers or taps "
        "was called through hooks. Does its forward bypass them?"
    )
