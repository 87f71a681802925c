"""The chart of a comparison, by matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmask.comparing.measured import Measured
from graphmask.comparing.metrics import COLUMNS
from graphmask.errors import GraphMaskError
from graphmask.files import write_bytes
from graphmask.texts import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: As many characters of a method's name as there is room for.
LONGEST = 60


def plot(measured: Measured, column: str | None, ax: Axes | None) -> Axes:
    """Bars of one column with their spread over seeds, or the sparsity curves."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise GraphMaskError("Expected matplotlib to be installed. Try: pip install graphmask[plot]") from None
    if column is None:
        column = next((name for name in ("f1", "divergence") if name in measured.columns), measured.columns[0])
    if column != "curves" and column not in measured.columns:
        raise GraphMaskError(f"Expected a column among {', '.join(measured.columns)}, or 'curves', got {column!r}.")
    if ax is None:
        height = 4.0 if column == "curves" else 0.35 * len(measured.methods) + 1.2
        ax = pyplot.subplots(figsize=(7, height), layout="constrained")[1]
    if column == "curves":
        _curves(measured, ax)
    else:
        _bars(measured, column, ax)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def picture(measured: Measured, path: Path) -> Path:
    """The chart as a PNG file, without a window and without leaving a figure open."""
    import matplotlib

    before = matplotlib.get_backend()
    matplotlib.use("Agg")
    try:
        figure: Any = plot(measured, None, None).get_figure()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        matplotlib.pyplot.close(figure)
    finally:
        matplotlib.use(before)
    write_bytes(path, buffer.getvalue())
    return path


def _bars(measured: Measured, column: str, ax: Axes) -> None:
    about = COLUMNS[column]
    known = [(name, measured.figure(name, column)) for name in measured.methods]
    names = [name for name, value in known if value is not None]
    values: list[Any] = [value for _, value in known if value is not None]
    errors = [measured.spread(name, column) or 0.0 for name in names]
    ax.barh([visible(name, LONGEST) for name in names], values, xerr=errors, color="#0072b2", error_kw={"lw": 0.8})
    ax.invert_yaxis()
    for text in ax.get_yticklabels():
        text.set_parse_math(False)
    good = {1: ", high is good", -1: ", low is good", 0: ""}[about.better]
    ax.set_xlabel(f"{about.about}{good}", fontsize=9)
    ax.set_title(about.label, fontsize=10)


def _curves(measured: Measured, ax: Axes) -> None:
    for name, seeds in measured.curves.items():
        levels = [point["level"] for point in seeds[0]]
        means = [sum(curve[step]["divergence"] for curve in seeds) / len(seeds) for step in range(len(levels))]
        ax.plot(levels, means, marker="o", ms=3, lw=1.2, label=visible(name, LONGEST))
    ax.set_xlabel("fraction of messages kept, highest scores first; the others are zero", fontsize=9)
    ax.set_ylabel("divergence", fontsize=9)
    for text in ax.legend(frameon=False, fontsize=8, ncols=2).get_texts():
        text.set_parse_math(False)
