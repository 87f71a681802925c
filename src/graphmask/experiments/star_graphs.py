"""Star graphs: does the centroid receive more edges of colour x than of colour y? (paper, section 4, appendix E)

The gold explanation is known: exactly the edges of the two queried colours.
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

__all__ = ["RelationalConv", "StarConfig", "StarModel", "accuracy", "generate", "train"]


@dataclass(frozen=True)
class StarConfig:
    """Sizes of the task and of its model.

    An edge has one of the two queried colours with probability `queried`; 1/3 makes all six colours equally
    likely. Ties and near-ties are then frequent: the two counts differ by at most one in two graphs of three.
    """

    colours: int = 6
    min_leaves: int = 6
    max_leaves: int = 12
    queried: float = 1 / 3
    width: int = 50
    hidden: int = 100


DEFAULT = StarConfig()


def generate(graphs: int, *, seed: int, batch_size: int = 64, config: StarConfig = DEFAULT) -> list[Batch]:
    """Random star graphs, ready batched.

    Every graph is a centroid (its first node) and leaves with one edge each, leaf -> centroid. `x` `[N, 2C]` is
    the query, two one-hots, on every node; `edge_type` `[E]` the colour; `y` `[B]` = (#x > #y);
    `gold` `[E, 1]` = colour is x or y.
    """
    rng = torch.Generator().manual_seed(seed)
    more, less = distinct_pair(graphs, config.colours, rng)
    leaves = torch.randint(config.min_leaves, config.max_leaves + 1, (graphs,), generator=rng)
    owner = torch.arange(graphs).repeat_interleave(leaves)
    colour = coloured(more[owner], less[owner], config.colours, config.queried, rng)

    is_more, is_less = colour == more[owner], colour == less[owner]
    surplus = torch.zeros(graphs, dtype=torch.long).index_add(0, owner, is_more.long() - is_less.long())
    nodes = leaves + 1
    query = torch.cat([F.one_hot(more, config.colours), F.one_hot(less, config.colours)], dim=1).float()
    # Before leaf number e of the union come e leaves and the centroids of its own and all earlier graphs.
    leaf = torch.arange(len(owner)) + owner + 1
    return batches(
        batch_size,
        nodes=nodes,
        edges=leaves,
        x=query.repeat_interleave(nodes, dim=0),
        edge_index=torch.stack([leaf, starts(nodes)[owner]]),
        edge_type=colour,
        y=(surplus > 0).long(),
        gold=(is_more | is_less)[:, None],
    )


class RelationalConv(MessagePassing):
    """h'_v = sum over edges (u, v) of ReLU(W_c h_u + b_c), c the type of the edge. `[N, width]` -> `[N, width]`."""

    def __init__(self, width: int, relations: int) -> None:
        super().__init__(aggr="sum")
        self.relations = relations
        self.linear = nn.Linear(width, relations * width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_type=edge_type)

    def message(self, x_j: Tensor, edge_type: Tensor) -> Tensor:
        # All relations in one product, then pick: for a handful of relations cheaper than gathering matrices.
        every = self.linear(x_j).unflatten(1, (self.relations, -1))
        return every[torch.arange(len(x_j), device=x_j.device), edge_type].relu()


class StarModel(nn.Module):
    """MLP on the query, one `RelationalConv`, MLP on the centroid's state."""

    def __init__(self, config: StarConfig = DEFAULT) -> None:
        super().__init__()
        self.embed = mlp(2 * config.colours, config.hidden, config.width)
        self.conv = RelationalConv(config.width, config.colours)
        self.readout = mlp(config.width, config.hidden, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> Tensor:
        """Logits `[B, 2]`: class 1 is "more x than y"."""
        state = self.conv(self.embed(x), edge_index, edge_type)
        return self.readout(state[first_nodes(batch)])


def make(*, seed: int, config: StarConfig = DEFAULT) -> StarModel:
    """An untrained model."""
    return build(lambda: StarModel(config), seed)


def train(
    *, seed: int, graphs: int = 400_000, config: StarConfig = DEFAULT, progress: bool = False
) -> tuple[StarModel, float]:
    """A trained model in eval mode and its accuracy on 5,000 fresh graphs (1.0 for all seeds tried)."""
    model, sample = make(seed=seed, config=config), partial(generate, config=config)
    return trained(model, sample, seed=seed, graphs=graphs, lr=2e-3, target=1.0, progress=progress)


COLOUR_NAMES = ("red", "blue", "green", "orange", "purple", "black")


def describe(graph: Batch) -> tuple[list[str], list[str], list[str]]:
    """Names for people: of the nodes, of the edges, and the question with its answer. ``graph`` is a batch of one."""
    colours = graph.x.shape[1] // 2
    names = [COLOUR_NAMES[c] if c < len(COLOUR_NAMES) else f"colour {c}" for c in range(colours)]
    more, less = (int(part.argmax()) for part in graph.x[0].split(colours))
    nodes = ["centre", *(f"leaf {number}" for number in range(1, graph.x.shape[0]))]
    counts = [int((graph.edge_type == colour).sum()) for colour in (more, less)]
    question = f"Are there more {names[more]} than {names[less]} edges? {counts[0]} against {counts[1]}:"
    return nodes, [names[c] for c in graph.edge_type.tolist()], [f"{question} {'yes' if int(graph.y) else 'no'}."]
