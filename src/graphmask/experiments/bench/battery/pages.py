"""The battery as Markdown: tables that are put between two markers of a page, so that its prose stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.battery.models import ENTRIES
from graphmask.experiments.bench.battery.summary import HALVES, verdicts
from graphmask.experiments.bench.figures import pages as marks
from graphmask.experiments.bench.markdown import table
from graphmask.files import write_bytes

BEGIN, END = marks.begin("battery"), marks.END

Row = Callable[[str, dict[str, Any]], list[str]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(header, rows) + "\n"


def _number(found: dict[str, Any], key: str, style: str = ".3f", span: bool = False) -> str:
    """The mean over seeds; with ``span``, also the lowest and the highest where they differ."""
    about = found["figures"].get(key)
    if about is None:
        return ""
    low, high = (format(about[end], style) for end in ("low", "high"))
    return format(about["mean"], style) + (f" ({low} to {high})" if span and low != high else "")


def _each(values: Sequence[float | None], style: str) -> str:
    return " / ".join("" if value is None else format(value, style) for value in values)


def _from_to(found: dict[str, Any], key: str, style: str) -> str:
    """What repair made of a figure, on the graphs that were repaired."""
    return f"{_number(found, f'repaired.{key}_before', style)} to {_number(found, f'repaired.{key}', style)}"


def _score(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.get("score", {}).items())


def _sparse(name: str, m: dict[str, Any]) -> list[str]:
    opened = m["open"]
    return [
        name,
        _each(m["kept_per_site"], ".0%"),
        _number(m, "kept", ".1%", span=True),
        f"{opened['sites']} ({opened['needed']})" if opened["sites"] else "0",
        _each(m["kappa_per_site"], ".2f"),
        "" if m["kappa"] is None else f"{m['kappa']:.2f}",
    ]


def _faithful(name: str, m: dict[str, Any]) -> list[str]:
    return [
        name,
        _number(m, "divergence", ".4f", span=True),
        _number(m, "within", ".0%"),
        _number(m, "flips", ".1%"),
        _number(m, "repaired.within", ".0%"),
        _from_to(m, "flips", ".1%"),
        _from_to(m, "kept", ".1%"),
    ]


def _gold(name: str, m: dict[str, Any]) -> list[str]:
    return [
        name,
        *(_number(m, f"gold.{key}", ".1f") for key in ("precision", "recall")),
        _number(m, "gold.f1", ".1f", span=True),
        _each(m["gold_per_site"], ".0f"),
        *(_number(m, f"gold.{key}", ".3f") for key in ("auc", "noise_auc")),
    ]


def _audits(name: str, m: dict[str, Any]) -> list[str]:
    """Changed predictions where there are any to change, and divergence."""
    deleted = [
        f"{_number(m, f'audits.deletion.{which}.flips', '.1%')}, {_number(m, f'audits.deletion.{which}.divergence')}"
        for which in ("never_kept", "random", "kept")
    ]
    return [
        name,
        _number(m, "audits.silence.moved", ".0e"),
        _number(m, "audits.deletion.never_kept.edges", ".0%"),
        *deleted,
    ]


def _cost(name: str, m: dict[str, Any]) -> list[str]:
    trained = m.get("train_cpu_seconds")
    return [
        name,
        _score(m),
        "" if trained is None else f"{trained:.1f}",
        _number(m, "fit_cpu_seconds", ".1f", span=True),
        _number(m, "fit_over_training", ".1f"),
        _number(m, "steps", ",.0f"),
        f"{m['feasible']} of {m['fits']}",
        _number(m, "wall_seconds", ".0f"),
    ]


SECTIONS: tuple[tuple[str, tuple[str, ...], Row], ...] = (
    (
        "Sparse and stable",
        ("model", "kept per site", "kept in all", "sites thrown open (needed)", "kappa per site", "kappa in total"),
        _sparse,
    ),
    (
        "Faithful on test data",
        (
            "model",
            "mean divergence",
            "within tolerance",
            "flips",
            "within, repaired",
            "flips, repaired",
            "kept, repaired",
        ),
        _faithful,
    ),
    (
        "Against what is known",
        ("model", "precision", "recall", "F1", "F1 per site", "AUC", "AUC against known noise"),
        _gold,
    ),
    (
        "Without what was dropped",
        (
            "model",
            "largest change when dropped edges exchange their content",
            "edges that no layer keeps",
            "these deleted: flips, divergence",
            "as many at random",
            "the kept ones deleted",
        ),
        _audits,
    ),
    (
        "Cost",
        ("model", "own score", "training CPU s", "fit CPU s", "fit / training", "steps", "feasible", "wall s per fit"),
        _cost,
    ),
)


def models_table() -> str:
    """What every model is."""
    rows = [[f"`{entry.name}`", entry.half, entry.kind, entry.about] for entry in ENTRIES.values()]
    return table(["name", "half", "kind", "what it is and how it was trained"], rows)


def markdown(found: dict[str, Any]) -> str:
    """The models, counts per half, and four tables per half; errors, if there were any."""
    fits = sorted({m["fits"] for m in found["models"].values()})
    parts = ["## The models\n\n", models_table()]
    if not fits:
        return parts[0] + parts[1]
    parts.append("## Both halves at a glance\n\n")
    parts.append(f"Fits per model: {' to '.join(map(str, dict.fromkeys([fits[0], fits[-1]])))}.\n\n")
    judged = verdicts(found)
    parts.append(table(["", *HALVES], [[what, *(by.get(half, "") for half in HALVES)] for what, by in judged]))
    for half in HALVES:
        models = {name: m for name, m in found["models"].items() if m["half"] == half and m["fits"]}
        if not models:
            continue
        parts.append(f"## The {half} half\n\n")
        for title, header, row in SECTIONS:
            rows = [row(f"`{name}`", m) for name, m in models.items()]
            rows = [cells for cells in rows if row is not _gold or any(cells[1:])]
            if rows:
                parts.append(f"### {title}: {half}\n\n" + table(header, rows))
    errors = [[f"`{name}`", seed, text] for name, m in found["models"].items() for seed, text in m["errors"].items()]
    if errors:
        parts.append("## Fits that failed\n\n" + table(["model", "seed", "what happened"], errors))
    return "".join(parts)


def refresh(path: Path, tables: str) -> None:
    """Put the tables between the markers of a page; a page that is not there is made of them alone."""
    text = path.read_text() if path.exists() else f"{BEGIN}\n{END}\n"
    if "battery" not in marks.marked(text):
        raise GraphMaskError(f"Expected the lines {BEGIN!r} and {END!r} in {path}, found them missing.")
    write_bytes(path, marks.put(text, "battery", tables).encode())


def overview(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row per model for the terminal."""
    header = ["model", "half", "kept per site", "divergence", "within", "flips", "kappa", "F1", "AUC", "fit / training"]
    rows = []
    for name, m in found["models"].items():
        rows.append(
            [
                name,
                m["half"],
                _each(m["kept_per_site"], ".0%"),
                _number(m, "divergence", ".4f"),
                _number(m, "within", ".0%"),
                _number(m, "flips", ".1%"),
                "" if m["kappa"] is None else f"{m['kappa']:.2f}",
                _number(m, "gold.f1", ".1f"),
                _number(m, "gold.auc", ".2f"),
                _number(m, "fit_over_training", ".1f") + (" ERROR" if m["errors"] else ""),
            ]
        )
    return header, rows
