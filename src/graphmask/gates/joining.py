"""Joins the calls of a site: a layer that sends relation by relation asks its gate network once for all relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from graphmask.gates.base import SiteSpec
from graphmask.ops.kernels import ALL, memory_of
from graphmask.tapping.messages import Messages


@dataclass
class Joined(Messages):
    """The messages of several calls, one after the other; of their values only the shape."""

    calls: tuple[Messages, ...] = ()
    number: Tensor = field(default_factory=lambda: torch.empty(0))  #: [E'] which call each edge is of

    def divided(self, per_edge: Tensor, rows: slice) -> Iterator[tuple[Messages, Tensor, slice]]:
        """Call by call: the call, its part of a number per edge, and ``rows`` as counted in it."""
        before = 0
        parts = per_edge.split([len(call.source) for call in self.calls])
        for call, part in zip(self.calls, parts, strict=True):
            some = rows if rows == ALL else slice((rows.start - before) % rows.step, None, rows.step)
            yield call, part, some
            before += len(call.source)


class Joining:
    """Passes messages on to ``visit``: those of a site with several calls together, and joined if possible."""

    def __init__(self, specs: Sequence[SiteSpec], visit: Callable[[Messages], None]) -> None:
        self.specs, self.visit = specs, visit
        self.waiting: dict[int, list[Messages]] = {}  # by site

    def __call__(self, messages: Messages) -> None:
        spec = self.specs[messages.site]
        if spec.pieces == 1 or not spec.lifted:
            self.visit(messages)
            return
        self.waiting.setdefault(messages.site, []).append(messages)
        if messages.piece == spec.pieces - 1:
            for one in joined(self.waiting.pop(messages.site)):
                self.visit(one)


def joined(calls: list[Messages]) -> list[Messages]:
    """One object for all these calls of a site, if gates see the same nodes in each; otherwise the calls themselves."""
    if len(calls) == 1 or len({_seen(call) for call in calls}) > 1 or any(call.edges is None for call in calls):
        return list(calls)
    first, sizes = calls[0], [len(call.source) for call in calls]
    assert first.lifted is not None
    nodes, weight = first.lifted
    number = torch.arange(len(calls), device=first.source.device)
    together = Joined(**{**vars(first), "value": first.value.new_empty(()).expand(sum(sizes), *first.value.shape[1:])})
    together.source, together.target, together.edges = (
        torch.cat([getattr(call, name) for call in calls]) for name in ("source", "target", "edges")
    )
    together.features = {key: torch.cat([call.features[key] for call in calls]) for key in first.features}
    together.categories = {key: torch.cat([call.categories[key] for call in calls]) for key in first.categories}
    if weight is not None:
        together.lifted = (
            nodes,
            torch.cat([call.lifted[1] for call in calls if call.lifted and call.lifted[1] is not None]),
        )
    together.attention = together.logits = None
    together.calls = tuple(replace(call, value=call.value.new_empty(()).expand(call.value.shape)) for call in calls)
    together.number = number.repeat_interleave(torch.tensor(sizes, device=number.device), output_size=sum(sizes))
    return [together]


def _seen(call: Messages) -> object:
    """What has to be the same in all calls: the nodes, and the kinds of information about edges."""
    if call.lifted is None or call.edge_dim != 0:
        return id(call)
    nodes, weight = call.lifted
    states = [None if value is None else memory_of(value) for value in (call.source_states, call.target_states)]
    return (memory_of(nodes), weight is None, *states, tuple(call.features), tuple(call.categories))
