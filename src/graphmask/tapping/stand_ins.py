"""Initial values and scales of what replaces dropped edges: means, over data, of what layers send and compare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from graphmask.graphs.sites import Site, StandIn
from graphmask.ops.moments import Moments
from graphmask.tapping import behind
from graphmask.tapping.messages import Answer, Call, Mask, Messages
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import no_messages


def observe(subject: Subject, batch: Any) -> tuple[tuple[Site, ...], dict[int, list[Messages]], Tensor]:
    """Run the model and return its sites, the messages of each, and the output."""
    by_site: dict[int, list[Messages]] = {}

    def visit(messages: Messages) -> None:
        by_site.setdefault(messages.site, []).append(messages)

    with subject.tap(visit, subject.edge_map(batch)) as state:
        output = subject(batch)
        if not state.sites:
            raise no_messages()
        if subject.sites is not None:
            state.check_complete()
    return tuple(state.sites), by_site, output


@dataclass
class Seen:
    """Statistics of the edges of a site, updated batch by batch."""

    stand_in: StandIn
    messages: list[Moments] = field(default_factory=list)
    added: list[Moments] = field(default_factory=list)  #: to the layer's output, where stand-ins are
    logits: list[Moments] = field(default_factory=list)
    arguments: list[Moments] = field(default_factory=list)

    @property
    def replaced(self) -> list[Moments]:
        """Of what a stand-in's first part takes the place."""
        return self.added if self.stand_in.behind else self.messages

    def add(self, pieces: list[Messages]) -> None:
        _append(self.messages, torch.cat([piece.rows() for piece in pieces]))
        logits = [compared for piece in pieces if (compared := piece.compared()) is not None]
        if logits:
            _append(self.logits, torch.cat(logits))
        if pieces[0].arguments:
            _append(self.arguments, torch.cat([v.reshape(len(v), -1) for v in pieces[0].arguments.values()], 1))

    def mean(self) -> Tensor:
        """The mean of everything: a baseline."""
        whole = self.stand_in.left_out(self.replaced[0].mean if self.replaced else torch.zeros(()))
        sizes = [self.stand_in.message, self.stand_in.logits, self.stand_in.others - self.stand_in.logits]
        for part, moments in zip(whole.split(sizes), (self.replaced, self.logits, self.arguments), strict=True):
            if moments and len(part):
                part.copy_(Moments.union(moments).mean)
        return whole


def _append(moments: list[Moments], rows: Tensor) -> None:
    if rows.shape[0]:
        moments.append(Moments.of(rows.detach().to(torch.promote_types(rows.dtype, torch.float))))


def see(subject: Subject, loader: Iterable[Any]) -> list[Seen]:
    """The statistics of every site over all batches."""
    seen = [Seen(site.stand_in) for site in subject.sites or ()]
    for batch in loader:
        for site, pieces in observe(subject, batch)[1].items():
            seen[site].add(pieces)
        see_added(subject, batch, seen)
    return seen


def see_added(subject: Subject, batch: Any, seen: list[Seen]) -> None:
    for number, site in enumerate(subject.sites or ()):
        if site.stand_in.behind:
            _append(seen[number].added, contributions(subject, batch, number))


@torch.no_grad()
def contributions(subject: Subject, batch: Any, site: int) -> Tensor:
    """[n, D] what all messages of a site together add to its layer's output, of nodes that receive any.

    Where the layer sums, divided by how many they are: what one of them adds.
    """
    edge_map, model, sites = subject.edge_map(batch), subject.model, subject.sites
    assert sites is not None
    layer = dict(model.named_modules()).get(sites[site].module, model)
    turn = [number for number, other in enumerate(sites) if other.module == sites[site].module].index(site)
    outputs: list[list[Tensor]] = []
    degree = torch.zeros(0)

    def mask(is_open: bool) -> Mask:
        def at(call: Call) -> Answer:
            nonlocal degree
            if call.site == site:
                counts = torch.bincount(call.target, minlength=max(len(degree), 1))
                counts[: len(degree)] += degree.to(counts)
                degree = counts if not is_open else degree
            shut = call.site == site and not is_open
            gate = torch.full(call.target.shape, not shut, device=call.target.device)
            return gate, sites[call.site].stand_in.left_out(torch.zeros((), device=gate.device))

        return Mask(at)

    for is_open in (True, False):
        per_call: list[Tensor] = []
        handle = None
        try:
            with subject.tap(mask(is_open), edge_map):
                # After the tap's own hook: what the layer's output has become.
                handle = layer.register_forward_hook(lambda _, __, output, found=per_call: found.append(output.clone()))
                subject(batch)
        finally:
            if handle is not None:
                handle.remove()
        outputs.append(per_call)
    difference = outputs[0][turn] - outputs[1][turn]
    degree = torch.nn.functional.pad(degree, (0, len(difference) - len(degree))).to(difference.device)
    received = difference[degree > 0]
    assert isinstance(layer, MessagePassing)
    return received if behind.averages(layer) else received / degree[degree > 0][:, None]
