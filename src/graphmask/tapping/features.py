r"""Input features as messages: the features of a node, or of an edge, are gated like the messages of a layer.

.. math:: x'_v = z_v x_v + (1 - z_v) b \qquad\text{or}\qquad x'_{vf} = z_{vf} x_{vf} + (1 - z_{vf}) b_f

with one learned baseline b for all. This is one more site, below all layers, whose gates see the features alone. In the
arrays of a batch these gates follow those of the user's edges, as if node v sent its features to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.graphs import batches
from graphmask.graphs.forwards import names_of
from graphmask.tapping.exchange import between
from graphmask.tapping.messages import Messages

#: What can be gated: of which attribute of a batch, and is each number by itself?
KINDS = {"nodes": ("x", False), "each": ("x", True), "edges": ("edge_attr", False)}


def check_kind(kind: str | None) -> str | None:
    if kind not in {None, *KINDS}:
        raise GraphMaskError(f"Expected features to be {', '.join(map(repr, KINDS))} or None, got {kind!r}.")
    return kind


def put_baseline(kind: str, value: Tensor, gate: Tensor, baseline: Tensor) -> Tensor:
    """The features with the baseline where gates are shut; ``gate`` is flat, bool or between 0 and 1."""
    rows = value.reshape(len(value), -1)
    if not KINDS[kind][1]:
        return between(rows, gate, baseline).view_as(value)
    baseline, gate = baseline.to(rows.dtype), gate.view_as(rows)
    if gate.dtype == torch.bool:
        return torch.where(gate, rows, baseline).view_as(value)
    return torch.lerp(baseline.expand_as(rows), rows, gate.to(rows.dtype)).view_as(value)


class FeatureTap:
    """Where a batch's features enter the model. By itself it changes nothing; `capture.tap` sets its handler."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.attribute, self.each = KINDS[kind]
        self.handler: Callable[[Tensor], Tensor] | None = None

    def __call__(self, batch: Any) -> Any:
        """A batch whose features are what the handler returns for them; the user's batch is not changed."""
        if self.handler is None:
            return batch
        return batches.adapter(batch).with_value(batch, self.attribute, self.handler(self.read(batch)))

    def read(self, batch: Any) -> Tensor:
        """[N, ...] or [E, ...], checked."""
        adapter = batches.adapter(batch)
        if adapter.by_type:
            raise GraphMaskError(
                f"Expected graphs with one type of nodes for features={self.kind!r}, got HeteroData. "
                "Pass data.to_homogeneous(), or leave features out."
            )
        edge_index, value = adapter.edge_index(batch), adapter.features(batch, self.attribute)
        if edge_index is None:
            raise GraphMaskError(f"Expected edge_index in the batch for features={self.kind!r}, found none.")
        of = "edge" if self.kind == "edges" else "node"
        count = edge_index.shape[1] if of == "edge" else adapter.num_nodes(batch, edge_index)
        if value is None or not value.is_floating_point() or value.dim() == 0 or value.shape[0] != count:
            got = "none" if value is None else f"{value.dtype} of shape {tuple(value.shape)}"
            raise GraphMaskError(
                f"Expected floating point {self.attribute!r} with a row per {of} in the batch for "
                f"features={self.kind!r}, got {got}. Numbers of classes are no features: make them one-hot, or "
                "explain the part of the model behind their embedding."
            )
        return value

    def ends(self, batch: Any, edge_index: Tensor) -> Tensor:
        """[2, M] the ends of every gate: twice the same node, or those of an edge."""
        value = self.read(batch)
        if self.kind == "edges":
            return edge_index
        nodes = torch.arange(len(value), device=edge_index.device, dtype=edge_index.dtype)
        if self.each:
            nodes = nodes.repeat_interleave(value[0].numel() if len(value) else 0)
        return torch.stack([nodes, nodes])

    def messages(self, site: int, value: Tensor, first: int, ends: Tensor) -> Messages:
        """The features as messages; ``first`` is the number of their first gate in the arrays of the batch."""
        rows = value.reshape(len(value), -1).detach()
        messages = Messages(
            site=site,
            piece=0,
            value=rows.reshape(-1, 1) if self.each else rows,
            edge_dim=0,
            source=ends[0],
            target=ends[1],
            edges=torch.arange(first, first + ends.shape[1], device=ends.device),
        )
        if self.each:
            messages.source_states, messages.whole, messages.num_relations = rows, rows, rows.shape[1]
            messages.categories["column"] = torch.arange(rows.shape[1], device=rows.device).repeat(len(rows))
        return messages


# `masked`, where the user calls the model ---------------------------------------------------------------------------


class ExplainedFeatures(Protocol):
    """The part of `explanation.Features` that this layer needs; the class itself is in a layer above."""

    @property
    def kind(self) -> str: ...
    @property
    def kept(self) -> Tensor: ...
    @property
    def baseline(self) -> Tensor: ...


@contextmanager
def masked_input(model: nn.Module, features: ExplainedFeatures) -> Iterator[None]:
    """Inside, the features that ``model`` is called with are replaced where their gates are shut."""
    attribute = KINDS[features.kind][0]

    def replace(value: Any) -> Tensor:
        if not isinstance(value, Tensor) or len(value) != len(features.kept):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise GraphMaskError(f"Expected {attribute!r} with {len(features.kept)} rows, as explained, got {got}.")
        return put_baseline(features.kind, value, features.kept.flatten(), features.baseline)

    def holds(value: Any) -> bool:
        """A batch with these features in it?"""
        graph = isinstance(value, (*batches.GRAPHS, Mapping))
        return graph and batches.adapter(value).features(value, attribute) is not None

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names: dict[Any, str] = dict(enumerate(names_of(model)))
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        named = [key for key in given if names.get(key, key) == attribute]
        inside = [key for key, value in given.items() if holds(value)]
        alike = [key for key, value in given.items() if _fits(value, features)]
        at = next((keys[0] for keys in (named, inside, alike) if len(keys) == 1), None)
        if at is None:
            raise GraphMaskError(
                f"Expected one argument of the model that is {attribute!r}, or a batch that has it, found none. Name "
                f"it {attribute!r} in the model's forward."
            )
        value, adapter = given[at], batches.adapter(given[at]) if at in inside and at not in named else None
        if adapter is None:
            given[at] = replace(value)
        else:
            given[at] = adapter.with_value(value, attribute, replace(adapter.features(value, attribute)))
        return tuple(given[key] for key in range(len(args))), {key: given[key] for key in kwargs}

    handle = model.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _fits(value: Any, features: ExplainedFeatures) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
        return False
    return len(value) == len(features.kept) and value[:1].numel() == features.baseline.numel()
