"""`integrations.transformers.tapped`: attention seen and gated by hand, and nothing of it left afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphmask
from graphmask import GraphMaskError
from graphmask.graphs.batches import default_forward
from graphmask.integrations.transformers import Tapped, tapped
from laws.cases import BY_NAME as GRAPH_CASES
from laws.untouched import assert_same, snapshot, unsettle
from reference.attention import masked_attention

from .models import BY_NAME, HEADS, ROUNDING, ROWS, Handwritten, Row, batch, batch_of, sentences
from .test_laws import plain, registries

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def eager(row: Row) -> Any:
    """With the attention that the model itself returns."""
    model = row.model()
    assert isinstance(model, nn.Module)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    return model


@every_row
def test_inside_the_model_answers_as_before(row: Row) -> None:
    model, given = row.model(), batch()
    original = plain(model, given)
    with tapped(model) as attention, torch.no_grad():
        output = default_forward(model, given)
        assert attention.sites == row.sites
    assert (output - original).abs().max() <= ROUNDING * max(1, float(original.abs().max()))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_weights_are_those_that_the_model_returns(name: str) -> None:
    model, given = eager(BY_NAME[name]), batch()
    with torch.no_grad():
        expected = model(**given, output_attentions=True).attentions
        with tapped(model) as attention:
            attention(**given)
    real = given["attention_mask"].bool()  # what padding attends to is nobody's
    for one, other in zip(attention.weights.values(), expected, strict=True):
        rows = real[:, None, :].expand(-1, HEADS, -1)
        assert torch.allclose(one[rows], other[rows], atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "llama", "torch"])
def test_nothing_is_left(name: str) -> None:
    model, given = BY_NAME[name].model(), batch()
    original, known = plain(model, given), registries()
    config = copy.deepcopy(getattr(model, "config", None))
    unsettle(model)
    before = snapshot(model)
    with tapped(model) as attention, torch.no_grad():
        default_forward(model, given)
        attention.gate(attention.sites[0], torch.zeros(1))
        default_forward(model, given)
    assert_same(before, snapshot(model))

    def fail() -> None:
        with tapped(model) as attention:
            default_forward(model, given)
            attention.gate("no such", torch.zeros(1))

    with pytest.raises(GraphMaskError, match="Expected a site"):
        fail()
    assert_same(before, snapshot(model))
    assert registries() == known
    assert getattr(model, "config", None) == config
    assert torch.equal(plain(model.eval(), given), original)


def test_gates_do_what_the_definition_says() -> None:
    """The last layer with attention pair by pair: dropped pairs take no part in the softmax."""
    model, (text,) = BY_NAME["handwritten"].model(), sentences(6)
    assert isinstance(model, Handwritten)
    gates = torch.rand(HEADS, 6, 6, generator=torch.Generator().manual_seed(3)) < 0.6
    gates[1, 2] = False  # nobody is left to attend to
    with tapped(model) as attention, torch.no_grad():
        attention(**batch_of([text]))
        for site in attention.sites:
            attention.gate(site, gates)
        found = attention(**batch_of([text]))
        weights = attention.weights[attention.sites[1]][0]
        attention.open()
        again = attention(**batch_of([text]))
    twice, zeros = copy.deepcopy(model).double(), torch.zeros(HEADS, 4).double()
    with torch.no_grad():
        h = twice.words(text) + twice.places.weight[:6]
        for part in twice.parts:
            q, k, v = part(h).view(6, 3, HEADS, -1).permute(1, 2, 0, 3)
            silent = torch.full((HEADS,), -1e30, dtype=torch.double)
            out = masked_attention(q, k, v, torch.ones(6, 6, dtype=torch.bool), gates, zeros, silent)
            h = h + out.transpose(0, 1).flatten(1)
        expected = twice.out(h[0])
    assert torch.allclose(found[0].double(), expected, atol=1e-5)
    assert torch.equal(again, plain(model, batch_of([text])))
    assert not torch.allclose(found, again, atol=1e-2)
    assert float(weights[~gates].abs().max()) == 0
    sums = weights.sum(-1)
    assert torch.allclose(sums[gates.any(-1)], torch.ones(()), atol=1e-6)
    assert float(sums[1, 2]) == 0


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_an_explanation_of_zeros_can_be_done_by_hand(name: str) -> None:
    """`masked` with a method that leaves messages out, and the same gates set here."""
    model, given = BY_NAME[name].model(), batch_of(sentences(6), room=2)
    explanation = graphmask.methods.get("random")(model).explain(given, repair=False)
    sender, receiver = explanation.edge_index
    gates = torch.ones(len(explanation.kept), 1, HEADS, 8, 8)
    gates[:, 0, explanation.edge_type, receiver, sender] = explanation.kept.float()
    with tapped(model) as attention, torch.no_grad():
        attention(**given)
        for site, here in zip(attention.sites, gates, strict=True):
            attention.gate(site, here)
        found = attention(**given).logits
    assert torch.allclose(found, explanation.masked, atol=1e-5)
    assert not torch.allclose(found, explanation.original, atol=1e-3)


def test_gradients_reach_the_gates() -> None:
    model, given = BY_NAME["bert"].model(), batch()
    z = torch.full((HEADS, 1, 1), 0.5, requires_grad=True)

    def output(attention: Tapped, gates: Tensor) -> Tensor:
        attention.gate(attention.sites[0], gates)
        return default_forward(model, given).sum()

    with tapped(model) as attention:
        default_forward(model, given)
        (slope,) = torch.autograd.grad(output(attention, z), z)
        with torch.no_grad():
            for head in range(HEADS):
                step = torch.zeros_like(z)
                step[head] = 1e-2
                estimate = float(output(attention, z + step) - output(attention, z - step)) / 2e-2
                assert estimate == pytest.approx(float(slope[head]), abs=5e-3)


def test_what_is_wrong_is_said() -> None:
    model, given = BY_NAME["bert"].model(), batch()
    with tapped(model) as attention, torch.no_grad():
        with pytest.raises(GraphMaskError, match="none before the model has run"):
            attention.gate("layer", torch.ones(1))
        default_forward(model, given)
        site = attention.sites[0]
        with pytest.raises(GraphMaskError, match="Expected a site of this model"):
            attention.gate("layer", torch.ones(1))
        with pytest.raises(GraphMaskError, match="from 0 to 1"):
            attention.gate(site, torch.full((1,), 1.5))
        with pytest.raises(GraphMaskError, match=r"bool or floating point, got torch\.int64"):
            attention.gate(site, torch.ones(1, dtype=torch.long))
        attention.gate(site, torch.ones(3, 3))
        with pytest.raises(GraphMaskError, match="that broadcast to"):
            default_forward(model, given)
    with pytest.raises(GraphMaskError, match="Expected attention"), tapped(GRAPH_CASES["GCN"].model()):
        pass
