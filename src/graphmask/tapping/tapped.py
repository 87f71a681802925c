"""The state of one tapped model: the current call of a layer or a tap, what is read of it, and what replaces it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.pooled import PooledGraphs
from graphmask.graphs.sites import Site
from graphmask.tapping import messages as sent
from graphmask.tapping.attention import Attended, Attention, Inputs, Pairs
from graphmask.tapping.exchange import exchange_order
from graphmask.tapping.features import FeatureTap, put_baseline
from graphmask.tapping.locating import Locator
from graphmask.tapping.messages import Answer, Call, Mask, Messages, Visit, add_extra, rows_of_nodes
from graphmask.tapping.taps import MatrixCall


class Tap:
    """One tapping of a model: the visitor or mask, the number of the next call, and the site it belongs to.

    The state of a PyTorch Geometric layer while it runs is in `layers.TappedLayer`.
    """

    def __init__(
        self,
        visit: Visit | Mask,
        edge_map: EdgeMap,
        sites: tuple[Site, ...] | None,
        heads: str = "each",
        leaky_keys: bool = False,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self.visit = visit
        self.mask = visit if isinstance(visit, Mask) else None
        self.where = Locator(edge_map, sites, kinds)
        self.match = PooledGraphs(edge_map)  #: which of the user's edges a call sends along
        self.heads = next((site.heads for site in sites or () if site.heads), heads)
        self.leaky_keys = leaky_keys
        self.live = True
        self.asleep = False  # a layer runs for another reason than the model's forward
        #: The thread of the layer that is computing messages now, and what its softmaxes are to compare.
        self.underway: tuple[int, Callable[[Tensor, int], Tensor]] | None = None

    @property
    def sites(self) -> list[Site]:
        return self.where.sites

    @property
    def edge_map(self) -> EdgeMap:
        return self.where.edge_map

    def restart(self) -> None:
        """A new run of the model begins."""
        self.where.restart()
        self.match.restart()

    def check_complete(self) -> None:
        """Raise unless every site was visited exactly as when the sites were found."""
        self.where.check_complete()

    def compare(self, logits: Tensor, dim: int) -> Tensor:
        """What a softmax over edges is to compare instead of ``logits``."""
        if self.underway is None or self.underway[0] != threading.get_ident():
            return logits  # not in a layer of this model
        return self.underway[1](logits, dim)

    def look(self, messages: Messages) -> None:
        """Show the messages of a call to the visitor; describe their site while sites are being found."""
        if self.where.discovering:
            site = self.sites[messages.site]
            width = messages.rows().shape[1] if messages.matrix is None else messages.matrix.messages.shape[-1]
            logits = 0 if messages.logits is None else math.prod(messages.logits.shape[1:])
            if messages.attended is not None:
                logits = 0 if self.leaky_keys else messages.attended.heads
                site = replace(site, heads=self.heads)
            stand_in = replace(site.stand_in, message=width, logits=max(site.stand_in.logits, logits))
            self.sites[messages.site] = replace(site, stand_in=stand_in)
        assert not isinstance(self.visit, Mask)
        self.visit(messages)

    def on_features(self, tap: FeatureTap, value: Tensor) -> Tensor:
        """What replaces the input features."""
        ends = self.edge_map.more
        assert ends is not None
        messages = tap.messages(self.where.below(tap.attribute), value, self.edge_map.count, ends)
        if self.mask is None:
            self.look(messages)
            return value
        gate, baseline, *_ = self.mask.at(messages)
        return put_baseline(tap.kind, value, gate, baseline)

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
        sender, receiver = nodes if isinstance(nodes, tuple) else (nodes, nodes)
        seen = None if sender is None or receiver is None or len(sender) != len(receiver) else len(sender)
        matched = self.match(edge_index, (), 0, name, seen)
        site, piece = self.where.locate(name, matched)
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
            self.look(messages)
            return value
        if self.mask.exchange is not None:
            messages.value = value[exchange_order(self.mask.at(messages)[0], self.mask.exchange)]
        gate, baseline, *rows = self.mask.at(messages)
        return sent.replace(messages, gate, baseline, *rows)

    def on_matrix(self, name: str, call: MatrixCall) -> Answer | None:
        self.where.covered.pop(name, None)
        sender, receiver = call.edge_index()
        nodes = call.adjacency.shape[0] * call.adjacency.shape[-1]
        if self.edge_map.edge_index is None:
            self.edge_map.nodes = nodes
        matched = self.match(torch.stack([sender, receiver]), (), 0, name, nodes)
        site, piece = self.where.locate(name, matched)
        about = Call(site=site, piece=piece, source=sender, target=receiver, edges=matched.edges)
        if self.mask is None:
            self.look(Messages(**vars(about), value=call.messages, edge_dim=0, matrix=call))
            return None
        if self.mask.exchange is not None:
            order = exchange_order(self.mask.at(about)[0], self.mask.exchange)
            call.carried, call.weights = call.rows()[order], call.weights[order]
        return self.mask.at(about)

    def on_attention(self, name: str, given: Inputs) -> Tensor:
        """[B, H, N, D'] the output of attention at this call."""
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
            self.look(messages)
            return attended.weights @ attention.value
        gate, baseline, *_ = self.mask.at(about)
        stand_in = self.sites[site].stand_in
        if baseline.dim() > 1:
            baseline = pairs.per_sequence(baseline)
        constant = None  # leaky: logits stay as they are
        if stand_in.logits:
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
