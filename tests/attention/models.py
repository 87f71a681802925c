"""Tiny randomly initialised models with attention, and batches for them: one table, every law on every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from graphmask import AttentionTap

WORDS, WIDTH, LAYERS, HEADS, CLASSES = 40, 16, 2, 4, 3
PAD = 1

#: By how much, relative to the largest number, an output that is computed in another way may differ: 2e-6 where
#: PyTorch was built without MKL, whose sums are made in another order.
ROUNDING = 1e-6 if torch.backends.mkl.is_available() else 2e-6
#: Wide enough that the output depends on what attention does.
SPREAD = 0.35
_ENCODER = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "num_labels": CLASSES,
    "initializer_range": SPREAD,
    "pad_token_id": PAD,
}
_DECODER = {**_ENCODER, "num_key_value_heads": 2}


class Handwritten(nn.Module):
    """Attention as people write it, with a tap in place of the product."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(20, WIDTH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.taps = nn.ModuleList(AttentionTap() for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        batch, count = input_ids.shape
        h = self.words(input_ids) + self.places.weight[:count]
        for part, tap in zip(self.parts, self.taps, strict=True):
            q, k, v = part(h).view(batch, count, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            h = h + tap(q, k, v, attention_mask[:, None, None].bool(), nodes=h).transpose(1, 2).flatten(2)
        return self.out(h[:, 0])


class Torch(nn.Module):
    """`nn.TransformerEncoder`, as it comes: its layers take PyTorch's fused path wherever they can."""

    def __init__(self, norm_first: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(20, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 24, dropout=0.1, batch_first=batch_first, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=batch_first and not norm_first)
        self.out = nn.Linear(WIDTH, CLASSES)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=SPREAD)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        h = h if self.batch_first else h.transpose(0, 1)
        h = self.encoder(h, src_key_padding_mask=attention_mask == 0)
        return self.out(h[:, 0] if self.batch_first else h[0])


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], nn.Module]
    sites: tuple[str, ...]
    causal: bool = False

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(0)
        return self.make().eval().to(dtype)


def _hf(kind: Any, config: Any, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: kind(config(**settings))


def _layers(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.format(layer) for layer in range(LAYERS))


_ALBERT = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
ROWS = (
    Row(
        "bert",
        _hf(BertForSequenceClassification, BertConfig, **_ENCODER),
        _layers("bert.encoder.layer.{}.attention.self"),
    ),
    Row(
        "roberta",
        _hf(RobertaForSequenceClassification, RobertaConfig, **_ENCODER),
        _layers("roberta.encoder.layer.{}.attention.self"),
    ),
    Row(
        "albert",
        _hf(AlbertForSequenceClassification, AlbertConfig, embedding_size=8, **_ENCODER),
        (_ALBERT, f"{_ALBERT}#1"),
    ),
    Row(
        "distilbert",
        _hf(
            DistilBertForSequenceClassification,
            DistilBertConfig,
            vocab_size=WORDS,
            dim=WIDTH,
            n_layers=LAYERS,
            n_heads=HEADS,
            hidden_dim=24,
            num_labels=CLASSES,
            initializer_range=SPREAD,
            pad_token_id=PAD,
        ),
        _layers("distilbert.transformer.layer.{}.attention"),
    ),
    Row(
        "electra",
        _hf(ElectraForSequenceClassification, ElectraConfig, embedding_size=8, **_ENCODER),
        _layers("electra.encoder.layer.{}.attention.self"),
    ),
    Row(
        "gpt2",
        _hf(
            GPT2ForSequenceClassification,
            GPT2Config,
            vocab_size=WORDS,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            num_labels=CLASSES,
            initializer_range=SPREAD,
            pad_token_id=PAD,
            bos_token_id=0,
            eos_token_id=0,
        ),
        _layers("transformer.h.{}.attn"),
        causal=True,
    ),
    Row(
        "llama",
        _hf(LlamaForSequenceClassification, LlamaConfig, **_DECODER),
        _layers("model.layers.{}.self_attn"),
        causal=True,
    ),
    Row(
        "qwen2",
        _hf(Qwen2ForSequenceClassification, Qwen2Config, **_DECODER),
        _layers("model.layers.{}.self_attn"),
        causal=True,
    ),
    Row("handwritten", Handwritten, _layers("taps.{}")),
    Row("torch", Torch, _layers("encoder.layers.{}.self_attn")),
    Row("torch, norm first", lambda: Torch(True, False), _layers("encoder.layers.{}.self_attn")),
)
BY_NAME = {row.name: row for row in ROWS}
HUGGING_FACE = tuple(row for row in ROWS if row.name not in ("handwritten", "torch", "torch, norm first"))


def sentences(*lengths: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, WORDS, (length,), generator=generator) for length in lengths]


def batch_of(texts: list[Tensor], *, room: int = 0) -> dict[str, Tensor]:
    """Padded on the right, by ``room`` places more than the longest needs."""
    longest = max(map(len, texts)) + room
    ids = torch.full((len(texts), longest), PAD)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


LENGTHS = (5, 7, 3, 7)


def batch(seed: int = 0) -> dict[str, Tensor]:
    return batch_of(sentences(*LENGTHS, seed=seed))
