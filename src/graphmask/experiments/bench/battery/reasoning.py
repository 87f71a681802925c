"""Multi-hop relational reasoning: which colour has the entity that a rule leads to?

A query node asks by one of two rules. A rule is a sequence of relations: starting at the query node, go against the
first relation's edge, from there against the second's, and so on; the colour of the node at the end is the answer.
Messages travel along the edges, so the colour arrives at the query node after as many layers as the rule has hops.
Both rules lead somewhere in every graph, exactly one path each; all other edges distract. The second and later
relations of a rule occur elsewhere only on edges into the query node: whether a message belongs to the answer can be
told from its relation, its target and the query, which every node knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, RGCNConv

from graphmask.experiments.bench.battery import learning
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.common import build, first_nodes

COLOURS, RULES = 4, 2


@dataclass(frozen=True)
class Task:
    """Sizes of a task. Nodes of the side part never lead to the query node."""

    hops: int = 2
    relations: int = 6
    nodes: int = 12
    distractors: int = 20
    side_nodes: int = 6
    side_edges: int = 14

    @property
    def inputs(self) -> int:
        return COLOURS + 1 + RULES

    def rule(self, number: int) -> Tensor:
        """The relations of a rule, from the query node outwards."""
        return torch.arange(self.hops) + number * self.hops


def graph(task: Task, rng: torch.Generator) -> Data:
    """One question. Node 0 asks; ``gold`` and ``noise`` are bool [E, hops], layer by layer.

    Noise are the messages from which no walk leads to the query node in the layers that remain.
    """
    total = task.nodes + task.side_nodes
    query = int(torch.randint(RULES, (), generator=rng))
    path = torch.cat([torch.zeros(RULES, 1, dtype=torch.long), 1 + torch.arange(RULES * task.hops).view(RULES, -1)], 1)
    on_path = torch.stack([path[:, 1:].flatten(), path[:, :-1].flatten()])  # of both rules, from the end to the query
    relation_of_path = torch.cat([task.rule(number) for number in range(RULES)])

    # A second edge of the right relation would be a second answer; later relations would ask for looking ahead.
    allowed = torch.ones(total, task.relations, dtype=torch.bool)
    first = torch.stack([task.rule(number)[0] for number in range(RULES)])
    later = torch.cat([task.rule(number)[1:] for number in range(RULES)])
    allowed[1:, later] = False
    allowed[0, first] = False
    main = _random_edges(task.distractors, task.nodes, (0, task.nodes), allowed, rng)
    side = _random_edges(task.side_edges, total, (task.nodes, total), allowed, rng)

    edge_index = torch.cat([on_path, main[:2], side[:2]], 1)
    edge_type = torch.cat([relation_of_path, main[2], side[2]])
    gold = torch.zeros(edge_index.shape[1], task.hops, dtype=torch.bool)
    steps = torch.arange(task.hops)
    gold[query * task.hops + steps, task.hops - 1 - steps] = True  # the last hop of the rule is the first layer's

    colour = torch.randint(COLOURS, (total,), generator=rng)
    x = torch.zeros(total, task.inputs)
    x[torch.arange(total), colour] = 1
    x[0, COLOURS] = 1
    x[:, COLOURS + 1 + query] = 1
    order = torch.randperm(edge_index.shape[1], generator=rng)
    edge_index = edge_index[:, order]
    return Data(
        x=x,
        edge_index=edge_index,
        edge_type=edge_type[order],
        y=colour[path[query, -1]].view(1),
        gold=gold[order],
        noise=~reaching(edge_index, total, task.hops),
    )


def _random_edges(count: int, sources: int, targets: tuple[int, int], allowed: Tensor, rng: torch.Generator) -> Tensor:
    """[3, count] source, target and relation, no self-loops, relations as ``allowed`` [N, R] at the target."""
    many = 8 * count
    source = torch.randint(sources, (many,), generator=rng)
    target = torch.randint(*targets, (many,), generator=rng)
    relation = torch.randint(allowed.shape[1], (many,), generator=rng)
    fine = (source != target) & allowed[target, relation]
    return torch.stack([source, target, relation])[:, fine][:, :count]


def reaching(edge_index: Tensor, nodes: int, layers: int) -> Tensor:
    """bool [E, L]: messages from which node 0 can be reached in the layers that remain; a state may stay in place."""
    reached = torch.zeros(nodes, dtype=torch.bool)
    reached[0] = True
    by_layer = []
    for _ in range(layers):
        into = reached[edge_index[1]]
        by_layer.append(into)
        reached = reached.clone()
        reached[edge_index[0, into]] = True
    return torch.stack(by_layer[::-1], 1)


class GatedConv(MessagePassing):
    """h'_v = ReLU(W h_v + sum over edges (u, v) of sigmoid(g_r . [h_u, h_v]) (W_r h_u)), r the relation of the edge."""

    def __init__(self, width: int, relations: int) -> None:
        super().__init__(aggr="sum")
        self.relations = relations
        self.own, self.send = nn.Linear(width, width), nn.Linear(width, relations * width)
        self.gate = nn.Linear(2 * width, relations)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.own(x) + self.propagate(edge_index, x=x, edge_type=edge_type)

    def message(self, x_i: Tensor, x_j: Tensor, edge_type: Tensor) -> Tensor:
        at = torch.arange(len(x_j), device=x_j.device)
        every = self.send(x_j).view(len(x_j), self.relations, -1)
        return self.gate(torch.cat([x_j, x_i], 1))[at, edge_type].sigmoid()[:, None] * every[at, edge_type]


class Reasoner(nn.Module):
    """A linear embedding, relational layers with ReLU, and a linear layer on the query node's state."""

    def __init__(self, task: Task, conv: Callable[[int, int], nn.Module], width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(task.inputs, width)
        self.convs = nn.ModuleList(conv(width, task.relations) for _ in range(task.hops))
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, COLOURS))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> Tensor:
        state = self.embed(x).relu()
        for conv in self.convs:
            state = F.relu(conv(state, edge_index, edge_type))
        return self.out(state[first_nodes(batch)])


CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "rgcn": lambda width, relations: RGCNConv(width, width, relations),
    "gated": GatedConv,
}
TRAIN, VALIDATION, BATCH = 1_500, 40, 50
DEEP = Task(hops=3, relations=8, nodes=14, distractors=28, side_nodes=6, side_edges=14)


def make(conv: str, task: Task, data_seed: int, seed: int, epochs: int = 40) -> Prepared:
    """``TRAIN`` graphs to train and fit on, few to validate on."""
    rng = torch.Generator().manual_seed(1_000 * seed + data_seed)
    graphs = [graph(task, rng) for _ in range(TRAIN + VALIDATION + learning.TEST)]
    parts = graphs[:TRAIN], graphs[TRAIN : TRAIN + VALIDATION], graphs[TRAIN + VALIDATION :]
    gold, noise = ([getattr(one, name).t() for one in parts[-1]] for name in ("gold", "noise"))
    model = build(lambda: Reasoner(task, CONVS[conv]), seed)
    return learning.prepared(model, parts, size=BATCH, epochs=epochs, rate=5e-3, seed=seed, gold=gold, noise=noise)
