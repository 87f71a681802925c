"""Star, relay, a regression, link prediction, and six layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GINConv, GraphConv, global_add_pool

from graphmask import experiments
from graphmask.analysis.ground_truth import area
from graphmask.experiments import runner
from graphmask.experiments.bench.battery import learning, nodes
from graphmask.experiments.bench.battery.entry import Prepared, Single
from graphmask.experiments.common import build, mlp, singles

# Star and relay -----------------------------------------------------------------------------------------------


def coloured(name: str, seed: int) -> Prepared:
    """The library's own tasks, their models and their gold."""
    task = experiments.get(name)
    model = task.make(seed=seed)
    fit, validation, test = (runner.draw(name, seed, part) for part in range(3))
    test = test[:3]
    scores: dict[str, float] = {}

    def learn() -> None:
        trained, scores["accuracy"] = task.train(seed=seed)
        model.load_state_dict(trained.state_dict())

    return Prepared(
        model,
        fit,
        validation,
        test,
        lambda: {"accuracy": task.accuracy(model, test), **scores},
        learn=learn,
        gold=[graph.gold.t() for batch in test for graph in singles(batch)],
    )


# Regression ---------------------------------------------------------------------------------------------------

KINDS = 4


def bonds(graphs: int, seed: int) -> list[Data]:
    """Random graphs of nodes of four kinds; ``y`` is the number of edges between the first two kinds, standardised."""
    rng = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(graphs):
        size = int(torch.randint(10, 21, (), generator=rng))
        kind = torch.randint(KINDS, (size,), generator=rng)
        pairs = torch.randint(size, (2, 2 * size), generator=rng)
        pairs = torch.stack([pairs.amin(0), pairs.amax(0)])[:, pairs[0] != pairs[1]].unique(dim=1)
        y = (kind[pairs].sort(0).values == torch.tensor([[0], [1]])).all(0).sum().float().view(1)
        drawn.append(Data(x=F.one_hot(kind, KINDS).float(), edge_index=torch.cat([pairs, pairs.flip(0)], 1), y=y))
    values = torch.cat([graph.y for graph in drawn])
    for graph in drawn:
        graph.y = (graph.y - values.mean()) / values.std()
    return drawn


class Regressor(nn.Module):
    """Two GraphConv layers, a sum over the nodes, an MLP."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = GraphConv(KINDS, width), GraphConv(width, width)
        self.out = mlp(width, width, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        state = self.second(self.first(x, edge_index).relu(), edge_index).relu()
        return self.out(global_add_pool(state, batch)).squeeze(-1)


def regression(seed: int) -> Prepared:
    graphs = bonds(2_200, seed)
    parts = graphs[:1_800], graphs[1_800:2_000], graphs[2_000:]
    model = build(Regressor, seed)

    @torch.no_grad()
    def explained(data: list[Any]) -> float:
        """The share of the variance that the model explains."""
        predicted = torch.cat([model(batch.x, batch.edge_index, batch.batch) for batch in data])
        wanted = torch.cat([batch.y for batch in data])
        return float(1 - F.mse_loss(predicted, wanted) / wanted.var())

    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.mse_loss(output, batch.y)

    return learning.prepared(
        model, parts, size=64, score=explained, measure="r2", seed=seed, loss=loss, divergence="mse"
    )


# Link prediction ----------------------------------------------------------------------------------------------

LINK_NODES, LINK_WORDS = 600, 120


class Links(nn.Module):
    """Two GCN layers; a candidate's logit is the inner product of its two ends."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = GCN(LINK_WORDS, 64, 2, 32)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        state = self.gnn(x, edge_index)
        return (state[edge_label_index[0]] * state[edge_label_index[1]]).sum(-1)


def strangers(edge_index: Tensor, nodes: int, count: int, rng: torch.Generator) -> Tensor:
    """[2, count] pairs of different nodes without an edge between them."""
    known = edge_index[0] * nodes + edge_index[1]
    drawn = torch.randint(nodes, (2, 2 * count), generator=rng)
    fine = (drawn[0] != drawn[1]) & ~torch.isin(drawn[0] * nodes + drawn[1], known)
    return drawn[:, fine][:, :count]


