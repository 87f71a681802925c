"""Original runs of batches that come again: the model's output, and the states that gates read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphmask.devices import random_states, set_random_states
from graphmask.gates.joining import Joining
from graphmask.gates.networks import SiteSpec
from graphmask.graphs import batches
from graphmask.graphs.edges import EdgeMap
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import Look, Trace, record, traced

#: Bytes that kept runs may take up together; that of the last batch is kept whatever it takes.
ROOM = 1 << 28


class OriginalRun:
    """The original run of a batch, kept so that the model need not run on this batch again.

    It is used again only if the run drew no random numbers, gave the same output twice, sent messages that gates can
    read through their nodes (no messages are kept), and was not followed by a write to these states.
    """

    def __init__(self, batch: Any, specs: Sequence[SiteSpec], edge_map: EdgeMap) -> None:
        self.specs, self.edge_map = specs, edge_map
        self.batch: Callable[[], Any] = lambda: batch
        self.tells_its_end = hasattr(batch, "__weakref__")  # not so a dictionary or a tuple
        if self.tells_its_end:  # a batch that is made anew at every pass is gone then, and so is what is known of it
            self.batch = weakref.ref(batch)
        self.content = content_of(batch)
        self.held = [value for _, value in batches.items(batch)]  # so that no other tensor takes the place of one
        self.messages: list[Messages] = []
        self.seen: list[tuple[Tensor, int]] = []  # the states of the messages, and their versions
        self.output = torch.empty(0)
        self.pure = self.content is not None
        self.proven, self.bytes = False, 0

    def see(self, messages: Messages) -> Messages:
        self.pure &= self.specs[messages.site].lifted and messages.lifted is not None
        if self.pure:
            shape_alone = messages.value.new_empty(()).expand(messages.value.shape)
            self.messages.append(replace(messages, value=shape_alone))
            states = _states(messages)
            self.pure = not any(state.is_inference() for state in states)
            self.seen += [(state, state._version) for state in states if self.pure]
        return messages

    def end(self, output: Tensor, before: OriginalRun | None) -> None:
        """The run is over; ``before`` is an earlier run on the same batch."""
        self.output = output
        self.pure &= all(state._version == version for state, version in self.seen)
        self.proven = self.pure and before is not None and torch.equal(before.output, output)
        if self.proven:
            calls, self.messages = self.messages, []
            joining = Joining(self.specs, self.messages.append)
            for messages in calls:
                joining(messages)
        storages = [state.untyped_storage() for state, _ in self.seen]
        self.bytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def is_of(self, batch: Any) -> bool:
        """Whether it is the same object, with nothing in it exchanged or overwritten."""
        return batch is self.batch() and content_of(batch) == self.content


class Originals:
    """Runs the original model on the batches of one fit, or returns the kept run where it is still valid."""

    def __init__(self, subject: Subject, specs: Sequence[SiteSpec]) -> None:
        self.subject, self.specs = subject, specs
        self.runs: dict[tuple[int, bool], OriginalRun] = {}
        self.last: tuple[int, bool] | None = None  # the one that is kept whatever it takes

    def forget(self) -> None:
        self.runs.clear()
        self.last = None

    def find(self, batch: Any) -> OriginalRun | None:
        """The kept run of this very batch, with the model in the same state, proven or not; None if there is none."""
        known = self.runs.get(self._key(batch))
        return known if known is not None and known.is_of(batch) else None

    def output(
        self, batch: Any, edge_map: EdgeMap, visit: Callable[[Messages], None], known: OriginalRun | None
    ) -> Tensor:
        """The output; the run's messages go to ``visit``, ``known`` is from `find`. Random states do not change.

        The calls of a site are visited as one where possible (see `joining`).
        """
        if known is not None and known.proven:
            for messages in known.messages:
                visit(messages)
            return known.output
        device = self.subject.device
        run, before = OriginalRun(batch, self.specs, edge_map), random_states(device)
        joining = Joining(self.specs, visit)
        with torch.no_grad(), self.subject.tap(lambda m: joining(run.see(m)), edge_map) as state:
            output = self.subject(batch)
            state.check_complete()
        self._end(run, batch, known, output, before)
        set_random_states(before, device)
        return output

    @torch.no_grad()
    def trace(self, batch: Any, look: Look) -> Trace:
        """As `trace.record`."""
        known = self.find(batch)
        if known is not None and known.proven:
            columns = [(messages.site, messages.edges, look(messages)) for messages in known.messages]
            assert self.subject.sites is not None
            return traced(known.output, self.subject.sites, known.edge_map, columns)
        edge_map = self.subject.edge_map(batch) if known is None else known.edge_map
        run, before = OriginalRun(batch, self.specs, edge_map), random_states(self.subject.device)
        trace = record(self.subject, batch, lambda messages: look(run.see(messages)), edge_map)
        self._end(run, batch, known, trace.output, before)
        return trace

    def _key(self, batch: Any) -> tuple[int, bool]:
        return id(batch), self.subject.model.training

    def _end(
        self, run: OriginalRun, batch: Any, known: OriginalRun | None, output: Tensor, before: list[Tensor]
    ) -> None:
        """Keep the run if it can be used again; the one before it only if there is memory for both."""
        run.pure &= all(map(torch.equal, before, random_states(self.subject.device)))
        run.end(output, known)
        key, runs = self._key(batch), self.runs
        runs.pop(key, None)
        for gone in [other for other, kept in runs.items() if kept.batch() is None]:
            del runs[gone]
        taken = sum(kept.bytes for kept in runs.values())
        if self.last in runs and (taken > ROOM or not runs[self.last].tells_its_end):
            del runs[self.last]
        self.last = key if run.pure else None
        if run.pure:
            runs[key] = run


def content_of(batch: Any) -> list[Any] | None:
    """Equal lists mean equal content of the same batch; None if the batch holds what cannot be compared quickly."""
    values = [value for _, value in batches.items(batch)]
    if not all(value is None or isinstance(value, (Tensor, bool, int, float, str)) for value in values):
        return None
    return [(id(value), value._version) if isinstance(value, Tensor) else value for value in values]


def _states(messages: Messages) -> list[Tensor]:
    """The node states of these messages that gates read."""
    tensors = [messages.source, messages.target, messages.edges, messages.source_states, messages.target_states]
    tensors += [*(messages.lifted or ()), messages.attention, messages.logits]
    for more in (messages.features, messages.categories, messages.arguments):
        tensors += more.values()
    return [value for value in tensors if value is not None]
