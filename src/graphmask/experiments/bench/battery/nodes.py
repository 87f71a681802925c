"""Node classifiers on one generated graph, as they are trained on citation networks; a fifth of the nodes undecided."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from graphmask.experiments.bench.battery import learning
from graphmask.experiments.bench.battery.entry import Prepared, Single
from graphmask.experiments.common import build

NODES, CLASSES, WORDS, PER_NODE, TOPIC = 1_200, 6, 500, 15, 60
#: Share of a node's words that are of its class; share of edges that stay within a class.
TYPICAL, HOMOPHILY, DEGREE = 0.21, 0.73, 4
LABELLED, VALIDATION, TEST = 20 * CLASSES, 200, 400
#: Nodes that are explained one by one.
ASKED = 20


def citations(
    seed: int, nodes: int = NODES, words: int = WORDS, typical: float = TYPICAL, homophily: float = HOMOPHILY
) -> Data:
    """A citation network: sparse bags of words, rows summing to one; edges mostly within a class, both ways."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (nodes,), generator=rng)
    # Every class has words that are typical of it; two classes may share some.
    topics = torch.stack([torch.randperm(words, generator=rng)[:TOPIC] for _ in range(CLASSES)])
    own = topics[y[:, None], torch.randint(TOPIC, (nodes, PER_NODE), generator=rng)]
    any_word = torch.randint(words, (nodes, PER_NODE), generator=rng)
    chosen = torch.where(torch.rand(nodes, PER_NODE, generator=rng) < typical, own, any_word)
    x = torch.zeros(nodes, words).scatter_(1, chosen, 1.0)
    count = nodes * DEGREE // 2
    source = torch.randint(nodes, (count,), generator=rng)
    weight = torch.where(y[source][:, None] == y[None], homophily * CLASSES, 1 - homophily)
    target = torch.multinomial(weight, 1, generator=rng).view(-1)
    pairs = torch.stack([torch.minimum(source, target), torch.maximum(source, target)])
    pairs = pairs[:, pairs[0] != pairs[1]].unique(dim=1)
    return Data(x=x / x.sum(1, keepdim=True), edge_index=torch.cat([pairs, pairs.flip(0)], 1), y=y)


class Classifier(nn.Module):
    """Two layers with ReLU and dropout one half between and before them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, 0.5, self.training)
        x = F.dropout(self.first(x, edge_index).relu(), 0.5, self.training)
        return self.second(x, edge_index)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: Classifier(GCNConv(WORDS, 32), GCNConv(32, CLASSES)),
    "gat": lambda: Classifier(GATConv(WORDS, 8, heads=8, dropout=0.5), GATConv(64, CLASSES, dropout=0.5)),
    "sage": lambda: Classifier(SAGEConv(WORDS, 32), SAGEConv(32, CLASSES)),
}


def some_rows(model: nn.Module, batch: Data) -> Tensor:
    """The output at the nodes that a batch names."""
    return model(batch.x, batch.edge_index)[batch.rows]


def of_rows(data: Data, rows: Tensor) -> Data:
    """The same graph, with the nodes whose output counts."""
    rows = rows.nonzero().view(-1) if rows.dtype == torch.bool else rows
    return Data(x=data.x, edge_index=data.edge_index, y=data.y[rows], rows=rows)


def prepared(model: nn.Module, data: Data, fit: Tensor, validation: Tensor, test: Tensor, *, seed: int = 0) -> Prepared:
    """One graph: gates are fitted on the output of some nodes, calibrated on others, and judged on ``test`` nodes."""
    batch = of_rows(data, test)
    order = torch.randperm(len(batch.rows), generator=torch.Generator().manual_seed(seed))
    return Prepared(
        model,
        [of_rows(data, fit)],
        [of_rows(data, validation)],
        [batch],
        lambda: {"accuracy": learning.accuracy(model, [batch], some_rows)},
        forward=some_rows,
        # Rows are found among all nodes, so that an explanation knows which messages can reach them.
        single=Single(of_rows(data, torch.arange(data.num_nodes)), batch.rows[order[:ASKED]].tolist()),
    )


def make(layer: str, seed: int) -> Prepared:
    data = citations(seed)
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(seed + 1))
    labelled, validation, test = order[:LABELLED], order[LABELLED:][:VALIDATION], order[-TEST:]
    unlabelled = order[LABELLED + VALIDATION : -TEST]
    model = build(LAYERS[layer], seed)
    ready = prepared(model, data, torch.cat([labelled, unlabelled]), validation, test, seed=seed)
    ready.learn = lambda: learning.on_rows(model, data, labelled, seed=seed)
    return ready
