"""The part of a large graph that a picture can show: what was asked about, its paths, then the highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphmask.devices import back, double
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.explanation_contents import ASKED
from graphmask.graphs.retained_paths import reaching
from graphmask.hetero_explanation import HeteroExplanation

#: Keys of ``info`` with one value per node, and with one per edge.
PER_NODE, PER_EDGE = ("node_labels", "tokens"), ("edge_labels",)
#: Of a graph whose edges are few, all nodes are drawn; more than this are not the reader's.
MOST_NODES = 100_000


@dataclass(frozen=True)
class Part:
    """Some edges of an explanation as an explanation of their own, and how much there was."""

    explanation: Explanation  #: nodes and edges numbered anew
    nodes: list[int]  #: their numbers in the whole graph
    edges: list[int]
    chosen: list[int]  #: which of the edges to draw, in the numbers of `explanation`; the others are for a table
    kept_edges: int  #: edges of the whole graph that some site keeps
    total_nodes: int
    total_edges: int

    @property
    def drawn(self) -> int:
        return len(self.chosen)

    @property
    def whole(self) -> bool:
        return len(self.edges) == self.total_edges

    @property
    def asked(self) -> list[int]:
        """Nodes that were asked about, in the numbers of `explanation`."""
        return [node for node in asked_nodes(self.explanation) if 0 <= node < self.explanation.num_nodes]


def asked_nodes(explanation: Explanation) -> list[int]:
    """The nodes whose rows ``explain(data, index=...)`` asked about, where rows of the output are nodes or pairs."""
    return [int(node) for node in explanation.info.get(ASKED, ())]


def of(explanation: Explanation, *, all_up_to: int, at_most: int, others: int = 0) -> Part:
    """The whole graph if it has at most ``all_up_to`` edges, else ``at_most`` kept ones, and the best ``others``.

    Of the kept edges, those from which the nodes that were asked about can be reached come first, then by score; the
    others are those with the highest scores, kept or not.
    """
    total, nodes = explanation.edge_index.shape[1], explanation.num_nodes
    kept = explanation.kept.any(0) if len(explanation.kept) else explanation.kept.new_zeros(total)
    count = int(kept.sum())
    if total <= all_up_to:
        if nodes > MOST_NODES:
            raise GraphMaskError(
                f"Expected at most {MOST_NODES:,} nodes to draw beside {total:,} edges, got {nodes:,}. Leave out those "
                "that have no edge."
            )
        everything = list(range(total))
        return Part(explanation, list(range(nodes)), everything, everything, count, nodes, total)
    score, asked = _best(explanation), asked_nodes(explanation)
    rank = double(kept) + double(score).clamp(0, 1)
    if asked:
        leading = reaching(explanation.edge_index, explanation.kept, explanation.structure, asked)
        rank += 2 * leading.any(0).to(rank.device)
    drawn = back(rank.argsort(descending=True, stable=True)[: min(count, at_most)], score.device)
    best = score.argsort(descending=True, stable=True)[:others]
    edges = torch.cat([drawn, best]).unique()
    chosen = torch.searchsorted(edges, drawn).sort().values.tolist()
    made, numbers = _subgraph(explanation, edges, asked)
    return Part(made, numbers, edges.tolist(), chosen, count, nodes, total)


def _best(explanation: Explanation) -> Tensor:
    """[E] the highest score over the sites that carry the edge."""
    if not len(explanation.scores):
        return explanation.scores.sum(0)
    return explanation.scores.masked_fill(~explanation.carried, 0).amax(0)


def _subgraph(explanation: Explanation, edges: Tensor, asked: list[int]) -> tuple[Explanation, list[int]]:
    ends = explanation.edge_index[:, edges]
    nodes = torch.cat([ends.flatten(), torch.tensor(asked, dtype=torch.long, device=ends.device)]).unique()
    numbers = nodes.tolist()
    info: dict[str, Any] = dict(explanation.info)
    kind = edges.tolist()
    if isinstance(explanation, HeteroExplanation):
        info.setdefault("node_labels", explanation.node_labels)
        info.setdefault("edge_labels", explanation.edge_labels)
    for keys, size, chosen in (
        (PER_NODE, explanation.num_nodes, numbers),
        (PER_EDGE, explanation.edge_index.shape[1], kind),
    ):
        for key in keys:
            values = info.get(key)
            if isinstance(values, list | tuple) and len(values) == size:
                info[key] = [values[number] for number in chosen]
    info.setdefault("node_labels", [str(number) for number in numbers])
    info.pop("gold", None)  # compared as a whole, before
    info.pop("smiles", None)  # a part of a molecule is not drawn as one
    if asked:
        info[ASKED] = torch.searchsorted(nodes, torch.tensor(asked, device=nodes.device)).tolist()
    part = [value[:, edges] for value in (explanation.kept, explanation.scores, explanation.carried)]
    made = Explanation(
        edge_index=torch.searchsorted(nodes, ends),
        kept=part[0],
        scores=part[1],
        carried=part[2],
        original=explanation.original,
        masked=explanation.masked,
        divergence=explanation.divergence,
        flips=explanation.flips,
        tolerance=explanation.tolerance,
        structure=explanation.structure,
        baselines=explanation.baselines,
        num_nodes=len(numbers),
        edge_type=None if explanation.edge_type is None else explanation.edge_type[edges],
        reopened=explanation.reopened,
        method=explanation.method,
        precision=explanation.precision,
        info=info,
        index=explanation.index,
    )
    return made, numbers
