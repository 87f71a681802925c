"""Sizes of Entity-GCN, and how it and its gates are trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from graphmask.experiments import learning, text
from graphmask.experiments.qa.model import Sizes
from graphmask.fitting.recipe import Recipe


@dataclass(frozen=True)
class Schedule(learning.Pace):
    """The pace of training, the questions of a batch, and how many messages are dropped (`EntityGCN.messages`)."""

    size: int = 32
    message_dropout: float = 0.0


@dataclass(frozen=True)
class Preset:
    """Sizes of the model, how it is trained, and how gates are."""

    sizes: Sizes = field(default_factory=Sizes)
    schedule: Schedule = field(
        default_factory=lambda: Schedule(epochs=14, learning_rate=1.5e-3, average=0.999, message_dropout=0.3)
    )
    #: One question in seven is all but undecided between two candidates: its answer changes for next to nothing.
    recipe: Recipe = field(default_factory=Recipe)
    tolerance: float = 0.02
    aim: float = 0.75  #: share of the tolerance that gates are trained to; thresholds use all of it
    gate_epochs: int = 12
    gate_size: int = 32  #: questions per batch while gates are trained
    hidden: int = 64  #: of the gates
    calibrate: int = 800  #: development questions on which thresholds are chosen on the way; in the end, on all


PRESETS = {
    # Two cores, within the hour.
    "small": Preset(),
    # De Cao et al.'s sizes.
    "paper": Preset(
        Sizes(query=256, hidden=512, first=1024, scorer=(256, 128), dropout=0.2),
        Schedule(epochs=20, learning_rate=1e-4),
        tolerance=0.03,
        aim=1.0,
    ),
}


def get(name: str, *, tolerance: float | None = None, epochs: int | None = None) -> Preset:
    """A preset, with another tolerance or number of epochs if they are given."""
    preset = text.preset(name, PRESETS)
    if tolerance is not None:
        preset = replace(preset, tolerance=tolerance)
    return preset if epochs is None else replace(preset, schedule=replace(preset.schedule, epochs=epochs))
