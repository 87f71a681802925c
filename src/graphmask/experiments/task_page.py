"""The page that `graphmask demo` and `graphmask run` write about a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from graphmask import experiments
from graphmask.experiments import gold
from graphmask.experiments.study import Run
from graphmask.report.build import write_page
from graphmask.report.page import Table


def gold_table(figures: Mapping[str, Any]) -> Table:
    return Table("Kept edges against the known answer, per cent", gold.HEADER, gold.rows(figures))


def write_task_page(path: Path, run: Run[Any, nn.Module], name: str, examples: int = 6) -> Path:
    """The page of a run: a few fresh graphs explained as the figures are, without repair, with the gold."""
    task = experiments.get(name)
    graphs = task.generate(8 * examples, seed=run.figures["seed"] + 424_242, batch_size=1)
    # Where much must be kept there is more to see.
    graphs = sorted(graphs, key=lambda graph: -int(graph.gold.sum()))[:examples]
    explanations = [run.explainer.explain(graph, repair=False, allow_infeasible=True) for graph in graphs]
    labels = [task.describe(graph) for graph in graphs]
    figures = run.figures
    tables = [
        gold_table(figures),
        Table(
            f"{len(run.explanations):,} fresh graphs, each run again without what was dropped",
            ["", "value"],
            [
                ["messages kept", f"{figures['retained']:.1%}"],
                ["mean divergence", f"{figures['divergence']:.2g} (tolerance {figures['tolerance']})"],
                ["predictions changed", f"{figures['flips']:.2%}"],
                ["explanations within tolerance", f"{figures['faithful']:.1%}"],
            ],
        ),
    ]
    return write_page(
        path,
        explanations,
        title=f"What the {name} model used",
        titles=[f"Graph {number + 1}" for number in range(len(graphs))],
        node_labels=[nodes for nodes, _, _ in labels],
        edge_labels=[edges for _, edges, _ in labels],
        gold=[graph.gold.t() for graph in graphs],
        notes=[notes for _, _, notes in labels],
        tables=tables,
    )
