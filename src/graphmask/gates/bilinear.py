"""The gate network of sites where messages flow along an adjacency matrix (appendix A of the paper)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.gates.base import INITIAL_LOCATION, Gate, SiteSpec, inverse_scale, linear
from graphmask.ops.kernels import ALL, clamp
from graphmask.ops.moments import Moments
from graphmask.tapping.messages import Messages


class BilinearGate(Gate):
    r"""The matrix form: :math:`\hat\gamma_r = \hat W_r\, \mathrm{ReLU}(\mathrm{LN}(\hat W_1 H))\, H^\top + c`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, spec: SiteSpec, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.first = linear(hidden, spec.source, generator)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden)
        # Scaled so that locations start near their bias: gates must start open.
        start = torch.randn(spec.relations, spec.source, hidden, generator=generator)
        self.relation = nn.Parameter(0.1 * start / (hidden * spec.source) ** 0.5)
        self.out_bias = nn.Parameter(torch.full((spec.relations,), INITIAL_LOCATION))
        self.register_buffer("mean", torch.zeros(spec.source))
        self.register_buffer("scale", torch.ones(spec.source))

    @torch.no_grad()
    def moments(self, pieces: list[Messages]) -> dict[str, Moments]:
        call = pieces[0].matrix
        assert call is not None
        b, _, receiver, sender = call.entries
        present = torch.cat([torch.stack([b, receiver]), torch.stack([b, sender])], 1).unique(dim=1)
        value = call.nodes[present[0], present[1]].to(self.mean.dtype)  # padding is no node
        return {"states": Moments.of(value)} if value.shape[0] else {}

    @torch.no_grad()
    def take(self, moments: dict[str, list[Moments]]) -> None:
        for parts in moments.values():
            union = Moments.union(parts)
            self.mean.copy_(union.mean)
            self.scale.copy_(inverse_scale(union.deviation))

    @torch.no_grad()
    def start_at(self, location: float) -> None:
        self.relation.mul_(0.1)  # not zero: the gradient of either factor would be zero too
        self.out_bias.fill_(location)

    def raw(self, messages: Messages, rows: slice = ALL) -> Tensor:
        call = messages.matrix
        if call is None or call.nodes.shape[-1] != self.spec.source or call.adjacency.shape[1] != self.spec.relations:
            raise GraphMaskError("Expected the same state size and relations at this site as when it was fitted.")
        states = (call.nodes.detach().to(self.mean.dtype) - self.mean) * self.scale
        left = F.relu(self.norm(F.linear(states, self.first, self.bias)))  # [B, N, h]
        b, r, receiver, sender = call.entries
        if call.adjacency.is_sparse:
            right = torch.einsum("bnh,rdh->brnd", left, self.relation)  # [B, R, N, d]: the sender's half
            location = (right[b, r, sender] * states[b, receiver]).sum(-1)
        else:
            right = torch.einsum("bnh,rdh->brnd", left, self.relation)
            location = (states[:, None] @ right.transpose(-1, -2))[b, r, receiver, sender]
        return clamp(location + self.out_bias[r])