def link_split(seed: int) -> list[Data]:
    """To train, validate and test on: half of the candidates are edges, in the first part those that carry messages.

    The edges to be predicted in the other two parts carry no messages.
    """
    data = nodes.citations(seed + 7, LINK_NODES, LINK_WORDS, typical=0.5, homophily=0.9)
    rng = torch.Generator().manual_seed(seed)
    pairs = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=rng)]
    sizes = [pairs.shape[1] * 10 // 100, pairs.shape[1] * 15 // 100]
    train, validation, test = pairs.split([pairs.shape[1] - sum(sizes), *sizes], 1)
    messages, parts = torch.cat([train, train.flip(0)], 1), []
    for some in (train, validation, test):
        others = strangers(data.edge_index, LINK_NODES, some.shape[1], rng)
        label = torch.cat([torch.ones(some.shape[1]), torch.zeros(others.shape[1])])
        candidates = torch.cat([some, others], 1)
        parts.append(Data(x=data.x, edge_index=messages, edge_label_index=candidates, edge_label=label))
    return parts


def links(seed: int) -> Prepared:
    """Every epoch of training has other pairs of strangers."""
    train, validation, test = link_split(seed)
    model = build(Links, seed)

    def logits(batch: Data) -> Tensor:
        return model(batch.x, batch.edge_index, batch.edge_label_index)

    def learn() -> None:
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        positive, rng = train.edge_label_index[:, train.edge_label == 1], torch.Generator().manual_seed(seed)
        for _ in range(100):
            negative = strangers(train.edge_index, LINK_NODES, positive.shape[1], rng)
            output = model(train.x, train.edge_index, torch.cat([positive, negative], 1))
            wanted = torch.cat([torch.ones(positive.shape[1]), torch.zeros(negative.shape[1])])
            loss = F.binary_cross_entropy_with_logits(output, wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def judge() -> dict[str, float]:
        with torch.no_grad():
            return {"auc": area(logits(test), test.edge_label == 1)}

    rows = torch.randperm(test.edge_label_index.shape[1], generator=torch.Generator().manual_seed(seed))
    return Prepared(
        model,
        [train],
        [validation],
        [test],
        judge,
        learn=learn,
        divergence="bernoulli",
        single=Single(test, rows[: nodes.ASKED].tolist()),
    )


# Six layers ---------------------------------------------------------------------------------------------------

FARTHEST = 6


def distances(graphs: int, seed: int, size: int = 24) -> list[Data]:
    """How far is a node from the nearest of two marked ones? Random trees with three more edges; ``y`` [N] is 0 to 6.

    ``gold`` are the edges that lead from a node to one that is a step farther away.
    """
    rng = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(graphs):
        child = torch.arange(1, size)
        # Parents are among the four before: trees that are long rather than wide.
        parent = (child - 1 - (torch.rand(size - 1, generator=rng) * 4).long()).clamp_min(0)
        extra = torch.randint(size, (2, 3), generator=rng)
        pairs = torch.cat([torch.stack([parent, child]), extra[:, extra[0] != extra[1]]], 1)
        pairs = torch.stack([pairs.amin(0), pairs.amax(0)]).unique(dim=1)
        edge_index = torch.cat([pairs, pairs.flip(0)], 1)
        y = torch.full((size,), FARTHEST)
        y[torch.randperm(size, generator=rng)[:2]] = 0
        marked = (y == 0).float()
        for step in range(1, FARTHEST):
            nearer = edge_index[1, y[edge_index[0]] == step - 1]
            y[nearer] = torch.minimum(y[nearer], torch.tensor(step))
        farther = (y[edge_index[1]] == y[edge_index[0]] + 1) & (y[edge_index[1]] < FARTHEST)
        x = torch.stack([marked, 1 - marked], 1)
        drawn.append(Data(x=x, edge_index=edge_index, y=y, gold=farther))
    return drawn


class SixLayers(nn.Module):
    """Six GIN layers with residual connections and layer normalisation."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.convs = nn.ModuleList(GINConv(mlp(width, width, width)) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(6))
        self.out = nn.Linear(width, FARTHEST + 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        state = self.embed(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            state = state + conv(norm(state), edge_index).relu()
        return self.out(state)


def six_layers(seed: int) -> Prepared:
    graphs = distances(1_000, seed)
    parts = graphs[:800], graphs[800:900], graphs[900:]
    gold = [graph.gold for graph in parts[-1]]
    return learning.prepared(build(SixLayers, seed), parts, size=16, at_once=32, seed=seed, gold=gold)
