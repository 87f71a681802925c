"""One HTML file that shows explanations: verdict, certificate, sentence, graph, unrolled layers, edge table.

The file is complete in itself (no network, CSS and JavaScript inlined) and the same input gives the same bytes.
Words and numbers are rendered here and are readable without JavaScript; the drawings are made by ``page.js`` from
the JSON this module embeds. Nothing in here needs torch, so a saved explanation can be shown anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphmask.files import write_bytes
from graphmask.report.cards import OUTPUT_VALUES, card
from graphmask.report.colours import type_slots
from graphmask.report.example import Example, Table
from graphmask.report.wording import in_line, number, percent
from graphmask.texts import cleaned

__all__ = ["OUTPUT_VALUES", "Example", "Table", "in_line", "number", "percent", "render", "type_slots", "write"]

NUMERIC = re.compile(r"[<>]? ?[-+\N{MINUS SIGN}]?\d[\d,]*(\.\d+)? ?%?")  # a number somebody has written already


def render(
    examples: Sequence[Example],
    *,
    title: str,
    verdict: str,
    tables: Sequence[Table] = (),
    charts: Sequence[Any] = (),
    figures: Sequence[tuple[str, str]] | None = None,
    contents: bool = False,
    remark: str = "",
) -> str:
    """The complete HTML document.

    ``charts`` (see :mod:`graphmask.report.charts`) stand at the top, each folds out into its table; where there are
    any, ``tables`` follow the examples. ``figures`` are (number, what it is) for the top, by default over the examples;
    with ``contents`` there are links to the sections; ``remark`` stands above the examples.
    """
    examples, tables, title, verdict, remark = cleaned((list(examples), list(tables), title, verdict, remark))
    charts = cleaned(list(charts))
    slots = type_slots(label for example in examples for label in example.edge_types or ())
    cards = [card(example, slots) for example in examples]
    here = Path(__file__).parent
    script = (here / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, lean=_lean)
    return environment.get_template("page.html.jinja").render(
        title=title,
        verdict=verdict,
        tables=[_aligned(number, table) for number, table in enumerate(tables, start=len(charts))],
        charts=[(chart, _aligned(number, chart.table)) for number, chart in enumerate(charts)],
        cards=cards,
        figures=_figures(examples) if figures is None else figures,
        contents=contents and bool(tables or charts),
        remark=remark,
        any_error=any(example.error is not None for example in examples),
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data=_embed([card["data"] for card in cards]),
    )


def write(path: str | Path, html: str) -> None:
    """Write the file under another name and rename it, so that the page is never half-written."""
    # A lone surrogate in a label cannot be encoded; a question mark in its place can.
    write_bytes(path, html.encode("utf-8", errors="replace"))


def _aligned(section: int, table: Table) -> dict[str, Any]:
    columns = list(zip(*table.rows, strict=True))
    numeric = [
        any(not isinstance(v, str) for v in column) or all(NUMERIC.fullmatch(str(v)) for v in column)
        for column in columns
    ]
    slug = re.sub(r"[^a-z0-9]+", "-", table.caption.lower()).strip("-")[:40]
    return {
        "anchor": f"section-{section}-{slug}".rstrip("-"),  # with its number, because captions may be alike
        "caption": table.caption,
        "note": table.note,
        "figure": _data_address(table.figure) if table.figure else None,
        "header": list(zip(table.header, numeric or [False] * len(table.header), strict=True)),
        "rows": [list(zip(row, numeric, strict=True)) for row in zip(*map(in_line, columns), strict=True)],
    }


def _data_address(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "svg+xml"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def _lean(html: str) -> Markup:
    """Remove indentation, which is a quarter of the markup of a card."""
    return Markup(re.sub(r"\n\s+", "\n", html))


def _embed(data: object) -> Markup:
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no label can end the script element or begin a comment
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _figures(examples: Sequence[Example]) -> list[tuple[str, str]]:
    """Numbers over all examples; with a single one its card says it all."""
    if len(examples) < 2:
        return []
    n = len(examples)
    faithful = sum(example.faithful for example in examples)
    figures = [
        (f"{faithful:,} of {n:,}", "within tolerance"),
        (percent(sum(example.retained for example in examples) / n), "kept, mean of graphs"),
        (number(max(example.divergence for example in examples)), "largest divergence"),
    ]
    told = [example.same_prediction for example in examples if example.same_prediction is not None]
    if told:
        figures.insert(1, (f"{sum(told):,} of {len(told):,}", "same prediction"))
    return figures
