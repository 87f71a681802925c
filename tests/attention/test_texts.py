"""Explanations of text: tokens, layers and heads, and where attention goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import graphmask
from graphmask import Explanation, GraphMaskError, methods
from graphmask.analysis import heads, kinds, silence
from graphmask.analysis.attention import KINDS, kind_of
from graphmask.integrations.transformers import tokens

from .models import BY_NAME, HEADS, LAYERS, batch, batch_of, sentences
from .test_laws import fitted


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "a", "##b", "c"])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def encoded() -> Any:
    return tokenizer()(["ab c", "c"], padding=True, return_tensors="pt")


def test_tokens_are_those_that_are_nodes() -> None:
    notes = tokens(tokenizer(), classes=["no", "yes"])(encoded())
    assert notes[0] == {
        "tokens": ["[CLS]", "a", "##b", "c", "[SEP]"],
        "special": [0, 4],
        "words": [None, 0, 0, 1, None],
        "classes": ["no", "yes"],
    }
    assert notes[1]["tokens"] == ["[CLS]", "c", "[SEP]"]
    with pytest.raises(GraphMaskError, match="as a tokenizer returns it"):
        tokens(tokenizer())({"x": torch.zeros(3)})


def test_from_the_tokenizer_to_a_page(tmp_path: Path) -> None:
    explainer, given = fitted("bert"), encoded()
    metadata = tokens(tokenizer())
    store = explainer.explain_all(
        [given], out=tmp_path / "store", metadata=metadata, progress=False, allow_infeasible=True
    )
    found = list(store)
    assert [e.num_nodes for e in found] == [5, 3]
    assert found[0].info["tokens"] == ["[CLS]", "a", "##b", "c", "[SEP]"]
    again = list(explainer.explain_all([dict(given)], allow_infeasible=True))
    assert all(torch.equal(a.kept, b.kept) for a, b in zip(found, again, strict=True))
    page = found[0].to_html(tmp_path / "page.html").read_text()
    assert "##b" in page
    frame = heads(store)
    assert frame["edges"].to_list() == LAYERS * HEADS * [25 + 9]
    assert frame["kept"].sum() == sum(int(e.kept.sum()) for e in found)
    assert frame["head"].to_list() == LAYERS * list(range(HEADS))
    by_kind = kinds(store)
    assert by_kind["edges"].sum() == LAYERS * HEADS * (25 + 9)
    assert by_kind["kept"].sum() == frame["kept"].sum()


def test_kinds_of_messages() -> None:
    edge_index = torch.cartesian_prod(torch.arange(5), torch.arange(5)).t().flip(0)  # receiver by receiver
    info = {"special": [0, 4], "words": [None, 0, 0, 0, None]}
    size = (1, 25)
    explanation = Explanation(
        edge_index,
        torch.ones(size, dtype=torch.bool),
        torch.ones(size),
        torch.ones(size, dtype=torch.bool),
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        0.0,
        0.0,
        0.1,
        (),
        (),
        5,
        info=info,
    )
    names = [KINDS[number] for number in kind_of(explanation).tolist()]
    assert names[:5] == ["self", "next", "elsewhere", "elsewhere", "special"]
    assert names[5:10] == ["special", "self", "next", "word", "special"]
    assert names[10:15] == ["special", "previous", "self", "next", "special"]
    found = kinds([explanation])
    assert found.filter(found["kind"] == "self")["probability"].to_list() == [1.0]
    assert found["share"].sum() == pytest.approx(1)
    explanation.info.clear()
    assert [KINDS[number] for number in kind_of(explanation).tolist()][5] == "first"


def test_silence_as_an_analysis() -> None:
    table = silence(fitted("bert"), [batch()], allow_infeasible=True)
    assert table["moved"].max() < 1e-5


def test_noise_for_every_message_is_too_much() -> None:
    method = methods.get("information_bottleneck")(BY_NAME["bert"].model(), steps=1)
    with pytest.raises(GraphMaskError, match="got attention at"):
        method.fit([batch()], progress=False)


@pytest.mark.parametrize("name", sorted(set(methods.METHODS) - {"graphmask", "information_bottleneck", "grad_cam"}))
def test_other_methods_explain_attention_too(name: str) -> None:
    model, given = BY_NAME["bert"].model(), batch_of(sentences(2, 3))
    quick = {"steps": 20} if name == "pg_explainer" else {}
    method = methods.get(name)(model, **quick)
    assert method.why_not(model, given) is None
    method.fit([given], progress=False)
    found = list(method.explain_all([given], allow_infeasible=True))
    assert [e.edge_index.shape[1] for e in found] == [HEADS * 4, HEADS * 9]
    for explanation in found:
        assert explanation.faithful
        assert explanation.same_prediction
        with graphmask.masked(model, explanation), torch.no_grad():
            text = sentences(2, 3)[explanation.num_nodes - 2]
            assert torch.allclose(model(**batch_of([text])).logits, explanation.masked, atol=1e-5)
