"""A PyTorch Geometric layer while it is tapped: its computations on edges are read or replaced."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import effective_edges
from graphmask.graphs.sites import ABSENT, Site
from graphmask.tapping import behind, edge_arguments, edge_softmax
from graphmask.tapping import messages as sent
from graphmask.tapping.exchange import between, contents_exchanged, exchange_order
from graphmask.tapping.messages import Answer, Call, Mask, Messages, add_extra, is_fresh, lifted, nodes_seen, states
from graphmask.tapping.tapped import Tap


class TappedLayer:
    """One layer of a tapped model, from its arguments to its output."""

    tap: Tap  #: while one is connected

    def __init__(self, name: str, layer: MessagePassing) -> None:
        self.name, self.layer = name, layer
        self.connected = False
        self._begin_forward()

    def connect(self, tap: Tap) -> None:
        """From now on this tap is told what the layer does."""
        self.tap, self.connected = tap, True
        #: Sites of this layer, if its arguments are replaced at any of them.
        mine = self._mine()
        self.silent = mine if any(self.sites[number].stand_in.inputs for number in mine) else None
        self.compared = False  # was it found out by which arguments the layer compares edges?
        self._begin_forward()

    def disconnect(self) -> None:
        """Nobody is told any more, and nothing is kept of what was seen."""
        self.connected = False
        del self.tap
        self._begin_forward()

    @property
    def awake(self) -> bool:
        return self.connected and not self.tap.asleep

    def _mine(self) -> list[int]:
        return [number for number, site in enumerate(self.sites) if site.module == self.name]

    def _begin_forward(self) -> None:
        self.inputs: tuple[Any, ...] = ()
        self.ordinal = 0  # of the next call
        self.arguments: dict[str, Tensor] = {}  # with a row per edge
        self.dropped: list[behind.Dropped] = []
        self.propagated: tuple[Any, dict[str, Any]] = (None, {})  # the edges, and what `propagate` was given
        self.logits: Tensor | None = None  # that were compared before messages are made
        self._begin_call()

    def _begin_call(self) -> None:
        self.call: tuple[Any, Call] | None = None  # by the edges; it may be known before its messages are made
        self.given: Answer | None = None  # what is put in place of these

    @property
    def sites(self) -> list[Site]:
        return self.tap.sites

    # From its arguments to its output ------------------------------------------------------------------------

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call begins; returns the arguments that the layer will get."""
        self._begin_forward()
        self.tap.where.covered.pop(self.name, None)  # a new forward of a layer never continues an earlier site
        mask = self.tap.mask
        if mask is not None and mask.of_edges is not None:
            args, kwargs = self._silence(args, kwargs, mask)
        self.inputs = (*args, *kwargs.values())
        if mask is None and self.silent is not None:
            bound = edge_arguments.bind(self.layer, args, kwargs)
            self.arguments = {} if bound is None else edge_arguments.per_edge(bound)
        return args, kwargs

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """A call ends; returns what replaces its output, or None to keep the output."""
        if self.tap.where.discovering:
            self._discover_stand_ins(args, kwargs, output)
        calls, self.dropped, self.inputs = self.dropped, [], ()
        return behind.add(output, self.layer, calls) if calls else None

    def on_propagate(self, edge_index: Any, kwargs: dict[str, Any]) -> None:
        self.propagated = edge_index, kwargs

    def on_content(self, edge_index: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The layer is about to compute messages from ``kwargs``, or the quantities by which it compares edges."""
        mask = self.tap.mask
        if mask is not None and mask.exchange is not None:
            gate = self._answer(self._call_along(edge_index))[0]
            kwargs = contents_exchanged(kwargs, exchange_order(gate, mask.exchange))
        self.tap.underway = threading.get_ident(), partial(self._compare, edge_index, kwargs.get("edge_type"), count())
        return kwargs

    def on_message(self, kwargs: dict[str, Any], value: Any) -> Tensor | None:
        """Messages were computed from ``kwargs``; returns the messages to send instead, or None to keep them."""
        self.tap.underway, layer = None, self.layer
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise GraphMaskError(
                f"Expected module {self.name!r} ({type(layer).__name__}) to send floating point messages, "
                f"got {getattr(value, 'dtype', type(value).__name__)}."
            )
        call = self._call_along(self.propagated[0])
        messages = Messages(
            **vars(call),
            value=value,
            edge_dim=layer.node_dim if layer.node_dim >= 0 else value.dim() + layer.node_dim,
        )
        if value.dim() == 1:
            messages.edge_dim = 0
        edges = call.source.shape[0]
        if value.shape[messages.edge_dim] != edges:
            raise GraphMaskError(
                f"Expected module {self.name!r} to send one message per edge ({edges}), "
                f"got {value.shape[messages.edge_dim]}."
            )
        try:
            if self.tap.mask is not None:
                messages.fresh = is_fresh(value, layer, kwargs)
                return self._replaced(messages, kwargs)
            self._describe(messages, kwargs)
            self.tap.look(messages)
            return None
        finally:
            self._begin_call()

    def _call_along(self, edge_index: Any) -> Call:
        """The call that the layer makes along these edges: the same until its messages are made."""
        if self.call is not None and self.call[0] is edge_index:
            return self.call[1]
        effective, flow = effective_edges(edge_index), self.layer.flow
        same = effective is self.tap.edge_map.edge_index  # then nobody asks how many nodes there are
        nodes = None if same else nodes_seen(self.layer, self.propagated[1])
        matched = self.tap.match(effective, self.inputs, self.ordinal, self.name, nodes)
        self.ordinal += 1
        site, piece = self.tap.where.locate(self.name, matched, flow == "target_to_source")
        source, target = effective if flow == "source_to_target" else (effective[1], effective[0])
        call = Call(site=site, piece=piece, source=source, target=target, edges=matched.edges)
        self.call, self.given = (edge_index, call), None
        return call

    def _answer(self, call: Call) -> Answer:
        """What is put in place of the call's messages."""
        assert self.tap.mask is not None
        if self.given is None:
            self.given = self.tap.mask.at(call)
        return self.given

    def _replaced(self, messages: Messages, kwargs: dict[str, Any]) -> Tensor:
        """The messages that the layer sends instead."""
        value, stand_in = messages.value, self.sites[messages.site].stand_in
        gate, baseline, *rows = self._answer(messages)
        baseline = stand_in.message_of(baseline)
        if stand_in.behind:
            self.dropped.append(behind.Dropped(gate, messages.target, baseline))
            gate = behind.weights(gate.to(value.dtype), self.layer, messages.target, kwargs.get("edge_type"))
            baseline = value.new_zeros(messages.flat().shape[1])
        if value.grad_fn is not None and value.grad_fn.name() == "IndexSelectBackward0" and value is kwargs.get("x_j"):
            picked = lifted(messages, self.layer, kwargs, self.propagated[1])
            messages.picked = None if picked is None else (picked[0], messages.source)
        return sent.replace(messages, gate, baseline, *rows)

    # Dropped edges are silent --------------------------------------------------------------------------------

    def _silence(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], mask: Mask
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments in which edges that the layer drops at all of its sites have nothing of their own."""
        if self.silent is None and mask.exchange is None:
            return args, kwargs
        mine = self.silent or self._mine()
        bound = edge_arguments.bind(self.layer, args, kwargs)
        arguments = {} if bound is None else edge_arguments.per_edge(bound)
        given = (*args, *kwargs.values())
        positions = self._rows(self.sites[mine[0]], len(next(iter(arguments.values()))), given) if arguments else None
        if bound is None or positions is None:
            return args, kwargs
        assert mask.of_edges is not None
        answers = [mask.of_edges(site) for site in mine]
        # Without a gradient: the root of a sum of weights has none where it is zero.
        gate = torch.stack([_rows_of(answer[0].detach(), positions) for answer in answers]).amax(0)
        if mask.exchange is not None:
            order = exchange_order(gate, mask.exchange)
            arguments = {name: value[order] for name, value in arguments.items()}
        baseline = answers[0][1].detach()
        constants = self.sites[mine[0]].stand_in.inputs_of(baseline[positions] if baseline.dim() > 1 else baseline)
        for name, constant in constants.items():
            if name in arguments and math.prod(arguments[name].shape[1:]) == constant.shape[-1]:
                arguments[name] = between(arguments[name], gate, constant)
        return edge_arguments.exchanged(bound, arguments)

    def _rows(self, site: Site, number: int, given: tuple[Any, ...]) -> Tensor | slice | None:
        """Which of the user's edges a layer's arguments have a row for; None if that is not known."""
        edge_map, pooled = self.tap.edge_map, self.tap.match.rows(given, self.name)
        if pooled is not None:
            return pooled if len(pooled) == number else None
        if len(site.edge_types) == 1 and edge_map.edge_type is not None:
            kinds = edge_map.edge_type == edge_map.all_types.index(site.edge_types[0])
            positions = kinds.nonzero().view(-1)
            return positions if len(positions) == number else None
        return slice(None) if number == edge_map.count else None

    def _compare(
        self, edge_index: Any, relation: Tensor | None, turns: Iterator[int], logits: Tensor, dim: int
    ) -> Tensor:
        """What a softmax over edges is to compare instead of ``logits``; the next of ``turns`` over some of them."""
        edges, whole = logits.shape[dim], effective_edges(edge_index).shape[1]
        mask = self.tap.mask
        if mask is None:
            if edges == whole:
                self.logits = logits.detach()
            return logits
        call = self._call_along(edge_index)
        stand_in = self.sites[call.site].stand_in
        gate, baseline = self._answer(call)[:2]
        # Gates learn from their messages alone: a gradient through the softmax takes another pass over all messages.
        gate = gate.detach()
        if edges != whole:  # relation by relation: a dropped edge is in none
            some = None if relation is None else (relation == next(turns)).nonzero().view(-1)
            if some is None or len(some) != edges:
                raise GraphMaskError(
                    f"Expected module {self.name!r} to compare all of its edges in a softmax, or one relation after "
                    f"another, got {edges} of {whole}. Pass its messages through a MessageTap instead."
                )
            return edge_softmax.mixed(logits, gate[some], logits.new_full(logits.shape[1:], ABSENT).flatten(), dim)
        if not stand_in.logits:
            return logits
        constant = stand_in.logits_of(baseline) if mask.logits is None else mask.logits(call.site)
        return edge_softmax.mixed(logits, gate, constant, dim)

    def _discover_stand_ins(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Find what the output depends on besides messages: arguments and logits of edges are replaced too."""
        sites = self.sites
        mine = self._mine()
        if not mine:
            return
        last = sites[mine[-1]]
        if behind.is_behind(self.layer, last, output):
            stand_in = replace(last.stand_in, behind=True, message=output.shape[1])
            sites[mine[-1]] = replace(last, stand_in=stand_in)
        if self.compared:
            return
        self.compared, self.tap.asleep = True, True
        try:
            compared = edge_arguments.compared(self.layer, args, kwargs)
        finally:
            self.tap.asleep = False
        first, inputs = sites[mine[0]], tuple((name, math.prod(value.shape[1:])) for name, value in compared.items())
        sites[mine[0]] = replace(first, stand_in=replace(first.stand_in, inputs=inputs))

    # What is known of its messages ---------------------------------------------------------------------------

    def _describe(self, messages: Messages, kwargs: dict[str, Any]) -> None:
        """Add what the layer knows of its messages."""
        layer, propagated = self.layer, self.propagated[1]
        messages.source_states, messages.target_states = states(layer, self.inputs, propagated, kwargs)
        messages.num_relations = int(getattr(layer, "num_relations", 0) or 0)
        for key, extra in kwargs.items():
            if key.endswith(("_i", "_j")) or key in MessagePassing.special_args or not isinstance(extra, Tensor):
                continue
            if not isinstance(extra, nn.Parameter):  # the layer's, though it may happen to have E' rows
                add_extra(messages, key, extra)
        self._add_types(messages)
        attention = kwargs.get("alpha", getattr(layer, "_alpha", None))
        if isinstance(attention, Tensor) and attention.dim() and len(attention) == len(messages.source):
            messages.attention = attention.detach()
        messages.lifted = lifted(messages, layer, kwargs, propagated)
        messages.logits, self.logits = self.logits, None
        site = self.sites[messages.site]
        if site.stand_in.inputs and messages.piece == 0:
            known = self.arguments
            messages.arguments = {key: known[key] for key, _ in site.stand_in.inputs if key in known}

    def _add_types(self, messages: Messages) -> None:
        """Where one call carries several edge types (HGTConv), gates must know which."""
        edge_map = self.tap.edge_map
        known, kinds = self.sites[messages.site].types, edge_map.edge_type
        if not known or len(known[messages.piece]) < 2 or kinds is None or messages.edges is None:
            return
        number_of = {kind: number for number, kind in enumerate(known[messages.piece])}
        numbers = torch.tensor([number_of.get(kind, 0) for kind in edge_map.all_types], device=kinds.device)
        messages.categories["edge_type"] = numbers[kinds[messages.edges]]


def _rows_of(gate: Tensor, rows: Tensor | slice) -> Tensor:
    """The gates of these edges; open where an edge is none of the user's (-1)."""
    if isinstance(rows, slice):
        return gate[rows]
    return torch.cat([gate, gate.new_ones(1)])[rows]
