r"""Gates of attention: one per pair of tokens and head, from what the layer knows of either token.

.. math:: \gamma^h_{ij} = x_i^\top U_h y_j + u_h^\top x_i + w_h^\top y_j + a_h \log \alpha^h_{ij} + c_h, \qquad
   x = \mathrm{ReLU}(\mathrm{LN}(W_q [q, s])), \quad y = \mathrm{ReLU}(\mathrm{LN}(W_k [k, v, s]))

with queries, keys and values of all heads side by side, and s the states that they were made from. The bilinear form of
appendix A of the paper, low-rank on both sides: it takes memory for a number per pair and head, as attention does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.gates.base import INITIAL_LOCATION, Gate, SiteSpec, linear
from graphmask.ops.kernels import ALL, clamp
from graphmask.ops.moments import Moments

if TYPE_CHECKING:
    from graphmask.tapping.messages import Messages

#: Attention below this weight looks like none at all (as a logarithm): far below, rounding would be all there is.
FAINT = -14.0


class AttentionGate(Gate):
    """The gates of one site of attention; ``spec.source`` numbers describe a sender, ``spec.target`` a receiver."""

    def __init__(self, spec: SiteSpec, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        sizes = {"source": spec.source, "target": spec.target}
        self.weights = nn.ParameterDict({key: linear(hidden, size, generator) for key, size in sizes.items()})
        self.biases = nn.ParameterDict({key: nn.Parameter(torch.zeros(hidden)) for key in sizes})
        self.norms = nn.ModuleDict({key: nn.LayerNorm(hidden) for key in sizes})
        start = torch.randn(spec.relations, hidden, hidden, generator=generator)
        self.bilinear = nn.Parameter(0.1 * start / hidden)
        starts = {key: torch.randn(spec.relations, hidden, generator=generator) for key in sizes}
        self.alone = nn.ParameterDict({key: nn.Parameter(0.1 * value / hidden) for key, value in starts.items()})
        self.attention = nn.Parameter(torch.zeros(spec.relations, spec.heads // spec.relations))
        self.out_bias = nn.Parameter(torch.full((spec.relations,), INITIAL_LOCATION))
        for key, size in {**sizes, "attention": spec.heads}.items():
            self.register_buffer(f"mean:{key}", torch.zeros(size))
            self.register_buffer(f"scale:{key}", torch.ones(size))

    def _inputs(self, messages: Messages) -> dict[str, list[Tensor]]:
        """What is known of senders and of receivers, as parts of [B, N, d]."""
        call = messages.attended
        if call is None or call.heads != self.spec.heads or call.relations != self.spec.relations:
            raise GraphMaskError("Expected attention with the same heads at this site as when it was fitted.")
        inputs = {"source": call.senders(), "target": call.receivers()}
        for key, parts in inputs.items():
            expected, got = self.weights[key].shape[1], sum(part.shape[-1] for part in parts)
            if got != expected:
                raise GraphMaskError(
                    f"Expected {expected} numbers of every {key} token at this site as when it was fitted, got {got}."
                )
        return {key: [part.detach().to(self.out_bias.dtype) for part in parts] for key, parts in inputs.items()}

    def _projected(self, key: str, parts: list[Tensor]) -> Tensor:
        """[B, N, h] the hidden layer of senders or receivers. Weights include the standardisation: no copy is made."""
        weight = self.weights[key] * self.get_buffer(f"scale:{key}")
        out = self.biases[key] - weight @ self.get_buffer(f"mean:{key}")
        for part, own in zip(parts, weight.split([part.shape[-1] for part in parts], 1), strict=True):
            out = out + F.linear(part, own)
        return F.relu(self.norms[key](out))

    @torch.no_grad()
    def moments(self, pieces: list[Messages]) -> dict[str, Moments]:
        moments: dict[str, list[Moments]] = {}
        for messages in pieces:
            call = messages.attended
            assert call is not None
            if not bool(call.pairs.nodes.any()):
                continue
            for key, parts in self._inputs(messages).items():
                values = torch.cat([part[call.pairs.nodes] for part in parts], -1)  # padding is no node
                moments.setdefault(key, []).append(Moments.of(values))
            values = self._faint(messages).movedim(1, -1)[call.pairs.allowed]
            moments.setdefault("attention", []).append(Moments.of(values))
        return {key: Moments.union(parts) for key, parts in moments.items()}

    @torch.no_grad()
    def start_at(self, location: float) -> None:
        self.bilinear.mul_(0.1)  # not zero: the gradient of either factor would be zero too
        for part in (*self.alone.values(), self.attention):
            part.zero_()
        self.out_bias.fill_(location)

    def _faint(self, messages: Messages) -> Tensor:
        """[B, H, N, N] logarithms of the attention."""
        assert messages.attended is not None
        weights = messages.attended.weights.detach().to(self.out_bias.dtype)
        return weights.log().clamp_(min=FAINT)

    def raw(self, messages: Messages, rows: slice = ALL) -> Tensor:
        call = messages.attended
        states = {key: self._projected(key, parts) for key, parts in self._inputs(messages).items()}
        assert call is not None
        # [B, R, N, h]: what a receiver asks of a sender.
        asked = torch.einsum("bnh,rhk->brnk", states["target"], self.bilinear) + self.alone["source"][:, None]
        location = asked @ states["source"][:, None].transpose(-1, -2)
        slope = self.attention * self.get_buffer("scale:attention").view_as(self.attention)
        constant = self.out_bias - (slope * self.get_buffer("mean:attention").view_as(slope)).sum(-1)
        own = (states["target"] @ self.alone["target"].t() + constant).transpose(1, 2)[..., None]  # [B, R, N, 1]
        location = location + own
        faint = self._faint(messages)
        if len(slope) == call.heads:
            location = torch.addcmul(location, faint, slope[:, :, None])
        else:  # one gate for all heads, which sees the attention of each
            location = location + torch.einsum("bhij,rh->brij", faint, slope)
        return clamp(call.pairs.gather(location))
