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
from graphmask.experiments.sequences import BATCH, TASKS, Questions, train
from graphmask.experiments.stages import one_thread
from graphmask.explainer import GraphMask
from graphmask.explaining.case import Case
from graphmask.explanation import Explanation
from graphmask.tapping import gradients
from graphmask.tapping.masking import masked

#: Sequences to fit on, to calibrate on, and to be judged by; of the latter, those whose gold is tried on the model.
FIT, VALIDATION, TEST, TRIED = 32_000, 2_000, 2_000, 100
#: Sequences on which stand-ins are learned that serve where the gold alone is heard, and how.
LEARNED, STEPS, RATE = 1_024, 240, 0.03


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
    explanations = list(explainer.explain_all(test.batches(), repair=False, allow_infeasible=True))
    kept = torch.cat([explanation.kept for explanation in explanations], 1)
    gold = torch.cat([test.gold(number, explanation) for number, explanation in enumerate(explanations)], 1)
    per_site = [
        {"site": site, **asdict(Agreement.of(kept[layer], gold[layer]))}
        for layer, site in enumerate(explanations[0].sites)
    ]
    tried = check(model, explanations[:TRIED], test)
    return {
        "seed": seed,
        "model": {"accuracy": accuracy, "train_cpu_seconds": trained - started},
        "gold": {**asdict(Agreement.of(kept, gold)), "per_site": per_site},
        "gold_check": {
            **tried,
            "sufficient_as_fitted": tried["sufficient"],
            "sufficient": sufficient(explainer, fit, test),
        },
        **Tally.of(explanations).means,
        "fit_cpu_seconds": spent,
    }


@torch.no_grad()
def check(model: nn.Module, explanations: Sequence[Explanation], questions: Questions) -> dict[str, Any]:
    """Is the gold right for this very model? Shown by running it with the baselines that were learned.

    *Sufficient*: with gold messages alone the output stays; see also `sufficient`. *Necessary*: any gold message that
    is dropped alone moves the margin between the answer and the next best (log odds).
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


def sufficient(explainer: GraphMask, fit: Questions, test: Questions) -> dict[str, float]:
    """Is the gold enough for this very model, whatever gates found? With stand-ins that are learned for it alone.

    Those of a fit that keeps what it need not keep have never had to stand in for it, and say nothing of the model.
    """
    assert explainer.probe is not None
    learned = [part.detach().clone().requires_grad_() for part in explainer.probe.stand_ins()]
    optimiser = torch.optim.Adam(learned, lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, STEPS)

    def heard(questions: Questions) -> list[tuple[Case, Tensor]]:
        return [
            (case, _gold_of(case, needed))
            for batch, needed in zip(questions.batches(), questions.needed.split(BATCH), strict=True)
            for case in [explainer.case(batch)]
        ]

    with explainer.subject.frozen():
        cases = heard(fit.first(LEARNED))
        with gradients.needed(), torch.enable_grad():
            for step in range(STEPS):
                case, gold = cases[step % len(cases)]
                optimiser.zero_grad()
                kl(case.trace.output, case.run(gold, learned)).mean().backward()
                optimiser.step()
                schedule.step()
        with torch.no_grad():
            divergences, flips = [], []
            for case, gold in heard(test):
                output = case.run(gold, learned)
                divergences.append(kl(case.trace.output, output))
                flips.append(case.flips(output))
    return {"divergence": float(torch.cat(divergences).mean()), "flips": float(torch.cat(flips).mean())}


def _gold_of(case: Case, needed: Tensor) -> Tensor:
    """bool [L, E] by the edges of a batch, whose sequences need these, [B, L, N, N]."""
    sender, receiver = case.split.within(case.trace.edge_index)
    return needed[case.split.edge_graph, :, receiver, sender].t().contiguous()


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
    return {"summary": {name: agreement(by_seed) for name, by_seed in runs.items()}, "tasks": runs}
