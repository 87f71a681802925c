"""Networks that other people trained and published, explained as they are (weights and graphs of PGExplainer's sets).

Three GCNConv layers of 20, each followed by L2 normalisation per node and ReLU. For nodes the three outputs side by
side go into one linear layer; for graphs, the maximum and the mean over the nodes of the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_max_pool, global_mean_pool

from graphmask.experiments import data as corpora
from graphmask.experiments import motifs, mutagenicity
from graphmask.experiments.bench.battery import learning
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.bench.battery.nodes import prepared

#: Width of the layers; nodes that molecules were padded to.
WIDTH, PADDED = 20, 417


class FrozenNodes(nn.Module):
    """Classifies nodes."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (GCNConv(size, WIDTH) for size in (inputs, WIDTH, WIDTH))
        self.lin = nn.Linear(3 * WIDTH, classes)

    def states(self, x: Tensor, edge_index: Tensor) -> list[Tensor]:
        states = []
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.normalize(conv(x, edge_index), dim=1).relu()
            states.append(x)
        return states

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(torch.cat(self.states(x, edge_index), 1))


class FrozenGraphs(FrozenNodes):
    """Classifies graphs."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__(inputs, classes)
        self.lin = nn.Linear(2 * WIDTH, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        state = self.states(x, edge_index)[-1]
        return self.lin(torch.cat([global_max_pool(state, batch), global_mean_pool(state, batch)], 1))


class FrozenMolecules(FrozenGraphs):
    """Classifies molecules that were padded to 417 atoms: what is pooled includes nodes without features or edges.

    All of them have one state, which follows from the biases alone.
    """

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        state, padding = self.states(x, edge_index)[-1], x.new_zeros(1, x.shape[1])
        for conv in (self.conv1, self.conv2, self.conv3):
            padding = F.normalize(conv.lin(padding) + conv.bias, dim=1).relu()
        sizes = torch.bincount(batch)[:, None] / PADDED
        mean = global_mean_pool(state, batch) * sizes + padding * (1 - sizes)
        return self.lin(torch.cat([torch.maximum(global_max_pool(state, batch), padding), mean], 1))


def read(name: str) -> dict[str, Any]:
    """The arrays of a published model."""
    with np.load(corpora.find(f"frozen-models/{name}.npz"), allow_pickle=False) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}


def network(kind: type[FrozenNodes], arrays: dict[str, Any]) -> FrozenNodes:
    """The published weights; GCNConv of that time held the transposed matrix."""
    model = kind(arrays["weights.conv1.weight"].shape[0], len(arrays["weights.lin.bias"]))
    state = {key: arrays[f"weights.{key}"] for key in ("lin.weight", "lin.bias")}
    for conv in ("conv1", "conv2", "conv3"):
        state[f"{conv}.lin.weight"] = arrays[f"weights.{conv}.weight"].t().contiguous()
        state[f"{conv}.bias"] = arrays[f"weights.{conv}.bias"]
    model.load_state_dict(state)
    return model.eval()


def of_nodes(name: str, seed: int) -> Prepared:
    """A published node classifier on its own graph and split; gold are the edges of the planted motifs."""
    arrays = read(name)
    data = Data(x=arrays["x"], edge_index=arrays["edge_index"], y=arrays["y"])
    ready = prepared(
        network(FrozenNodes, arrays), data, arrays["train"], arrays["validation"], arrays["test"], seed=seed
    )
    ready.gold = [arrays["gold"]]
    return ready


def of_graphs(name: str, kind: type[FrozenNodes], graphs: list[Data], seed: int) -> Prepared:
    """A published graph classifier on a set whose graphs carry ``gold``; its accuracy is over all of them."""
    model = network(kind, read(name))
    train, validation, test = learning.divided(graphs, seed)
    whole = learning.loader(graphs, 256)
    return Prepared(
        model,
        learning.loader(train, 64),
        learning.loader(validation, 64),
        learning.loader(test[: learning.TEST], 64),
        lambda: {"accuracy": learning.accuracy(model, whole)},
        gold=[graph.gold for graph in test[: learning.TEST]],
    )


def ba_2motifs(seed: int) -> Prepared:
    """Our own graphs with the features the weights were trained on, ten columns that sum to one; class 1 is a house."""
    graphs = motifs.ba_2motifs(seed)
    for graph in graphs:
        graph.x, graph.y = torch.full((graph.num_nodes, 10), 0.1), 1 - graph.y
    return of_graphs("ba_2motifs", FrozenGraphs, graphs, seed)


def mutagenic(seed: int) -> Prepared:
    return only_mutagens(of_graphs("mutagenicity", FrozenMolecules, mutagenicity.read(), seed))


def only_mutagens(found: Prepared) -> Prepared:
    """Gold counts for mutagens that have it: in other molecules NO2 and NH2 prove nothing."""
    labels = torch.cat([batch.y for batch in found.test]).tolist()
    assert found.gold is not None
    found.gold = [
        gold if gold is not None and label == mutagenicity.MUTAGEN and bool(gold.any()) else None
        for gold, label in zip(found.gold, labels, strict=True)
    ]
    return found
