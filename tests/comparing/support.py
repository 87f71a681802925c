"""Methods that know the answer, or know only how many messages it has."""

from __future__ import annotations

import torch
from torch_geometric.data import Batch

from graphmask.experiments.bench.battery import learning, white_boxes
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method


class Known(Method):
    """Keeps what ``batch.gold`` [E, L] marks."""

    name = "known"

    def choose(self, case: Case) -> Choice:
        return case.cut(case.batch.gold.t().to(case.trace.output.dtype), 0.5)


class AsMany(Method):
    """Keeps as many messages of each graph as ``batch.gold`` marks, at random."""

    name = "as_many"

    def choose(self, case: Case) -> Choice:
        scores = case.uniform(self.seed)
        count = case.gates_per_graph(case.batch.gold.t())[case.split.edge_graph]
        kept = case.trace.carried & (case.gate_order(-scores, case.trace.carried) < count)
        return Choice(scores, kept, case.zeros())


def white_box(name: str, graphs: int = 20) -> tuple[torch.nn.Module, list[Batch]]:
    """A network with weights set by hand, and graphs whose needed messages are known."""
    return white_boxes.BOXES[name][0]().eval(), learning.loader(white_boxes.draw(name, graphs, 0), graphs)
