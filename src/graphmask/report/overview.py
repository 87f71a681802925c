"""The top of a report: from totals and the tables of `graphmask analyse` to charts, with names in place of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.report.charts import Bar, Chart, bars, lines
from graphmask.report.example import as_table
from graphmask.report.gallery import Totals
from graphmask.report.page import Table, number, percent
from graphmask.texts import cleaned

Rows = list[dict[str, Any]]
#: Types per layer that a chart has room for, the most kept first; the table has all.
TYPES = 6
#: Types of which at least this share of the largest share is kept are kept alike.
ALIKE = 0.8
ALL_LAYERS = "all layers"
#: Tables that say nothing where these columns hold nothing: there are no such edges in these graphs.
NEEDED = {"inverses": ("both", "base_rate"), "overlap": ("overlap", "overlap_any", "base_rate")}


@contextmanager
def understood() -> Iterator[None]:
    """Inside, tables that may come from a file are drawn: what is missing, or of a wrong type, is the table's fault."""
    try:
        yield
    except GraphMaskError:
        raise
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise GraphMaskError(
            f"Expected tables as `graphmask analyse` writes them to analysis/tables.json, found contents that do not "
            f"fit ({error!r}). Analyse again."
        ) from error


def of(totals: Totals, analysed: Mapping[str, Any] | None, gold: Table | None) -> tuple[list[Chart], list[Table]]:
    """The charts at the top of the page, and the other tables."""
    with understood():
        analysed, gold = cleaned((analysed or {}, gold))
        charts = charts_of(totals, analysed, gold) if totals.count > 1 else []
        return charts, other_tables(totals, analysed)


def charts_of(totals: Totals, analysed: Mapping[str, Any], gold: Table | None = None) -> list[Chart]:
    """What the top of the page shows; charts of what was not measured are left out."""
    charts = [
        _kept(totals),
        against(gold, totals),
        _frontier(analysed, totals),
        _erosion(analysed),
        _stability(analysed, totals),
    ]
    return [chart for chart in charts if chart is not None]


def other_tables(totals: Totals, analysed: Mapping[str, Any]) -> list[Table]:
    """The rest of what was analysed, with names; without tables that do not apply."""
    charted = {"frontier", "erosion", "stability"}
    return [
        table_of(name, table, totals)
        for name, table in analysed.items()
        if name not in charted and applies(name, table)
    ]


def applies(name: str, table: Mapping[str, Any]) -> bool:
    """False for a table without rows, or about something that these graphs do not have."""
    rows = _rows(table)
    if not rows:
        return False
    if name == "patterns" and all("pattern" in row and not any(row["pattern"] or ()) for row in rows):
        return False  # edges have no types: a path of dashes
    if name == "edge_types" and all(row.get("type") is None for row in rows):
        return False  # by layer alone: the first chart says it
    return name not in NEEDED or any(row.get(column) for row in rows for column in NEEDED[name])


def table_of(name: str, table: Mapping[str, Any], totals: Totals) -> Table:
    """A table of `graphmask analyse` with the names of layers and types, and headings without underscores."""
    columns = list(table["columns"])
    rows = [
        [_named(column, value, totals) for column, value in zip(columns, row, strict=True)] for row in table["rows"]
    ]
    made = as_table((table["title"], [column.replace("_", " ") for column in columns], rows))
    return replace(made, note=table.get("note", ""))


def _named(column: str, value: Any, totals: Totals) -> Any:
    if column == "layer":
        return totals.layer_name(value)
    if column in ("type", "other"):
        return totals.type_name(value)
    if column == "pattern":
        return " then ".join(str(totals.type_name(part)) for part in value or ())
    return value


def _rows(table: Mapping[str, Any]) -> Rows:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _kept(totals: Totals) -> Chart | None:
    if not totals.sites or not totals.carried:
        return None
    counted: dict[str, list[tuple[int, Bar]]] = {}
    rows: list[list[str | float]] = []
    for site, (name, exact, (kept, carried)) in enumerate(
        zip(totals.titles, totals.sites, totals.per_site, strict=True)
    ):
        rows.append([name, exact, "all", kept, carried, percent(kept / max(carried, 1))])
        types = sorted(totals.types_at(site).items(), key=lambda item: (-item[1][0], item[0]))
        for kind, (k, c) in types:
            rows.append([name, exact, kind, k, c, percent(k / max(c, 1))])
        some = [(k, Bar(kind, k / max(c, 1), f"{k:,} of {c:,}")) for kind, (k, c) in types[:TYPES]]
        heading, whole = _layer_and_site(totals, site)
        if not some or (len(some) == 1 and heading != name):  # a site of one edge type has its name already
            some = [(kept, Bar(whole, kept / max(carried, 1), f"{kept:,} of {carried:,}"))]
        counted.setdefault(heading, []).extend(some)
    groups = {heading: [bar for _, bar in sorted(some, key=lambda item: -item[0])] for heading, some in counted.items()}
    if not totals.typed:
        groups = {
            "": [
                Bar(name, k / max(c, 1), f"{k:,} of {c:,}")
                for name, (k, c) in zip(totals.titles, totals.per_site, strict=True)
            ]
        }
    best = [f"{name} keeps {_most(some)}" for name, some in groups.items() if name]
    plain = [f"{bar.name} keeps {percent(bar.share)}" for bar in groups.get("", ())]
    sentence = "; ".join((best or plain)[:3]) + ("." if len(best or plain) <= 3 else "; and so on.")
    table = Table("Messages kept, layer by layer", ["layer", "site", "edges", "kept", "of", "share"], rows,
                  note="The share is of the messages of that kind at that layer.")  # fmt: skip
    return Chart(
        "What is kept, by layer and type" if totals.typed else "What is kept, by layer",
        sentence,
        bars(groups, sentence),
        table,
    )


