"""Cost of explaining a transformer: a batch of sentences on a model of MiniLM's size, with random weights."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphmask import bars
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.memory import peak_bytes
from graphmask.explainer import GraphMask
from graphmask.fitting.recipe import Recipe
from graphmask.fitting.step import take_step
from graphmask.fitting.training import LOGITS_EVERY
from graphmask.tapping import gradients

SENTENCES, TOKENS = 32, 64
LAYERS, WIDTH, HEADS, CLASSES, WORDS = 6, 384, 12, 20, 5000


def make(seed: int = 0) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model, with eager attention, and a batch without padding."""
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError:
        raise GraphMaskError(
            "Expected transformers to be installed, found it missing. Try: pip install graphmask[transformers]"
        ) from None
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
        "num_labels": CLASSES,
        "attn_implementation": "eager",
    }
    model = BertForSequenceClassification(BertConfig(**settings)).eval()
    ids = torch.randint(WORDS, (SENTENCES, TOKENS))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def measure(rounds: int = 5, steps: int = 10, heads: str = "each", *, progress: bool = True) -> dict[str, Any]:
    """Seconds and peak bytes of new tensors: the model, an explanation of the batch, a step of `fit`.

    Keys: ``forward``, ``explain`` (seconds, medians), ``step`` (a mean), the ratios of the latter two to the
    first, ``forward_bytes``, ``explain_bytes``, ``memory`` (their ratio), ``parameters`` (bytes of the model) and
    ``memory_with_parameters`` (the ratio with the model's own weights on both sides).
    """
    model, batch = make()
    explainer = GraphMask(model, recipe=Recipe(steps=1, start="zero"), heads=heads)

    def forward() -> None:
        with torch.no_grad():
            model(**batch)

    def explain() -> None:
        list(explainer.explain_all([batch], repair=False, allow_infeasible=True))

    with bars.steps(3, enabled=progress) as begin:
        begin("steps of training")
        step = _step(explainer, batch, steps)
        with warnings.catch_warnings():  # a fit of one step finds nothing
            warnings.simplefilter("ignore", UserWarning)
            explainer.fit([batch], epochs=1, progress=False)
        begin("explaining beside the model's own runs")
        once, whole = _alternately(forward, explain, rounds)
        begin("memory")
        used, needed = peak_bytes(forward), peak_bytes(explain)
    own = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return {
        "sentences": SENTENCES,
        "tokens": TOKENS,
        "heads": heads,
        "forward": once,
        "explain": whole,
        "explain_ratio": whole / once,
        "step": step,
        "step_ratio": step / once,
        "forward_bytes": used,
        "explain_bytes": needed,
        "memory": needed / used,
        "parameters": own,
        "memory_with_parameters": (needed + own) / (used + own),
    }


def _step(explainer: GraphMask, batch: Any, steps: int) -> float:
    """Mean seconds of a step of training, in whole rounds of those that cost more and those that cost less."""
    steps = -(-steps // LOGITS_EVERY) * LOGITS_EVERY
    with explainer.subject.frozen(), gradients.needed():
        training = explainer.begin([batch], 100 * steps, 1)
        take_step(training, [batch])
        started = time.perf_counter()
        for _ in range(steps):
            take_step(training, [batch])
        return (time.perf_counter() - started) / steps


def _alternately(first: Callable[[], None], second: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Medians of both, in turns, so that a busy machine slows both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for job, seconds in zip((first, second), times, strict=True):
            started = time.perf_counter()
            job()
            seconds.append(time.perf_counter() - started)
    one, other = (sorted(seconds)[len(seconds) // 2] for seconds in times)
    return one, other
