"""The messages of one call of a layer, what is known of them, and what replaces them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse

from graphmask.errors import GraphMaskError
from graphmask.ops import fused
from graphmask.ops.kernels import ALL, blend
from graphmask.tapping.attention import Attended
from graphmask.tapping.taps import MatrixCall


@dataclass
class Call:
    """One call of a layer: ``E'`` counts the edges the layer sees, which may differ from the user's ``E``."""

    site: int
    piece: int  #: position of the call within its site, for instance the relation
    source: Tensor  #: [E'] node that sends
    target: Tensor  #: [E'] node that receives
    edges: Tensor | None  #: [E'] position in the user's edges, -1 for the layer's own self-loops; None: the same


@dataclass
class Messages(Call):
    """The messages of a call."""

    value: Tensor  #: as the layer made it; the edges lie along ``edge_dim``
    edge_dim: int
    source_states: Tensor | None = None  #: [N, d] what the layer knows of its nodes
    target_states: Tensor | None = None
    features: dict[str, Tensor] = field(default_factory=dict)  #: float [E', k]: edge attribute, weight, attention
    categories: dict[str, Tensor] = field(default_factory=dict)  #: long [E']: relation
    num_relations: int = 0  #: what the layer says of itself
    lifted: tuple[Tensor, Tensor | None] | None = None  #: (x [N, D], weight [E']) if the message may be weight * x_j
    matrix: MatrixCall | None = None  #: the adjacency-matrix form of the same
    attended: Attended | None = None  #: where the layer is attention over sequences
    attention: Tensor | None = None  #: [E', ...] what the layer itself weighs messages by: attention or a gate
    logits: Tensor | None = None  #: [E', ...] what a softmax over edges compared before the messages were made
    arguments: dict[str, Tensor] = field(default_factory=dict)  #: [E, ...] of the layer, which it compares edges by
    fresh: bool = False  #: made for this call alone and nobody else's: may be overwritten
    whole: Tensor | None = None  #: [N, F] input features, where each number of them is a message
    picked: tuple[Tensor, Tensor] | None = None  #: (x [N, D], source) if the message is x[source], and nothing else

    def is_lifted(self) -> bool:
        """Is the message really ``weight * x_j``? True of most layers that transform nodes before sending."""
        if self.lifted is None:
            return False
        x, weight = self.lifted
        x_j = x.index_select(0, self.source)
        return torch.allclose(self.flat(), x_j if weight is None else x_j * weight[:, None], rtol=1e-4, atol=1e-6)

    def flat(self) -> Tensor:
        """[E', D]: one row per edge, heads and stacks side by side."""
        if self.value.dim() == 2 and self.edge_dim == 0:
            return self.value
        return self.value.movedim(self.edge_dim, 0).flatten(1) if self.value.dim() > 1 else self.value[:, None]

    def rows(self) -> Tensor:
        """[E', D] as `flat`, and also of the adjacency-matrix form; of attention or features, one row per sender."""
        if self.whole is not None:
            return self.whole
        if self.attended is not None:
            return self.attended.values()
        return self.flat() if self.matrix is None else self.matrix.rows()

    def compared(self) -> Tensor | None:
        """[n, H] what a softmax over edges compared; None if there was none."""
        if self.attended is not None:
            return self.attended.logits()
        return None if self.logits is None else self.logits.reshape(len(self.logits), -1)

    def spread(self, per_edge: Tensor) -> Tensor:
        """[E'] -> a shape that broadcasts against ``value``."""
        shape = [1] * self.value.dim()
        shape[self.edge_dim] = -1
        return per_edge.view(shape)

    def baseline(self, flat: Tensor) -> Tensor:
        """[D] or [E', D] -> a shape that broadcasts against ``value``; the inverse of `flat`."""
        rest = [size for dim, size in enumerate(self.value.shape) if dim != self.edge_dim]
        return flat.reshape(-1, *rest).movedim(0, self.edge_dim)


#: Looks at the messages of a call.
Visit = Callable[[Messages], None]
#: What to put in place of messages: (gate [E'], baseline [D] or [E', D], see `sites.StandIn`), and perhaps the only
#: rows whose gates need a gradient.
Answer = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, slice]


@dataclass(frozen=True)
class Mask:
    """Says what replaces the messages of a model. It is called before messages are computed, not after."""

    at: Callable[[Call], Answer]
    #: The same for a site's edges as the user passed them; without it, arguments of layers stay as they are.
    of_edges: Callable[[int], Answer] | None = None
    #: A site's stand-in for logits, where it is not to be taken from the baseline: there it would have its gradient.
    logits: Callable[[int], Tensor] | None = None
    exchange: torch.Generator | None = None  #: dropped edges exchange their content at random: it must not matter


def replace(messages: Messages, gate: Tensor, baseline: Tensor, rows: slice = ALL) -> Tensor:
    r"""Equation 3 of the paper, :math:`z m + (1 - z) b`; exactly ``m`` where z = 1 and exactly ``b`` where z = 0."""
    width = prod(size for dim, size in enumerate(messages.value.shape) if dim != messages.edge_dim)
    if baseline.shape[-1] != width:
        raise GraphMaskError(
            f"Expected a baseline of {width} numbers, as messages here have, got one of {baseline.shape[-1]}. Use what "
            "was made with this model."
        )
    baseline = baseline.to(messages.value.dtype)
    overwrite = messages.fresh and not torch.is_grad_enabled()
    if overwrite and messages.edge_dim == 0 and fused.overwrite(messages.value, gate, baseline):
        return messages.value
    gate = gate.to(messages.value.dtype)
    if overwrite:
        # Without another copy of the messages; weight 0 leaves m, weight 1 gives b, exactly.
        return messages.value.lerp_(messages.baseline(baseline), messages.spread(1 - gate))
    if messages.edge_dim == 0 and baseline.dim() == 1:
        flat = messages.flat()  # writing to a view would make autograd copy all of it
        in_place = messages.fresh and flat is messages.value and rows != ALL
        out = blend(flat, gate, baseline, rows, in_place=in_place, picked=messages.picked if in_place else None)
        return out if flat is messages.value else out.view_as(messages.value)
    return torch.lerp(messages.baseline(baseline), messages.value, messages.spread(gate))


