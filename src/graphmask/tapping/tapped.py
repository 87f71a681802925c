"""While a model is tapped: which call of a layer this is, what is seen of it, and what is put in its place."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap, effective_edges
from graphmask.graphs.sites import ABSENT, Site
from graphmask.tapping import behind, edge_arguments, edge_softmax
from graphmask.tapping import messages as sent
from graphmask.tapping.attention import Attended, Attention, Inputs, Pairs
from graphmask.tapping.exchange import between, contents_exchanged, exchange_order
from graphmask.tapping.locating import Locator
from graphmask.tapping.messages import (
    Answer,
    Call,
    Mask,
    Messages,
    Visit,
    add_extra,
    is_fresh,
    lifted,
    rows_of_nodes,
    states,
)
from graphmask.tapping.taps import MatrixCall


@dataclass
class _Underway:
    """A call that a layer is making: what it knows of it so far."""

    name: str
    layer: MessagePassing
    edge_index: Any  #: as the layer has it
    kwargs: dict[str, Any]  #: what its `message` or `edge_update` was given
    thread: int
    parts: int = 0  #: how many softmaxes over some of the edges were computed


class Tap:
    """State of one tapping: which call comes next, which site it belongs to, which edges are whose."""

    def __init__(
        self, visit: Visit | Mask, edge_map: EdgeMap, sites: tuple[Site, ...] | None, heads: str = "each"
    ) -> None:
        self.visit = visit
        self.mask = visit if isinstance(visit, Mask) else None
        self.live = True
        self.asleep = False  # a layer runs for another reason than the model's forward
        self.underway: _Underway | None = None
        self.begun: dict[str, tuple[Any, Call]] = {}  # calls that are known before their messages are made
        self.answers: dict[str, Answer] = {}  # what to put in place of these
        self.logits: dict[str, Tensor] = {}  # that a layer compared before its messages are made
        self.dropped: dict[str, list[behind.Dropped]] = {}  # in this forward of the layer
        self.compared: set[str] = set()  # layers of which it was found out by which arguments they compare edges
        self.where = Locator(edge_map, sites)
        self.along_edges = False  # has the model layers whose edges are the user's? Attention is left alone then
        self.heads = next((site.heads for site in sites or () if site.heads), heads)
        #: Sites of the layers whose arguments are replaced.
        with_inputs = {site.module for site in sites or () if site.stand_in.inputs}
        self.silent = {
            module: [number for number, site in enumerate(sites or ()) if site.module == module]
            for module in with_inputs
        }
        self.ordinal: dict[str, int] = {}  # in this forward of the layer
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.arguments: dict[str, dict[str, Tensor]] = {}  # of these, with a row per edge
        self.pending: dict[str, tuple[Any, dict[str, Any]]] = {}

    @property
    def sites(self) -> list[Site]:
        return self.where.sites

    @property
    def edge_map(self) -> EdgeMap:
        return self.where.edge_map

    def restart(self) -> None:
        """A new run of the model begins."""
        self.where.restart()

    def check_complete(self) -> None:
        """Raise unless every site was visited exactly as when the sites were found."""
        self.where.check_complete()

    def enter(
        self, module: str, layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A forward of a layer begins; returns the arguments it is to have."""
        self.ordinal[module] = 0
        self.where.covered.pop(module, None)  # a new forward of a layer never continues an earlier site
        self.dropped.pop(module, None)
        self.begun.pop(module, None)
        if self.mask is not None and self.mask.of_edges is not None:
            args, kwargs = self._silence(module, layer, args, kwargs, self.mask)
        self.inputs[module] = (*args, *kwargs.values())
        if self.mask is None and module in self.silent:
            bound = edge_arguments.bind(layer, args, kwargs)
            self.arguments[module] = {} if bound is None else edge_arguments.per_edge(bound)
        return args, kwargs

    def leave(
        self, module: str, layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """It ends; returns what is to be its output."""
        self.inputs.pop(module, None)
        if self.where.discovering:
            self._discover_stand_ins(module, layer, args, kwargs, output)
        calls = self.dropped.pop(module, None)
        return behind.add(output, layer, calls) if calls else None

    # Dropped edges are silent --------------------------------------------------------------------------------

    def _silence(
        self, module: str, layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any], mask: Mask
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments in which edges that the layer drops at all of its sites have nothing of their own."""
        mine = self.silent.get(module)
        if mine is None and mask.exchange is None:
            return args, kwargs
        mine = mine or [number for number, site in enumerate(self.sites) if site.module == module]
        bound = edge_arguments.bind(layer, args, kwargs)
        found = {} if bound is None else edge_arguments.per_edge(bound)
        rows = self._rows(self.sites[mine[0]], len(next(iter(found.values())))) if found else None
        if bound is None or rows is None:
            return args, kwargs
        assert mask.of_edges is not None
        answers = [mask.of_edges(site) for site in mine]
        # Without a gradient: the root of a sum of weights has none where it is zero.
        gate = torch.stack([answer[0].detach()[rows] for answer in answers]).amax(0)
        if mask.exchange is not None:
            order = exchange_order(gate, mask.exchange)
            found = {name: value[order] for name, value in found.items()}
        baseline = answers[0][1].detach()
        constants = self.sites[mine[0]].stand_in.inputs_of(baseline[rows] if baseline.dim() > 1 else baseline)
        for name, constant in constants.items():
            if name in found and math.prod(found[name].shape[1:]) == constant.shape[-1]:
                found[name] = between(found[name], gate, constant)
        return edge_arguments.exchanged(bound, found)

    def _rows(self, site: Site, count: int) -> Tensor | slice | None:
        """Which of the user's edges a layer's arguments have a row for; None if that is not known."""
        if len(site.edge_types) == 1 and self.edge_map.edge_type is not None:
            kinds = self.edge_map.edge_type == self.edge_map.all_types.index(site.edge_types[0])
            rows = kinds.nonzero().view(-1)
            return rows if len(rows) == count else None
        return slice(None) if count == self.edge_map.count else None

    def compare(self, logits: Tensor, dim: int) -> Tensor:
        """What a softmax over edges is to compare instead of ``logits``."""
        now = self.underway
        if now is None or now.thread != threading.get_ident():
            return logits  # not in a layer of this model
        count, whole = logits.shape[dim], effective_edges(now.edge_index).shape[1]
        if self.mask is None:
            if count == whole:
                self.logits[now.name] = logits.detach()
            return logits
        call = self.begin(now.name, now.layer, now.edge_index)
        stand_in = self.sites[call.site].stand_in
        gate, baseline = self.answer(now.name, call)[:2]
        # Gates learn from their messages alone: a gradient through the softmax takes another pass over all messages.
        gate = gate.detach()
        if count != whole:  # relation by relation: a dropped edge is in none
            rows = self._relation(now, count)
            return edge_softmax.mixed(logits, gate[rows], logits.new_full(logits.shape[1:], ABSENT).flatten(), dim)
        if not stand_in.logits:
            return logits
        constant = stand_in.logits_of(baseline) if self.mask.logits is None else self.mask.logits(call.site)
        return edge_softmax.mixed(logits, gate, constant, dim)

    def _relation(self, now: _Underway, count: int) -> Tensor:
        """The edges of which a layer compares only some: those of one relation after the other."""
        relation = now.kwargs.get("edge_type")
        rows = None if relation is None else (relation == now.parts).nonzero().view(-1)
        now.parts += 1
        if rows is None or len(rows) != count:
            raise GraphMaskError(
                f"Expected module {now.name!r} to compare all of its edges in a softmax, or one relation after "
                f"another, got {count} of {effective_edges(now.edge_index).shape[1]}. Pass its messages through a "
                "MessageTap instead."
            )
        return rows

    def begin(self, name: str, layer: MessagePassing, edge_index: Any) -> Call:
        """The call that a layer makes along these edges: the same until its messages are made."""
        known = self.begun.get(name)
        if known is not None and known[0] is edge_index:
            return known[1]
        effective = effective_edges(edge_index)
        ordinal = self.ordinal.get(name, 0)
        self.ordinal[name] = ordinal + 1
        matched = self.edge_map(effective, self.inputs.get(name, ()), ordinal, name)
        site, piece = self.where.locate(name, matched, layer.flow == "target_to_source")
        source, target = effective if layer.flow == "source_to_target" else (effective[1], effective[0])
        call = Call(site=site, piece=piece, source=source, target=target, edges=matched.edges)
        self.begun[name] = (edge_index, call)
        self.answers.pop(name, None)
        return call

    def answer(self, name: str, call: Call) -> Answer:
        """What is put in place of the call's messages."""
        assert self.mask is not None
        if name not in self.answers:
            self.answers[name] = self.mask.at(call)
        return self.answers[name]

    def _discover_stand_ins(
        self, module: str, layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Where dropped edges of this layer would be heard other than through their messages."""
        mine = [number for number, site in enumerate(self.sites) if site.module == module]
        if not mine:
            return
        last = self.sites[mine[-1]]
        if behind.is_behind(layer, last, output):
            stand_in = replace(last.stand_in, behind=True, message=output.shape[1])
            self.sites[mine[-1]] = replace(last, stand_in=stand_in)
        first = self.sites[mine[0]]
        if module in self.compared:
            return
        self.compared.add(module)
        self.asleep = True
        try:
            found = edge_arguments.compared(layer, args, kwargs)
        finally:
            self.asleep = False
        inputs = tuple((name, math.prod(value.shape[1:])) for name, value in found.items())
        self.sites[mine[0]] = replace(first, stand_in=replace(first.stand_in, inputs=inputs))

    # PyTorch Geometric layers ------------------------------------------------------------------------------

    def on_propagate(self, name: str, edge_index: Any, kwargs: dict[str, Any]) -> None:
        self.pending[name] = (edge_index, kwargs)

    def on_content(self, name: str, layer: MessagePassing, edge_index: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A layer is about to compute messages, or what it compares edges by, from ``kwargs``."""
        if self.mask is not None and self.mask.exchange is not None:
            gate = self.answer(name, self.begin(name, layer, edge_index))[0]
            kwargs = contents_exchanged(kwargs, exchange_order(gate, self.mask.exchange))
        self.underway = _Underway(name, layer, edge_index, kwargs, threading.get_ident())
        return kwargs

    def on_message(self, name: str, layer: MessagePassing, kwargs: dict[str, Any], value: Any) -> Tensor | None:
        edge_index, propagated = self.pending[name]
        self.underway = None
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise GraphMaskError(
                f"Expected module {name!r} ({type(layer).__name__}) to send floating point messages, "
                f"got {getattr(value, 'dtype', type(value).__name__)}."
            )
        call = self.begin(name, layer, edge_index)
        messages = Messages(
            **vars(call),
            value=value,
            edge_dim=layer.node_dim if layer.node_dim >= 0 else value.dim() + layer.node_dim,
        )
        if value.dim() == 1:
            messages.edge_dim = 0
        count = call.source.shape[0]
        if value.shape[messages.edge_dim] != count:
            raise GraphMaskError(
                f"Expected module {name!r} to send one message per edge ({count}), "
                f"got {value.shape[messages.edge_dim]}."
            )
        messages.fresh = is_fresh(value, layer, kwargs)
        try:
            if self.mask is not None:
                return self._put(messages, name, layer, kwargs, propagated)
            self._describe(messages, name, layer, kwargs)
            self._look(messages)
            return None
        finally:
            self.begun.pop(name, None)
            self.answers.pop(name, None)

    def _put(
        self,
        messages: Messages,
        name: str,
        layer: MessagePassing,
        kwargs: dict[str, Any],
        propagated: dict[str, Any],
    ) -> Tensor:
        """What the layer is to send instead."""
        value, stand_in = messages.value, self.sites[messages.site].stand_in
        gate, baseline, *rows = self.answer(name, messages)
        baseline = stand_in.message_of(baseline)
        if stand_in.behind:
            self.dropped.setdefault(name, []).append(behind.Dropped(gate, messages.target, baseline))
            gate = behind.weights(gate.to(value.dtype), layer, messages.target, kwargs.get("edge_type"))
            baseline = value.new_zeros(messages.flat().shape[1])
        if value.grad_fn is not None and value.grad_fn.name() == "IndexSelectBackward0" and value is kwargs.get("x_j"):
            picked = lifted(messages, layer, kwargs, propagated)
            messages.picked = None if picked is None else (picked[0], messages.source)
        return sent.replace(messages, gate, baseline, *rows)

    def _look(self, messages: Messages) -> None:
        if self.where.discovering:
            site = self.sites[messages.site]
            width = messages.rows().shape[1] if messages.matrix is None else messages.matrix.messages.shape[-1]
            logits = 0 if messages.logits is None else math.prod(messages.logits.shape[1:])
            if messages.attended is not None:
                logits, site = messages.attended.heads, replace(site, heads=self.heads)
            stand_in = replace(site.stand_in, message=width, logits=max(site.stand_in.logits, logits))
            self.sites[messages.site] = replace(site, stand_in=stand_in)
        assert not isinstance(self.visit, Mask)
        self.visit(messages)

    def _describe(self, messages: Messages, name: str, layer: MessagePassing, kwargs: dict[str, Any]) -> None:
        """Add what the layer knows of its messages."""
        propagated, count = self.pending[name][1], messages.source.shape[0]
        known = states(layer, self.inputs.get(name, ()), propagated, kwargs)
        messages.source_states, messages.target_states = known
        messages.num_relations = int(getattr(layer, "num_relations", 0) or 0)
        for key, extra in kwargs.items():
            if key.endswith(("_i", "_j")) or key in MessagePassing.special_args or not isinstance(extra, Tensor):
                continue
            if not isinstance(extra, nn.Parameter):  # the layer's, though it may happen to have E' rows
                add_extra(messages, key, extra)
        self._add_types(messages)
        attention = kwargs.get("alpha", getattr(layer, "_alpha", None))
        if isinstance(attention, Tensor) and attention.dim() and attention.shape[0] == count:
            messages.attention = attention.detach()
        messages.lifted = lifted(messages, layer, kwargs, propagated)
        messages.logits = self.logits.pop(name, None)
        site = self.sites[messages.site]
        if site.stand_in.inputs and messages.piece == 0:
            inputs = self.arguments.get(name, {})
            messages.arguments = {key: inputs[key] for key, _ in site.stand_in.inputs if key in inputs}

    def _add_types(self, messages: Messages) -> None:
        """Where one call carries several edge types (HGTConv), gates must know which."""
        known, kinds = self.sites[messages.site].types, self.edge_map.edge_type
        if not known or len(known[messages.piece]) < 2 or kinds is None or messages.edges is None:
            return
        place = {kind: number for number, kind in enumerate(known[messages.piece])}
        numbers = torch.tensor([place.get(kind, 0) for kind in self.edge_map.all_types], device=kinds.device)
        messages.categories["edge_type"] = numbers[kinds[messages.edges]]

    # Taps --------------------------------------------------------------------------------------------------

    def on_tap(
        self,
        name: str,
        value: Tensor,
        edge_index: Tensor,
        nodes: Tensor | tuple[Tensor, Tensor] | None,
        extras: dict[str, Tensor | None],
    ) -> Tensor:
        self.where.covered.pop(name, None)
        matched = self.edge_map(edge_index, (), 0, name)
        site, piece = self.where.locate(name, matched)
        sender, receiver = nodes if isinstance(nodes, tuple) else (nodes, nodes)
        messages = Messages(
            site=site,
            piece=piece,
            value=value,
            edge_dim=0,
            source=edge_index[0],
            target=edge_index[1],
            edges=matched.edges,
            source_states=rows_of_nodes(sender, 0),
            target_states=rows_of_nodes(receiver, 0),
        )
        for key, extra in extras.items():
            if extra is not None:
                add_extra(messages, key, extra)
        gate = extras.get("gate")
        messages.attention = None if gate is None else gate.detach()
        if self.mask is None:
            self._look(messages)
            return value
        if self.mask.exchange is not None:
            messages.value = value[exchange_order(self.mask.at(messages)[0], self.mask.exchange)]
        gate, baseline, *rows = self.mask.at(messages)
        return sent.replace(messages, gate, baseline, *rows)

    def on_matrix(self, name: str, call: MatrixCall) -> Answer | None:
        self.where.covered.pop(name, None)
        sender, receiver = call.edge_index()
        matched = self.edge_map(torch.stack([sender, receiver]), (), 0, name)
        site, piece = self.where.locate(name, matched)
        about = Call(site=site, piece=piece, source=sender, target=receiver, edges=matched.edges)
        if self.mask is None:
            self._look(Messages(**vars(about), value=call.messages, edge_dim=0, matrix=call))
            return None
        if self.mask.exchange is not None:
            order = exchange_order(self.mask.at(about)[0], self.mask.exchange)
            call.carried, call.weights = call.rows()[order], call.weights[order]
        return self.mask.at(about)

    def on_attention(self, name: str, given: Inputs) -> Tensor:
        """[B, H, N, D'] what attention comes to at this call."""
        self.where.covered.pop(name, None)
        attention = Attention(given, name)
        pairs = self._pairs(attention)
        matched = self.edge_map(pairs.edge_index, (), 0, name)
        site, piece = self.where.locate(name, matched)
        sender, receiver = pairs.edge_index
        about = Call(site=site, piece=piece, source=sender, target=receiver, edges=matched.edges)
        if self.mask is None:
            attended = Attended(attention, pairs, attention.weights(attention.logits()))
            messages = Messages(**vars(about), value=attention.value, edge_dim=0, attended=attended)
            messages.attention = attended.per_gate()
            self._look(messages)
            return attended.weights @ attention.value
        gate, baseline, *_ = self.mask.at(about)
        stand_in = self.sites[site].stand_in
        if baseline.dim() > 1:
            baseline = pairs.per_sequence(baseline)
        constant = stand_in.logits_of(baseline) if self.mask.logits is None else self.mask.logits(site)
        size = (attention.heads, attention.value.shape[-1])
        answer = pairs.spread(gate), stand_in.message_of(baseline).unflatten(-1, size), constant
        if self.mask.exchange is not None:
            return attention.exchanged(*answer, self.mask.exchange)
        return attention.masked(*answer)

    def _pairs(self, attention: Attention) -> Pairs:
        """Layers, and runs over the same batch, share what they can: most have the same mask."""
        allowed, relations = attention.pairs_allowed(), attention.heads if self.heads == "each" else 1
        known = self.edge_map.pairs
        if known is None or not known.is_of(allowed, relations):
            known = self.edge_map.pairs = Pairs(allowed, relations)
        return known
