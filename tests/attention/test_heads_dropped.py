"""Heads that can be dropped altogether: every figure is that of the model run without them."""

from __future__ import annotations

import pytest
import torch

from graphmask import GraphMaskError, methods
from graphmask.analysis import heads_dropped
from graphmask.experiments.two_hops import HEADS as TWO
from graphmask.experiments.two_hops import TwoHops, draw
from graphmask.integrations.transformers import tapped
from laws.cases import BY_NAME as GRAPH_CASES

from .models import BY_NAME, HEADS, LAYERS, batch


def test_a_head_that_writes_where_nobody_reads_can_be_dropped() -> None:
    """In the hand-set transformer, head 0 of either layer carries the answer and head 1 nothing."""
    model, loader = TwoHops().eval(), draw(64, 3).batches()
    table = heads_dropped(methods.get("attention_weights")(model), loader)
    assert table["layer"].to_list() == [0, 0, 1, 1]
    assert table["head"].to_list() == TWO * [0, 1]
    useless = table.filter(table["head"] == 1)
    needed = table.filter(table["head"] == 0)
    assert useless["divergence"].max() < 1e-6
    assert useless["faithful"].to_list() == [1.0, 1.0]
    assert needed["divergence"].min() > 0.5
    assert needed["flips"].min() > 0.4
    assert useless["kept"].sum() == 0  # each token has a tenth of its attention, and no more
    assert sorted(useless["order"].to_list()) == [0, 1]
    assert useless["dropped"].to_list() == [True, True]
    assert needed["dropped"].to_list() == [False, False]


def test_figures_are_those_of_the_model_without_the_heads() -> None:
    """The same by hand, with `tapped`: methods that leave messages out have no baselines."""
    model, given = BY_NAME["bert"].model(), batch()
    method = methods.get("attention_weights")(model, divergence="kl")
    rows = heads_dropped(method, [given]).to_dicts()
    assert len(rows) == LAYERS * HEADS

    def outputs(heads: list[tuple[int, int]]) -> torch.Tensor:
        with tapped(model) as attention, torch.no_grad():
            attention(**given)
            for layer, site in enumerate(attention.sites):
                gates = torch.ones(HEADS, 1, 1)
                gates[[head for at, head in heads if at == layer]] = 0
                attention.gate(site, gates)
            return attention(**given).logits

    original = outputs([])

    def divergence(heads: list[tuple[int, int]]) -> tuple[float, float]:
        found = outputs(heads)
        p, q = original.log_softmax(1), found.log_softmax(1)
        changed = (original.argmax(1) != found.argmax(1)).float().mean()
        return float((p.exp() * (p - q)).sum(1).mean()), float(changed)

    so_far: list[tuple[int, int]] = []
    holds = True
    for row in sorted(rows, key=lambda row: row["order"]):
        alone = divergence([(row["layer"], row["head"])])
        assert (row["divergence"], row["flips"]) == pytest.approx(alone, abs=1e-5)
        so_far.append((row["layer"], row["head"]))
        together = divergence(so_far)
        assert (row["divergence_so_far"], row["flips_so_far"]) == pytest.approx(together, abs=1e-5)
        holds = holds and together[0] <= method.tolerance
        assert row["dropped"] == holds
    shares = [row["probability"] for row in sorted(rows, key=lambda row: row["order"])]
    assert shares == sorted(shares)
    assert max(row["divergence"] for row in rows) > 1e-3


def test_heads_that_share_gates_are_one() -> None:
    method = methods.get("attention_weights")(BY_NAME["bert"].model(), heads="together")
    table = heads_dropped(method, [batch()])
    assert table["head"].to_list() == [None] * LAYERS
    assert table["edges"].to_list() == [25 + 49 + 9 + 49] * LAYERS


def test_models_without_heads_are_told_so() -> None:
    case = GRAPH_CASES["GCN"]
    with pytest.raises(GraphMaskError, match="Expected a model whose messages are attention"):
        heads_dropped(methods.get("random")(case.model()), case.loader(1))
