"""Attention rollout (Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers"), message by message."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.graphs.batches import Forward
from graphmask.methods.gate_scores import first_site
from graphmask.tapping.messages import Messages


class AttentionRollout(Method):
    r"""How much of the attention that leads from the output down to the input runs through a message.

    At every layer half of a token comes from itself, through the residual connection, and half along attention, mean
    over its H heads:

    .. math:: \tilde A^{(k)} = \tfrac12 I + \tfrac1{2H} \sum_h A^{(k,h)}, \qquad
       r^{(k-1)} = r^{(k)} \tilde A^{(k)}, \qquad s^{(k,h)}_{j,i} = \tfrac1{2H} \, r^{(k)}_i A^{(k,h)}_{ij}

    where :math:`r^{(K)}` is divided equally among the tokens that the output reads (found by the gradient: [CLS] for
    one model, the last token or all of them for another). :math:`r^{(0)}` is the published rollout; the scores are the
    parts that it is the sum of. Divided by the largest of the sentence. Layers are taken to follow one another in the
    order in which they are called.
    """

    name = "attention_rollout"
    soft = True
    threshold = 0.1

    @classmethod
    def why_not(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> str | None:
        site = first_site(model, batch, forward, lambda messages: messages.attended is None)
        return None if site is None else _refusal(f"messages of another kind at {site!r}")

    def look(self, messages: Messages) -> Tensor:
        if messages.attended is None or messages.attention is None:
            raise GraphMaskError(_refusal(f"messages of another kind at call {messages.piece} of site {messages.site}"))
        return messages.attention.float()

    def choose(self, case: Case) -> Choice:
        return case.cut(case.normalised(self.flows(case)[0]), self.threshold)

    def flows(self, case: Case) -> tuple[Tensor, Tensor]:
        """[L, E] what runs through every message, and [N] what arrives at every token of the input."""
        trace = case.trace
        sender, receiver = trace.edge_index
        heads = 1 if trace.edge_type is None or not trace.edge_type.numel() else int(trace.edge_type.max()) + 1
        weights = trace.values.where(trace.carried, torch.zeros(())) / (2 * heads)
        share = self._read(case)
        flows = torch.zeros_like(weights)
        for site in reversed(range(len(weights))):
            flows[site] = share[receiver] * weights[site]
            share = (share / 2).index_add(0, sender, flows[site])
        return flows, share

    def _read(self, case: Case) -> Tensor:
        """[N] one, divided equally among the tokens of a sentence whose states after the last layer the output reads.

        Those are the tokens at which the output's gradient is not zero; all of them, where it is zero everywhere.
        """
        trace = case.trace
        gates = trace.carried.to(trace.output.dtype).requires_grad_()
        with torch.enable_grad():
            output = case.run(gates, case.zeros())
            support = self.divergence.support(trace.output, output).sum()
            slope = torch.autograd.grad(support, gates)[0][-1] if support.requires_grad else torch.zeros_like(gates[-1])
        assert trace.sizes is not None
        sentences = len(trace.sizes)
        owner = torch.arange(sentences, device=slope.device).repeat_interleave(trace.sizes)  # [N]
        read = slope.new_zeros(len(owner)).index_add(0, trace.edge_index[1], (slope != 0).to(slope)) > 0

        def per_sentence(tokens: Tensor) -> Tensor:
            return slope.new_zeros(sentences).index_add(0, owner, tokens.to(slope))[owner]

        read |= per_sentence(read) == 0
        return (read.to(slope) / per_sentence(read)).float()


def _refusal(found: str) -> str:
    return (
        f"Expected attention between tokens at every site, got {found}. attention_rollout applies to transformers; "
        "attention_weights also to graph layers such as GATConv."
    )
