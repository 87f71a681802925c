"""Tables of analyses: collected behind a progress bar, shown, and written where `graphmask report` finds them."""

from __future__ import annotations

import json as js
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmask.bars import steps
from graphmask.cli.common import say, show

if TYPE_CHECKING:
    from graphmask.analysis import everything


def collect(plan: Sequence[everything.Planned]) -> list[everything.Named]:
    """The tables, worked out one by one, with a bar."""
    tables = []
    with steps(len(plan), enabled=True) as step:
        for planned in plan:
            step(planned.title)
            tables.append(planned.work_out())
    return tables


def write_tables(folder: Path, tables: Iterable[everything.Named], rows: int) -> None:
    """Show the tables and write them: each as CSV, all as JSON, where `graphmask report` finds them."""
    from graphmask.files import write_bytes

    figures: dict[str, Any] = {}
    for table in tables:
        name, title, frame, note = table
        cells = [[_short(cell) for cell in row] for row in frame.head(rows).rows()]
        remarks = [note, f"first {rows} of {frame.height} rows" if frame.height > rows else ""]
        remark = "; ".join(filter(None, remarks))
        show(f"{title} ({remark})" if remark else title, frame.columns, cells)
        write_bytes(folder / "analysis" / f"{name}.csv", _flat(frame).write_csv().encode())
        figures[name] = table.for_json()
    write_bytes(folder / "analysis" / "tables.json", (js.dumps(figures, indent=1) + "\n").encode())
    say(f"tables: {folder / 'analysis'}")


def _short(cell: Any) -> Any:
    if isinstance(cell, list | tuple):
        return ", ".join("-" if part is None else str(part) for part in cell)
    return "" if cell is None else cell


def _flat(frame: Any) -> Any:
    """For a CSV file: it has no place for lists, and a spreadsheet takes some texts for formulas."""
    import polars

    from graphmask.texts import cell

    lists = [name for name, kind in frame.schema.items() if kind == polars.List]
    flat = frame.with_columns(
        polars.col(name).list.eval(polars.element().cast(polars.String)).list.join(" ") for name in lists
    )
    texts = [name for name, kind in flat.schema.items() if kind == polars.String]
    return flat.with_columns(polars.col(name).map_elements(cell, return_dtype=polars.String) for name in texts)
