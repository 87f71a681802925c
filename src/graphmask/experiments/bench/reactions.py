"""Do kept messages into a masked atom of the product come from the reactant atom that chemists say it is?

What is chosen, which way leads from scores of messages to scores of atoms, is chosen for every method on one half of
the reactions and written down; the other half is reported on.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.bars import through
from graphmask.errors import GraphMaskError
from graphmask.experiments import data
from graphmask.experiments.reactions.model import PUBLISHED, Question, Vocabulary, ask, load
from graphmask.experiments.reactions.scoring import DIRECT, PATHS, auc, by_way, hit, kept_into, name_of
from graphmask.experiments.reactions.smiles import HALVES, Reaction, read
from graphmask.experiments.stages import one_thread
from graphmask.explainer import GraphMask
from graphmask.explainer import load as load_gates
from graphmask.explaining.method import Method
from graphmask.files import write_bytes
from graphmask.methods.attention_weights import AttentionWeights
from graphmask.methods.integrated_gradients import IntegratedGradients
from graphmask.methods.random_choice import RandomChoice

FILE = Path("reactions") / "golden_mappings.csv"
GATES, CHOSEN, CHECKPOINT = "explainer.graphmask", "chosen.json", "fit.safetensors"
RAW, UNMASKED = "attention_weights", "attention_weights, nothing masked"


@dataclass(frozen=True)
class Size:
    """How much of it is done, and from which seed."""

    seed: int = 0
    longest: int = 48  #: tokens of a reaction
    fit: int = 400  #: questions that gates are fitted on, of the half to choose on
    questions: int = 64  #: that is chosen by; of the other half all reactions are reported on
    batch: int = 4
    epochs: int | None = None
    ig_steps: int = 8  #: points of the integral of integrated gradients


@dataclass
class Setting:
    """Model, words and questions, which methods share."""

    model: nn.Module
    words: Vocabulary
    size: Size
    fit: list[Question]
    asked: dict[str, list[Question]]  #: by half
    lost: dict[str, int]

    def batches(self, questions: Sequence[Question], *, masked: bool = True) -> list[dict[str, Tensor]]:
        """Sorted by length, so that little is padded."""
        step = self.size.batch
        return [self.words.batch(questions[at : at + step], masked=masked) for at in range(0, len(questions), step)]


def prepare(size: Size, wheel: Path | None = None, path: Path | None = None) -> Setting:
    model, words = load(wheel)
    contents = read(path or data.find(str(FILE)), longest=size.longest)
    drawn = {half: _questions([one for one in contents.reactions if one.half == half], size.seed) for half in HALVES}
    judging = {HALVES[0]: drawn[HALVES[0]][: size.questions], HALVES[1]: drawn[HALVES[1]]}
    asked = {half: sorted(each, key=_length) for half, each in judging.items()}
    fit = _all_atoms([one.reaction for one in drawn[HALVES[0]][size.questions :]], size)
    if not fit or not all(asked.values()):
        raise GraphMaskError(
            f"Expected reactions of at most {size.longest} tokens to fit gates on and in either half, found "
            f"{len(contents.reactions)} in all. Raise --longest."
        )
    return Setting(model, words, size, fit, asked, dict(contents.lost))


def _length(question: Question) -> int:
    return len(question.reaction.tokens)


def _questions(reactions: Sequence[Reaction], seed: int) -> list[Question]:
    """One per reaction, in random order: an atom whose source is known, and is not all reactant atoms."""
    rng = random.Random(seed)
    questions = []
    for reaction in reactions:
        able = sorted(at for at, right in reaction.sources.items() if len(right) < len(reaction.reactant_atoms))
        if able:
            questions.append(Question(reaction, rng.choice(able)))
    rng.shuffle(questions)
    return questions


def _all_atoms(reactions: Sequence[Reaction], size: Size) -> list[Question]:
    """As many as are wanted, in random order: any atom of these products."""
    questions = [Question(reaction, at) for reaction in reactions for at in sorted(reaction.sources)]
    random.Random(size.seed).shuffle(questions)
    return questions[: size.fit]


def fitted(setting: Setting, out: Path) -> tuple[GraphMask, dict[str, Any]]:
    """Gates with default settings; read back where they are in the folder already."""
    file, notes = out / GATES, out / "fit.json"
    if file.exists():
        return load_gates(file, setting.model, forward=ask), json.loads(notes.read_text())
    explainer = GraphMask(setting.model, ask, seed=setting.size.seed)
    started = time.process_time()
    batches = setting.batches(setting.fit)
    history = explainer.fit(batches, epochs=setting.size.epochs, checkpoint=out / CHECKPOINT)
    figures = {"steps": history.steps, "feasible": bool(history.feasible), "cpu_seconds": time.process_time() - started}
    explainer.save(file)
    write_bytes(notes, json.dumps(figures).encode())
    return explainer, figures


def judged(setting: Setting, half: str, method: Method, *, masked: bool = True) -> dict[str, Any]:
    """One method on one half: by way, how often the best atom is right and the AUC; and what the masks keep."""
    questions = setting.asked[half]
    started = time.process_time()
    explanations = method.explain_all(setting.batches(questions, masked=masked), repair=False, allow_infeasible=True)
    hits: dict[str, list[float]] = {}
    aucs: dict[str, list[float]] = {}
    counts, measured = [], []
    for question, explanation in zip(questions, explanations, strict=True):
        atoms = list(question.reaction.reactant_atoms)
        right = torch.tensor([at in question.reaction.sources[question.position] for at in atoms])
        for way, tokens in by_way(explanation, explanation.scores, question.position).items():
            hits.setdefault(way, []).append(hit(tokens[atoms], right))
            area = auc(tokens[atoms], right)
            assert area is not None, "questions have right and wrong atoms"
            aucs.setdefault(way, []).append(area)
        counts.append(kept_into(explanation, question.position, atoms, right))
        measured.append((explanation.retained, explanation.divergence, explanation.flips, float(right.double().mean())))
    retained, divergence, flips, chance = (statistics.fmean(column) for column in zip(*measured, strict=True))
    return {
        "hit": {way: statistics.fmean(each) for way, each in hits.items()},
        "auc": {way: statistics.fmean(each) for way, each in aucs.items()},
        "kept": _summed(counts),
        "retained": retained,
        "divergence": divergence,
        "flips": flips,
        "chance": chance,
        "cpu_seconds": time.process_time() - started,
    }


def _summed(kept: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all questions."""
    by_head = torch.tensor([one["by_head"] for one in kept]).sum(0).tolist()
    return {"messages": sum(k["messages"] for k in kept), "right": sum(k["right"] for k in kept), "by_head": by_head}


