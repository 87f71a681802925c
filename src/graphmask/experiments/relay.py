"""Relay: leaves report to mids, mids to the root; two layers, each with its own gold explanation.

The query names two leaf colours x != y and one mid colour q. The label says whether, over all leaves of mids
of colour q, more are x than y. A model needs layer 1 to count at the mids and layer 2 to add up at the root.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import MessagePassing

from graphmask.experiments.common import (
    accuracy,
    batches,
    build,
    coloured,
    distinct_pair,
    first_nodes,
    mlp,
    starts,
    trained,
)

__all__ = ["RelayConfig", "RelayConv", "RelayModel", "accuracy", "generate", "train"]

LEAF_TO_MID, MID_TO_ROOT = 0, 1


@dataclass(frozen=True)
class RelayConfig:
    """Sizes of the task and of its model.

    A mid has the queried colour with probability `queried_mids`, a leaf one of the two queried colours with
    probability `queried_leaves`; the other colours share the rest evenly.
    """

    mid_colours: int = 4
    leaf_colours: int = 5
    min_mids: int = 2
    max_mids: int = 6
    min_leaves: int = 1
    max_leaves: int = 5
    queried_mids: float = 0.5
    queried_leaves: float = 0.5
    width: int = 32
    hidden: int = 64

    @property
    def inputs(self) -> int:
        """Features per node: the query, then what the node is."""
        return 3 * self.leaf_colours + 2 * self.mid_colours + 1


DEFAULT = RelayConfig()


def generate(graphs: int, *, seed: int, batch_size: int = 64, config: RelayConfig = DEFAULT) -> list[Batch]:
    """Random relay graphs, ready batched.

    Nodes in preorder: root, first mid, its leaves, second mid, ... Every node but the root has one edge, towards
    the root; edges come in the order of their sources. `x` `[N, 3C + 2M + 1]` is one-hots of x, y, q and of the
    node's kind (root, mid by colour, leaf by colour); `edge_type` `[E]` is LEAF_TO_MID or MID_TO_ROOT;
    `y` `[B]` = (sum over mids of colour q of #x - #y) > 0. `gold` `[E, 2]` is what a gate without look-ahead can
    know to matter: in layer 1 a leaf of colour x or y below a mid of colour q, in layer 2 a mid of colour q
    whose #x and #y differ.
    """
    rng = torch.Generator().manual_seed(seed)
    more, less = distinct_pair(graphs, config.leaf_colours, rng)
    asked = torch.randint(config.mid_colours, (graphs,), generator=rng)
    mids = torch.randint(config.min_mids, config.max_mids + 1, (graphs,), generator=rng)

    # One row per mid.
    graph_of_mid = torch.arange(graphs).repeat_interleave(mids)
    count = len(graph_of_mid)
    shift = torch.randint(1, config.mid_colours, (count,), generator=rng)
    is_asked = torch.rand(count, generator=rng) < config.queried_mids
    mid_colour = (asked[graph_of_mid] + torch.where(is_asked, 0, shift)) % config.mid_colours
    leaves = torch.randint(config.min_leaves, config.max_leaves + 1, (count,), generator=rng)

    # One row per edge; the edges of a mid are its own, to the root, and then those of its leaves.
    mid = torch.arange(count).repeat_interleave(leaves + 1)
    graph = graph_of_mid[mid]
    first_edge = starts(leaves + 1)[:-1]
    from_mid = torch.zeros(len(mid), dtype=torch.bool)
    from_mid[first_edge] = True
    leaf_colour = coloured(more[graph], less[graph], config.leaf_colours, config.queried_leaves, rng)
    is_more, is_less = ~from_mid & (leaf_colour == more[graph]), ~from_mid & (leaf_colour == less[graph])
    surplus = torch.zeros(count, dtype=torch.long).index_add(0, mid, is_more.long() - is_less.long())
    total = torch.zeros(graphs, dtype=torch.long).index_add(0, graph_of_mid, surplus * is_asked)

    edges = torch.zeros(graphs, dtype=torch.long).index_add(0, graph_of_mid, leaves + 1)
    nodes = edges + 1
    # Before the source of edge number e come e other sources and the roots of its own and all earlier graphs.
    source = torch.arange(len(mid)) + graph + 1
    target = torch.where(from_mid, starts(nodes)[graph], source[first_edge][mid])

    kind = torch.zeros(int(nodes.sum()), dtype=torch.long)
    kind[source] = 1 + torch.where(from_mid, mid_colour[mid], config.mid_colours + leaf_colour)
    x = torch.cat([_queries(more, less, asked, config).repeat_interleave(nodes, dim=0), _kinds(kind, config)], dim=1)
    gold = torch.stack([is_asked[mid] & (is_more | is_less), from_mid & (is_asked & (surplus != 0))[mid]], dim=1)
    return batches(
        batch_size,
        nodes=nodes,
        edges=edges,
        x=x.float(),
        edge_index=torch.stack([source, target]),
        edge_type=torch.where(from_mid, MID_TO_ROOT, LEAF_TO_MID),
        y=(total > 0).long(),
        gold=gold,
    )


def _queries(more: Tensor, less: Tensor, asked: Tensor, config: RelayConfig) -> Tensor:
    """[graphs, 2C + M] one-hots of the two leaf colours and of the mid colour."""
    colours = [F.one_hot(colour, config.leaf_colours) for colour in (more, less)]
    return torch.cat([*colours, F.one_hot(asked, config.mid_colours)], dim=1)


def _kinds(kind: Tensor, config: RelayConfig) -> Tensor:
    """[nodes, 1 + M + C] one-hots of what each node is: root, mid by colour, leaf by colour."""
    return F.one_hot(kind, 1 + config.mid_colours + config.leaf_colours)


class RelayConv(MessagePassing):
    """h'_v = ReLU(W h_v + b + sum over edges (u, v) of ReLU(A h_u + B h_v + a_c)), c the type of the edge."""

    def __init__(self, width: int, relations: int) -> None:
        super().__init__(aggr="sum")
        self.own = nn.Linear(width, width)
        self.source = nn.Linear(width, width, bias=False)
        self.target = nn.Linear(width, width, bias=False)
        self.relation = nn.Embedding(relations, width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return (self.own(x) + self.propagate(edge_index, x=x, edge_type=edge_type)).relu()

    def message(self, x_i: Tensor, x_j: Tensor, edge_type: Tensor) -> Tensor:
        return (self.source(x_j) + self.target(x_i) + self.relation(edge_type)).relu()


class RelayModel(nn.Module):
    """MLP on the node features, two `RelayConv`, MLP on the root's state."""

    def __init__(self, config: RelayConfig = DEFAULT) -> None:
        super().__init__()
        self.embed = mlp(config.inputs, config.hidden, config.width)
        self.conv1 = RelayConv(config.width, 2)
        self.conv2 = RelayConv(config.width, 2)
        self.readout = mlp(config.width, config.hidden, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> Tensor:
        """Logits `[B, 2]`: class 1 is "more x than y"."""
        state = self.conv1(self.embed(x), edge_index, edge_type)
        state = self.conv2(state, edge_index, edge_type)
        return self.readout(state[first_nodes(batch)])


def make(*, seed: int, config: RelayConfig = DEFAULT) -> RelayModel:
    """An untrained model."""
    return build(lambda: RelayModel(config), seed)


def train(
    *, seed: int, graphs: int = 300_000, config: RelayConfig = DEFAULT, progress: bool = False
) -> tuple[RelayModel, float]:
    """A trained model in eval mode and its accuracy on 5,000 fresh graphs."""
    model, sample = make(seed=seed, config=config), partial(generate, config=config)
    # A rate of 5e-3 is faster but left one run of eight at chance.
    return trained(model, sample, seed=seed, graphs=graphs, lr=3e-3, target=0.999, weight_decay=0.01, progress=progress)


LEAF_NAMES = ("red", "blue", "green", "orange", "purple")
MID_NAMES = ("copper", "silver", "gold", "iron")


def describe(graph: Batch, config: RelayConfig = DEFAULT) -> tuple[list[str], list[str], list[str]]:
    """Names for people: of the nodes, of the edges, and the question with its answer. ``graph`` is a batch of one."""
    sizes = [config.leaf_colours, config.leaf_colours, config.mid_colours]
    kinds = 1 + config.mid_colours + config.leaf_colours
    more, less, asked, _ = (int(part.argmax()) for part in graph.x[0].split([*sizes, kinds]))
    names = ["root", *(f"{name} mid" for name in MID_NAMES), *LEAF_NAMES]
    nodes = [names[kind] for kind in graph.x[:, -kinds:].argmax(1).tolist()]
    edges = ["leaf to mid" if kind == LEAF_TO_MID else "mid to root" for kind in graph.edge_type.tolist()]
    question = f"Below {MID_NAMES[asked]} mids, are there more {LEAF_NAMES[more]} than {LEAF_NAMES[less]} leaves?"
    return nodes, edges, [f"{question} {'Yes' if int(graph.y) else 'No'}."]
