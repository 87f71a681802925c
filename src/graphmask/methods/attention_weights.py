"""Raw attention weights: what the model itself weighs its messages by, taken as scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.graphs.batches import Forward
from graphmask.methods.gate_scores import first_site, lacks_attention
from graphmask.tapping.messages import Messages


class AttentionWeights(Method):
    r"""The score of a message is its attention weight, :math:`s^{(k, h)}_{j, i} = |\alpha^{(k, h)}_{ij}|`.

    Of attention over tokens it is that of the message's own head, or the mean over the heads that share a gate; of
    graph layers such as GATConv, the mean over heads. Weights are not normalised: receivers divide 1 among senders.
    Unlike `gate_scores`, which cuts where the paper does, it has a threshold, as other soft methods have.
    """

    name = "attention_weights"
    soft = True
    threshold = 0.1

    @classmethod
    def why_not(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> str | None:
        site = first_site(model, batch, forward, lacks_attention)
        return None if site is None else _refusal(f"found none at {site!r}")

    def look(self, messages: Messages) -> Tensor:
        if messages.attention is None:
            raise GraphMaskError(_refusal(f"found none at call {messages.piece} of site {messages.site}"))
        weights = messages.attention.to(torch.promote_types(messages.attention.dtype, torch.float32)).abs()
        return weights.flatten(1).mean(1) if weights.dim() > 1 else weights

    def choose(self, case: Case) -> Choice:
        return case.cut(case.trace.values, self.threshold)


def _refusal(found: str) -> str:
    return (
        f"Expected attention weights at every site, {found}. attention_weights applies to transformers and to graph "
        "layers such as GATConv."
    )
