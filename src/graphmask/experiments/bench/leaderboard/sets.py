"""The twelve sets: data, a frozen model, and the predictions to be explained with the edges that should be found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import k_hop_subgraph

from graphmask import experiments
from graphmask.experiments import motifs, mutagenicity
from graphmask.experiments.bench.leaderboard import models
from graphmask.experiments.bench.leaderboard.models import Recipe

#: Predictions explained on a set; of those, how many are for methods to learn from is up to them.
QUESTIONS = 60
SEED = 0


@dataclass
class Question:
    """One prediction: of a graph, or of a node of it."""

    graph: Data
    node: int | None
    asked: Tensor  #: bool [E], the edges that can matter
    gold: Tensor  #: bool [E], those that should be found

    @property
    def extras(self) -> dict[str, Tensor]:
        """What the model takes beside features and edges, in its order."""
        if self.node is not None:
            return {}
        graph = self.graph
        owner = graph.batch if "batch" in graph else torch.zeros(graph.num_nodes, dtype=torch.long)
        return {**({"edge_type": graph.edge_type} if "edge_type" in graph else {}), "batch": owner}


@dataclass
class Board:
    """One set."""

    name: str
    model: nn.Module
    accuracy: float  #: per cent, on data the model has not seen
    fit: Iterable[Any]  #: batches that explainers may learn from
    calibration: Iterable[Any]
    learn: list[Question]  #: predictions that PGExplainer learns from
    questions: list[Question]
    layers: int
    classes: int

    @property
    def of_nodes(self) -> bool:
        return self.questions[0].node is not None


# Graph sets -------------------------------------------------------------------------------------------------


def _whole(graph: Data) -> Question:
    edges = graph.edge_index.shape[1]
    gold = graph.gold.any(1) if graph.gold.dim() > 1 else graph.gold
    return Question(graph, None, torch.ones(edges, dtype=torch.bool), gold)


def together(questions: Sequence[Question]) -> Batch:
    """The graphs of all questions as one batch."""
    return Batch.from_data_list([question.graph for question in questions])


def _graph_board(
    name: str, recipe: Recipe, train: Sequence[Data], test: Sequence[Data], asked: Sequence[Data], learn: Sequence[Data]
) -> Board:
    """``asked`` of the test graphs and ``learn`` of the training graphs are those with something to be found."""
    classes = 1 + max(int(graph.y) for graph in train)
    model = models.train(recipe, train, classes, seed=SEED)
    return Board(
        name,
        model,
        models.accuracy(model, test),
        list(DataLoader(list(train), 16)),
        list(DataLoader(list(train[:300]), 100)),
        [_whole(graph) for graph in learn[:QUESTIONS]],
        [_whole(graph) for graph in asked[:QUESTIONS]],
        recipe.layers,
        classes,
    )


def _shuffled(graphs: Sequence[Data]) -> list[Data]:
    return [graphs[number] for number in np.random.default_rng(SEED).permutation(len(graphs))]


def _bare(graphs: int, bases: Callable[[motifs.Rng], motifs.Pairs], label: int, seed: int) -> list[Data]:
    """Base graphs without a motif, a class of their own.

    Without it a model may know one motif and tell the other by its absence: then half of the gold is nothing that
    the model looks at.
    """
    rng, bare = np.random.default_rng(seed), []
    for _ in range(graphs):
        one_way = torch.tensor(bases(rng)).t()
        edge_index = torch.cat([one_way, one_way.flip(0)], 1)
        x, gold = torch.ones(int(one_way.max()) + 1, 1), torch.zeros(edge_index.shape[1], dtype=torch.bool)
        bare.append(Data(x=x, edge_index=edge_index, y=torch.tensor([label]), gold=gold))
    return bare


#: Every state of a node is the sum of what its neighbours say: nothing passes by the messages.
BY_MESSAGES = (("aggr", "sum"), ("root_weight", False))
BA_2MOTIFS = Recipe("sage", 3, 32, "mean", BY_MESSAGES, epochs=30)
SPMOTIF = Recipe("sage", 3, 32, "mean", BY_MESSAGES, epochs=20, rate=5e-3)
MUTAGENICITY = Recipe("gin", 3, 32, "mean", epochs=30)


def _motif_board(name: str, recipe: Recipe, train: list[Data], test: list[Data], base: Any) -> Board:
    label = 1 + max(int(graph.y) for graph in train)
    more = _bare(len(train) // label, base, label, SEED + 2)
    fresh = _bare(len(test) // label, base, label, SEED + 3)
    return _graph_board(name, recipe, _shuffled([*train, *more]), [*test, *fresh], test, train)


def ba_2motifs() -> Board:
    data = motifs.ba_2motifs(SEED)
    return _motif_board(
        "ba_2motifs", BA_2MOTIFS, data[:800], data[800:], lambda rng: motifs.barabasi_albert(25, 1, rng)
    )


def spmotif(bias: float) -> Board:
    train, test = motifs.spmotif(SEED, bias, 3000), motifs.spmotif(SEED + 1, 1 / 3, 600)
    return _motif_board(f"spmotif_{bias}", SPMOTIF, train, test, lambda rng: motifs.BASES[int(rng.integers(3))](rng))


def mutagenic() -> Board:
    data = mutagenicity.read()
    data = _shuffled(data)
    train, test = data[:3500], data[3500:]

    def known(graphs: Sequence[Data]) -> list[Data]:
        return [graph for graph in graphs if int(graph.y) == mutagenicity.MUTAGEN and bool(graph.gold.any())]

    return _graph_board("mutagenicity", MUTAGENICITY, train, test, known(test), known(train))


def coloured(name: str) -> Board:
    """Star and relay."""
    task = experiments.get(name)
    model, accuracy = task.train(seed=SEED)
    draw = (SEED + 1) * 10_000

    def ask(seed: int) -> list[Question]:
        parts = ("x", "edge_index", "edge_type", "gold")
        alone = task.generate(2 * QUESTIONS, seed=seed, batch_size=1)
        questions = [_whole(Data(**{part: graph[part] for part in parts})) for graph in alone]
        return [question for question in questions if bool(question.gold.any())][:QUESTIONS]

    return Board(
        name,
        model,
        100 * accuracy,
        task.generate(12_800, seed=draw),
        task.generate(1_000, seed=draw + 1),
        ask(draw + 3),
        ask(draw + 2),
        {"star": 1, "relay": 2}[name],
        2,
    )


# Node sets --------------------------------------------------------------------------------------------------

SHAPES = Recipe("sage", 3, 32, None, BY_MESSAGES, epochs=500, rate=1e-2)
TREES = Recipe("sage", 3, 32, None, BY_MESSAGES, epochs=300, rate=5e-3)
INFECTION = Recipe("sage", 4, 32, None, (("aggr", "max"),), epochs=300, rate=5e-3)


def _node_board(name: str, recipe: Recipe, data: Data, gold: Callable[[int], Tensor], known: Tensor) -> Board:
    """``known`` [N]: the nodes whose answer is known. A fifth of all nodes is kept from training."""
    order = torch.from_numpy(np.random.default_rng(SEED).permutation(data.num_nodes))
    rows, held_out = order[: data.num_nodes * 4 // 5], order[data.num_nodes * 4 // 5 :]
    classes = int(data.y.max()) + 1
    graph = Data(x=data.x, edge_index=data.edge_index, y=data.y)
    model = models.train(recipe, [graph], classes, seed=SEED, rows=rows)

    def ask(node: int) -> Question:
        asked = k_hop_subgraph(node, recipe.layers, graph.edge_index, num_nodes=graph.num_nodes)[3]
        return Question(graph, node, asked, gold(node))

    def some(nodes: Tensor) -> list[Question]:
        return [ask(node) for node in nodes[known[nodes]][:QUESTIONS].tolist()]

    return Board(
        name,
        model,
        models.accuracy(model, [graph], held_out),
        [graph],
        [graph],
        some(rows),
        some(held_out),
        recipe.layers,
        classes,
    )


def planted(name: str, recipe: Recipe) -> Board:
    """The answer for a node of a motif is its motif."""
    data = getattr(motifs, name)(SEED)
    return _node_board(name, recipe, data, lambda node: data.gold == data.motif[node], data.motif >= 0)


def infected() -> Board:
    data = motifs.infection(SEED)
    return _node_board("infection", INFECTION, data, lambda node: motifs.path_to(data, node), data.parent >= 0)


SETS: dict[str, Callable[[], Board]] = {
    "ba_shapes": lambda: planted("ba_shapes", SHAPES),
    "ba_community": lambda: planted("ba_community", SHAPES),
    "tree_cycles": lambda: planted("tree_cycles", TREES),
    "tree_grid": lambda: planted("tree_grid", TREES),
    "ba_2motifs": ba_2motifs,
    "spmotif_0.5": lambda: spmotif(0.5),
    "spmotif_0.7": lambda: spmotif(0.7),
    "spmotif_0.9": lambda: spmotif(0.9),
    "infection": infected,
    "mutagenicity": mutagenic,
    "star": lambda: coloured("star"),
    "relay": lambda: coloured("relay"),
}
