"""What each part of the recipe is for: change one at a time."""

from __future__ import annotations

from typing import Any

from graphmask.bars import steps
from graphmask.experiments import runner
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


TASKS = ("star", "relay")


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
    header = ["variant", "star F1", "relay layer 1 F1", "relay layer 2 F1", "relay divergence", "relay feasible"]
    lines = []
    for name, by_task in figures["variants"].items():
        star, relay = by_task["star"], by_task["relay"]
        lines.append(
            [
                name,
                _range([run["f1"][0] for run in star]),
                _range([run["f1"][0] for run in relay]),
                _range([run["f1"][1] for run in relay]),
                f"{sum(run['divergence'] for run in relay) / len(relay):.4f}",
                f"{sum(run['feasible'] for run in relay)} of {len(relay)}",
            ]
        )
    return header, lines


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} (mean {sum(values) / len(values):.1f})"


def markdown(figures: dict[str, Any]) -> str:
    return table(*rows(figures))
