"""What each part of the recipe is for: change one at a time."""

from __future__ import annotations

from typing import Any

from graphmask.bars import steps
from graphmask.experiments import TASKS, runner
from graphmask.experiments.bench.markdown import table
from graphmask.fitting.recipe import PAPER, Recipe

VARIANTS: dict[str, Recipe] = {
    "default": Recipe(),
    "the whole aim from the start": Recipe(first_aim=0.6),
    "gates start as they are drawn": Recipe(initial_location=None),
    "no settling": Recipe(settle=0.0),
    "baselines start at the mean message": Recipe(start="mean"),
    "baselines start at zero": Recipe(start="zero"),
    "half the steps": Recipe(steps=500),
    "twice the steps": Recipe(steps=2000),
    "paper": PAPER,
}


def measure(seeds: int) -> dict[str, Any]:
    """F1 per site of every variant and seed; the models are trained once per seed."""
    result: dict[str, Any] = {name: {} for name in VARIANTS}
    with runner.one_thread(), steps(len(TASKS) * seeds * len(VARIANTS), enabled=True) as step:
        for task in TASKS:
            for seed in range(seeds):
                trained = runner.train_model(task, seed)
                for name, recipe in VARIANTS.items():
                    step(f"{task}, seed {seed}: {name}")
                    figures = runner.run(task, seed, recipe=recipe, trained=trained, progress=False).figures
                    result[name].setdefault(task, []).append(
                        {
                            "f1": [site["f1"] for site in figures["gold"]["per_site"]],
                            "divergence": figures["divergence"],
                            "flips": figures["flips"],
                            "feasible": figures["feasible"],
                        }
                    )
    return {"seeds": seeds, "variants": result}


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row per variant; per task F1 of every layer, mean divergence, and how many fits met the tolerance."""
    header, lines = ["variant"], []
    for task, runs in next(iter(figures["variants"].values())).items():
        layers = len(runs[0]["f1"])
        header += [f"{task} F1"] if layers == 1 else [f"{task} layer {layer + 1} F1" for layer in range(layers)]
        header += [f"{task} divergence", f"{task} feasible"]
    for name, by_task in figures["variants"].items():
        row = [name]
        for runs in by_task.values():
            row += [_range(list(values)) for values in zip(*(run["f1"] for run in runs), strict=True)]
            row.append(f"{sum(run['divergence'] for run in runs) / len(runs):.4f}")
            row.append(f"{sum(run['feasible'] for run in runs)} of {len(runs)}")
        lines.append(row)
    return header, lines


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} (mean {sum(values) / len(values):.1f})"


def markdown(figures: dict[str, Any]) -> str:
    return table(*rows(figures))
