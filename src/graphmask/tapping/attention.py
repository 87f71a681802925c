r"""Attention as message passing: at every head, token j sends its value to token i.

.. math:: o_i = \sum_j \alpha_{ij} v_j, \qquad \alpha_{i \cdot} = \mathrm{softmax}_j(l_{ij})

Masked, what is replaced is the logit as well as the value, so that a dropped pair is silent: with gates z, a learned
constant c and a learned baseline b per head,

.. math:: l'_{ij} = z_{ij} l_{ij} + (1 - z_{ij}) c, \qquad
   o'_i = \sum_j \alpha'_{ij} \big(z_{ij} v_j + (1 - z_{ij}) b\big)
        = (\alpha' \circ z) V + \big((\alpha' \circ (1 - z)) \mathbf 1\big) b^\top

The right-hand side takes memory for a number per pair and head, never for a vector per pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.graphs.sites import ABSENT

#: How heads can be gated: each by itself, or one gate for all heads of a layer.
HEADS = ("each", "together")


def check_heads(heads: str) -> str:
    if heads not in HEADS:
        raise GraphMaskError(f"Expected heads to be {' or '.join(map(repr, HEADS))}, got {heads!r}.")
    return heads


class Pairs:
    """The edges of a batch of sequences: the pairs (receiver, sender) that the attention mask allows.

    A position that nobody may attend to is padding. It is no node, so it receives along no edge either, and nodes are
    numbered without it: an explanation does not depend on how much padding a sentence was given. Edges are ordered by
    sequence, relation (a head; or all heads together), receiver and sender.
    """

    def __init__(self, allowed: Tensor, relations: int) -> None:
        self.asked = allowed  #: [B, N, N] what the mask allows
        self.nodes = allowed.any(1)  #: bool [B, N]
        self.allowed = allowed & self.nodes[:, :, None]  #: without what padding receives
        batch, count, _ = allowed.shape
        self.shape = (batch, relations, count, count)
        everywhere = bool(self.allowed.all())
        #: [E] where the edges lie in [B, R, N, N]; None if that is everywhere.
        self.at = None if everywhere else self._each(self.allowed[:, None]).flatten().nonzero().view(-1)
        number = (self.nodes.flatten().cumsum(0) - 1).view(batch, 1, count)
        self.edge_index = torch.stack([self.gather(number[:, :, None, :]), self.gather(number[..., None])])

    def is_of(self, allowed: Tensor, relations: int) -> bool:
        return self.shape[1] == relations and self.asked.shape == allowed.shape and torch.equal(self.asked, allowed)

    def _each(self, dense: Tensor) -> Tensor:
        return dense.expand(self.shape)

    def gather(self, dense: Tensor) -> Tensor:
        """[B, R, N, N], or what can be expanded to it -> [E]."""
        flat = self._each(dense).reshape(-1)
        return flat if self.at is None else flat.index_select(0, self.at)

    def spread(self, per_edge: Tensor) -> Tensor:
        """[E] -> [B, R, N, N], with ones where no edges are."""
        if self.at is None:
            return per_edge.view(self.shape)
        room = per_edge.new_ones(self.shape).view(-1)
        return room.index_copy(0, self.at, per_edge).view(self.shape)

    def per_sequence(self, per_edge: Tensor) -> Tensor:
        """[E, D], the same for all edges of a sequence -> [B, D]; zeros for a sequence without edges."""
        owner = self.edge_graph
        first = torch.searchsorted(owner, torch.arange(self.shape[0], device=owner.device))
        has = torch.bincount(owner, minlength=self.shape[0]) > 0
        return per_edge[first.clamp_max(len(owner) - 1)] * has[:, None]

    @cached_property
    def edge_graph(self) -> Tensor:
        """[E] the sequence that an edge belongs to."""
        return self.gather(torch.arange(self.shape[0], device=self.asked.device)[:, None, None, None])

    @cached_property
    def edge_type(self) -> Tensor:
        """[E] the head, as int16: there are as many as pairs; 0 where all are gated together."""
        heads = torch.arange(self.shape[1], dtype=torch.int16, device=self.asked.device)
        return self.gather(heads[None, :, None, None])

    @property
    def sizes(self) -> Tensor:
        """[B] nodes."""
        return self.nodes.sum(1)


@dataclass
class Inputs:
    """What one call of attention is given, whoever calls."""

    query: Tensor  #: [B, H, N, D]
    key: Tensor  #: [B, H, N, D], or fewer heads that several queries share
    value: Tensor  #: [B, H, N, D'], likewise
    mask: Tensor | None = None  #: broadcasts to [B, H, N, N]: bool, True where allowed, or a float that is added
    scaling: float | None = None
    dropout: float = 0.0
    softcap: float | None = None
    nodes: Tensor | None = None  #: [B, N, d] the states that all this was made from, for gates to see


class Attention:
    """One call of attention over sequences: [B, H, N, D] queries, keys and values."""

    def __init__(self, given: Inputs, name: str = "attention") -> None:
        self.given = given
        query, key, value = given.query, given.key, given.value
        if query.dim() != 4 or key.dim() != 4 or value.shape[:3] != key.shape[:3] or query.shape[1] % key.shape[1]:
            raise GraphMaskError(
                f"Expected queries, keys and values [B, H, N, D] at {name!r}, got {tuple(query.shape)}, "
                f"{tuple(key.shape)} and {tuple(value.shape)}."
            )
        if query.shape[2] != key.shape[2]:
            raise GraphMaskError(
                f"Expected self-attention at {name!r}, as many queries as keys, got {query.shape[2]} and "
                f"{key.shape[2]}. Cross-attention and cached keys (past_key_values) are not supported: run the model "
                "on whole sequences."
            )
        groups = query.shape[1] // key.shape[1]
        self.query = query
        self.key, self.value = (part if groups == 1 else part.repeat_interleave(groups, 1) for part in (key, value))
        self.allowed, self.bias = _read(given.mask, name)
        self.scaling = query.shape[-1] ** -0.5 if given.scaling is None else given.scaling

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    def pairs(self, relations: int) -> Pairs:
        return Pairs(self.pairs_allowed(), relations)

    def pairs_allowed(self) -> Tensor:
        """bool [B, N, N], what any head may attend to."""
        batch, _, count, _ = self.query.shape
        if self.allowed is None:
            return self.query.new_ones((), dtype=torch.bool).expand(batch, count, count)
        return self.allowed.any(1).expand(batch, count, count)

    def logits(self) -> Tensor:
        """[B, H, N, N] before anything is forbidden."""
        logits = self.query @ self.key.transpose(2, 3) * self.scaling
        if self.given.softcap is not None:
            logits = torch.tanh(logits / self.given.softcap) * self.given.softcap
        return logits if self.bias is None else logits + self.bias

    def weights(self, logits: Tensor) -> Tensor:
        """[B, H, N, N] the softmax over what is allowed."""
        if self.allowed is not None:
            logits = logits.masked_fill(~self.allowed, torch.finfo(logits.dtype).min)
        weights = F.softmax(logits, -1, dtype=_at_least_float(logits.dtype)).to(self.query.dtype)
        return F.dropout(weights, self.given.dropout) if self.given.dropout else weights

    def plain(self) -> Tensor:
        """[B, H, N, D'] as the model computes it."""
        return self.weights(self.logits()) @ self.value

    def masked_weights(self, gate: Tensor, constant: Tensor | None) -> Tensor:
        """[B, H, N, N] the softmax in which dropped pairs have the logit ``constant``, [H] or [B, H].

        With None they keep their own, the leaky form: keys of dropped pairs still steer the softmax.
        """
        return self.weights(self.logits() if constant is None else mixed(self.logits(), gate, constant))

    def masked(self, gate: Tensor, baseline: Tensor, constant: Tensor | None) -> Tensor:
        """[B, H, N, D'] with gates [B, R, N, N], bool or float; baseline [H, D'] or [B, H, D'], constant [H] or [B, H].

        Exactly `plain` where all gates are 1. For a constant of None see `masked_weights`.
        """
        weights = self.masked_weights(gate, constant)
        kept = weights.where(gate, 0) if gate.dtype == torch.bool else weights * gate.to(weights.dtype)
        baseline = baseline.to(self.value.dtype)
        baseline = baseline[:, :, None] if baseline.dim() == 3 else baseline[None, :, None]
        return kept @ self.value + (weights - kept).sum(-1, keepdim=True) * baseline

    def exchanged(self, gate: Tensor, baseline: Tensor, constant: Tensor | None, generator: torch.Generator) -> Tensor:
        """As `masked`, after the dropped pairs of every head have exchanged keys and values at random.

        It is computed pair by pair, with a vector for each, to test that the output does not depend on dropped pairs.
        """
        batch, heads, count, _ = self.query.shape
        gate = gate.expand(batch, heads, count, count)
        keys, values = (
            part[:, :, None].expand(-1, -1, count, -1, -1).reshape(batch * heads * count**2, -1)
            for part in (self.key, self.value)
        )
        shut = (gate.reshape(-1) == 0).nonzero().view(-1)
        order = torch.arange(len(keys), device=keys.device)
        order[shut] = shut[torch.randperm(len(shut), generator=generator).to(shut.device)]
        keys, values = (part[order].view(batch, heads, count, count, -1) for part in (keys, values))
        logits = (self.query[:, :, :, None] * keys).sum(-1) * self.scaling
        if self.given.softcap is not None:
            logits = torch.tanh(logits / self.given.softcap) * self.given.softcap
        logits = logits if self.bias is None else logits + self.bias
        weights = self.weights(logits if constant is None else mixed(logits, gate, constant))
        baseline = baseline.to(values.dtype)
        baseline = baseline[:, :, None, None] if baseline.dim() == 3 else baseline[None, :, None, None]
        z = gate.to(values.dtype)[..., None]
        return (weights[..., None] * (z * values + (1 - z) * baseline)).sum(3)


def mixed(logits: Tensor, gate: Tensor, constant: Tensor) -> Tensor:
    r"""Logits [B, H, N, N] of pairs that are open to the degree z: :math:`z l + (1 - z) c`.

    Exactly ``l`` where z = 1 and exactly ``c`` where z = 0. A constant `sites.ABSENT` means that a dropped pair takes
    no part: there is nothing halfway to it, and such a pair has the share z of its mass, :math:`l + \log z`.
    """
    constant = constant[..., None, None]
    absent = None if gate.dtype == torch.bool else constant.detach() < ABSENT / 2
    constant = constant.to(logits.dtype).clamp_min(torch.finfo(logits.dtype).min / 4)  # above what is forbidden
    if absent is None:
        return torch.where(gate, logits, constant)
    z = gate.to(logits.dtype)
    between = torch.lerp(constant, logits, z)
    if not bool(absent.any()):
        return between
    return torch.where(absent & (gate > 0), logits + z.clamp_min(1e-6).log(), between)


def _at_least_float(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _read(mask: Tensor | None, name: str) -> tuple[Tensor | None, Tensor | None]:
    """What is allowed, [B or 1, H or 1, N, N], and what is added to the logits beside."""
    if mask is None:
        return None, None
    if mask.dim() == 2:
        mask = mask[None]
    if mask.dim() == 3:
        mask = mask[:, None]
    if mask.dim() != 4:
        raise GraphMaskError(f"Expected an attention mask [B, H, N, N] at {name!r}, got one of {tuple(mask.shape)}.")
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise GraphMaskError(f"Expected a bool or floating point attention mask at {name!r}, got {mask.dtype}.")
    allowed = mask > torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(~allowed, 0)
    return allowed, added if bool(added.any()) else None


@dataclass
class Attended:
    """One call of attention as it was seen: what gates look at."""

    attention: Attention
    pairs: Pairs
    weights: Tensor  #: [B, H, N, N]

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def relations(self) -> int:
        """How many gates a pair has."""
        return self.pairs.shape[1]

    def sizes(self) -> tuple[int, int, int]:
        """The widths of a message, and of what is known of its sender and of its receiver."""
        source, target = (sum(part.shape[-1] for part in parts) for parts in (self.senders(), self.receivers()))
        return self.heads * self.attention.value.shape[3], source, target

    def senders(self) -> list[Tensor]:
        """[B, N, d] each, what is known of them: keys and values of all heads, and their states."""
        given = self.attention.given
        return self._with_states([_side_by_side(given.key), _side_by_side(given.value)])

    def receivers(self) -> list[Tensor]:
        """[B, N, d] each, likewise: queries and states."""
        return self._with_states([_side_by_side(self.attention.given.query)])

    def _with_states(self, parts: list[Tensor]) -> list[Tensor]:
        nodes = self.attention.given.nodes
        return parts if nodes is None else [*parts, nodes]

    def per_gate(self) -> Tensor:
        """[E] the attention, mean over the heads that share a gate."""
        shared = self.relations < self.heads
        return self.pairs.gather(self.weights.mean(1, keepdim=True) if shared else self.weights)

    def values(self) -> Tensor:
        """[nodes, H D'] what tokens send, heads side by side."""
        return self.attention.value.transpose(1, 2).flatten(2)[self.pairs.nodes]

    def logits(self) -> Tensor:
        """[pairs, H] what the softmax compared."""
        return self.attention.logits().movedim(1, -1)[self.pairs.allowed]


def _side_by_side(heads: Tensor) -> Tensor:
    """[B, H, N, D] -> [B, N, H D]."""
    return heads.transpose(1, 2).flatten(2)
