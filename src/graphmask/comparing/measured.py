"""The figures of a comparison, and how they are written."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from graphmask.comparing.metrics import COLUMNS, Figures
from graphmask.report.wording import MINUS, number, percent

#: The columns of a glance, as far as they were measured.
GLANCE = ("retained", "divergence", "flips", "kappa", "f1", "auc", "fit_seconds", "ms")


@dataclass(repr=False)
class Measured:
    """Figures of every method and seed."""

    about: dict[str, Any]  #: model, data, divergence, tolerance, seeds
    columns: tuple[str, ...]  #: names of figures, see `graphmask.comparing.metrics.COLUMNS`
    notes: list[str] = field(default_factory=list)  #: how thresholds were chosen, what was not measured
    not_applicable: dict[str, str] = field(default_factory=dict)  #: methods that say nothing about this model, and why
    rows: list[dict[str, Any]] = field(default_factory=list)  #: one per method and seed
    across: dict[str, Figures] = field(default_factory=dict)  #: figures over all seeds of a method
    curves: dict[str, list[list[dict[str, float]]]] = field(default_factory=dict)  #: sparsity curves, seed by seed

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that were measured."""
        return tuple(dict.fromkeys(row["method"] for row in self.rows))

    def figure(self, method: str, column: str) -> float | None:
        """Mean over seeds; None where it does not exist."""
        values = self._values(method, column)
        return statistics.fmean(values) if values else None

    def spread(self, method: str, column: str) -> float | None:
        """Standard deviation over seeds; None where fewer than two have the figure."""
        values = self._values(method, column)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, method: str, column: str) -> list[float]:
        if column in self.across.get(method, {}):
            values = [self.across[method][column]]
        else:
            values = [row.get(column) for row in self.rows if row["method"] == method]
        return [value for value in values if value is not None]

    def text(self, method: str, column: str) -> str:
        """A figure as it is shown, with its spread."""
        value, spread = self.figure(method, column), self.spread(method, column)
        if value is None:
            return "n/a"
        if column in ("fit_seconds", "ms"):
            return number(value)
        if COLUMNS[column].share:
            return percent(value) + (f" ± {100 * spread:.1f}" if spread is not None and spread >= 5e-4 else "")
        decimals = 2 if math.fabs(value) >= 10 else 3
        shown = f"{value:.{decimals}f}" + (
            f" ± {spread:.{decimals}f}" if spread is not None and spread >= 0.5 * 10**-decimals else ""
        )
        return shown.replace("-", MINUS)

    def best(self, column: str) -> set[str]:
        """The methods with the best mean of a column, and those that are written alike.

        None where neither high nor low is better, nor where all are alike.
        """
        better = COLUMNS[column].better
        known = {name: value for name in self.methods if (value := self.figure(name, column)) is not None}
        written = {name: self.text(name, column).partition(" ")[0] for name in known}
        if not better or len(set(written.values())) < 2:
            return set()
        top = max(known, key=lambda name: better * known[name])
        return {name for name in known if written[name] == written[top]}
