"""How much attention is kept: by layer and head, and by where the attended token stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmask.analysis.tables import load_polars, share, table
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars

#: Where a message comes from, as seen from its receiver. The first that fits.
KINDS = ("self", "special", "first", "previous", "next", "word", "elsewhere")


def heads(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """Share of messages kept by layer and head. Every explanation drops a head of which nothing is kept.

    (Each was verified on its own sentence by running the model without what it drops, that head included.)

    Columns:
        layer, head: head is null where all heads of a layer share their gates.
        edges: messages.
        kept: those that are retained.
        probability: kept / edges.
    """
    counts: Counter[tuple[int, int | None]] = Counter()
    kept: Counter[tuple[int, int | None]] = Counter()
    for explanation in explanations:
        relation = explanation.edge_type
        numbers: list[int | None] = [None] if relation is None else relation.unique().tolist()
        for layer in range(len(explanation.kept)):
            for head in numbers:
                here = slice(None) if head is None or relation is None else relation == head
                counts[layer, head] += int(explanation.carried[layer, here].sum())
                kept[layer, head] += int(explanation.kept[layer, here].sum())
    rows = [(layer, head, count, kept[layer, head]) for (layer, head), count in counts.items()]
    frame = table({"layer": int, "head": int, "edges": int, "kept": int}, rows).sort("layer", "head")
    pl = load_polars()
    shares: polars.DataFrame = frame.with_columns((pl.col("kept") / pl.col("edges")).alias("probability"))
    return shares


def kinds(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """Messages kept by where they come from: how much of the attention to separators, for instance, is needed?

    "self" is the token itself; "special" a special token such as [CLS] or [SEP], where ``explanation.info`` says which
    those are (`graphmask.integrations.transformers.tokens`); "first" the first token; "previous" and "next" the
    neighbours; "word" another part of the same word, where that is known; "elsewhere" all others.

    Columns:
        layer, kind
        edges: messages of this kind that the layer can send.
        kept: those that are retained.
        share: of all messages that are retained at this layer.
        base_rate: the kind's share of all messages.
        probability: kept / edges.
    """
    edges, kept, layers = torch.zeros(0), torch.zeros(0), 0
    for explanation in explanations:
        if not layers:
            layers = len(explanation.kept)
            edges, kept = torch.zeros(2, layers, len(KINDS), dtype=torch.long)
        if len(explanation.kept) != layers:
            raise GraphMaskError(f"Expected explanations of one model, with {layers} layers, got one with others.")
        kind = kind_of(explanation)
        for layer in range(layers):
            for counts, mask in ((edges, explanation.carried), (kept, explanation.kept)):
                counts[layer] += torch.bincount(kind[mask[layer]], minlength=len(KINDS)).cpu()
    rows = [
        (
            layer,
            name,
            int(edges[layer, number]),
            int(kept[layer, number]),
            share(float(kept[layer, number]), float(kept[layer].sum())),
            share(float(edges[layer, number]), float(edges[layer].sum())),
            share(float(kept[layer, number]), float(edges[layer, number])),
        )
        for layer in range(layers)
        for number, name in enumerate(KINDS)
        if int(edges[layer, number])
    ]
    columns = {"layer": int, "kind": str, "edges": int, "kept": int}
    return table(columns | {"share": float, "base_rate": float, "probability": float}, rows)


def kind_of(explanation: Explanation) -> Tensor:
    """[E] for every edge the position of its kind in `KINDS`."""
    sender, receiver = explanation.edge_index
    special = torch.zeros(explanation.num_nodes, dtype=torch.bool, device=sender.device)
    special[list(explanation.info.get("special", ()))] = True
    words = explanation.info.get("words")
    same_word = torch.zeros_like(sender, dtype=torch.bool)
    if words is not None:
        word = torch.tensor([-1 if one is None else one for one in words], device=sender.device)
        same_word = (word[sender] == word[receiver]) & (word[sender] >= 0)
    fits = {
        "self": sender == receiver,
        "special": special[sender],
        "first": sender == 0,
        "previous": sender == receiver - 1,
        "next": sender == receiver + 1,
        "word": same_word,
    }
    kind = torch.full_like(sender, KINDS.index("elsewhere"))
    for name, here in reversed(fits.items()):
        kind[here] = KINDS.index(name)
    return kind
