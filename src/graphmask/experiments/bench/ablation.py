"""What each part of the recipe is for: change one at a time, on models of the battery's design half."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphmask.experiments.bench.battery import run
from graphmask.experiments.bench.battery.summary import summary
from graphmask.experiments.bench.markdown import table
from graphmask.fitting.recipe import PAPER, Recipe

#: By name, with the folder of its fits.
VARIANTS: dict[str, tuple[str, Recipe | None]] = {
    "default": ("fits", None),
    "the whole aim from the start": ("fits-aim", Recipe(first_aim=0.6)),
    "the seed draws the first weights": ("fits-drawn", Recipe(drawn=True)),
    "gates start as they are drawn": ("fits-open", Recipe(drawn=True, initial_location=None)),
    "no settling": ("fits-settle", Recipe(settle=0.0)),
    "baselines start at the mean message": ("fits-mean", Recipe(start="mean")),
    "baselines start at zero": ("fits-zero", Recipe(start="zero")),
    "half the steps": ("fits-half", Recipe(steps=500)),
    "twice the steps": ("fits-twice", Recipe(steps=2000)),
    "paper": ("fits-paper", PAPER),
}
#: Of the design half: each kind of model, and none that every variant explains alike.
MODELS = (
    "frozen_tree_grid",
    "nodes_gcn",
    "mutagenicity_gin",
    "ba2motifs_gcn",
    "regression",
    "reasoning_rgcn",
    "reasoning_gated",
    "star",
)


def measure(names: Sequence[str], seeds: Sequence[int], out: Path, *, jobs: int = 1) -> dict[str, Any]:
    """The battery's figures of every variant. Models are trained once; what is in ``out`` is not measured again."""
    variants = {}
    for variant, (folder, recipe) in VARIANTS.items():
        results = run.measure_all(names, seeds, out, jobs=jobs, recipe=recipe, fits=folder)
        variants[variant] = summary(results)["models"]
    return {"seeds": len(seeds), "variants": variants}


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row per variant: share kept and kappa of each model; fits within tolerance on test; CPU seconds of a fit."""
    variants = figures["variants"]
    names = list(next(iter(variants.values())))
    lines = []
    for variant, models in variants.items():
        fits = [one for model in models.values() for one in model["runs"] if "error" not in one]
        within = sum(one["divergence"] <= one["tolerance"] for one in fits)
        seconds = statistics.fmean(one["fit_cpu_seconds"] for one in fits)
        cells = [_cell(models[name]) for name in names]
        lines.append([variant, *cells, f"{within} of {len(fits)}", f"{seconds:.1f}"])
    return ["variant", *(f"`{name}`" for name in names), "within tolerance on test", "CPU s per fit"], lines


def _cell(model: dict[str, Any]) -> str:
    kept, kappa = model["figures"]["kept"], model["kappa"]
    share = "-" if kept is None else f"{kept['mean']:.1%}"
    return share if kappa is None else f"{share}, {kappa:.2f}"


def markdown(figures: dict[str, Any]) -> str:
    return table(*rows(figures))
