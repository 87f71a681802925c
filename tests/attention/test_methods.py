"""Attention weights and attention rollout, against dense references in double precision, and the laws of methods."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphmask
from graphmask import GraphMaskError, methods
from graphmask.explaining.method import Method
from graphmask.graphs.batches import default_forward
from graphmask.methods.attention_rollout import AttentionRollout
from laws.cases import BY_NAME as GRAPH_CASES
from laws.support import same
from laws.untouched import assert_same, snapshot, unsettle
from reference.attention import rollout

from .models import BY_NAME, HEADS, LAYERS, ROWS, Row, batch, batch_of, sentences
from .test_laws import plain, registries

NAMES = ("attention_weights", "attention_rollout")
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
every_name = pytest.mark.parametrize("name", NAMES)
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
#: The tokens that these read their output from, in sentences of six.
READ = {"bert": [0], "distilbert": [0], "gpt2": [5], "llama": [5]}


def returned(model: Any, text: Tensor) -> Tensor:
    """[L, H, N, N] as `transformers` itself returns them, in double precision."""
    twice = copy.deepcopy(model).double()
    twice.set_attn_implementation("eager")
    with torch.no_grad():
        found = twice(**batch_of([text]), output_attentions=True).attentions
    return torch.cat(found)


def spread(explanation: graphmask.Explanation, per_edge: Tensor) -> Tensor:
    """[L, E] -> [L, H, N, N], zero where there is no edge."""
    count = explanation.num_nodes
    found = torch.zeros(len(per_edge), HEADS, count, count, dtype=per_edge.dtype)
    sender, receiver = explanation.edge_index
    found[:, explanation.edge_type, receiver, sender] = per_edge
    return found


@pytest.mark.parametrize("name", READ)
def test_weights_are_what_the_model_attends_with(name: str) -> None:
    model, (text,) = BY_NAME[name].model(), sentences(6)
    method = methods.get("attention_weights")(model)
    found = method.explain(batch_of([text], room=2), repair=False)
    expected = returned(model, text)
    assert torch.allclose(spread(found, found.scores).double(), expected, atol=1e-5)
    kept = spread(found, found.kept)
    assert torch.equal(kept, expected > method.threshold)
    assert 0.1 < kept.float().mean() < 0.9
    together = methods.get("attention_weights")(model, heads="together").explain(batch_of([text]), repair=False)
    sender, receiver = together.edge_index
    assert torch.allclose(together.scores.double(), expected.mean(1)[:, receiver, sender], atol=1e-5)


@pytest.mark.parametrize("name", READ)
def test_rollout_is_what_products_of_matrices_give(name: str) -> None:
    model, (text,) = BY_NAME[name].model(), sentences(6)
    found = AttentionRollout(model).explain(batch_of([text], room=2), repair=False)
    flows, arrives = rollout(returned(model, text), READ[name])
    assert torch.allclose(spread(found, found.scores).double(), flows / flows.max(), atol=1e-5)
    assert float(arrives.sum()) == pytest.approx(1)
    method = AttentionRollout(model)
    with method.subject.frozen():
        case = method.case(batch_of([text], room=2))
        method.subject = case.subject
        sent, shares = method.flows(case)
    assert torch.allclose(shares.double(), arrives, atol=1e-5)  # the published rollout
    assert torch.allclose(spread(found, sent).double(), flows, atol=1e-5)


def test_rollout_where_the_output_reads_every_token() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = BY_NAME["bert"].model()

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            states = self.inner.bert(input_ids, attention_mask=attention_mask).last_hidden_state  # type: ignore[operator, union-attr]
            weight = attention_mask[..., None].to(states)
            return self.inner.classifier((states * weight).sum(1) / weight.sum(1))  # type: ignore[operator]

    model, texts = Mean().eval(), sentences(6, 4)
    for text, found in zip(texts, AttentionRollout(model).explain_all([batch_of(texts)], repair=False), strict=True):
        flows, _ = rollout(returned(model.inner, text), list(range(len(text))))
        assert torch.allclose(spread(found, found.scores).double(), flows / flows.max(), atol=1e-5)


def test_rollout_of_one_row_of_several() -> None:
    """A token's own logits are read from that token."""
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS, "initializer_range": 0.35}
    model = BertForTokenClassification(BertConfig(vocab_size=40, intermediate_size=16, **settings)).eval()
    (text,) = sentences(6)

    def forward(module: nn.Module, given: Any) -> Tensor:
        return module(**given).logits[0]

    found = AttentionRollout(model, forward).explain(batch_of([text]), index=4, repair=False)
    flows, _ = rollout(returned(model, text), [4])
    assert torch.allclose(spread(found, found.scores).double(), flows / flows.max(), atol=1e-5)