# What a PyTorch Geometric layer knows of its messages ---------------------------------------------------------


def add_extra(messages: Messages, key: str, extra: Tensor) -> None:
    """Keep what is known per edge beside the message: two equal messages of different relations differ in it."""
    if extra.dim() == 0 or extra.shape[0] != messages.source.shape[0] or extra is messages.value:
        return
    columns = extra[:, None] if extra.dim() == 1 else extra.flatten(1)
    if extra.is_floating_point():
        messages.features[key] = columns.detach()
    elif extra.dim() == 1 and extra.dtype != torch.bool:
        messages.categories[key] = extra
    else:
        messages.features[key] = columns.to(messages.value.dtype)


def is_fresh(value: Tensor, layer: MessagePassing, kwargs: dict[str, Any]) -> bool:
    """Only of PyG's own layers is it known that they keep no message; lifted rows (x_j) are copies made by PyG."""
    if not type(layer).__module__.startswith("torch_geometric."):
        return False
    if value.grad_fn is not None and value.grad_fn.name() not in _NEED_NO_RESULT:
        return False
    if value.is_leaf and value.requires_grad:
        return False
    given = [v for key, v in kwargs.items() if isinstance(v, Tensor) and not key.endswith(("_i", "_j"))]
    return all(v.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() for v in given if not is_sparse(v))


#: Operations whose gradient does not need what they returned: it may be overwritten.
_NEED_NO_RESULT = ("IndexSelectBackward0", "MulBackward0")


def lifted(
    messages: Messages, layer: MessagePassing, kwargs: dict[str, Any], propagated: dict[str, Any]
) -> tuple[Tensor, Tensor | None] | None:
    """The node rows, and the weight per edge, of which the messages may be the product."""
    x, weight = propagated.get("x"), kwargs.get("edge_weight", kwargs.get("alpha"))
    if isinstance(x, (tuple, list)):
        x = x[0 if layer.flow == "source_to_target" else 1]
    if "x_j" not in kwargs or not isinstance(x, Tensor) or x.dim() < 2 or messages.edge_dim != 0:
        return None
    if messages.value.shape[1:] != x.shape[1:]:
        return None
    if weight is not None and (not isinstance(weight, Tensor) or weight.numel() != messages.source.numel()):
        return None
    return x.flatten(1), None if weight is None else weight.reshape(-1)


def rows_of_nodes(states: Tensor | None, node_dim: int) -> Tensor | None:
    """[N, d]: one row per node."""
    if states is None or not states.is_floating_point():
        return None
    if states.dim() == 1:
        return states[:, None].detach()
    return states.movedim(node_dim, 0).flatten(1).detach()


def states(
    layer: MessagePassing, inputs: tuple[Any, ...], propagated: dict[str, Any], collected: dict[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Node states (sender's, receiver's): the first tensor, or pair, of the layer's inputs with a row per node.

    What the layer ``collected`` for its messages under a name with _i or _j is per node, so it tells how many
    there are: attributes of edges are inputs too, and may come first.
    """
    per_node = [propagated.get(key[:-2]) for key in collected if key.endswith(("_i", "_j"))]
    counts = {_count(part, layer.node_dim) for value in per_node for part in _pair(value) if isinstance(part, Tensor)}
    for key, candidate in [*(("", value) for value in inputs), *propagated.items()]:
        pair = _pair(candidate)
        if f"{key}_j" in collected and f"{key}_i" not in collected and isinstance(candidate, Tensor):
            # Receivers are told by a tensor of their own (HGTConv: keys and queries), in numbers of their own.
            mine = (propagated.get(name[:-2]) for name in collected if name.endswith("_i"))
            pair = (pair[0], next((value for value in mine if isinstance(value, Tensor)), pair[1]))
        if not isinstance(pair[0], Tensor) or not pair[0].is_floating_point() or is_sparse(pair[0]):
            continue
        if counts and _count(pair[0], layer.node_dim) not in counts:
            continue
        if pair[0] is pair[1]:
            both = rows_of_nodes(pair[0], layer.node_dim)
            states = (both, both)
        else:
            second = pair[1] if isinstance(pair[1], Tensor) else None
            states = (rows_of_nodes(pair[0], layer.node_dim), rows_of_nodes(second, layer.node_dim))
        return states  # PyG takes x_j from the first of a pair whichever way messages flow
    return None, None


def nodes_seen(layer: MessagePassing, propagated: dict[str, Any]) -> int | None:
    """How many nodes the layer sends between; None where senders and receivers differ, or where it is unknown."""
    names = {name[:-2] for name in (*layer._user_args, *layer._edge_user_args) if name.endswith(("_i", "_j"))}
    parts = [part for name in names for part in _pair(propagated.get(name)) if isinstance(part, Tensor) and part.dim()]
    counts = {_count(part, layer.node_dim) for part in parts}
    return counts.pop() if len(counts) == 1 else None


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)


def _count(states: Tensor, node_dim: int) -> int:
    return states.shape[node_dim if states.dim() > 1 else 0]
