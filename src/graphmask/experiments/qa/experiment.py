"""Question answering from files to explanations: the paper's section 5 in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from graphmask.analysis.everything import Named, Planned
from graphmask.analysis.tally import Tally
from graphmask.experiments import data, stages
from graphmask.experiments import folder as folders
from graphmask.experiments import study as studies
from graphmask.experiments.learning import Kept, Trained
from graphmask.experiments.qa import learning, rules, study
from graphmask.experiments.qa.corpus import Corpus, describe, load
from graphmask.experiments.qa.learning import fit
from graphmask.experiments.qa.model import EntityGCN, forward, make
from graphmask.experiments.qa.presets import PRESETS, Preset, get
from graphmask.experiments.settings import Qa
from graphmask.experiments.study import Context, Explanations, Shown
from graphmask.experiments.text import TextStudy
from graphmask.explainer import GraphMask

__all__ = ["PRESETS", "Answering", "Corpus", "Preset", "Run", "data", "fit", "get", "load", "read", "run"]

REDOCRED = "qa-redocred"
TIMES = ("train_cpu_seconds", "fit_seconds")
SHOWN = (
    "accuracy",
    "prior",
    "masked_accuracy",
    "accuracy_change",
    "retained",
    "divergence",
    "flips",
    "faithful",
    *TIMES,
)

Run = studies.Run[Corpus, EntityGCN]


class Answering(TextStudy[Corpus, EntityGCN]):
    """The study of multi-hop questions."""

    corpus_name = REDOCRED
    predict = staticmethod(learning.predict)
    notes = staticmethod(describe)

    def __init__(self, settings: Qa) -> None:
        self._settings = settings
        self.preset = get(settings.preset, tolerance=settings.tolerance, epochs=settings.epochs)

    @property
    def settings(self) -> Qa:
        return self._settings

    @property
    def forward(self) -> Callable[..., Tensor]:
        return forward

    def record(self) -> dict[str, Any]:
        return {**super().record(), "tolerance": self.preset.tolerance}

    def load(self, folder: Path, vectors: Path | None, finished: Path | None) -> Corpus:
        return load(folder, vectors=vectors, limit=self.settings.limit)

    def make(self, corpus: Corpus) -> EntityGCN:
        return make("matrix", corpus.words.table, self.preset.sizes, corpus.candidates, seed=self.settings.seed)

    @property
    def model_name(self) -> str:
        return "Entity-GCN"

    def learn(self, model: EntityGCN, corpus: Corpus, **kept: Unpack[Kept]) -> Trained:
        train, dev = corpus.parts["train"], corpus.parts["dev"]
        return learning.train(model, train, dev, self.preset.schedule, seed=self.settings.seed, **kept)

    def train(self, corpus: Corpus, context: Context) -> tuple[EntityGCN, dict[str, Any]]:
        model, figures = super().train(corpus, context)
        trivial = rules.accuracies(corpus.parts["train"].questions, corpus.parts["test"].questions)
        return model, {**figures, "lost": corpus.lost, "rules": trivial, "prior": max(trivial.values())}

    def fit(
        self, corpus: Corpus, model: EntityGCN, *, seed: int, checkpoint: Path | None = None, progress: bool = True
    ) -> GraphMask:
        return learning.fit(model, corpus, self.preset, seed=seed, path=checkpoint, progress=progress)

    def measure(
        self, corpus: Corpus, model: EntityGCN, explainer: GraphMask, explanations: Explanations
    ) -> dict[str, Any]:
        """The original model against the masked one, on test."""
        test = corpus.parts["test"]
        before, after, tally = [], [], Tally()
        for explanation in explanations:
            before.append(explanation.original.argmax())
            after.append(explanation.masked.argmax())
            tally.add(explanation)
        original, masked = (learning.accuracy(torch.stack(answers), test) for answers in (before, after))
        change = masked - original
        return {"accuracy": original, "masked_accuracy": masked, "accuracy_change": change, **tally.means}

    def shown(self, figures: Mapping[str, Any]) -> list[Shown]:
        lost = [
            [split, reason, count] for split, reasons in figures["lost"].items() for reason, count in reasons.items()
        ]
        title = f"qa, seed {self.settings.seed}: test data"
        tables = [
            Shown(title, ["figure", "value"], [[key, figures[key]] for key in SHOWN]),
            Shown(
                "accuracy of rules without a model", ["rule", "accuracy"], [[*row] for row in figures["rules"].items()]
            ),
        ]
        cut = Shown("questions that could not be used, and what was cut", ["part", "reason", "count"], lost)
        return [*tables, cut] if lost else tables

    def tables(self, run: Run, fits: int) -> list[Planned]:
        return study.plan(run, fits, self.preset)

    def summary(self, run: Run, tables: Sequence[Named]) -> dict[str, Any]:
        return study.figures(run, tables)


def run(out: Path, *, folder: Path | None = None, progress: bool = True, **asked: Any) -> Run:
    """All in one call, in the folder ``out``; ``asked`` are other fields of `Qa`: preset, seed, tolerance, ..."""
    return stages.run(Answering(Qa(data=folder, **asked)), Context(out, progress=progress))


#: A finished run, read back; the data must still be where they were.
read = folders.read
