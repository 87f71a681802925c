"""How the battery's models are trained: what anyone would write first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from graphmask.experiments import learning
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.graphs.batches import Forward, default_forward

#: Test graphs that are explained, at most.
TEST = 200

Loss = Callable[[Tensor, Any], Tensor]


class Pooled(nn.Module):
    """Message passing layers, a pool over the nodes of each graph, and one linear layer."""

    def __init__(self, gnn: nn.Module, width: int, outputs: int, pool: Callable[..., Tensor]) -> None:
        super().__init__()
        self.gnn, self.pool, self.out = gnn, pool, nn.Linear(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.out(self.pool(self.gnn(x, edge_index).relu(), batch))


def loader(graphs: Sequence[Any], size: int) -> list[Any]:
    """Batches in the order of the graphs, made once."""
    with torch.random.fork_rng(devices=[]):  # a loader draws even if it does not shuffle
        return list(DataLoader(list(graphs), size))


def divided(graphs: Sequence[Data], seed: int) -> tuple[list[Data], list[Data], list[Data]]:
    """Four fifths to train on, a tenth to validate on and a tenth to test on, in an order that is drawn."""
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    first, second = len(graphs) * 8 // 10, len(graphs) * 9 // 10
    shuffled = [graphs[number] for number in order]
    return shuffled[:first], shuffled[first:second], shuffled[second:]


@torch.no_grad()
def accuracy(model: nn.Module, data: Sequence[Any], forward: Forward = default_forward) -> float:
    """The share of rows whose first choice is ``y`` of the batch."""
    training = model.training
    model.eval()
    right = [forward(model, batch).argmax(-1) == batch.y for batch in data]
    model.train(training)
    return float(torch.cat(right).double().mean())


def on_graphs(
    model: nn.Module,
    train: Sequence[Any],
    score: Callable[[], float],
    *,
    epochs: int,
    rate: float = 3e-3,
    size: int = 64,
    seed: int = 0,
    loss: Loss | None = None,
) -> None:
    """Adam with a falling rate on shuffled batches of graphs; the epoch with the best ``score`` is kept."""
    criterion = loss or (lambda output, batch: F.cross_entropy(output, batch.y))

    def judged(_: nn.Module) -> float:
        model.eval()
        value = score()
        model.train()
        return value

    learning.train(
        model,
        lambda epoch: DataLoader(list(train), size, shuffle=True),
        lambda batch: criterion(default_forward(model, batch), batch),
        judged,
        learning.Pace(epochs, rate),
        measure="score",
        settings={},
        seed=seed,
        progress=False,
    )


def prepared(
    model: nn.Module,
    parts: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    *,
    size: int,
    at_once: int | None = None,
    score: Callable[[list[Any]], float] | None = None,
    measure: str = "accuracy",
    epochs: int = 40,
    rate: float = 3e-3,
    seed: int,
    loss: Loss | None = None,
    **more: Any,
) -> Prepared:
    """A model that is trained on graphs and explained on graphs it has not seen.

    Args:
        parts: graphs to train and fit on, to choose the epoch and calibrate on, and to be judged by.
        size: of a batch to train or fit on; ``at_once`` of the others, the same unless told.
        score: of batches, by which the best epoch is chosen and the model judged; the accuracy unless told.
        measure: its name.
        more: other fields of `Prepared`.
    """
    train, validation, test = parts
    judged = score or (lambda data: accuracy(model, data))
    held_out, asked = (loader(graphs, at_once or size) for graphs in (validation, test))

    def learn() -> None:
        on_graphs(model, train, lambda: judged(held_out), epochs=epochs, rate=rate, size=size, seed=seed, loss=loss)

    return Prepared(model, loader(train, size), held_out, asked, lambda: {measure: judged(asked)}, learn=learn, **more)


def on_rows(
    model: nn.Module,
    data: Data,
    rows: Tensor,
    *,
    epochs: int = 200,
    rate: float = 0.01,
    decay: float = 5e-4,
    seed: int = 0,
) -> None:
    """The usual training of a node classifier: Adam with weight decay on the labelled nodes of one graph."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.train()
        for _ in range(epochs):
            loss = F.cross_entropy(model(data.x, data.edge_index)[rows], data.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
