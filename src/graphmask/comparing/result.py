"""What a comparison found: tables, a chart, a page, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from graphmask.comparing.measured import GLANCE, Measured
from graphmask.comparing.metrics import ALL, COLUMNS, Figures
from graphmask.comparing.plot import plot
from graphmask.comparing.running import Parts, Run
from graphmask.errors import GraphMaskError
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.files import write_bytes

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@dataclass(repr=False)
class Comparison(Measured):
    """Figures of every method and seed, with the fitted methods and what they found.

    Means over seeds are told unless one asks for each.
    """

    parts: Parts = field(default_factory=lambda: Parts([], None, [], []))  #: the data, by what it was used for
    runs: dict[str, list[Run]] = field(default_factory=dict)  #: methods as fitted, and their explanations

    @classmethod
    def empty(
        cls,
        model: nn.Module,
        parts: Parts,
        probe: Method,
        methods: Sequence[str],
        seeds: Sequence[int],
        metrics: Mapping[str, Any],
        notes: list[str],
    ) -> Comparison:
        """Before anything is measured."""
        about = {
            "model": type(model).__name__,
            "methods": list(methods),
            "seeds": list(seeds),
            "metrics": {name: dict(options) for name, options in metrics.items()},
            "divergence": probe.divergence.name,
            "tolerance": probe.tolerance,
            "gold": parts.gold is not None,
            "sites": [site.name for site in probe.sites or ()],
        }
        columns = [column for name in metrics for column in ALL[name][1]]
        if parts.gold is None:
            columns = [column for column in columns if column not in ALL["gold"][1]]
        ordered = tuple(name for name in COLUMNS if name in columns)
        return cls(about, ordered, notes, parts=parts)

    # Filling it --------------------------------------------------------------------------------------------

    def add(self, run: Run, figures: Figures, curve: Any = None) -> None:
        """The figures of one run."""
        self.about["explanations"] = len(run.explanations)
        self.rows.append(
            {"method": run.name, "seed": run.seed, "threshold": run.threshold, "fraction": run.fraction, **figures}
        )
        self.runs.setdefault(run.name, []).append(run)
        if curve is not None:
            self.curves.setdefault(run.name, []).append(curve.to_dicts())
        for text in run.notes:
            self.note(text)

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def failed(self, name: str, error: Exception) -> None:
        """List a method that raised, with the message of its error; its other seeds are left out."""
        said = str(error) if isinstance(error, GraphMaskError) else f"{type(error).__name__}: {error}"
        self.not_applicable[name] = said
        self.rows = [row for row in self.rows if row["method"] != name]
        for part in (self.runs, self.curves, self.across):
            part.pop(name, None)

    # Reading it --------------------------------------------------------------------------------------------

    def explanations(self, method: str, seed: int | None = None) -> list[Explanation]:
        """What a method found, by default with the first seed."""
        return self._run(method, seed).explanations

    def fitted(self, method: str, seed: int | None = None) -> Method:
        """The method itself, to explain more with."""
        return self._run(method, seed).method

    def _run(self, method: str, seed: int | None) -> Run:
        runs = [run for run in self.runs.get(method, []) if seed is None or run.seed == seed]
        if not runs:
            raise GraphMaskError(
                f"Expected a method among {', '.join(self.runs)} and one of its seeds, got {method!r}."
            )
        return runs[0]

    def __repr__(self) -> str:
        shown = [column for column in GLANCE if column in self.columns] or list(self.columns[:8])
        lines = [["method", *(COLUMNS[column].label for column in shown)]]
        lines += [[method, *(self.text(method, column) for column in shown)] for method in self.methods]
        widths = [max(len(line[number]) for line in lines) for number in range(len(lines[0]))]
        body = [
            "  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines
        ]
        left = [f"{name} was not compared. {reason}" for name, reason in self.not_applicable.items()]
        head = f"Comparison of {len(self.methods)} methods on {self.about['model']}, {len(self.about['seeds'])} seed(s)"
        return "\n".join([head, *body, *left, *self.notes])

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        from graphmask.comparing.page import card  # draws with what nobody else needs to load

        return card(self)

    # Elsewhere ---------------------------------------------------------------------------------------------

    def to_pandas(self, *, per_seed: bool = False) -> pandas.DataFrame:
        """One row per method with the mean of every figure and, as ``NAME_std``, its spread; or a row per seed."""
        try:
            import pandas
        except ImportError:
            raise GraphMaskError("Expected pandas to be installed. Try: pip install pandas") from None
        if per_seed:
            return pandas.DataFrame(self.rows)
        rows = []
        for method in self.methods:
            row: dict[str, Any] = {"method": method}
            for column in self.columns:
                row[column] = self.figure(method, column)
                if column not in self.across.get(method, {}):
                    row[f"{column}_std"] = self.spread(method, column)
            rows.append(row)
        return pandas.DataFrame(rows).set_index("method") if rows else pandas.DataFrame(rows)

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Everything but the explanations; also written to a file where there is a path."""
        content = {
            "about": self.about,
            "columns": {name: {"label": COLUMNS[name].label, "about": COLUMNS[name].about} for name in self.columns},
            "methods": {
                method: {column: self.figure(method, column) for column in self.columns} for method in self.methods
            },
            "rows": self.rows,
            "across": self.across,
            "curves": self.curves,
            "not_applicable": self.not_applicable,
            "notes": self.notes,
        }
        if path is not None:
            write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())
        return content

    def plot(self, column: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw one figure of every method with matplotlib: by default F1, or divergence where no gold is known.

        ``"curves"`` draws divergence over the fraction of messages that is kept.
        """
        return plot(self, column, ax)

    def to_html(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write one self-contained page: charts, tables, what does not apply, and what each metric can show."""
        from graphmask.comparing.page import write

        return write(self, path, title)
