"""From scores of messages to one number per sentence: does what the answer needs come from the evidence?"""

from __future__ import annotations

import torch
from torch import Tensor

from graphmask.experiments.reactions.scoring import arriving, auc, heads_of
from graphmask.experiments.relations.passages import Passage
from graphmask.explanation import Explanation

#: How messages become tokens: along all paths that end in [CLS] of the last layer, or all that a token sends.
TOKENS = ("paths", "sent")
#: How tokens become sentences.
SENTENCES = ("sum", "mean", "max")


def sent(explanation: Explanation, values: Tensor) -> Tensor:
    """[N] what a token's messages score at all layers and heads, but those to itself."""
    sender, receiver = explanation.edge_index
    each = values.double().sum(0) / heads_of(explanation)
    totals = torch.zeros(explanation.num_nodes, dtype=torch.double)
    return totals.index_add(0, sender, each.where(sender != receiver, 0.0))


def by_way(explanation: Explanation, values: Tensor, passage: Passage) -> dict[str, Tensor]:
    """[sentences] scores by the way they are come by, from the scores [L, E] of messages."""
    owner = torch.tensor(passage.owners)
    ways = {}
    # Node 0 is [CLS], the last [SEP].
    for name, tokens in zip(TOKENS, (arriving(explanation, values, 0), sent(explanation, values)), strict=True):
        tokens = tokens[1:-1]
        for reduce in SENTENCES:
            room = torch.zeros(passage.sentences, dtype=torch.double)
            kind = {"sum": "sum", "mean": "mean", "max": "amax"}[reduce]
            ways[f"{name}, {reduce}"] = room.scatter_reduce(0, owner, tokens, kind, include_self=False)
    return ways


def area(sentences: Tensor, passage: Passage) -> float:
    """The share of pairs of an evidence sentence and another in which the former scores higher; ties count half."""
    right = torch.tensor([number in passage.evidence for number in range(passage.sentences)])
    share = auc(sentences, right)
    assert share is not None, "a passage has evidence and more than that"
    return share


def without_a_model(passage: Passage) -> dict[str, float]:
    """Two controls: sentences with more mentions of the entities, and longer ones, are the evidence."""
    length = torch.tensor(passage.owners).bincount(minlength=passage.sentences)
    return {"mentions": area(torch.tensor(passage.marked), passage), "length": area(length, passage)}
