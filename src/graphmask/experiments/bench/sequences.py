"""Do default settings find the attention that trained transformers need, where it is known? Is it what they need?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.analysis.ground_truth import Agreement
from graphmask.analysis.tally import Tally
from graphmask.bars import steps
from graphmask.divergence import kl
from graphmask.experiments.bench.gold import agreement
from graphmask.experiments.sequences import TASKS, Questions, train
from graphmask.experiments.stages import one_thread
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.tapping.masking import masked

#: Sequences to fit on, to calibrate on, and to be judged by; of the latter, those whose gold is tried on the model.
FIT, VALIDATION, TEST, TRIED = 32_000, 2_000, 2_000, 100


def run(name: str, seed: int) -> dict[str, Any]:
    """Train a model, fit gates with default settings, compare what is kept with what is needed; figures as of gold."""
    task = TASKS[name]
    started = time.process_time()
    model, accuracy = train(task, seed)
    trained = time.process_time()
    # Seeds are far from those of training: no sequence is seen twice.
    fit, validation, test = (
        task.draw(count, -1 - (4 * seed + part)) for part, count in enumerate((FIT, VALIDATION, TEST))
    )
    explainer = GraphMask(model, seed=seed)
    explainer.fit(fit.batches(), validation.batches(), progress=False)
    spent = time.process_time() - trained
    found = list(explainer.explain_all(test.batches(), repair=False, allow_infeasible=True))
    kept = torch.cat([explanation.kept for explanation in found], 1)
    gold = torch.cat([test.gold(number, explanation) for number, explanation in enumerate(found)], 1)
    per_site = [
        {"site": site, **asdict(Agreement.of(kept[layer], gold[layer]))} for layer, site in enumerate(found[0].sites)
    ]
    return {
        "seed": seed,
        "model": {"accuracy": accuracy, "train_cpu_seconds": trained - started},
        "gold": {**asdict(Agreement.of(kept, gold)), "per_site": per_site},
        "gold_check": check(model, found[:TRIED], test),
        **Tally.of(found).means,
        "fit_cpu_seconds": spent,
    }


@torch.no_grad()
def check(model: nn.Module, explanations: Sequence[Explanation], questions: Questions) -> dict[str, Any]:
    """Is the gold right for this very model? Shown by running it with the baselines that were learned.

    *Sufficient*: with gold messages alone the output stays. *Necessary*: any gold message that is dropped alone moves
    the margin between the answer and the next best (log odds).
    """
    divergence, flips = 0.0, 0
    moved: list[list[float]] = [[] for _ in explanations[0].sites]
    for number, explanation in enumerate(explanations):
        gold, original = questions.gold(number, explanation), explanation.original
        output = _with(model, questions, number, explanation, gold)
        divergence += float(kl(original, output))
        flips += int(original.argmax() != output.argmax())
        for layer, edge in gold.nonzero().tolist():
            without = explanation.carried.clone()
            without[layer, edge] = False
            output = _with(model, questions, number, explanation, without)
            moved[layer].append(abs(_margin(output, original) - _margin(original, original)))
    count = len(explanations)
    return {
        "sufficient": {"divergence": divergence / count, "flips": flips / count},
        "necessary": {
            "smallest_margin_change": [min(part) for part in moved],
            "median_margin_change": [float(torch.tensor(part).median()) for part in moved],
        },
    }


def _with(model: nn.Module, questions: Questions, number: int, explanation: Explanation, kept: Tensor) -> Tensor:
    """The model's output on one sequence with these messages and no others."""
    here = slice(number, number + 1)
    with masked(model, replace(explanation, kept=kept)):
        return model(x=questions.x[here], allowed=questions.allowed[here])


def _margin(output: Tensor, original: Tensor) -> float:
    """Log odds of the original's answer against the best of the others."""
    answer = int(original.argmax())
    others = output[0].clone()
    others[answer] = -torch.inf
    return float(output[0, answer] - others.max())


def measure(names: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with one_thread(), steps(len(names) * len(seeds), enabled=True) as step:
        for name in names:
            for seed in seeds:
                step(f"{name}, seed {seed}")
                runs[name].append(run(name, seed))
    return {"summary": {name: agreement(found) for name, found in runs.items()}, "tasks": runs}
