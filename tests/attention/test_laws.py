"""The laws of every supported layer, on models that attend."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import graphmask
from graphmask import GraphMask, GraphMaskError
from graphmask.graphs import batches
from graphmask.graphs.sites import StandIn
from graphmask.tapping import capture, masking
from graphmask.tapping.subject import Subject
from graphmask.tapping.tapped import Tap
from laws.untouched import assert_same, snapshot, unsettle
from reference.attention import masked_attention
from reference.hasty import HASTY, halve

from .models import BY_NAME, HEADS, LAYERS, LENGTHS, ROUNDING, ROWS, Handwritten, Row, batch, batch_of, sentences

#: What the user's own model says when PyTorch takes its fused path.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
both_heads = pytest.mark.parametrize("heads", ["each", "together"])


def plain(model: nn.Module, given: Any) -> Tensor:
    with torch.no_grad():
        return batches.default_forward(model, given)


def discover(model: nn.Module, given: Any, heads: str = "each", **how: Any) -> Tap:
    with torch.no_grad(), capture.tap(model, lambda _: None, heads=heads, **how) as state:
        batches.default_forward(model, given)
    return state


def run(model: nn.Module, given: Any, state: Tap, gates: Tensor, baselines: list[Tensor], **options: Any) -> Tensor:
    edges, sites = state.edge_map.edge_index, tuple(state.sites)
    assert edges is not None
    with torch.no_grad():
        return masking.run(Subject(model, sites=sites), given, edges, gates, baselines, **options)


def drawn(state: Tap, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [site.stand_in.message + site.stand_in.others for site in state.sites]
    return [torch.randn(size, generator=generator) for size in sizes]


def random_gates(state: Tap, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(state.sites), state.edge_map.count, generator=generator) < 0.5


def pairs(row: Row) -> int:
    """How many pairs the sentences of `batch` have."""
    return sum(n * (n + 1) // 2 if row.causal else n * n for n in LENGTHS)


@cache
def fitted(name: str, heads: str = "each") -> GraphMask:
    explainer = GraphMask(BY_NAME[name].model(), recipe=HASTY, heads=heads)
    loader = [batch(), batch(1)]
    explainer.fit(loader, epochs=3, progress=False)
    halve(explainer, loader)
    return explainer


# 1. All gates open ------------------------------------------------------------------------------------------


@every_row
@both_heads
def test_all_gates_open_give_the_original_output(row: Row, heads: str) -> None:
    model, given = row.model(), batch()
    original, state = plain(model, given), discover(model, given, heads)
    is_open = torch.ones(len(state.sites), state.edge_map.count)
    for gates in (is_open, is_open.bool()):
        difference = (run(model, given, state, gates, drawn(state)) - original).abs().max()
        assert difference <= ROUNDING * max(1, float(original.abs().max()))
    shut = run(model, given, state, 0 * is_open, drawn(state))
    assert (shut - original).abs().max() > 1e-2  # so that it says something


@every_row
def test_in_half_precision_too(row: Row) -> None:
    model, given = row.model(torch.bfloat16), batch()
    original, state = plain(model, given), discover(model, given)
    is_open = torch.ones(len(state.sites), state.edge_map.count)
    with capture.tap(model, lambda _: None), torch.no_grad():
        tapped = batches.default_forward(model, given)
    assert torch.equal(run(model, given, state, is_open, drawn(state)), tapped)
    assert (tapped - original).abs().max() <= 0.06 * original.abs().max()  # other kernels, rounded to 8 bits


@every_row
def test_edges_are_the_pairs_that_the_mask_allows(row: Row) -> None:
    state = discover(row.model(), batch())
    assert tuple(site.name for site in state.sites) == row.sites
    assert state.edge_map.count == HEADS * pairs(row)
    edges = state.edge_map.edge_index
    assert edges is not None
    first = 0
    expected = []
    for length in LENGTHS:
        receivers = [(j, i) for i in range(length) for j in range(i + 1 if row.causal else length)]
        expected += HEADS * [(first + j, first + i) for j, i in receivers]
        first += length
    assert edges.t().tolist() == [list(pair) for pair in expected]


# 2. Untouched -----------------------------------------------------------------------------------------------


def registries() -> tuple[Any, ...]:
    known = [dict(kind._global_mapping) for kind in (AttentionInterface, AttentionMaskInterface)]
    return *known, torch.backends.mha.get_fastpath_enabled()


@contextmanager
def leaves_no_trace(model: nn.Module, given: Any) -> Iterator[None]:
    unsettle(model)
    before, config = (
        snapshot(model),
        copy.deepcopy(vars(getattr(model, "config", model)).get("_attn_implementation_internal")),
    )
    known = registries()
    yield
    assert_same(before, snapshot(model))
    assert vars(getattr(model, "config", model)).get("_attn_implementation_internal") == config
    assert registries() == known


@every_row
def test_the_model_is_left_as_it_was_found(row: Row) -> None:
    model, given = row.model(), batch()
    original = plain(model, given)
    with leaves_no_trace(model, given):
        explainer = GraphMask(model, recipe=HASTY)
        explainer.fit([given], epochs=2, progress=False)
        list(explainer.explain_all([given], allow_infeasible=True))
    assert torch.equal(plain(model.eval(), given), original)


@every_row
def test_also_when_it_fails(row: Row) -> None:
    model, given = row.model(), batch()
    original = plain(model, given)
    calls = 0

    def forward(module: nn.Module, what: Any) -> Tensor:
        nonlocal calls
        calls += 1
        output = batches.default_forward(module, what)
        if calls > 5:
            raise RuntimeError("in the middle of something")
        return output

    with leaves_no_trace(model, given), pytest.raises(RuntimeError, match="in the middle"):
        GraphMask(model, forward, recipe=HASTY).fit([given], epochs=2, progress=False)
    assert torch.equal(plain(model.eval(), given), original)


# 4. Batching and padding ------------------------------------------------------------------------------------


@every_row
@both_heads
def test_neither_batching_nor_padding_changes_an_explanation(row: Row, heads: str) -> None:
    explainer, texts = fitted(row.name, heads), sentences(*LENGTHS)
    together = list(explainer.explain_all([batch_of(texts)], repair=False, allow_infeasible=True))
    for text, one in zip(texts, together, strict=True):
        for room in (0, 4):
            alone = explainer.explain(batch_of([text], room=room), repair=False, allow_infeasible=True)
            assert torch.equal(alone.edge_index, one.edge_index)
            assert alone.num_nodes == one.num_nodes == len(text)
            assert torch.equal(alone.kept, one.kept)
            assert torch.allclose(alone.scores, one.scores, atol=1e-4)
            assert abs(alone.divergence - one.divergence) <= 1e-5
    assert 0.1 < sum(int(e.kept.sum()) for e in together) / sum(int(e.carried.sum()) for e in together) < 0.9


def test_padding_on_the_left_changes_nothing_either() -> None:
    explainer, (text,) = fitted("llama"), sentences(6)
    right = batch_of([text], room=3)
    left = {key: value.roll(3, 1) for key, value in right.items()}
    left["position_ids"] = (left["attention_mask"].cumsum(1) - 1).clamp_min(0)
    found = explainer.explain(left, repair=False, allow_infeasible=True)
    alone = explainer.explain(batch_of([text]), repair=False, allow_infeasible=True)
    assert torch.equal(found.edge_index, alone.edge_index)
    assert torch.equal(found.kept, alone.kept)


def test_heads_are_relations_or_one() -> None:
    each = fitted("bert").explain(batch_of(sentences(4)), allow_infeasible=True)
    assert each.edge_type is not None
    assert each.edge_type.tolist() == [head for head in range(HEADS) for _ in range(16)]
    together = fitted("bert", "together").explain(batch_of(sentences(4)), allow_infeasible=True)
    assert together.kept.shape == (LAYERS, 16)


# 5. The certificate -----------------------------------------------------------------------------------------


@every_row
@both_heads
def test_users_can_check_what_is_claimed(row: Row, heads: str) -> None:
    explainer, given = fitted(row.name, heads), batch_of(sentences(6), room=2)
    explanation = explainer.explain(given, repair=False, allow_infeasible=True)
    with graphmask.masked(explainer.model, explanation), torch.no_grad():
        output = batches.default_forward(explainer.model, given)
    assert torch.allclose(output, explanation.masked, atol=1e-6)
    assert not torch.allclose(output, explanation.original, atol=1e-4)


def test_the_certificate_is_what_the_definition_gives() -> None:
    """The whole masked model again, with attention pair by pair in double precision."""
    explainer, (text,) = fitted("handwritten"), sentences(6)
    explanation = explainer.explain(batch_of([text], room=2), repair=False, allow_infeasible=True)
    model = copy.deepcopy(explainer.model).double()
    assert isinstance(model, Handwritten)
    with torch.no_grad():
        h = model.words(text) + model.places.weight[: len(text)]
        for layer, part in enumerate(model.parts):
            q, k, v = part(h).view(len(text), 3, HEADS, -1).permute(1, 2, 0, 3)
            stand_in, baseline = explanation.structure[layer].stand_in, explanation.baselines[layer]
            b, c = stand_in.message_of(baseline).view(HEADS, -1), stand_in.logits_of(baseline)
            gate = explanation.kept[layer].view(HEADS, len(text), len(text))
            everything = torch.ones(len(text), len(text), dtype=torch.bool)
            h = h + masked_attention(q, k, v, everything, gate, b, c).transpose(0, 1).flatten(1)
        expected = model.out(h[0])
    assert torch.allclose(expected, explanation.masked[0].double(), atol=1e-5)
    assert 0.1 < explanation.retained < 0.9


# 6. Files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", ["each", "together"])
def test_save_then_load(tmp_path: Any, heads: str) -> None:
    explainer, given = fitted("albert", heads), batch_of(sentences(6))
    explainer.save(tmp_path / "x.graphmask")
    again = graphmask.load(tmp_path / "x.graphmask", explainer.model)
    first, second = (e.explain(given, allow_infeasible=True) for e in (explainer, again))
    assert torch.equal(first.scores, second.scores)
    assert torch.equal(first.masked, second.masked)
    first.save(tmp_path / "one.explanation")
    loaded = graphmask.Explanation.load(tmp_path / "one.explanation")
    assert loaded.structure == first.structure
    with graphmask.masked(explainer.model, loaded), torch.no_grad():
        assert torch.allclose(batches.default_forward(explainer.model, given), first.masked, atol=1e-6)


# 7. Silence -------------------------------------------------------------------------------------------------


@every_row
@both_heads
def test_dropped_pairs_exchange_keys_and_values_and_nothing_happens(row: Row, heads: str) -> None:
    model, given = row.model(), batch()
    state = discover(model, given, heads)
    gates, baselines = random_gates(state), drawn(state)
    alone = run(model, given, state, gates, baselines)
    for seed in range(3):
        other = run(model, given, state, gates, baselines, exchange=torch.Generator().manual_seed(seed))
        assert (other - alone).abs().max() <= 5e-6


@every_row
def test_leaky_a_dropped_key_is_heard(row: Row) -> None:
    """The same check fails where logits are left as they were, so it can."""
    model, given = row.model(), batch()
    state = discover(model, given, leaky_keys=True)
    assert all(site.stand_in.logits == 0 for site in state.sites)
    gates, baselines = random_gates(state), drawn(state)
    alone, other = (
        run(model, given, state, gates, baselines, exchange=exchange)
        for exchange in (None, torch.Generator().manual_seed(0))
    )
    assert (other - alone).abs().max() > 1e-3


# Bad input --------------------------------------------------------------------------------------------------


def test_models_that_attend_in_their_own_way_are_told_so() -> None:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    model = DebertaV2ForSequenceClassification(
        DebertaV2Config(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    with pytest.raises(GraphMaskError, match="AttentionTap"):
        GraphMask(model)


def test_attention_with_sinks_is_told_so() -> None:
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    model = GptOssForCausalLM(
        GptOssConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=16,
            num_local_experts=2,
            num_experts_per_tok=1,
            pad_token_id=1,
        )
    ).eval()
    nn.init.ones_(model.model.layers[0].self_attn.sinks)
    with pytest.raises(GraphMaskError, match=r"Expected plain softmax attention at 'model\.layers\.0\.self_attn'"):
        graphmask.methods.get("random")(model).explain({"input_ids": torch.arange(6)[None]})


def test_encoders_with_decoders_are_told_so() -> None:
    from transformers import BartConfig, BartForSequenceClassification

    model = BartForSequenceClassification(
        BartConfig(
            vocab_size=40,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
        )
    )
    with pytest.raises(GraphMaskError, match="Explain its encoder"):
        GraphMask(model)


def test_graph_layers_beside_attention_are_told_so() -> None:
    from torch_geometric.nn import GCNConv

    model = nn.ModuleList([BY_NAME["bert"].model(), GCNConv(3, 3)])
    with pytest.raises(GraphMaskError, match="got both"):
        GraphMask(model)


def test_logits_of_padding_are_not_explained() -> None:
    from transformers import BertConfig, BertForTokenClassification

    model = BertForTokenClassification(
        BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ).eval()
    method = graphmask.methods.get("random")(model)
    assert method.explain(batch_of(sentences(5))).original.shape == (1, 5, 2)
    with pytest.raises(GraphMaskError, match="Say which positions count"):
        method.explain(batch_of(sentences(5), room=2))


def test_what_heads_may_be() -> None:
    with pytest.raises(GraphMaskError, match="'each' or 'together'"):
        GraphMask(BY_NAME["bert"].model(), heads="some")


def test_cross_attention_is_told_so() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.attention(x, y, y)[0].mean(1)

    with pytest.raises(GraphMaskError, match="Cross-attention"):
        graphmask.methods.get("random")(Cross().eval()).explain({"x": torch.randn(1, 3, 8), "y": torch.randn(1, 4, 8)})


def test_a_stand_in_has_a_part_for_every_head() -> None:
    site = discover(BY_NAME["bert"].model(), batch()).sites[0]
    assert site.stand_in == StandIn(logits=HEADS)
    assert site.stand_in.message == 16
