"""Question answering from files to explanations: the paper's section 5 in one call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import explainer as explaining
from graphmask import files, store
from graphmask.analysis.tally import Tally
from graphmask.errors import GraphMaskError
from graphmask.experiments import data
from graphmask.experiments.folder import figures_of
from graphmask.experiments.qa import learning, redocred, rules, wikihop
from graphmask.experiments.qa.examples import Examples, Loader, Words, in_order
from graphmask.experiments.qa.learning import Schedule
from graphmask.experiments.qa.mentions import RELATIONS
from graphmask.experiments.qa.model import EntityGCN, Sizes, forward, make
from graphmask.experiments.qa.questions import SUBJECT, Caps, Read
from graphmask.experiments.vectors import Vectors
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.fitting.recipe import Recipe

REDOCRED = "qa-redocred"
SPLITS = ("train", "dev", "test")
#: Of a question: whether the model still gives the same answer, and how sure it is of it.
DIVERGENCE = "kl"


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
    if name not in PRESETS:
        raise GraphMaskError(f"Expected a preset among {', '.join(PRESETS)}, got {name!r}.")
    found = PRESETS[name]
    if tolerance is not None:
        found = replace(found, tolerance=tolerance)
    return found if epochs is None else replace(found, schedule=replace(found.schedule, epochs=epochs))


@dataclass
class Corpus:
    """The three parts of a data set, ready to be batched."""

    words: Words
    parts: dict[str, Examples]
    lost: dict[str, dict[str, int]]  #: by part, what could not be used and what was cut

    @property
    def candidates(self) -> int:
        return self.parts["test"].candidates


def load(folder: Path, *, vectors: Path | None, caps: Caps | None = None, limit: int | None = None) -> Corpus:
    """Re-DocRED or WikiHop, by what the folder holds. ``limit`` takes the first so many documents or questions."""
    caps = caps or Caps()
    found = {split: part(folder, split, caps, limit) for split in SPLITS}
    every = [question for read in found.values() for question in read.questions]
    words = Words(every, Vectors.open(vectors))
    most = max((len(question.candidates) for question in every), default=0)
    parts = {split: Examples(read.questions, words, most) for split, read in found.items()}
    return Corpus(words, parts, {split: dict(read.lost) for split, read in found.items()})


def part(folder: Path, split: str, caps: Caps, limit: int | None) -> Read:
    """WikiHop publishes no test part: its development file is explained, a tenth of its training file held out."""
    if (folder / redocred.RELATIONS).is_file():
        return redocred.read(folder, split, limit=limit)
    path = folder / ("dev.json" if split == "test" else "train.json")
    if not path.is_file():
        raise GraphMaskError(
            f"Expected Re-DocRED ({', '.join((*redocred.FILES, redocred.RELATIONS))}) or WikiHop (train.json, "
            f"dev.json) in {folder}, found neither."
        )
    clusters = folder / f"{path.stem}.coreference.json"
    read = wikihop.read(path, caps=caps, clusters=clusters if clusters.is_file() else None, limit=limit)
    if split != "test":
        held_out = [number % 10 == 9 for number in range(len(read.questions))]
        wanted = split == "dev"
        read.questions = [q for q, out in zip(read.questions, held_out, strict=True) if out == wanted]
    return read


def fit(
    model: nn.Module,
    corpus: Corpus,
    preset: Preset,
    *,
    seed: int,
    form: str = "matrix",
    path: Path | None = None,
    progress: bool = True,
) -> GraphMask:
    """Train gates on the training part; thresholds are chosen on the development part."""
    explainer = GraphMask(
        model,
        forward,
        DIVERGENCE,
        preset.aim * preset.tolerance,
        seed,
        recipe=preset.recipe,
        hidden=preset.hidden,
    )
    dev = corpus.parts["dev"]
    some = torch.randperm(len(dev), generator=torch.Generator().manual_seed(0))[: preset.calibrate]
    explainer.fit(
        Loader(corpus.parts["train"], preset.gate_size, form=form, seed=seed),
        Loader(dev, 64, form=form, only=some),
        epochs=preset.gate_epochs,
        checkpoint=path,
        progress=progress,
    )
    explainer.calibrate(Loader(dev, 64, form=form), tolerance=preset.tolerance)
    return explainer


def describe(examples: Examples, batch: Mapping[str, Any], answers: Tensor) -> list[dict[str, Any]]:
    """What a reader, and the study, want to know of each question beside its explanation."""
    return [record(examples, number, int(answers[number])) for number in batch["example"].tolist()]


def record(examples: Examples, number: int, predicted: int) -> dict[str, Any]:
    question = examples.questions[number]
    relation, subject = " ".join(question.relation), " ".join(question.subject)
    right = question.candidates[question.answer]
    kinds = examples.edge_type[examples.edges_of(number)].tolist()
    notes = [] if predicted == question.answer else [f"The model errs: the answer is {right}."]
    nodes = list(enumerate(question.mentions))
    return {
        "title": f"{relation}: {subject}",
        "id": question.id,
        "query": f"{relation}: {subject}",
        "relation": relation,
        "documents": [list(document) for document in question.documents],
        "mentions": [[*mention.span, mention.entity] for mention in question.mentions],
        "candidates": list(question.candidates),
        "answer": question.answer,
        "predicted": predicted,
        "evidence": sorted(question.evidence),
        "subject_nodes": [node for node, mention in nodes if mention.entity == SUBJECT],
        "predicted_nodes": [node for node, mention in nodes if mention.entity == predicted],
        "edge_labels": [RELATIONS[kind] for kind in kinds],
        "node_labels": [" ".join(question.words(mention)) for mention in question.mentions],
        "notes": notes,
    }


@dataclass
class Run:
    """A finished run, in memory or read back."""

    path: Path
    figures: dict[str, Any]
    corpus: Corpus
    model: EntityGCN
    explainer: GraphMask
    store: store.Store

    @property
    def preset(self) -> Preset:
        return replace(get(self.figures["preset"]), tolerance=self.figures["tolerance"])


def run(
    out: Path,
    *,
    folder: Path | None = None,
    preset: str = "small",
    seed: int = 0,
    tolerance: float | None = None,
    limit: int | None = None,
    epochs: int | None = None,
    progress: bool = True,
) -> Run:
    """Train (or go on training), fit gates (or go on), explain the test part; all of it in the folder ``out``."""
    chosen = get(preset, tolerance=tolerance, epochs=epochs)
    vectors = data.glove()
    corpus = load(folder or data.find(REDOCRED), vectors=vectors, limit=limit)
    parts = corpus.parts
    model = make("matrix", corpus.words.table, chosen.sizes, corpus.candidates, seed=seed)
    history, train_seconds = learning.train(
        model,
        parts["train"],
        parts["dev"],
        chosen.schedule,
        seed=seed,
        path=out / "training.safetensors",
        progress=progress,
    )
    files.write(out / "model.safetensors", "model", model.state_dict(), {"task": "qa"})
    explainer = fit(model, corpus, chosen, seed=seed, path=out / "fit.safetensors", progress=progress)
    explainer.save(out / "explainer.graphmask")
    test = parts["test"]
    answers = learning.predict(model, test)
    written = explainer.explain_all(
        in_order(test),
        out=out / "explanations",
        metadata=lambda batch: describe(test, batch, answers),
        repair=False,
        allow_infeasible=True,
        progress=progress,
    )
    trivial = rules.accuracies(parts["train"].questions, test.questions)
    figures = {
        "task": "qa",
        "word_vectors": vectors.name if vectors else None,
        "preset": preset,
        "seed": seed,
        "tolerance": chosen.tolerance,
        "limit": limit,
        "data": None if folder is None else str(folder.absolute()),
        "examples": {split: len(part) for split, part in parts.items()},
        "lost": corpus.lost,
        "history": history,
        "rules": trivial,
        "prior": max(trivial.values()),
        **measured(explainer, test, written),
        "train_cpu_seconds": train_seconds,
        "fit_seconds": explainer.history.seconds if explainer.history else 0.0,
    }
    # Last: a folder with figures is complete.
    files.write_bytes(out / "run.json", (json.dumps(figures, indent=2) + "\n").encode())
    return Run(out, figures, corpus, model, explainer, written)


def measured(explainer: GraphMask, test: Examples, explanations: Iterable[Explanation]) -> dict[str, Any]:
    """The original model against the masked one, on test."""
    before, after = [], []
    tally = Tally()
    for explanation in explanations:
        before.append(explanation.original.argmax())
        after.append(explanation.masked.argmax())
        tally.add(explanation)
    original, masked = (learning.accuracy(torch.stack(found), test) for found in (before, after))
    history = explainer.history
    return {
        "accuracy": original,
        "masked_accuracy": masked,
        "accuracy_change": masked - original,
        **tally.means,
        "feasible": bool(history and history.feasible),
        "fit_steps": history.steps if history else 0,
    }


def read(path: Path) -> Run:
    """A finished run, read back; the data must still be where they were."""
    if not (path / "run.json").is_file():
        raise GraphMaskError(f"Expected the folder of a finished run, found no run.json in {path}. Try: graphmask run")
    figures = figures_of(path, "preset", "data", "limit", "seed")
    where = Path(figures["data"]) if figures["data"] else data.find(REDOCRED)
    corpus = load(where, vectors=data.glove(), limit=figures["limit"])
    sizes = get(figures["preset"]).sizes
    model = make("matrix", corpus.words.table, sizes, corpus.candidates, seed=figures["seed"])
    tensors, _ = files.read(path / "model.safetensors", "model")
    with files.understood(path / "model.safetensors", "model"):
        model.load_state_dict(tensors)
    model.eval()
    explainer = explaining.load(path / "explainer.graphmask", model, forward=forward)
    return Run(path, figures, corpus, model, explainer, store.open(path / "explanations"))
