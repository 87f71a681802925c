"""Semantic role labelling from files to explanations: the paper's section 6 in one call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch

from graphmask import explainer as explaining
from graphmask import files, store
from graphmask.analysis.tally import Tally
from graphmask.errors import GraphMaskError
from graphmask.experiments import data
from graphmask.experiments.folder import figures_of
from graphmask.experiments.srl import conll09, learning
from graphmask.experiments.srl.examples import NO_ROLE, NOUN, VERB, Examples, Vocabularies
from graphmask.experiments.srl.learning import Loader, Schedule
from graphmask.experiments.srl.model import Labeller, Sizes, make
from graphmask.experiments.vectors import Found, Vectors
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.fitting.recipe import Recipe

#: LSTM+GNN has one layer of GNN over a BiLSTM, GNN-only has two layers and no LSTM.
MODELS = ("lstm", "gnn")
SPLITS = ("train", "dev", "test")
EWT = "srl-ewt"
#: Of tokens. What must not change is the role that the model gives, not how sure it is of it.
DIVERGENCE = "cross_entropy"
#: Files of a corpus by split: our own names, then those of the shared task.
NAMES = {"train": ("train.conll09", "*train*"), "dev": ("dev.conll09", "*development*", "*dev*")}
NAMES["test"] = ("test.conll09", "*evaluation-English.*", "*test*")


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
    if name not in PRESETS:
        raise GraphMaskError(f"Expected a preset among {', '.join(PRESETS)}, got {name!r}.")
    found = PRESETS[name]
    if tolerance is not None:
        found = replace(found, tolerance=dict.fromkeys(MODELS, tolerance))
    return found if epochs is None else replace(found, schedule=replace(found.schedule, epochs=epochs))


@dataclass
class Corpus:
    """The three parts of a corpus, encoded by what the training part shows."""

    vocabularies: Vocabularies
    vectors: Found
    parts: dict[str, Examples]

    @property
    def counts(self) -> dict[str, int]:
        v = self.vocabularies
        sizes = {name: len(getattr(v, name)) for name in ("lemmas", "tags", "frames", "roles")}
        return {**sizes, "edge_types": v.edge_types}


def find(folder: Path, split: str) -> Path:
    """The file of a split, by our names or those of the shared task."""
    for pattern in NAMES[split]:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found)
            raise GraphMaskError(f"Expected one {split} file in {folder}, found {names}. Name yours {NAMES[split][0]}.")
    raise GraphMaskError(f"Expected a {split} file in {folder}, found none. Name yours {NAMES[split][0]}.")


def load(
    folder: Path,
    *,
    minimum: int,
    vectors: Path | None,
    predicted: bool = True,
    splits: Sequence[str] = SPLITS,
    limit: int | None = None,
    vocabularies: Vocabularies | None = None,
) -> Corpus:
    """Read and encode. ``limit`` takes the first so many sentences of every file, for trying things out."""
    sentences = {split: conll09.read(find(folder, split), limit=limit) for split in splits}
    if vocabularies is None:
        vocabularies = Vocabularies.of(sentences["train"], minimum=minimum, predicted=predicted)
    words = list(vocabularies.words.words)
    parts = {split: Examples(found, vocabularies, predicted=predicted) for split, found in sentences.items()}
    return Corpus(vocabularies, Vectors.open(vectors).for_words(words), parts)


def fit(
    model: nn.Module,
    corpus: Corpus,
    preset: Preset,
    tolerance: float,
    *,
    seed: int,
    path: Path | None = None,
    progress: bool = True,
) -> GraphMask:
    """Train gates on the training part; thresholds are chosen on the development part."""
    explainer = GraphMask(
        model, learning.forward, DIVERGENCE, tolerance, seed, recipe=preset.recipe, hidden=preset.hidden
    )
    some = torch.randperm(len(corpus.parts["dev"]), generator=torch.Generator().manual_seed(0))[: preset.calibrate]
    explainer.fit(
        Loader(corpus.parts["train"], preset.gate_tokens, seed=seed),
        Loader(corpus.parts["dev"], preset.schedule.tokens, only=some.tolist()),
        epochs=preset.gate_epochs,
        checkpoint=path,
        progress=progress,
    )
    return explainer


def describe(examples: Examples, batch: Batch, roles: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """What a reader, and the study, want to know of each example beside its explanation."""
    v = examples.vocabularies
    names = v.roles.words
    found = []
    for number in batch.example.tolist():
        sentence, predicate = examples.place(number)
        gold = dict(predicate.arguments)
        given = {token: names[role] for token, role in enumerate(roles[number].tolist()) if role != NO_ROLE}
        others = {token for other in sentence.predicates if other is not predicate for token, _ in other.arguments}
        wrong = [f"{sentence.form[t]} is {gold[t]}" for t in gold if given.get(t) != gold[t]]
        wrong += [f"{sentence.form[t]} has no role" for t in given if t not in gold]
        sentence_number, which = examples.at[number]
        found.append(
            {
                "title": f"{predicate.sense} in sentence {sentence_number + 1}",
                "tokens": list(sentence.form),
                "predicate": predicate.index,
                "sense": predicate.sense,
                "which": which,
                "kind": examples.kinds[number],
                "roles": [given.get(token, "_") for token in range(len(sentence))],
                "gold_roles": [gold.get(token, "_") for token in range(len(sentence))],
                "other_arguments": sorted(others),
                "notes": [f"The model errs: {'; '.join(wrong)}."] if wrong else [],
            }
        )
    edges = [v.edge_type_name(kind) for kind in batch.edge_type.tolist()]
    owner = batch.batch[batch.edge_index[0]].tolist()
    for record in found:
        record["edge_labels"] = []
    for name, graph in zip(edges, owner, strict=True):
        found[graph]["edge_labels"].append(name)
    return found


@dataclass
class Run:
    """A finished run, in memory or read back."""

    path: Path
    figures: dict[str, Any]
    corpus: Corpus
    model: Labeller
    explainer: GraphMask
    store: store.Store


def run(
    model: str,
    out: Path,
    *,
    folder: Path | None = None,
    preset: str = "small",
    seed: int = 0,
    tolerance: float | None = None,
    predicted: bool = True,
    limit: int | None = None,
    epochs: int | None = None,
    progress: bool = True,
) -> Run:
    """Train (or go on training), fit gates (or go on), explain the test part; all of it in the folder ``out``."""
    chosen = get(preset, tolerance=tolerance, epochs=epochs)
    sizes = chosen.sizes(model)
    vectors = data.glove()
    corpus = load(folder or data.find(EWT), minimum=chosen.minimum, vectors=vectors, predicted=predicted, limit=limit)
    labeller = make(sizes, corpus.vectors, corpus.counts, seed=seed)
    parts, unfinished = corpus.parts, out / "training.safetensors"
    history, train_seconds = learning.train(
        labeller, parts["train"], parts["dev"], chosen.schedule, seed=seed, path=unfinished, progress=progress
    )
    files.write(out / "model.safetensors", "model", labeller.state_dict(), {"task": "srl", "model": model})
    files.write_bytes(out / "vocabularies.json", json.dumps(corpus.vocabularies.to_json()).encode())
    allowed = chosen.tolerance[model]
    explainer = fit(labeller, corpus, chosen, allowed, seed=seed, path=out / "fit.safetensors", progress=progress)
    explainer.save(out / "explainer.graphmask")
    test = corpus.parts["test"]
    roles = learning.predict(labeller, test)
    written = explainer.explain_all(
        in_order(test),
        out=out / "explanations",
        metadata=lambda batch: describe(test, batch, roles),
        repair=False,
        allow_infeasible=True,
        progress=progress,
    )
    figures = {
        "task": "srl",
        "word_vectors": vectors.name if vectors else None,
        "model": model,
        "preset": preset,
        "seed": seed,
        "tolerance": allowed,
        "predicted": predicted,
        "limit": limit,
        "data": None if folder is None else str(folder.absolute()),
        "examples": {split: len(part) for split, part in corpus.parts.items()},
        "history": history,
        **measured(explainer, test, roles, written),
        "train_cpu_seconds": train_seconds,
        "fit_seconds": explainer.history.seconds if explainer.history else 0.0,
    }
    # Last: a folder with figures is complete.
    files.write_bytes(out / "run.json", (json.dumps(figures, indent=2) + "\n").encode())
    return Run(out, figures, corpus, labeller, explainer, written)


def in_order(examples: Examples, size: int = 64) -> list[Batch]:
    """Batches whose graphs come in the order of the examples: explanations are found by their number."""
    return [examples.batch(range(low, min(low + size, len(examples)))) for low in range(0, len(examples), size)]


def measured(
    explainer: GraphMask,
    test: Examples,
    roles: Sequence[torch.Tensor],
    explanations: Iterable[Explanation],
) -> dict[str, Any]:
    """The original model against the masked one, on test."""
    masked = []
    tally = Tally()
    for explanation in explanations:
        masked.append(explanation.masked.argmax(1))
        tally.add(explanation)
    original, after = learning.count(roles, test), learning.count(masked, test)
    history = explainer.history
    by_kind = {}
    for kind in (VERB, NOUN):
        numbers = [number for number, found in enumerate(test.kinds) if found == kind]
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
        "feasible": bool(history and history.feasible),
        "fit_steps": history.steps if history else 0,
    }


def read(path: Path) -> Run:
    """A finished run, read back; the corpus must still be where it was."""
    if not (path / "run.json").is_file():
        raise GraphMaskError(f"Expected the folder of a finished run, found no run.json in {path}. Try: graphmask run")
    figures = figures_of(path, "preset", "data", "predicted", "limit", "model", "seed")
    with files.understood(path / "vocabularies.json", "vocabulary"):
        vocabularies = Vocabularies.from_json(files.read_json(path / "vocabularies.json"))
    chosen = get(figures["preset"])
    corpus = load(
        Path(figures["data"]) if figures["data"] else data.find(EWT),
        minimum=chosen.minimum,
        vectors=data.glove(),
        predicted=figures["predicted"],
        limit=figures["limit"],
        vocabularies=vocabularies,
    )
    labeller = make(chosen.sizes(figures["model"]), corpus.vectors, corpus.counts, seed=figures["seed"])
    tensors, _ = files.read(path / "model.safetensors", "model")
    with files.understood(path / "model.safetensors", "model"):
        labeller.load_state_dict(tensors)
    labeller.eval()
    explainer = explaining.load(path / "explainer.graphmask", labeller, forward=learning.forward)
    return Run(path, figures, corpus, labeller, explainer, store.open(path / "explanations"))
