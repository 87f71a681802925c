"""From explanations to the page."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.report import metadata, question_drawing
from graphmask.report.gallery import Gallery, Totals
from graphmask.report.page import OUTPUT_VALUES, Example, Table, render, write

#: Paths listed per node of a page: more than a person follows.
PATHS = 50
#: Examples of a report: as many as stay quick to open, and more than a person looks at.
EXAMPLES = 200


def example(
    explanation: Explanation,
    title: str | None = None,
    *,
    node_labels: Sequence[str] | None = None,
    edge_labels: Sequence[str] | None = None,
    gold: Tensor | None = None,
    notes: Sequence[str] = (),
    type_names: Mapping[int, str] | Sequence[str] | None = None,
) -> Example:
    """One explanation in the plain form the page draws. What is not given here is read from its ``info``."""
    found = metadata.read(explanation, type_names)
    if isinstance(explanation, HeteroExplanation) and gold is None and found.gold is None:
        explanation = explanation.by_layer()  # a drawing per layer, not one per layer and edge type
    nodes = found.node_labels if node_labels is None else [str(label) for label in node_labels]
    edges = found.edge_labels if edge_labels is None else [str(label) for label in edge_labels]
    made = Example(
        title=title if title is not None else found.title or "Graph",
        sites=explanation.sites,
        num_nodes=explanation.num_nodes,
        edges=[(u, v) for u, v in explanation.edge_index.t().tolist()],
        kept=explanation.kept.tolist(),
        scores=explanation.scores.double().tolist(),
        gated=explanation.carried.tolist(),
        edge_types=edges,
        node_labels=nodes,
        gold=found.gold if gold is None else gold.tolist(),
        retained=explanation.retained,
        divergence=explanation.divergence,
        tolerance=explanation.tolerance,
        faithful=explanation.faithful,
        same_prediction=explanation.same_prediction,
        original=_values(explanation.original),
        masked=_values(explanation.masked),
        notes=[*notes, *found.notes, *([f"Could not be repaired: {why}."] if (why := explanation.unrepaired) else ())],
        paths=None,
        reverse=tuple(site.reverse for site in explanation.structure),
        tokens=found.tokens,
        roles=tuple(found.roles),
        predicate=found.predicate,
        question=found.question,
        label=found.label,
        predicted=found.predicted,
        error=found.error,
    )
    # A question may have hundreds of nodes that are not drawn: paths to those would be most of the page.
    shown = (
        range(made.num_nodes) if made.question is None else question_drawing.choose(made.question, made.messages())[0]
    )
    paths = {v: [[(hop.site, hop.edge) for hop in path] for path in explanation.paths(v, limit=PATHS)] for v in shown}
    return replace(made, paths=paths)


def _values(output: Tensor) -> list[float]:
    """Nothing of outputs with many rows, say one per token: a first few of their numbers would tell nobody anything."""
    several = output.dim() > 1 and output.shape[0] > 1 and output.numel() > OUTPUT_VALUES
    return [] if several else output.flatten().double().tolist()


def verdict(explanations: Iterable[Explanation]) -> str:
    """In words and numbers, from the explanations themselves."""
    totals = Totals()
    for explanation in explanations:
        totals.add(explanation)
    return totals.verdict


def write_page(
    path: str | Path,
    explanations: Sequence[Explanation],
    *,
    title: str,
    titles: Sequence[str] | None = None,
    node_labels: Sequence[Sequence[str] | None] | None = None,
    edge_labels: Sequence[Sequence[str] | None] | None = None,
    gold: Sequence[Tensor | None] | None = None,
    notes: Sequence[Sequence[str]] | None = None,
    tables: Sequence[Table] = (),
) -> Path:
    """One self-contained HTML file; the sequences run along the explanations."""
    nothing = [None] * len(explanations)
    examples = [
        example(explanation, name, node_labels=nodes, edge_labels=edges, gold=answer, notes=remarks)
        for explanation, name, nodes, edges, answer, remarks in zip(
            explanations,
            titles or [metadata.read(e).title or f"Graph {number}" for number, e in enumerate(explanations)],
            node_labels or nothing,
            edge_labels or nothing,
            gold or nothing,
            notes or [()] * len(explanations),
            strict=True,
        )
    ]
    write(path, render(examples, title=title, verdict=verdict(explanations), tables=tables))
    return Path(path)


def write_report(
    path: str | Path,
    explanations: Iterable[Explanation],
    *,
    tables: Sequence[Table | tuple[Any, ...]] = (),
    title: str = "What the model used",
    examples: int = EXAMPLES,
    type_names: Mapping[int, str] | Sequence[str] | None = None,
) -> Path:
    """One self-contained HTML file about any number of explanations, which are read once and not held.

    The verdict and the figures are over all of them, the gallery shows at most ``examples``: wrong predictions,
    the largest divergences, the most and the least retained, and others drawn evenly. ``tables`` become sections
    (see :func:`as_table`), names and tokens come from each explanation's
    ``info`` (see :mod:`graphmask.report.metadata`).
    """
    sections = [as_table(table) for table in tables]
    totals, gallery = Totals(), Gallery(examples)
    for explanation in explanations:
        totals.add(explanation)
        gallery.add(explanation)
    cards = [
        example(
            chosen.explanation,
            metadata.read(chosen.explanation).title or f"Graph {chosen.number}",
            notes=[f"Shown for {', '.join(chosen.reasons)}."] if chosen.reasons else (),
            type_names=type_names,
        )
        for chosen in gallery.chosen()
    ]
    remark = ""
    if len(cards) < totals.count:
        remark = (
            f"{len(cards):,} of {totals.count:,} explanations are shown: wrong predictions, the largest divergences, "
            "where most and where least is kept, and others drawn by lot. Each card says why."
        )
    by_layer = totals.layers
    html = render(
        cards,
        title=title,
        verdict=totals.verdict,
        tables=[*([by_layer] if by_layer is not None and totals.count > 1 else []), *sections],
        figures=totals.figures,
        contents=True,
        remark=remark,
    )
    write(path, html)
    return Path(path)


def as_table(value: Table | tuple[Any, ...]) -> Table:
    """A table as the page draws it.

    Takes a `Table`; ``(title, frame)`` where the frame is of polars (or anything with ``columns`` and ``rows()``);
    ``(title, [header, row, row, ...])``; or ``(title, header, rows)``.
    """
    if isinstance(value, Table):
        return value
    if len(value) == 3:
        caption, header, rows = value
    elif len(value) == 2 and hasattr(value[1], "columns"):
        caption, header, rows = value[0], value[1].columns, value[1].rows()
    elif len(value) == 2 and len(value[1]):
        caption, (header, *rows) = value
    else:
        raise GraphMaskError("Expected a table as (title, frame), (title, [header, *rows]) or (title, header, rows).")
    header = [str(name) for name in header]
    rows = [[_cell(cell) for cell in row] for row in rows]
    odd = next((row for row in rows if len(row) != len(header)), None)
    if odd is not None:
        raise GraphMaskError(f"Expected {len(header)} cells in every row of {caption!r}, got {len(odd)}.")
    return Table(str(caption), header, rows)


def _cell(value: Any) -> str | float:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Real):  # numpy's are among them
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(_cell(part)) for part in value)
    return str(value)
