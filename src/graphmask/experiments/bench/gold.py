"""Does the default recipe find the gold on every seed, and is the gold right for every model?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from graphmask.bars import steps
from graphmask.experiments import runner
from graphmask.fitting.recipe import Recipe


def measure(names: Sequence[str], seeds: Sequence[int], recipe: str | Recipe = "noisy") -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with runner.one_thread(), steps(len(names) * len(seeds), enabled=True) as step:
        for name in names:
            for seed in seeds:
                step(f"{name}, seed {seed}")
                runs[name].append(runner.run(name, seed, recipe=recipe, progress=False).figures)
    return {"summary": {name: agreement(by_seed) for name, by_seed in runs.items()}, "tasks": runs}


#: From here on a layer counts as found.
GOOD = 99.0


def agreement(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over seeds, per site: means of precision and recall, the lowest F1, and how many are good."""
    sites = zip(*(run["gold"]["per_site"] for run in runs), strict=True)
    return {
        "seeds": len(runs),
        "per_site": [
            {
                "precision": statistics.fmean(line["precision"] for line in site),
                "recall": statistics.fmean(line["recall"] for line in site),
                "f1_lowest": min(line["f1"] for line in site),
                "good": sum(line["f1"] >= GOOD for line in site),
            }
            for site in sites
        ],
        "good_at_every_site": sum(_good(run) for run in runs),
        "fit_cpu_seconds": statistics.fmean(run["fit_cpu_seconds"] for run in runs),
    }


def _good(run: dict[str, Any]) -> bool:
    return all(line["f1"] >= GOOD for line in run["gold"]["per_site"])


def rows(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    sites = [site["site"] for site in runs[0]["gold"]["per_site"]]
    header = [
        "seed",
        *(f"{site} P / R / F1" for site in sites),
        "retained",
        "divergence",
        "flips",
        "gold only: divergence",
        "flips",
        "smallest effect of a gold edge",
        "fit CPU s",
    ]
    table = []
    for run in runs:
        check = run["gold_check"]
        table.append(
            [
                run["seed"],
                *(f"{s['precision']:.1f} / {s['recall']:.1f} / {s['f1']:.1f}" for s in run["gold"]["per_site"]),
                f"{run['retained']:.1%}",
                f"{run['divergence']:.4f}",
                f"{run['flips']:.2%}",
                f"{check['sufficient']['divergence']:.4f}",
                f"{check['sufficient']['flips']:.2%}",
                " ".join(f"{value:.1f}" for value in check["necessary"]["smallest_margin_change"]),
                f"{run['fit_cpu_seconds']:.1f}",
            ]
        )
    return header, table


def summary(task: str, runs: Sequence[dict[str, Any]]) -> str:
    perfect = sum(
        all(round(s[k], 1) == 100 for s in r["gold"]["per_site"] for k in ("precision", "recall")) for r in runs
    )
    good = sum(map(_good, runs))
    collapsed = sum(any(share in (0.0, 1.0) for share in r["retained_per_site"]) for r in runs)
    return (
        f"{task}: 100.0 at every site on {perfect} of {len(runs)} seeds, F1 >= 99.0 at every site on {good}; "
        f"{collapsed} collapsed (all open or all shut)"
    )
