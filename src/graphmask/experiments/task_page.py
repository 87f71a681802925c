"""The page that `graphmask demo` and `graphmask run` write about a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphmask import experiments
from graphmask.experiments import gold
from graphmask.experiments.study import Run
from graphmask.report import overview
from graphmask.report.build import example
from graphmask.report.charts import Bar, Chart, bars
from graphmask.report.gallery import Totals
from graphmask.report.page import Table, percent, render, write

#: What the two outputs of these models stand for.
ANSWERS = ("no", "yes")


def gold_table(figures: Mapping[str, Any]) -> Table:
    return Table("Kept edges against the known answer, per cent", gold.HEADER, gold.rows(figures))


def write_task_page(path: Path, run: Run[Any, nn.Module], name: str, examples: int = 6) -> Path:
    """The page of a run: figures and charts over all its explanations, and a few graphs with the known answer.

    Graphs are explained without repair, as the figures are.
    """
    task = experiments.get(name)
    graphs = task.generate(8 * examples, seed=run.figures["seed"] + 424_242, batch_size=1)
    # Where much must be kept there is more to see.
    graphs = sorted(graphs, key=lambda graph: -int(graph.gold.sum()))[:examples]
    cards = []
    for number, graph in enumerate(graphs, start=1):
        nodes, edges, notes = task.describe(graph)
        explanation = run.explainer.explain(graph, repair=False, allow_infeasible=True, class_names=ANSWERS)
        answer = graph.gold.t()
        cards.append(
            example(explanation, f"Graph {number}", node_labels=nodes, edge_labels=edges, gold=answer, notes=notes)
        )
    totals = Totals.of(run.explanations)
    charts = [_needed(run, totals), overview.against(gold_table(run.figures), totals)]
    html = render(
        cards,
        title=f"What the {name} model used",
        verdict=totals.verdict,
        charts=[chart for chart in charts if chart is not None],
        figures=totals.figures,
        remark=f"{len(cards)} further graphs, chosen because many of their messages are needed. The figures above "
        f"are for {totals.count:,} other graphs, drawn at random.",
    )
    write(path, html)
    return path


def _needed(run: Run[Any, nn.Module], totals: Totals) -> Chart:
    """How much is kept of the edges that the answer depends on, and how much of the others."""
    kept = torch.cat([explanation.kept for explanation in run.explanations], 1)
    needed = torch.cat([batch.gold for batch in run.test]).t().to(kept.device).bool()
    carried = torch.cat([explanation.carried for explanation in run.explanations], 1)
    groups: dict[str, list[Bar]] = {}
    rows: list[list[str | float]] = []
    for site, name in enumerate(totals.titles):
        for kind, edges in (("needed", needed[site]), ("not needed", ~needed[site] & carried[site])):
            k, of = int((kept[site] & edges).sum()), int(edges.sum())
            groups.setdefault(name, []).append(Bar(kind, k / max(of, 1), f"{k:,} of {of:,}"))
            rows.append([name, kind, k, of, percent(k / max(of, 1))])
    said = "; ".join(f"{name} keeps {percent(a.share)} of the needed messages and {percent(b.share)} of the others"
                     for name, (a, b) in groups.items()) + "."  # fmt: skip
    table = Table("Messages kept, needed and not", ["layer", "messages", "kept", "of", "share"], rows,
                  note="Needed are the edges that the right answer depends on, which is known here.")  # fmt: skip
    return Chart("Kept, of what is needed and of the rest", said, bars(groups, said), table)
