"""RXNMapper's ALBERT out of its package, and questions to it: a reaction with one atom of the product masked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.experiments.packaged import Packaged
from graphmask.experiments.reactions.smiles import MASK, PADDING, UNKNOWN, Reaction

PACKAGE, WEIGHTS, SETTINGS, VOCABULARY = "rxnmapper", "pytorch_model.bin", "config.json", "vocab.txt"
#: Heads of the published mapper, counted from 0.
PUBLISHED = (10, 5)


class Question(NamedTuple):
    """Which token is at ``position`` of this reaction?"""

    reaction: Reaction
    position: int


class Vocabulary:
    def __init__(self, words: Sequence[str]) -> None:
        self.number = {word: number for number, word in enumerate(words)}
        missing = [word for word in (MASK, PADDING, UNKNOWN) if word not in self.number]
        if missing:
            raise GraphMaskError(f"Expected {', '.join(missing)} in the vocabulary, found no such line.")

    def batch(self, questions: Sequence[Question], *, masked: bool = True) -> dict[str, Tensor]:
        """As `ask` takes it, padded on the right, so that nodes are numbered as tokens are."""
        longest = max(len(question.reaction.tokens) for question in questions)
        ids = torch.full((len(questions), longest), self.number[PADDING])
        mask = torch.zeros_like(ids)
        for row, (reaction, position) in enumerate(questions):
            numbers = [self.number.get(token, self.number[UNKNOWN]) for token in reaction.tokens]
            ids[row, : len(numbers)] = torch.tensor(numbers)
            mask[row, : len(numbers)] = 1
            if masked:
                ids[row, position] = self.number[MASK]
        return {"input_ids": ids, "attention_mask": mask, "position": torch.tensor([at for _, at in questions])}


def ask(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """[B, words] logits at the position that is asked about."""
    logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return logits[torch.arange(len(logits), device=logits.device), batch["position"]]


def load(where: Path | None = None) -> tuple[nn.Module, Vocabulary]:
    """The model in eval mode and its words, of a wheel or folder, or of the installed package; see `Packaged`."""
    try:
        from transformers import AlbertConfig, AlbertForMaskedLM
    except ImportError:
        raise GraphMaskError(
            "Expected transformers to be installed. Try: pip install graphmask[transformers]"
        ) from None
    package = Packaged(PACKAGE, where)
    settings: dict[str, Any] = json.loads(package.read(SETTINGS))
    if settings.get("model_type") != "albert":
        raise GraphMaskError(f"Expected the settings of an ALBERT, found {settings.get('model_type')!r}.")
    words = Vocabulary(package.read(VOCABULARY).decode().rstrip("\n").split("\n"))
    model: nn.Module = AlbertForMaskedLM(AlbertConfig(**settings))
    weights = package.weights(WEIGHTS)
    tied = {"predictions.decoder.bias": "predictions.bias"}  # one tensor under two names; files have the second
    weights |= {name: weights[other] for name, other in tied.items() if name not in weights and other in weights}
    try:
        missing, extra = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise GraphMaskError(f"Expected weights that fit their settings, found others: {error}") from error
    # The pooler reads [CLS] for classifiers, and is no part of a model that fills in tokens.
    extra = [name for name in extra if ".pooler." not in name]
    if missing or extra:
        raise GraphMaskError(f"Expected the weights of an ALBERT, {missing} missing and {extra} left over.")
    return model.eval(), words
