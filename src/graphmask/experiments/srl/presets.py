"""Sizes of the role labellers, and how they and their gates are trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from graphmask.errors import GraphMaskError
from graphmask.experiments import learning, text
from graphmask.experiments.settings import LABELLERS as MODELS
from graphmask.experiments.srl.model import Sizes
from graphmask.fitting.recipe import Recipe


@dataclass(frozen=True)
class Schedule(learning.Pace):
    """The pace of training, and the size of a batch."""

    tokens: int = 1500


@dataclass(frozen=True)
class Preset:
    """Sizes of the two models, how they are trained, and how gates are."""

    lstm: Sizes
    gnn: Sizes
    schedule: Schedule = field(default_factory=Schedule)
    minimum: int = 2  #: words seen less often are unknown
    recipe: Recipe = field(default_factory=Recipe)
    #: By model: what the paper's 0.03 lets pass costs more than a point of F1 here (docs/studies/srl.md).
    tolerance: dict[str, float] = field(default_factory=lambda: {"lstm": 0.0185, "gnn": 0.012})
    gate_epochs: int = 3
    gate_tokens: int = 400  #: per batch while gates are trained
    hidden: int = 64  #: of the gates
    calibrate: int = 1500  #: development examples on which thresholds are chosen

    def sizes(self, model: str) -> Sizes:
        if model not in MODELS:
            raise GraphMaskError(f"Expected a model among {', '.join(MODELS)}, got {model!r}.")
        return self.lstm if model == "lstm" else self.gnn


PRESETS = {
    # Two cores, 40 minutes for a model and its gates.
    "small": Preset(Sizes(lstm=1, layers=1), Sizes(lstm=0, layers=2)),
    # Marcheggiani and Titov's sizes.
    "paper": Preset(
        Sizes(lstm=3, layers=1, lemma=100, hidden=512, width=1024, frame=128, role=128),
        Sizes(lstm=0, layers=2, lemma=100, width=512, frame=128, role=128),
        Schedule(epochs=30, learning_rate=1e-3),
    ),
}


def get(name: str, *, tolerance: float | None = None, epochs: int | None = None) -> Preset:
    """A preset, with another tolerance or number of epochs if they are given."""
    preset = text.preset(name, PRESETS)
    if tolerance is not None:
        preset = replace(preset, tolerance=dict.fromkeys(MODELS, tolerance))
    return preset if epochs is None else replace(preset, schedule=replace(preset.schedule, epochs=epochs))
