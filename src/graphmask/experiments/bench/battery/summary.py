"""From fits to figures: means and ranges over seeds, agreement between them, and counts per half."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from graphmask.experiments.bench.battery import masks
from graphmask.experiments.bench.battery.models import ENTRIES

#: Figures whose mean and range over seeds are reported; a dot leads into a part.
FIGURES = (
    "kept",
    "divergence",
    "within",
    "flips",
    "repaired.kept_before",
    "repaired.kept",
    "repaired.divergence",
    "repaired.within",
    "repaired.flips_before",
    "repaired.flips",
    "gold.precision",
    "gold.recall",
    "gold.f1",
    "gold.auc",
    "gold.noise_auc",
    "audits.silence.moved",
    "audits.deletion.never_kept.edges",
    "audits.deletion.never_kept.flips",
    "audits.deletion.never_kept.divergence",
    "audits.deletion.random.flips",
    "audits.deletion.random.divergence",
    "audits.deletion.kept.flips",
    "audits.deletion.kept.divergence",
    "steps",
    "fit_cpu_seconds",
    "fit_over_training",
    "wall_seconds",
)
HALVES = ("design", "check")


def value_of(run: dict[str, Any], key: str) -> float | None:
    """A figure of a fit by its name; None where it does not have it."""
    value: Any = run
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return None if value is None else float(value)


def summary(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """All that is reported, by model; the masks themselves are left out."""
    return {"models": {name: _model(name, runs) for name, runs in results.items()}}


def _model(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    entry, fits = ENTRIES[name], [run for run in runs if "error" not in run]
    per_site, total = masks.kappa([fit["masks"] for fit in fits])
    report: dict[str, Any] = {"half": entry.half, "kind": entry.kind, "about": entry.about}
    if fits:
        report |= {key: fits[0][key] for key in ("score", "train_cpu_seconds", "tolerance", "graphs", "sites")}
    report["figures"] = {key: _range([value_of(fit, key) for fit in fits]) for key in FIGURES}
    report["kept_per_site"] = [
        statistics.fmean(shares) for shares in zip(*(f["kept_per_site"] for f in fits), strict=True)
    ]
    report["gold_per_site"] = _gold_per_site(fits)
    opened = [about for fit in fits for about in fit["open_needed"].values()]
    report["open"] = {"sites": len(opened), "needed": sum(about["needed"] for about in opened)}
    report["kappa_per_site"], report["kappa"] = per_site, total
    report["feasible"] = sum(fit["feasible"] for fit in fits)
    report["fits"] = len(fits)
    report["errors"] = {str(run["seed"]): run["error"] for run in runs if "error" in run}
    report["runs"] = [{key: value for key, value in run.items() if key != "masks"} for run in runs]
    return report


def _range(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": statistics.fmean(known), "low": min(known), "high": max(known)}


def _gold_per_site(fits: Sequence[dict[str, Any]]) -> list[float]:
    """F1 of every site, mean over fits, where gold is known site by site."""
    layered = [fit["gold"]["per_site"] for fit in fits if fit["gold"] and "per_site" in fit["gold"]]
    return [statistics.fmean(site["f1"] for site in sites) for sites in zip(*layered, strict=True)]


def verdicts(found: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Counts over a half that say at a glance how a recipe does; the question, and the answer per half."""
    halves = {half: [m for m in found["models"].values() if m["half"] == half and m["fits"]] for half in HALVES}

    def answers(count: Any) -> dict[str, str]:
        return {half: count(models) for half, models in halves.items() if models}

    def kappas(least: float) -> Any:
        return lambda models: _of([m["kappa"] >= least for m in models if m["kappa"] is not None])

    def runs(test: Any) -> Any:
        return lambda models: _of([test(run) for m in models for run in m["runs"] if "error" not in run])

    def mean(key: str) -> Any:
        return lambda models: f"{statistics.fmean(m['figures'][key]['mean'] for m in models):.1%}"

    def open_for_nothing(models: Sequence[dict[str, Any]]) -> str:
        return str(sum(m["open"]["sites"] - m["open"]["needed"] for m in models))

    def cheap(models: Sequence[dict[str, Any]]) -> str:
        ratios = [m["figures"]["fit_over_training"] for m in models]
        return _of([ratio["mean"] <= 3 for ratio in ratios if ratio is not None])

    def white(models: Sequence[dict[str, Any]]) -> str:
        return _of([m["figures"]["gold.f1"]["low"] >= 99 for m in models if m["kind"] == "white box"])

    return [
        ("mean share of messages kept", answers(mean("kept"))),
        ("models with kappa in total >= .75", answers(kappas(0.75))),
        ("models with kappa in total >= .60", answers(kappas(0.60))),
        ("sites thrown open without need, over all fits", answers(open_for_nothing)),
        (
            "fits with a mean divergence on test within tolerance",
            answers(runs(lambda run: run["divergence"] <= run["tolerance"])),
        ),
        ("fits that found a feasible state", answers(runs(lambda run: run["feasible"]))),
        ("explanations within tolerance", answers(mean("within"))),
        ("explanations within tolerance, with repair", answers(mean("repaired.within"))),
        ("predictions changed, with repair", answers(mean("repaired.flips"))),
        ("share kept before repair", answers(mean("repaired.kept_before"))),
        ("share kept after repair", answers(mean("repaired.kept"))),
        ("models whose fit takes at most 3 times the CPU of their training", answers(cheap)),
        ("white boxes with F1 >= 99 on every seed", answers(white)),
    ]


def _of(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)}" if found else ""
