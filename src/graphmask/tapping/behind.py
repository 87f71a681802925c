r"""Stand-ins that are added to a layer's output, of layers that go on to treat messages by their relation.

RGCNConv multiplies what it has collected along a relation by that relation's weight, and divides by how many edges of
the relation there are; FiLMConv does the latter. A constant in place of a message would come out different for each
relation, and a dropped edge would still count among those of its relation. Instead a dropped message is left out,

.. math:: h_v = \sum_r W_r \frac{1}{|\{u : z_{uv} = 1\}|} \sum_{u} z_{uv} m_{uv} + b\, \overline{1 - z}_v ,

and the baseline b is added behind, in proportion to the share of the node's edges that were dropped (to their number,
where a layer sums). While gates are soft, an edge is gone from the mean of its relation to the degree (1 - z)^8: not
before its gate is nearly shut, so that gates which are all half open do not make up for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn import FastRGCNConv, MessagePassing, RGCNConv

from graphmask.graphs.sites import Site


def is_behind(layer: MessagePassing, site: Site, output: object) -> bool:
    """Whether this layer transforms messages by their relation after they were sent."""
    relational = isinstance(layer, RGCNConv) or (len(site.calls) > 1 and not site.types)
    return relational and averages(layer) is not None and isinstance(output, Tensor) and output.dim() == 2


def averages(layer: MessagePassing) -> bool | None:
    """True where messages are averaged, False where they are summed, None for any other aggregation."""
    return {"mean": True, "add": False, "sum": False}.get(layer.aggr if isinstance(layer.aggr, str) else "")


def weights(gate: Tensor, layer: MessagePassing, target: Tensor, relation: Tensor | None) -> Tensor:
    """[E'] what messages are multiplied by: their gates, so scaled that a mean is that of the kept ones alone.

    ``relation`` [E'] where one call carries several.
    """
    if not averages(layer):
        return gate
    if isinstance(layer, FastRGCNConv) and relation is not None:
        target = target * layer.num_relations + relation
    return gate * _regained(target, gate)


def _regained(group: Tensor, gate: Tensor) -> Tensor:
    """[E'] how many edges are in the group of each, over how many are left of them."""
    groups = int(group.max()) + 1 if group.numel() else 0
    count = torch.bincount(group, minlength=groups).to(gate.dtype)
    left = (count - gate.new_zeros(groups).index_add(0, group, _gone(gate))).clamp_min(1)
    return (count / left).index_select(0, group)


def _gone(gate: Tensor) -> Tensor:
    """(1 - z)^8; squaring takes a fraction of the time of a power."""
    shut = 1 - gate
    return shut.square().square().square()


@dataclass
class Dropped:
    """What was dropped in one call of a layer."""

    gate: Tensor  #: [E']
    target: Tensor  #: [E']
    baseline: Tensor  #: [D], or [E', D] with one per edge


def add(output: Tensor, layer: MessagePassing, calls: list[Dropped]) -> Tensor:
    """The layer's output with what stands in for the messages that were dropped in its calls."""
    target = torch.cat([call.target for call in calls])
    shut = torch.cat([1 - call.gate.to(output.dtype) for call in calls])
    if averages(layer):
        degree = output.new_zeros(len(output)).index_add_(0, target, torch.ones_like(shut))
        shut = shut / degree.index_select(0, target)
    baseline = calls[0].baseline
    if baseline.dim() == 1:
        return output + torch.outer(output.new_zeros(len(output)).index_add(0, target, shut), baseline.to(output.dtype))
    each = torch.cat([call.baseline for call in calls]).to(output.dtype)
    return output.index_add(0, target, shut[:, None] * each)