def _layer_and_site(totals: Totals, site: int) -> tuple[str, str]:
    """What stands above the bars of a site, and beside the bar of all its messages.

    Sites that each carry an edge type of the same layer stand together under the layer's name.
    """
    title, number = totals.titles[site], totals.layer_numbers[site]
    if totals.layer_numbers.count(number) == 1:
        return title, "all edges"
    layer = totals.layers_by_number[number]
    return layer, re.sub(r" \(\w+\)$", "", title.removeprefix(f"{layer}: "))


def against(table: Table | None, totals: Totals) -> Chart | None:
    """Precision and recall against the known answer, where there is one; the last row is about all layers together."""
    if table is None:
        return None
    groups: dict[str, list[Bar]] = {"precision": [], "recall": []}
    titles: dict[Any, str] = {**dict(zip(totals.sites or (), totals.titles, strict=False)), "all": ALL_LAYERS}
    for name, precision, recall, _ in table.rows[:1] if len(table.rows) == 2 else table.rows:
        name = titles.get(name, name)
        groups["precision"].append(Bar(str(name), float(precision) / 100))
        groups["recall"].append(Bar(str(name), float(recall) / 100))
    last = table.rows[-1]
    sentence = f"Of what is kept, {last[1]}% is right; of what is right, {last[2]}% is kept."
    return Chart("Against the known answer", sentence, bars(groups, sentence), table)


def _frontier(analysed: Mapping[str, Any], totals: Totals) -> Chart | None:
    table = analysed.get("frontier")
    if not table or not table["rows"]:
        return None
    rows = _rows(table)
    here = min(rows, key=lambda row: abs((row.get("level") or 0.0) - 0.5))
    limit = totals.tolerance or 0.0
    # What diverges many times the tolerance would press everything else onto the axis.
    top = max(1.4 * limit, 1.2 * here["divergence"], 1e-9)
    points = sorted((row["retained"], row["divergence"]) for row in rows)
    inside = [point for point in points if point[1] <= 3 * top] or points
    within = "within" if here["divergence"] <= limit else "NOT within"
    said = (
        f"At the threshold in use {percent(here['retained'])} is kept and the divergence is "
        f"{number(here['divergence'])}, {within} the tolerance of {number(limit)}."
    )
    if table.get("note"):  # other figures than those of all explanations
        said += f" Measured on {table['note']}."
    drawing = lines(
        {"other thresholds": inside}, said, x_label="messages kept", y_label="divergence", top=top, shares=False,
        limit=(limit, f"tolerance {number(limit)}"),
        chosen=(here["retained"], here["divergence"], "the threshold in use"),
    )  # fmt: skip
    return Chart("Sparsity against divergence", said, drawing, table_of("frontier", table, totals))


def _erosion(analysed: Mapping[str, Any]) -> Chart | None:
    table = analysed.get("erosion")
    rows = [row for row in _rows(table) if row["measure"] in ("agreement", "accuracy", "score")] if table else []
    if not rows or not table:
        return None
    measure = next(name for name in ("agreement", "accuracy", "score") if any(row["measure"] == name for row in rows))
    rows = [row for row in rows if row["measure"] == measure]
    words = {"agreement": "predictions that stay", "accuracy": "right predictions", "score": "score"}[measure]
    series = {
        f"dropping {name} messages": sorted((row["fraction"], row["mean"]) for row in rows if row["dropped"] == name)
        for name in dict.fromkeys(row["dropped"] for row in rows)
    }
    ends = {name: points[-1][1] for name, points in series.items() if points}
    top = 1.0 if measure != "score" else max(row["mean"] for row in rows)
    tell = (lambda value: percent(value)) if measure != "score" else number
    sentence = "; ".join(f"after {name} {tell(value)} of the {words.removeprefix('score')}" if measure == "score"
                         else f"after {name}, {tell(value)}" for name, value in ends.items())  # fmt: skip
    sentence = f"{words.capitalize()}: {sentence}."
    drawing = lines(
        series, sentence, x_label="share of them dropped, at random", y_label=words, top=top, shares=measure != "score"
    )
    return Chart("Is what is kept needed?", sentence, drawing, replace(_plain(table), note=table.get("note", "")))


def _stability(analysed: Mapping[str, Any], totals: Totals) -> Chart | None:
    table = analysed.get("stability")
    rows = [row for row in _rows(table) if row.get("kappa") is not None] if table else []
    if not rows or not table:
        return None
    some = [
        Bar(str(totals.layer_name(row["layer"])), row["kappa"], f"kappa {row['kappa']:.3f}", f"{row['kappa']:.2f}")
        for row in rows
    ]
    last = rows[-1]
    sentence = f"{table['title']}: kappa {last['kappa']:.2f} (1 is the same edges every time, 0 is chance)."
    return Chart("Do other fits agree?", sentence, bars({"": some}, sentence), table_of("stability", table, totals))


def _plain(table: Mapping[str, Any]) -> Table:
    return as_table((table["title"], [name.replace("_", " ") for name in table["columns"]], table["rows"]))


def _most(some: Sequence[Bar]) -> str:
    """The two kinds of edges of which most is kept, in words; the range of shares where these are much the same."""
    ranked = sorted(some, key=lambda bar: -bar.share)
    if len(ranked) > 2 and ranked[-1].share > ALIKE * ranked[0].share:
        return f"about as much of each of these types ({percent(ranked[-1].share)} to {percent(ranked[0].share)})"
    texts = [f"{bar.name} ({percent(bar.share)})" for bar in ranked if bar.share > 0]
    return " and ".join(texts[:2]) or "nothing"
