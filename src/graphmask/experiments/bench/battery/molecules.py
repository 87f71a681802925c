"""Plain classifiers of whole graphs: molecules (Mutagenicity) and planted motifs (BA-2Motifs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GIN, global_add_pool, global_mean_pool

from graphmask.experiments import motifs, mutagenicity
from graphmask.experiments.bench.battery import learning
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.bench.battery.frozen import only_mutagens
from graphmask.experiments.common import build

WIDTH, LAYERS = 32, 3
POOLS: dict[str, Callable[..., Tensor]] = {"gin": global_add_pool, "gcn": global_mean_pool}


def network(layer: str, inputs: int, classes: int, **options: Any) -> nn.Module:
    """Three layers as PyTorch Geometric ships them, a sum (GIN) or a mean (GCN) over nodes, one linear layer."""
    kind = {"gin": GIN, "gcn": GCN}[layer]
    return learning.Pooled(kind(inputs, WIDTH, LAYERS, WIDTH, **options), WIDTH, classes, POOLS[layer])


def classifier(
    model: nn.Module, graphs: list[Data], seed: int, *, epochs: int, rate: float, size: int = 64
) -> Prepared:
    """A graph classifier, trained on four fifths of the graphs, which carry ``y`` and ``gold``."""
    train, validation, test = learning.divided(graphs, seed)
    held_out, unseen = learning.loader(validation, 256), learning.loader(test, 256)
    return Prepared(
        model,
        learning.loader(train, 64),
        learning.loader(validation, 64),
        learning.loader(test[: learning.TEST], 64),
        lambda: {"accuracy": learning.accuracy(model, unseen)},
        learn=lambda: learning.on_graphs(
            model, train, lambda: learning.accuracy(model, held_out), epochs=epochs, rate=rate, size=size, seed=seed
        ),
        gold=[graph.gold for graph in test[: learning.TEST]],
    )


def mutagenic(layer: str, seed: int) -> Prepared:
    model = build(lambda: network(layer, len(mutagenicity.ATOMS), 2), seed)
    return only_mutagens(classifier(model, mutagenicity.read(), seed, epochs=20, rate=3e-3))


def ba_2motifs(layer: str, seed: int) -> Prepared:
    # All nodes look alike: without normalisation the GCN stays at chance.
    model = build(lambda: network(layer, 1, 2, norm="batch_norm" if layer == "gcn" else None), seed)
    return classifier(model, motifs.ba_2motifs(seed + 1), seed, epochs=100, rate=5e-3, size=32)


def jumping_knowledge(seed: int) -> Prepared:
    """Three motifs on three kinds of base graphs; the states of all layers are joined before the pool."""
    model = build(lambda: network("gin", 1, 3, jk="cat", norm="batch_norm"), seed)
    return classifier(model, motifs.spmotif(seed, graphs=1_500), seed, epochs=30, rate=3e-3)