@torch.no_grad()
def accuracy(setting: Setting, half: str) -> float:
    """How often the model fills in the token that was masked."""
    right = 0
    questions = setting.asked[half]
    truth = setting.batches(questions, masked=False)
    for batch, plain in zip(setting.batches(questions), truth, strict=True):
        numbers = torch.arange(len(batch["position"]))
        right += int((ask(setting.model, batch).argmax(1) == plain["input_ids"][numbers, batch["position"]]).sum())
    return right / len(questions)


def measure(
    half: str,
    out: Path,
    size: Size,
    wheel: Path | None = None,
    path: Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """All methods on one half. Each is written to the folder when it is done, and not done again."""
    if half == HALVES[1] and not (out / CHOSEN).exists():
        raise GraphMaskError(f"Expected {out / CHOSEN}, found none. Run --part {HALVES[0]} first: it chooses.")
    out.mkdir(parents=True, exist_ok=True)
    _check_same(out / "size.json", asdict(size))
    with one_thread():
        setting = prepare(size, wheel, path)
        say(f"{len(setting.fit)} atoms to fit on, {len(setting.asked[half])} reactions to {half}")
        explainer, fit = fitted(setting, out)
        results: dict[str, Any] = {}
        methods: list[tuple[str, Method, bool]] = [
            (RAW, AttentionWeights(setting.model, ask), True),
            (UNMASKED, AttentionWeights(setting.model, ask), False),
            ("random", RandomChoice(setting.model, ask, seed=size.seed), True),
            ("integrated_gradients", IntegratedGradients(setting.model, ask, steps=size.ig_steps), True),
            ("graphmask", explainer, True),
        ]
        for name, method, masked in through(methods, f"methods on the half to {half}", enabled=True):
            file = out / f"{half}-{name.replace(', ', '-').replace(' ', '-')}.json"
            if not file.exists():
                write_bytes(file, json.dumps(judged(setting, half, method, masked=masked)).encode())
            results[name] = json.loads(file.read_text())
        figures = {"half": half, **asdict(size), "lost": setting.lost, "accuracy": accuracy(setting, half), "fit": fit}
    if half == HALVES[0]:
        write_bytes(out / CHOSEN, json.dumps({name: chosen(each) for name, each in results.items()}, indent=2).encode())
    return {**figures, "chosen": json.loads((out / CHOSEN).read_text()), "methods": results}


def chosen(figures: dict[str, Any]) -> str:
    """The way that finds the right atom most often; of equal ones, the higher AUC."""
    return max(figures["hit"], key=lambda way: (figures["hit"][way], figures["auc"][way]))


def _check_same(file: Path, size: dict[str, Any]) -> None:
    if file.exists() and json.loads(file.read_text()) != size:
        raise GraphMaskError(f"Expected a folder of the same run, found another in {file}. Choose another --out.")
    write_bytes(file, json.dumps(size).encode())


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """By method: the chosen way, the two fixed ways, and the published head."""
    header = ["method", "way", "right", "AUC", "chance", "kept into it", "of them right", "kept in all"]
    table = []
    for name, about in figures["methods"].items():
        ways = dict.fromkeys([figures["chosen"][name], DIRECT, PATHS])
        if name in (RAW, UNMASKED):
            ways[name_of(*PUBLISHED)] = None
        for way in (way for way in ways if way in about["hit"]):
            kept = about["kept"]
            share = f"{kept['right'] / kept['messages']:.1%}" if kept["messages"] else ""
            mark = " (chosen)" if way == figures["chosen"][name] else ""
            line = [name, way + mark, f"{about['hit'][way]:.1%}", f"{about['auc'][way]:.3f}", f"{about['chance']:.1%}"]
            table.append([*line, kept["messages"], share, f"{about['retained']:.1%}"])
    return header, table
