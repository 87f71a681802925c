"""Does the default recipe find the gold on every seed, and is the gold right for every model?"""

from __future__ import annotations

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
    return {"tasks": runs}


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
    good = sum(all(s["f1"] >= 99 for s in r["gold"]["per_site"]) for r in runs)
    collapsed = sum(any(share in (0.0, 1.0) for share in r["retained_per_site"]) for r in runs)
    return (
        f"{task}: 100.0 at every site on {perfect} of {len(runs)} seeds, F1 >= 99.0 at every site on {good}; "
        f"{collapsed} collapsed (all open or all shut)"
    )
