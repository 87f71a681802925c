"""Semantic role labelling from files to explanations: the paper's section 6 in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from graphmask import files
from graphmask.analysis.everything import Named, Planned
from graphmask.analysis.tally import Tally
from graphmask.experiments import data, stages
from graphmask.experiments import folder as folders
from graphmask.experiments import study as studies
from graphmask.experiments.buckets import in_order
from graphmask.experiments.learning import Kept, Trained
from graphmask.experiments.settings import Srl
from graphmask.experiments.srl import learning, study
from graphmask.experiments.srl.corpus import Corpus, describe, find, load
from graphmask.experiments.srl.examples import NOUN, VERB, Vocabularies
from graphmask.experiments.srl.learning import Loader
from graphmask.experiments.srl.model import Labeller, make
from graphmask.experiments.srl.presets import PRESETS, Preset, get
from graphmask.experiments.study import Context, Explanations, Shown
from graphmask.experiments.text import TextStudy
from graphmask.explainer import GraphMask

__all__ = [
    "PRESETS", "Corpus", "Labelling", "Preset", "Run", "data", "find", "get", "in_order", "load", "read", "run",
]  # fmt: skip

EWT = "srl-ewt"
#: Of tokens. What must not change is the role that the model gives, not how sure it is of it.
DIVERGENCE = "cross_entropy"
VOCABULARIES = "vocabularies.json"
TIMES = ("train_cpu_seconds", "fit_seconds")
SHOWN = ("f1", "masked_f1", "f1_change", "retained", "divergence", "flips", "faithful", *TIMES)

Run = studies.Run[Corpus, Labeller]


class Labelling(TextStudy[Corpus, Labeller]):
    """The study of role labelling, with one of the two models."""

    corpus_name = EWT
    predict = staticmethod(learning.predict)
    notes = staticmethod(describe)
    side_by_side = True  # both models' figures go into one file

    def __init__(self, settings: Srl) -> None:
        self._settings = settings
        self.preset = get(settings.preset, tolerance=settings.tolerance, epochs=settings.epochs)
        self.sizes = self.preset.sizes(settings.model)
        self.tolerance = self.preset.tolerance[settings.model]

    @property
    def settings(self) -> Srl:
        return self._settings

    @property
    def forward(self) -> Callable[..., torch.Tensor]:
        return learning.forward

    def record(self) -> dict[str, Any]:
        asked = self.settings
        own = {"model": asked.model, "tolerance": self.tolerance, "predicted": not asked.gold_trees}
        return {**super().record(), **own}

    def load(self, folder: Path, vectors: Path | None, finished: Path | None) -> Corpus:
        vocabularies = None
        if finished is not None:
            with files.understood(finished / VOCABULARIES, "vocabulary"):
                vocabularies = Vocabularies.from_json(files.read_json(finished / VOCABULARIES))
        return load(
            folder,
            minimum=self.preset.minimum,
            vectors=vectors,
            predicted=not self.settings.gold_trees,
            limit=self.settings.limit,
            vocabularies=vocabularies,
        )

    def make(self, corpus: Corpus) -> Labeller:
        return make(self.sizes, corpus.vectors, corpus.counts, seed=self.settings.seed)

    @property
    def model_name(self) -> str:
        return f"the {self.settings.model} labeller"

    def learn(self, model: Labeller, corpus: Corpus, **kept: Unpack[Kept]) -> Trained:
        train, dev = corpus.parts["train"], corpus.parts["dev"]
        return learning.train(model, train, dev, self.preset.schedule, seed=self.settings.seed, **kept)

    def train(self, corpus: Corpus, context: Context) -> tuple[Labeller, dict[str, Any]]:
        if context.folder is not None:  # a run that is read back encodes the corpus by them
            files.write_bytes(context.folder / VOCABULARIES, json.dumps(corpus.vocabularies.to_json()).encode())
        return super().train(corpus, context)

    def fit(
        self, corpus: Corpus, model: Labeller, *, seed: int, checkpoint: Path | None = None, progress: bool = True
    ) -> GraphMask:
        """Gates are trained on the training part; thresholds are chosen on the development part."""
        chosen, dev = self.preset, corpus.parts["dev"]
        explainer = GraphMask(
            model, learning.forward, DIVERGENCE, self.tolerance, seed, recipe=chosen.recipe, hidden=chosen.hidden
        )
        some = torch.randperm(len(dev), generator=torch.Generator().manual_seed(0))[: chosen.calibrate]
        explainer.fit(
            Loader(corpus.parts["train"], chosen.gate_tokens, seed=seed),
            Loader(dev, chosen.schedule.tokens, only=some.tolist()),
            epochs=chosen.gate_epochs,
            checkpoint=checkpoint,
            progress=progress,
        )
        return explainer

    def measure(
        self, corpus: Corpus, model: Labeller, explainer: GraphMask, explanations: Explanations
    ) -> dict[str, Any]:
        """The original model against the masked one, on test."""
        test = corpus.parts["test"]
        roles = learning.predict(model, test)
        masked, tally = [], Tally()
        for explanation in explanations:
            masked.append(explanation.masked.argmax(1))
            tally.add(explanation)
        original, after = learning.count(roles, test), learning.count(masked, test)
        by_kind = {}
        for kind in (VERB, NOUN):
            numbers = [number for number, own in enumerate(test.kinds) if own == kind]
            before, now = (learning.count(given, test, numbers).f1 for given in (roles, masked))
            by_kind[kind] = {"examples": len(numbers), "f1": before, "masked_f1": now}
        return {
            "f1": original.f1,
            "precision": original.precision,
            "recall": original.recall,
            "masked_f1": after.f1,
            "f1_change": after.f1 - original.f1,
            "by_kind": by_kind,
            **tally.means,
        }

    def shown(self, figures: Mapping[str, Any]) -> list[Shown]:
        title = f"srl, {self.settings.model}, seed {self.settings.seed}: test data"
        kinds = [[kind, row["examples"], row["f1"], row["masked_f1"]] for kind, row in figures["by_kind"].items()]
        return [
            Shown(title, ["figure", "value"], [[key, figures[key]] for key in SHOWN]),
            Shown("labelled F1 by kind of predicate", ["kind", "predicates", "original", "masked"], kinds),
        ]

    def tables(self, run: Run, fits: int) -> list[Planned]:
        return study.plan(run, fits)

    def summary(self, run: Run, tables: Sequence[Named]) -> dict[str, Any]:
        return {self.settings.model: study.figures(run, tables)}


def run(
    model: str, out: Path, *, folder: Path | None = None, predicted: bool = True, progress: bool = True, **asked: Any
) -> Run:
    """All in one call, in the folder ``out``; ``asked`` are other fields of `Srl`: preset, seed, tolerance, ..."""
    settings = Srl(model=model, data=folder, gold_trees=not predicted, **asked)
    return stages.run(Labelling(settings), Context(out, progress=progress))


#: A finished run, read back; the corpus must still be where it was.
read = folders.read
