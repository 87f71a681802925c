"""Masked attention, pair by pair and in double precision, as the definition reads."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, gate: Tensor, baseline: Tensor, constant: Tensor
) -> Tensor:
    """[H, N, D'] of one sequence: [H, N, D] queries, keys and values; bool [N, N]; gates [H, N, N]; [H, D'] and [H]."""
    heads, count, width = query.shape
    out = torch.zeros(heads, count, value.shape[-1], dtype=torch.float64)
    for h in range(heads):
        for i in range(count):
            logits: dict[int, float] = {}
            for j in range(count):
                if allowed[i, j]:
                    own = float(query[h, i].double() @ key[h, j].double()) / math.sqrt(width)
                    z = float(gate[h, i, j])
                    logits[j] = z * own + (1 - z) * float(constant[h])
            top = max(logits.values(), default=0.0)
            total = sum(math.exp(logit - top) for logit in logits.values())
            for j, logit in logits.items():
                z = float(gate[h, i, j])
                sent = z * value[h, j].double() + (1 - z) * baseline[h].double()
                out[h, i] += math.exp(logit - top) / total * sent
    return out


def rollout(weights: Tensor, read: list[int]) -> tuple[Tensor, Tensor]:
    """What runs through every message [L, H, N, N], and what arrives at the input [N], by products of whole matrices.

    ``weights`` [L, H, N, N] are of one sequence, receivers in rows; the output reads the tokens ``read`` alike.
    """
    layers, heads, count, _ = weights.shape
    weights = weights.double()
    steps = [weights[k].mean(0) / 2 + torch.eye(count, dtype=torch.float64) / 2 for k in range(layers)]
    top = torch.zeros(count, dtype=torch.float64)
    top[read] = 1 / len(read)
    flows = torch.zeros_like(weights)
    for k in range(layers):
        above = torch.eye(count, dtype=torch.float64)
        for step in steps[k + 1 :]:
            above = step @ above
        for h in range(heads):
            for i in range(count):
                for j in range(count):
                    flows[k, h, i, j] = (top @ above)[i] * weights[k, h, i, j] / (2 * heads)
    whole = torch.eye(count, dtype=torch.float64)
    for step in steps:
        whole = step @ whole
    return flows, top @ whole


def leaky_attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, gate: Tensor, baseline: Tensor
) -> Tensor:
    """[H, N, D'] with weights as they were, and z v + (1 - z) b in place of values; arguments as above."""
    heads, count, width = query.shape
    out = torch.zeros(heads, count, value.shape[-1], dtype=torch.float64)
    for h in range(heads):
        for i in range(count):
            open_to = [j for j in range(count) if allowed[i, j]]
            logits = [float(query[h, i].double() @ key[h, j].double()) / math.sqrt(width) for j in open_to]
            total = sum(math.exp(logit) for logit in logits)
            for j, logit in zip(open_to, logits, strict=True):
                z = float(gate[h, i, j])
                out[h, i] += math.exp(logit) / total * (z * value[h, j].double() + (1 - z) * baseline[h].double())
    return out
