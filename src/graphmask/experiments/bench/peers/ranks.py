"""From figures by model and method to mean ranks, and to tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.stats import rankdata

from graphmask.comparing.metrics import COLUMNS
from graphmask.experiments.bench.markdown import table
from graphmask.experiments.bench.peers.models import MODELS, OTHERS, PLAIN, WHITE
from graphmask.experiments.bench.peers.run import Figures

#: Figures that are ranked.
RANKED = ("auc", "f1", "within", "flips", "complement", "keep_area", "drop_area", "r_delta", "kappa", "ms")
#: Figures closer than this are tied.
TIED = 3

Table = tuple[list[str], list[list[str]]]


def summary(found: dict[str, Figures], seeds: int) -> dict[str, Any]:
    """The JSON of the comparison: figures by model and method, reasons where there are none, and mean ranks."""
    models = {}
    for name, lines in found.items():
        models[name] = {
            "kind": MODELS[name].kind,
            "methods": {method: _figures(method, line) for method, line in lines.items() if line["methods"]},
            "not_applicable": {
                method: line["not_applicable"][method] for method, line in lines.items() if not line["methods"]
            },
        }
    return {"seeds": seeds, "models": models, "ranks": _ranks(models)}


def _figures(method: str, line: dict[str, Any]) -> dict[str, float | None]:
    figures = dict(line["methods"][method])
    if len(line["about"]["seeds"]) == 1 and "kappa" in figures:
        figures["kappa"] = 1.0  # the method draws nothing: every seed finds the same
    return figures


def _ranks(models: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Per method and figure: its rank among the methods that have the figure on a model, mean over models."""
    ranks: dict[str, dict[str, list[float]]] = {}
    for about in models.values():
        for column in RANKED:
            known = {m: f[column] for m, f in about["methods"].items() if f.get(column) is not None}
            if len(known) < 2:
                continue
            better = COLUMNS[column].better
            values = [-better * round(value, TIED) for value in known.values()]
            for method, rank in zip(known, rankdata(values), strict=True):
                ranks.setdefault(method, {}).setdefault(column, []).append(float(rank))
    return {
        method: {column: statistics.fmean(values) for column, values in by_column.items()}
        for method, by_column in ranks.items()
    }


def missing(summary: dict[str, Any]) -> list[str]:
    """Methods that lack figures of some of the models: their ranks are means over the others."""
    models, named = summary["models"], _methods(summary["models"].values())
    lacking = {method: sum(method not in about["methods"] for about in models.values()) for method in named}
    return [f"`{name}` has figures of {len(models) - n} of {len(models)} models." for name, n in lacking.items() if n]


def rank_rows(summary: dict[str, Any]) -> Table:
    """Methods by the mean of their mean ranks."""
    ranks = summary["ranks"]
    columns = [column for column in RANKED if any(column in of for of in ranks.values())]
    ordered = sorted(ranks, key=lambda method: statistics.fmean(ranks[method].values()))
    header = ["method", *(COLUMNS[column].label for column in columns), "mean"]
    rows = [
        [
            method,
            *(_short(ranks[method].get(column)) for column in columns),
            _short(statistics.fmean(ranks[method].values())),
        ]
        for method in ordered
    ]
    return header, rows


def figure_rows(summary: dict[str, Any], column: str, methods: Sequence[str] | None = None) -> Table:
    """One figure of every model and method; white boxes last."""
    models = summary["models"]
    shown = list(methods or _methods(models.values()))
    ordered = sorted(models, key=lambda name: (OTHERS, PLAIN, WHITE).index(models[name]["kind"]))
    rows = [
        [name, *(_figure(models[name]["methods"].get(method, {}).get(column), column) for method in shown)]
        for name in ordered
    ]
    return ["model", *shown], rows


def _methods(models: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(method for about in models for method in about["methods"]))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _figure(value: float | None, column: str) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}" if COLUMNS[column].share else f"{value:.3g}"


def markdown(summary: dict[str, Any]) -> str:
    """The tables of the page."""
    seeds = summary["seeds"]
    parts = [
        f"Mean rank over models, 1 is best; {seeds} seeds of methods that have seeds.\n",
        table(*rank_rows(summary)),
        *(f"- {line}" for line in missing(summary)),
    ]
    for column in ("auc", "f1", "retained", "within", "flips", "kappa", "ms"):
        about = COLUMNS[column]
        parts += [f"**{about.label}**: {about.about}.\n", table(*figure_rows(summary, column))]
    reasons = {method: why for about in summary["models"].values() for method, why in about["not_applicable"].items()}
    parts += [f"- `{method}` does not apply to every model: {why}" for method, why in reasons.items()]
    return "\n".join(parts) + "\n"
