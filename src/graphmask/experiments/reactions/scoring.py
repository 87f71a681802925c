"""From scores of messages to one number per reactant atom, and how well that number finds the right one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphmask.explanation import Explanation

#: Ways to come from scores per layer, head and pair to scores per atom, beside one layer and head alone.
DIRECT, PATHS = "direct", "paths"


def heads_of(explanation: Explanation) -> int:
    kind = explanation.edge_type
    return 1 if kind is None or not kind.numel() else int(kind.max()) + 1


def into(explanation: Explanation, values: Tensor, position: int) -> Tensor:
    """[L, H, N] what the messages [L, E] into one token score, by layer, head and sender."""
    sender, receiver = explanation.edge_index
    here = receiver == position
    heads = torch.zeros_like(sender[here]) if explanation.edge_type is None else explanation.edge_type[here].long()
    scores = torch.zeros(len(values), heads_of(explanation), explanation.num_nodes)
    scores[:, heads, sender[here]] = values[:, here].float()
    return scores


def arriving(explanation: Explanation, values: Tensor, position: int) -> Tensor:
    r"""[N] what comes down from one token of the last layer to every token of the input, along all paths.

    A token holds its own state, and sends on the share :math:`\frac1H \sum_h s^{(k,h)}_{ij}` of its receivers'. Of raw
    attention this is the attention rollout of Abnar and Zuidema (2020), up to a factor; of gates 0 and 1, a count of
    kept paths in which each has the weight 1/H per hop.
    """
    sender, receiver = explanation.edge_index
    weights = values.double() / heads_of(explanation)
    share = torch.zeros(explanation.num_nodes, dtype=torch.double)
    share[position] = 1
    for site in reversed(range(len(weights))):
        share = share.index_add(0, sender, share[receiver] * weights[site])
    return share


def by_way(explanation: Explanation, values: Tensor, position: int) -> dict[str, Tensor]:
    """[N] scores of tokens, by the way they are come by: directly, along paths, or at one layer and head."""
    scores = into(explanation, values.where(explanation.carried, torch.zeros(())), position)
    ways = {DIRECT: scores.sum((0, 1)), PATHS: arriving(explanation, values, position)}
    for layer, row in enumerate(scores):
        ways |= {name_of(layer, head): tokens for head, tokens in enumerate(row)}
    return ways


def name_of(layer: int, head: int) -> str:
    return f"layer {layer} head {head}"


def hit(scores: Tensor, right: Tensor) -> float:
    """Is the highest of these right? Of several that are equally high, the share that is."""
    best = scores == scores.max()
    return float((best & right).sum() / best.sum())


def auc(scores: Tensor, right: Tensor) -> float | None:
    """The share of pairs of a right and a wrong atom in which the right one scores higher; ties count one half."""
    one, other = scores[right].double()[:, None], scores[~right].double()[None]
    if not one.numel() or not other.numel():
        return None
    return float(((one > other).double() + (one == other).double() / 2).mean())


def kept_into(explanation: Explanation, position: int, atoms: list[int], right: Tensor) -> dict[str, Any]:
    """Of the kept messages from reactant atoms into one token: how many, and how many from the right ones."""
    kept = into(explanation, explanation.kept, position)[:, :, atoms]
    return {
        "messages": int(kept.sum()),
        "right": int(kept[:, :, right].sum()),
        "by_head": [[[int(head.sum()), int(head[right].sum())] for head in layer] for layer in kept],
    }
