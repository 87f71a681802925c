"""A comparison as one HTML file without scripts, and as a table for notebooks."""

from __future__ import annotations

import inspect
import re
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphmask.comparing.measured import GLANCE, Measured
from graphmask.comparing.metrics import ALL, COLUMNS
from graphmask.files import write_bytes
from graphmask.report import page as reports
from graphmask.report.charts import Bar, Chart, bars
from graphmask.report.example import Table
from graphmask.texts import cleaned, visible

#: Tables of the page: caption, and the columns as far as they were measured.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Against the known answer, all graphs together", ("precision", "recall", "f1", "auc")),
    (
        "Against the known answer, mean over graphs",
        ("precision_graph", "recall_graph", "f1_graph", "auc_graph"),
    ),
    (
        "The model without what was dropped",
        ("retained", "divergence", "within", "flips", "complement", "complement_flips"),
    ),
    ("The order of scores", ("keep_area", "drop_area")),
    ("Robust fidelity", ("r_plus", "r_minus", "r_delta", "f_plus", "f_minus", "f_delta")),
    ("Stability", ("kappa", "noise_kappa")),
    ("Cost", ("fit_seconds", "ms")),
)
#: Columns that are drawn, if they were measured.
DRAWN = ("f1", "auc", "retained", "divergence", "flips", "keep_area", "kappa", "ms")


def write(measured: Measured, path: str | Path, title: str | None = None) -> Path:
    """Write the page under a temporary name and rename it, so that it is never half-written."""
    path = Path(path)
    write_bytes(path, render(measured, title).encode("utf-8", errors="replace"))
    return path


def render(measured: Measured, title: str | None = None) -> str:
    """The complete document."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (Path(reports.__file__).parent / "page.css").read_text(encoding="utf-8")
    measured = _cleaned(measured)
    return environment.get_template("page.html.jinja").render(
        title=visible(title) if title else f"Explainers compared on {measured.about['model']}",
        verdict=_verdict(measured),
        notes=measured.notes,
        charts=[
            _chart(measured, column) for column in DRAWN if column in measured.columns and _known(measured, column)
        ],
        tables=[table for table in (_table(measured, *group) for group in GROUPS) if table is not None],
        left_out=list(measured.not_applicable.items()),
        metrics=[(name, _docstring(name)) for name in measured.about["metrics"]],
        style=Markup(style),
    )


def _cleaned(measured: Measured) -> Measured:
    """With names of methods, models and columns, and words of errors, that act on nothing."""
    texts = cleaned((measured.about, measured.notes, measured.not_applicable, measured.rows, measured.across))
    about, notes, not_applicable, rows, across = texts
    return Measured(about, measured.columns, notes, not_applicable, rows, across)


def tables(measured: Measured) -> list[tuple[str, list[str], list[list[str]]]]:
    """Caption, header and rows of every table of the page, for a terminal."""
    made = [table for table in (_table(measured, *group) for group in GROUPS) if table is not None]
    return [
        (
            table["caption"],
            ["method", *(label for label, _ in table["header"])],
            [[name, *(text for text, _ in cells)] for name, cells in table["rows"]],
        )
        for table in made
    ]


def card(measured: Measured) -> str:
    """A table for notebooks, of the columns that `repr` shows; text is escaped."""
    measured = _cleaned(measured)
    shown = [column for column in GLANCE if column in measured.columns]
    cell = 'style="text-align:right;padding:2px 10px;white-space:nowrap"'
    head = "".join(f'<th {cell} title="{escape(COLUMNS[c].about)}">{escape(COLUMNS[c].label)}</th>' for c in shown)
    body = "".join(
        f'<tr><td style="text-align:left;padding:2px 10px">{escape(name)}</td>'
        + "".join(f"<td {cell}>{_weight(measured, name, c)}</td>" for c in shown)
        + "</tr>"
        for name in measured.methods
    )
    said = [f"{name} was not compared. {reason}" for name, reason in measured.not_applicable.items()] + measured.notes
    lines = "".join(f"<div>{escape(line)}</div>" for line in said)
    return (
        '<div style="font:14px/1.45 system-ui,sans-serif;overflow-x:auto">'
        f'<div style="font-weight:600">{escape(_verdict(measured))}</div>'
        f'<table style="border-collapse:collapse"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<div style="opacity:.75;font-size:12px">{lines}</div></div>'
    )


def _weight(measured: Measured, name: str, column: str) -> str:
    text = escape(measured.text(name, column))
    return f"<b>{text}</b>" if name in measured.best(column) else text


def _verdict(measured: Measured) -> str:
    about = measured.about
    seeds = len(about["seeds"])
    return (
        f"{len(measured.methods)} methods, {about.get('explanations', 0):,} explanations each, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}; divergence {about['divergence']}, "
        f"tolerance {about['tolerance']:g}."
    )


def _known(measured: Measured, column: str) -> bool:
    return any(measured.figure(name, column) is not None for name in measured.methods)


def _chart(measured: Measured, column: str) -> Chart:
    """Bars over the largest value of the column, which is written at their ends."""
    about = COLUMNS[column]
    values = {name: value for name in measured.methods if (value := measured.figure(name, column)) is not None}
    top = 1.0 if about.share or column == "kappa" else max([*values.values(), 1e-12])
    made = [
        Bar(name.replace("_", " "), value / top, measured.text(name, column), measured.text(name, column).split(" ")[0])
        for name, value in values.items()
    ]
    good = {1: " High is good.", -1: " Low is good.", 0: ""}[about.better]
    sentence = f"{about.about[0].upper()}{about.about[1:]}.{good}"
    rows = [[name, measured.text(name, column)] for name in values]
    title = about.label[0].upper() + about.label[1:]
    return Chart(title, sentence, bars({"": made}, about.label), Table(about.label, ["method", about.label], rows))


def _table(measured: Measured, caption: str, columns: tuple[str, ...]) -> dict[str, Any] | None:
    shown = [column for column in columns if column in measured.columns and _known(measured, column)]
    if not shown or not measured.methods:
        return None
    best = {column: measured.best(column) for column in shown}
    return {
        "caption": caption,
        "header": [(_arrow(column), COLUMNS[column].about) for column in shown],
        "rows": [
            (name, [(measured.text(name, column), name in best[column]) for column in shown])
            for name in measured.methods
        ],
        "note": "" if caption.endswith("mean over graphs") else _legend(shown),
    }


def _legend(columns: list[str]) -> str:
    return "; ".join(f"{COLUMNS[column].label}: {COLUMNS[column].about}" for column in columns) + "."


def _arrow(column: str) -> str:
    return COLUMNS[column].label.removesuffix(", per graph") + {1: " ↑", -1: " ↓", 0: ""}[COLUMNS[column].better]


def _docstring(name: str) -> str:
    """What a metric's function says, without markup."""
    text = inspect.getdoc(ALL[name][0]) or ""
    return re.sub(r"\s+", " ", re.sub("[`*]", "", text)).strip()
