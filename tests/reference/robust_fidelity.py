"""R- and F-Fidelity by their definitions: one graph, one draw, one edge at a time, in Python numbers.

``answer(gates)`` is the output [outputs] of one graph with gates [L][E]; ``uniform`` [draws][E] are the random numbers.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from .methods import kl
from .small import Small, answer

Answer = Callable[[Sequence[Sequence[float]]], Tensor]
MEASURES = ("accuracy", "probability", "divergence")


def losses(target: Tensor, whole: Tensor, output: Tensor) -> dict[str, float]:
    """How much less an output speaks for the target's prediction than the whole graph's output does."""
    choice = max(range(len(target)), key=lambda c: float(target[c]))

    def right(some: Tensor) -> float:
        return float(max(range(len(some)), key=lambda c: float(some[c])) == choice)

    def probability(some: Tensor) -> float:
        weights = [math.exp(float(value)) for value in some]
        return weights[choice] / sum(weights)

    return {
        "accuracy": right(whole) - right(output),
        "probability": probability(whole) - probability(output),
        "divergence": kl(whole, output),
    }


def fidelity(
    answer: Answer,
    target: Tensor,
    edges: int,
    removal: Sequence[float],
    uniform: Sequence[Sequence[float]],
    layers: int,
) -> dict[str, float]:
    """The mean over draws, where edge e is removed from all layers if its random number is below ``removal[e]``."""
    whole = answer([[1.0] * edges] * layers)
    found = dict.fromkeys(MEASURES, 0.0)
    for numbers in uniform:
        gates = [[0.0 if numbers[e] < removal[e] else 1.0 for e in range(edges)]] * layers
        for name, value in losses(target, whole, answer(gates)).items():
            found[name] += value / len(uniform)
    return found


def expected(answer: Answer, target: Tensor, edges: int, removal: Sequence[float], layers: int) -> dict[str, float]:
    """The expectation itself, over all subsets."""
    whole = answer([[1.0] * edges] * layers)
    found = dict.fromkeys(MEASURES, 0.0)
    for gone in itertools.product([False, True], repeat=edges):
        chance = math.prod(p if g else 1 - p for p, g in zip(removal, gone, strict=True))
        if chance:
            output = answer([[0.0 if g else 1.0 for g in gone]] * layers)
            for name, value in losses(target, whole, output).items():
                found[name] += chance * value
    return found


def f_removal(explained: Sequence[bool], alpha: float, beta: float) -> tuple[list[float], list[float]]:
    """Per edge the probabilities of removal for FFid+ and FFid-: no more than beta of the graph in expectation."""
    edges, size = len(explained), sum(explained)
    plus = min(alpha, beta * edges / size) if size else 0.0
    minus = min(alpha, beta * edges / (edges - size)) if size < edges else 0.0
    return [plus if e else 0.0 for e in explained], [0.0 if e else minus for e in explained]


def fine_tune(
    model: Small, batches: Sequence[Sequence[Data]], beta: float, steps: int, rate: float, decay: float, seed: int
) -> Small:
    """Adam on the graphs' labels; at every step int(beta n) edges of each graph are missing at all layers."""
    tuned = Small()
    tuned.load_state_dict(model.state_dict())
    tuned.requires_grad_(True)
    optimiser = torch.optim.Adam(tuned.parameters(), lr=rate, weight_decay=decay)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        graphs = batches[step % len(batches)]
        draws = torch.rand(sum(data.num_edges for data in graphs), generator=generator).tolist()
        loss = torch.zeros((), dtype=torch.double)
        for data in graphs:
            mine, draws = draws[: data.num_edges], draws[data.num_edges :]
            order = sorted(range(data.num_edges), key=lambda e: mine[e])
            gone = set(order[: int(beta * data.num_edges + 1e-9)])
            gates = [[float(e not in gone) for e in range(data.num_edges)]] * 2
            loss = loss + nn.functional.cross_entropy(answer(tuned, data, gates)[None], data.y) / len(graphs)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return tuned
