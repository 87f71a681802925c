"""Figures of the tables that are better seen than read."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from graphmask.report.figures import bars, curve
from graphmask.report.overview import understood

Rows = list[dict[str, Any]]


def draw(folder: Path, analysed: dict[str, Any]) -> list[Path]:
    """From what `graphmask analyse` found, name -> {"title", "columns", "rows"}, to SVG files."""
    drawers = {
        "edge_types": _edge_types,
        "types": _edge_types,
        "frontier": _frontier,
        "erosion": _erosion,
        "labels": _labels,
        "distances": _distances,
    }
    figures = []
    with understood():
        for name, drawer in drawers.items():
            table = analysed.get(name)
            if table and table["rows"]:
                rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
                figures.append(drawer(folder / f"{name}.svg", table["title"], rows))
        levels = analysed.get("levels")
        if levels and "method" in levels["columns"]:
            rows = [dict(zip(levels["columns"], row, strict=True)) for row in levels["rows"]]
            figures += _levels(folder, levels["title"], rows)
    return figures


def _edge_types(path: Path, title: str, rows: Rows) -> Path:
    def name(kind: int | str | None) -> str:
        return "no type" if kind is None else kind if isinstance(kind, str) else f"type {kind}"

    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(name(row["type"]), {})[f"kept at layer {row['layer']}"] = row["share"]
    for row in rows:
        groups[name(row["type"])]["base rate"] = row["base_rate"]
    return bars(path, title, groups)


def _levels(folder: Path, title: str, rows: Rows) -> list[Path]:
    """A figure per layer, a line per method (the paper's figure 6)."""
    figures = []
    for layer in sorted({operator.index(row["layer"]) for row in rows}):  # a number: it becomes part of a file's name
        here = [row for row in rows if row["layer"] == layer]
        x = sorted({row["level"] for row in here})
        by = {(row["method"], row["level"]): row["mean_share"] for row in here}
        series = {name: [by[name, at] for at in x] for name in dict.fromkeys(row["method"] for row in here)}
        path, above = folder / f"levels_{layer}.svg", f"{title}, layer {layer}"
        figures.append(curve(path, above, x, series, x_label="level", y_label="messages above", per_cent=True))
    return figures


def _frontier(path: Path, title: str, rows: Rows) -> Path:
    points = sorted((row["retained"], row["divergence"], row["flips"]) for row in rows)
    x, divergence, flips = (list(column) for column in zip(*points, strict=True))
    series = {"divergence": divergence, "changed predictions": flips}
    return curve(path, title, x, series, x_label="share of messages kept")


def _erosion(path: Path, title: str, rows: Rows) -> Path:
    """Agreement and accuracy, whichever there are."""
    rows = [row for row in rows if row["measure"] != "divergence"]
    x = sorted({row["fraction"] for row in rows})
    by = {(f"{row['measure']}, {row['dropped']} dropped", row["fraction"]): row for row in rows}
    names = list(dict.fromkeys(name for name, _ in by))
    means = {name: [by[name, at]["mean"] for at in x] for name in names}
    bands = {name: [_interval(by[name, at]) for at in x] for name in names}
    shares = all(row["measure"] != "score" for row in rows)  # a score of the user's own may be anything
    return curve(path, title, x, means, bands, x_label="share dropped", per_cent=shares)


def _labels(path: Path, title: str, rows: Rows) -> Path:
    """Probability of being kept, labels that are kept most often first."""
    groups: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: -row["probability"]):
        groups.setdefault(row["label"], {})[row["group"]] = row["probability"]
    return bars(path, title, groups, y_label="kept")


def _distances(path: Path, title: str, rows: Rows) -> Path:
    x = sorted({row["distance"] for row in rows})
    names = sorted({row["group"] for row in rows})
    by = {(row["group"], row["distance"]): row["share"] for row in rows}
    series = {name: [by.get((name, at), float("nan")) for at in x] for name in names}
    return curve(path, title, x, series, x_label="distance in tokens", y_label="paths used", per_cent=True)


def _interval(row: dict[str, Any]) -> tuple[float, float]:
    known = row["low"] is not None
    return (row["low"], row["high"]) if known else (row["mean"], row["mean"])