# The laws of all methods -----------------------------------------------------------------------------------


def made(name: str, row: Row, **options: Any) -> Method:
    return methods.get(name)(row.model(), **options)


@every_name
@every_row
def test_the_model_is_left_as_it_was_found(name: str, row: Row) -> None:
    method, given, known = made(name, row), batch(), registries()
    original = plain(method.model, given)
    unsettle(method.model)
    before = snapshot(method.model)
    method.fit([given], progress=False)
    assert_same(before, snapshot(method.model))
    for _ in method.explain_all([given]):
        assert_same(before, snapshot(method.model))
    calls = 0

    def fails(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ZeroDivisionError

    out = [module for module in method.model.modules() if isinstance(module, nn.Linear)][-1]
    handle = out.register_forward_pre_hook(fails)
    before_it = snapshot(method.model)
    with pytest.raises(ZeroDivisionError):
        list(method.explain_all([given]))
    assert_same(before_it, snapshot(method.model))
    handle.remove()
    assert registries() == known
    assert torch.equal(plain(method.model.eval(), given), original)


@every_name
@every_row
def test_neither_batching_nor_padding_changes_an_explanation(name: str, row: Row) -> None:
    method, texts = made(name, row), sentences(5, 7, 3, 7)
    together = list(method.explain_all([batch_of(texts)], repair=False))
    for text, one in zip(texts, together, strict=True):
        for room in (0, 4):
            alone = method.explain(batch_of([text], room=room), repair=False)
            assert torch.equal(alone.edge_index, one.edge_index)
            assert torch.allclose(alone.scores, one.scores, atol=1e-5)
            assert torch.equal(alone.kept, one.kept)
            assert abs(alone.divergence - one.divergence) <= 1e-5
    assert 0.02 < sum(int(e.kept.sum()) for e in together) / sum(int(e.carried.sum()) for e in together) < 0.98


@every_name
@every_row
def test_the_user_gets_what_the_explanation_says(name: str, row: Row) -> None:
    method, given = made(name, row), batch_of(sentences(6), room=2)
    explanation = method.explain(given, repair=False)
    with graphmask.masked(method.model, explanation), torch.no_grad():
        output = default_forward(method.model, given)
    assert torch.allclose(output, explanation.masked, atol=1e-6)
    assert explanation.method == name
    assert method.explain(given).faithful


@every_name
def test_nothing_is_random(name: str) -> None:
    found = []
    for state in (98, 99):
        with torch.random.fork_rng(devices=[]):
            model = BY_NAME["bert"].model()
            torch.manual_seed(state)
            method = methods.get(name)(model, seed=state)
            found.append(list(method.explain_all([batch()])))
    assert all(same(a, b) for a, b in zip(*found, strict=True))


# Where they do not apply -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["GCN", "RGCN", "MessageTap", "AdjacencyTap dense"])
@every_name
def test_models_without_attention_are_refused_with_a_reason(name: str, case: str) -> None:
    model, given = GRAPH_CASES[case].model(), GRAPH_CASES[case].loader(1)[0]
    assert f"{name} applies to transformers" in str(methods.get(name).why_not(model, given))
    with pytest.raises(GraphMaskError, match=f"Expected attention .*{name} applies to transformers"):
        list(methods.get(name)(model).explain_all([given]))


def test_rollout_is_of_tokens() -> None:
    model, given = GRAPH_CASES["GAT"].model(), GRAPH_CASES["GAT"].loader(1)[0]
    assert "attention_weights also to graph layers" in str(AttentionRollout.why_not(model, given))
    assert methods.get("attention_weights").why_not(model, given) is None
    assert all(methods.get(name).why_not(BY_NAME["bert"].model(), batch()) is None for name in NAMES)


def test_both_stand_in_a_comparison() -> None:
    model, given = BY_NAME["bert"].model(), [batch()]
    gold = [torch.ones(HEADS * n**2, LAYERS, dtype=torch.bool) for n in (5, 7, 3, 7)]
    found = graphmask.compare(
        model, given, methods=[*NAMES, "random"], gold=gold, seeds=1, metrics=["gold", "sparsity"], progress=False
    )
    assert set(found.runs) == {*NAMES, "random"}
    assert found.not_applicable == {}
