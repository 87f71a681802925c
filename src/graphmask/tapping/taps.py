"""Taps: one line per layer that lets GraphMask see the messages of a model that is not PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError


class MessageTap(nn.Module):
    """Identity, placed where the messages are (edge-list form).

    .. code-block:: python

        messages = self.tap(messages, edge_index, nodes=h, edge_type=edge_type)   # the one new line
        h = torch.zeros_like(h).index_add(0, edge_index[1], messages)

    Args of the call:
        messages: ``[E, ...]``, one per edge.
        edge_index: ``[2, E]``, row 0 sends, row 1 receives.
        nodes: ``[N, d]`` states the messages were made from, or a pair (senders', receivers').
        edge_type: ``[E]`` relation, if the message alone does not determine it.
        edge_attr: ``[E, k]`` or ``[E]`` anything else the layer knows of an edge.
        gate: ``[E]`` or ``[E, H]`` what the layer has weighed the messages by: attention, or a gate of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.handler: Callable[..., Tensor] | None = None

    def forward(
        self,
        messages: Tensor,
        edge_index: Tensor,
        nodes: Tensor | tuple[Tensor, Tensor] | None = None,
        *,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        if edge_index.dim() != 2 or edge_index.shape[0] != 2 or messages.shape[0] != edge_index.shape[1]:
            raise GraphMaskError(
                f"Expected messages [E, ...] and edge_index [2, E], got {tuple(messages.shape)} and "
                f"{tuple(edge_index.shape)}."
            )
        if self.handler is None:
            return messages
        return self.handler(messages, edge_index, nodes, {"edge_type": edge_type, "edge_attr": edge_attr, "gate": gate})


@dataclass
class MatrixCall:
    """One aggregation in matrix form: for every relation ``adjacency[b, r] @ messages[b, r]``."""

    adjacency: Tensor  #: [B, R, N, N], dense or sparse COO; row receives, column sends
    messages: Tensor  #: [B, R or 1, N, D]
    nodes: Tensor  #: [B, N, d]
    entries: Tensor  #: [4, E] positions (b, r, receiver, sender) of the non-zero entries
    weights: Tensor  #: [E] their values
    carried: Tensor | None = None  #: [E, D] instead of the messages, other ones at the entries

    def edge_index(self) -> Tensor:
        """[2, E] as if the graphs of the batch lay side by side."""
        b, _, receiver, sender = self.entries
        offset = b * self.adjacency.shape[-1]
        return torch.stack([sender + offset, receiver + offset])

    def aggregate(self, weights: Tensor) -> Tensor:
        """[B, R, N, D] with other values at the same entries."""
        size = self.adjacency.shape
        if self.adjacency.is_sparse or self.carried is not None:
            return self._aggregate_sparse(weights)
        dense = torch.zeros(size, dtype=weights.dtype, device=weights.device).index_put(tuple(self.entries), weights)
        return dense @ self.messages

    def _aggregate_sparse(self, weights: Tensor) -> Tensor:
        return self.scatter(self.rows() * weights[:, None])

    def rows(self) -> Tensor:
        """[E, D] the message that each entry carries."""
        if self.carried is not None:
            return self.carried
        b, r, _, sender = self.entries
        return self.messages[b, torch.zeros_like(r) if self.messages.shape[1] == 1 else r, sender]

    def scatter(self, rows: Tensor) -> Tensor:
        """[E, D] -> [B, R, N, D]: what each node receives per relation."""
        batch, relations, count, _ = self.adjacency.shape
        b, r, receiver, _ = self.entries
        flat = (b * relations + r) * count + receiver
        out = rows.new_zeros(batch * relations * count, rows.shape[-1])
        return out.index_add(0, flat, rows).view(batch, relations, count, -1)

    def shares(self) -> Tensor:
        """[E] one over the number of entries, of any relation, at the same receiver: the same whatever they weigh."""
        batch, _, count, _ = self.adjacency.shape
        b, _, receiver, _ = self.entries
        return 1 / torch.bincount(b * count + receiver, minlength=batch * count)[b * count + receiver].to(self.weights)

    def rowsum(self, weights: Tensor) -> Tensor:
        """[B, R, N]: total weight each node receives per relation."""
        batch, relations, count, _ = self.adjacency.shape
        b, r, receiver, _ = self.entries
        flat = (b * relations + r) * count + receiver
        return weights.new_zeros(batch * relations * count).index_add(0, flat, weights).view(batch, relations, count)


class AdjacencyTap(nn.Module):
    r"""Aggregation by matrix product, :math:`\hat A_r M_r`, where GraphMask can gate every entry of ``A``.

    .. code-block:: python

        h = self.tap(adjacency, self.linear(h), h).sum(1)      # was: (adjacency @ self.linear(h)[:, None]).sum(1)

    Gates are the bilinear ones of the paper's appendix A. Masked, it computes
    :math:`(Z_r \circ A_r) M_r + ((J - Z_r) \circ \bar A_r) B`, where :math:`\bar A` weighs every entry by one over the
    number of entries at the receiver. With the weights themselves, as in the paper, the output would still depend on
    the weight of a dropped entry.

    Args of the call:
        adjacency: ``[B, R, N, N]``, ``[R, N, N]`` or ``[N, N]``, dense or sparse COO, normalised as the model likes;
            ``adjacency[..., v, u]`` weighs the message from u to v.
        messages: ``[B, R, N, D]``, or ``[B, N, D]`` when all relations send the same; the batch dimension is left
            out when the adjacency has none.
        nodes: ``[B, N, d]`` states the messages were made from.

    Returns:
        ``[B, R, N, D]`` (``[R, N, D]``, ``[N, D]`` for an adjacency without those dimensions).
    """

    def __init__(self) -> None:
        super().__init__()
        self.handler: Callable[[MatrixCall], Any] | None = None

    def forward(self, adjacency: Tensor, messages: Tensor, nodes: Tensor) -> Tensor:
        leading = adjacency.dim()
        if leading not in (2, 3, 4) or adjacency.shape[-1] != adjacency.shape[-2]:
            raise GraphMaskError(
                f"Expected an adjacency of shape [B, R, N, N], [R, N, N] or [N, N], got {tuple(adjacency.shape)}."
            )
        if adjacency.layout not in (torch.strided, torch.sparse_coo):
            raise GraphMaskError(
                f"Expected a dense or sparse COO adjacency, got {adjacency.layout}. Convert it: "
                "adjacency.to_sparse_coo()."
            )
        for _ in range(4 - leading):
            adjacency = adjacency.unsqueeze(0)
        if leading < 4:
            messages, nodes = messages.unsqueeze(0), nodes.unsqueeze(0)
        if messages.dim() == 3:
            messages = messages.unsqueeze(1)
        batch, relations, count, _ = adjacency.shape
        if messages.shape[0] != batch or messages.shape[1] not in (1, relations) or messages.shape[2] != count:
            raise GraphMaskError(
                f"Expected messages [{batch}, {relations}, {count}, D] or [{batch}, {count}, D] for an adjacency "
                f"{tuple(adjacency.shape)}, got {tuple(messages.shape)}."
            )
        if nodes.dim() != 3 or nodes.shape[:2] != (batch, count):
            raise GraphMaskError(
                f"Expected nodes [{batch}, {count}, d] for an adjacency {tuple(adjacency.shape)}, got "
                f"{tuple(nodes.shape)}."
            )
        out = (
            self._plain(adjacency, messages, nodes)
            if self.handler is None
            else self._tapped(adjacency, messages, nodes)
        )
        return out if leading == 4 else out[0] if leading == 3 else out[0, 0]

    def _call(self, adjacency: Tensor, messages: Tensor, nodes: Tensor) -> MatrixCall:
        if adjacency.is_sparse:
            adjacency = adjacency.coalesce()
            return MatrixCall(adjacency, messages, nodes, adjacency.indices(), adjacency.values())
        entries = adjacency.nonzero().t()
        return MatrixCall(adjacency, messages, nodes, entries, adjacency[tuple(entries)])

    def _plain(self, adjacency: Tensor, messages: Tensor, nodes: Tensor) -> Tensor:
        if adjacency.is_sparse:
            call = self._call(adjacency, messages, nodes)
            return call.aggregate(call.weights)
        return adjacency @ messages

    def _tapped(self, adjacency: Tensor, messages: Tensor, nodes: Tensor) -> Tensor:
        assert self.handler is not None
        call = self._call(adjacency, messages, nodes)
        answer: Any = self.handler(call)
        if answer is None:
            return self._plain(adjacency, messages, nodes)
        gate, baseline, *_ = answer
        gate = gate.to(call.weights.dtype)
        kept = call.weights * gate
        rest, baseline = call.shares() * (1 - gate), baseline.to(messages.dtype)
        if baseline.dim() == 1:
            return call.aggregate(kept) + call.rowsum(rest)[..., None] * baseline
        return call.aggregate(kept) + call.scatter(rest[:, None] * baseline)  # one per entry
