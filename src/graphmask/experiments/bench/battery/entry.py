"""What a model of the battery is: data, a trained network, and what is known of its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from graphmask import files
from graphmask.errors import GraphMaskError
from graphmask.graphs.batches import Forward
from graphmask.store.identity import content_of

DESIGN, CHECK = "design", "check"
#: The kind of file a trained model is kept in.
KIND = "battery model"


@dataclass
class Single:
    """One large graph whose output rows (nodes or candidate edges) are also explained one by one."""

    batch: Any
    rows: list[int]


@dataclass
class Prepared:
    """A model in evaluation mode with the data on which it is explained."""

    model: nn.Module
    fit: list[Any]  #: batches to fit gates on
    validation: list[Any]  #: batches to calibrate on
    test: list[Any]  #: batches that every figure is measured on
    judge: Callable[[], dict[str, float]]  #: how well the model does its own task, on data it has not seen
    learn: Callable[[], None] | None = None  #: trains the model in place; None where weights are given
    forward: Forward | None = None
    divergence: str = "auto"
    tolerance: float = 0.03
    gold: list[Tensor | None] | None = None  #: per test graph: bool [L, E], or [E] for an edge at any layer
    noise: list[Tensor | None] | None = None  #: the same of messages that cannot matter
    single: Single | None = None
    train_cpu_seconds: float | None = None
    score: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One row of the battery."""

    name: str
    half: str  #: "design", on which recipes may be chosen, or "check", which is only reported
    kind: str
    about: str  #: what it is and how it was trained, in a sentence
    make: Callable[[int], Prepared]

    def prepare(self, seed: int = 0, cache: Path | None = None) -> Prepared:
        """The trained model and its data; ``cache`` is a file to keep the weights in, which is read if it exists."""
        prepared = self.make(seed)
        if prepared.learn is None:
            prepared.model.eval()
            prepared.score = prepared.judge()
            return prepared
        # Weights are of this model, this seed and this data, or they are not used.
        same = {"name": self.name, "seed": seed, "data": [content_of(batch) for batch in prepared.fit[:1]]}
        if cache is None or not _restore(prepared, same, cache):
            started = time.process_time()
            prepared.model.train()
            prepared.learn()
            prepared.train_cpu_seconds = time.process_time() - started
            prepared.model.eval()
            prepared.score = prepared.judge()
            if cache is not None:
                about = {**same, "score": prepared.score, "train_cpu_seconds": prepared.train_cpu_seconds}
                files.write(cache, KIND, dict(prepared.model.state_dict()), about)
        return prepared


def _restore(found: Prepared, same: dict[str, Any], cache: Path) -> bool:
    """Load trained weights; False where there is no file that fits, so that the model is trained again."""
    try:
        tensors, about = files.read(cache, KIND)
        with files.understood(cache, KIND):
            if {key: about[key] for key in same} != same:
                return False
            score, seconds = dict(about["score"]), float(about["train_cpu_seconds"])
            found.model.load_state_dict(tensors)
    except GraphMaskError:
        return False
    found.score, found.train_cpu_seconds = score, seconds
    found.model.eval()
    return True
