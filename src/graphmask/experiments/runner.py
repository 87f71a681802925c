"""One run of a task from nothing: train its model, fit GraphMask, explain fresh graphs, compare with the gold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch

from graphmask import experiments
from graphmask import team as distributed
from graphmask.analysis.tally import Tally
from graphmask.experiments import gold
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.fitting.recipe import Recipe

#: Graphs to fit on, to calibrate on, and to be judged by. 500 batches of 64: a recipe's 1,000 steps are whole epochs.
FIT, VALIDATION, TEST = 32_000, 2_000, 2_000


@contextmanager
def one_thread() -> Iterator[None]:
    """These tasks are small: a second thread costs more than it gives, and blurs CPU seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Run:
    """A finished run: the objects, and the figures for JSON."""

    model: nn.Module
    explainer: GraphMask
    test: list[Batch]
    explanations: list[Explanation]
    figures: dict[str, Any]


#: Which of the three a draw is.
TEST_PART = 2


def draw(name: str, seed: int, part: int) -> list[Batch]:
    """Graphs of a run: to fit on (0), to calibrate on (1), to be judged by (2)."""
    # Seeds of the data are far apart, so that no graph is seen twice.
    return experiments.get(name).generate((FIT, VALIDATION, TEST)[part], seed=(seed + 1) * 10_000 + part)


def train_model(name: str, seed: int) -> tuple[nn.Module, dict[str, float]]:
    started = time.process_time()
    model, accuracy = experiments.get(name).train(seed=seed)
    return model, {"accuracy": accuracy, "train_cpu_seconds": time.process_time() - started}


def run(
    name: str,
    seed: int = 0,
    *,
    recipe: str | Recipe = "noisy",
    tolerance: float = 0.03,
    trained: tuple[nn.Module, dict[str, float]] | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
    accumulate: int = 1,
    precision: str | None = None,
) -> Run:
    """``trained`` takes a model that `train_model` made before. In several processes all end with the whole run."""
    team = distributed.team()
    model, about_model = trained or train_model(name, seed)
    fit, validation, test = (draw(name, seed, part) for part in range(3))
    team.align(model)  # each process trained it
    explainer = GraphMask(model, tolerance=tolerance, seed=seed, recipe=recipe, precision=precision)
    wall, cpu = time.perf_counter(), time.process_time()
    history = explainer.fit(fit, validation, checkpoint=checkpoint, progress=progress, accumulate=accumulate)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    started = time.perf_counter()
    mine = list(explainer.explain_all(test, repair=False, allow_infeasible=True))
    explanations = distributed.in_order(team, mine, [batch.num_graphs for batch in test])
    per_explanation = 1000 * (time.perf_counter() - started) / len(explanations)
    assert explainer.probe is not None
    figures = {
        "task": name,
        "seed": seed,
        "recipe": explainer.recipe.name,
        "tolerance": tolerance,
        "processes": team.size,
        "batches_per_step": team.size * accumulate,
        "precision": explainer.precision,
        "model": about_model,
        "gold": gold.compare(explanations, test),
        "gold_check": gold.check(model, explainer.probe, test[:8]),
        **Tally.of(explanations).means,
        "feasible": history.feasible,
        "fit_seconds": wall,
        "fit_cpu_seconds": cpu,
        "fit_steps": history.steps,
        "explain_ms": per_explanation,
    }
    return Run(model, explainer, test, explanations, figures)
