"""From explanations to the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from graphmask.explanation import Explanation
from graphmask.report.page import Example, Table, render, write

#: Paths listed per node of a page: more than a person follows.
PATHS = 50


def example(
    explanation: Explanation,
    title: str,
    *,
    node_labels: Sequence[str] | None = None,
    edge_labels: Sequence[str] | None = None,
    gold: Tensor | None = None,
    notes: Sequence[str] = (),
) -> Example:
    """One explanation in the plain form the page draws."""
    if edge_labels is None and explanation.edge_type is not None:
        edge_labels = [f"type {value}" for value in explanation.edge_type.tolist()]
    paths = {
        node: [[(hop.site, hop.edge) for hop in path] for path in explanation.paths(node, limit=PATHS)]
        for node in range(explanation.num_nodes)
    }
    return Example(
        title=title,
        sites=explanation.sites,
        num_nodes=explanation.num_nodes,
        edges=[(u, v) for u, v in explanation.edge_index.t().tolist()],
        kept=explanation.kept.tolist(),
        scores=explanation.scores.double().tolist(),
        gated=explanation.carried.tolist(),
        edge_types=None if edge_labels is None else [str(label) for label in edge_labels],
        node_labels=None if node_labels is None else [str(label) for label in node_labels],
        gold=None if gold is None else gold.tolist(),
        retained=explanation.retained,
        divergence=explanation.divergence,
        tolerance=explanation.tolerance,
        faithful=explanation.faithful,
        same_prediction=explanation.same_prediction,
        original=explanation.original.flatten().double().tolist(),
        masked=explanation.masked.flatten().double().tolist(),
        notes=list(notes),
        paths=paths,
    )


def verdict(explanations: Sequence[Explanation]) -> str:
    """In words and numbers, from the explanations themselves."""
    count = len(explanations)
    faithful = sum(explanation.faithful for explanation in explanations)
    kept = sum(int(explanation.kept.sum()) for explanation in explanations)
    carried = max(sum(int(explanation.carried.sum()) for explanation in explanations), 1)
    share = f"The model keeps {kept / carried:.1%} of its messages"
    if count == 1:
        same = "and its answer stays the same" if explanations[0].same_prediction else "but its answer CHANGES"
        within = "within" if explanations[0].faithful else "NOT within"
        return f"{share}, {same} when the others are replaced ({within} tolerance)."
    return f"{share}. {faithful} of {count} explanations are within tolerance when the model is run without the others."


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
    words: str | None = None,
) -> Path:
    """One self-contained HTML file; the sequences run along the explanations."""
    nothing = [None] * len(explanations)
    examples = [
        example(explanation, name, node_labels=nodes, edge_labels=edges, gold=answer, notes=remarks)
        for explanation, name, nodes, edges, answer, remarks in zip(
            explanations,
            titles or [f"Graph {number}" for number in range(len(explanations))],
            node_labels or nothing,
            edge_labels or nothing,
            gold or nothing,
            notes or [()] * len(explanations),
            strict=True,
        )
    ]
    write(path, render(examples, title=title, verdict=words or verdict(explanations), tables=tables))
    return Path(path)
