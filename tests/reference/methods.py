"""The methods, one graph at a time and one gate after the other.

``answer(gates)`` is the output [outputs] of one graph with gates [L][E]; ``same`` says whether an output still counts
as the original's.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Gates = list[list[float]]
Answer = Callable[[Sequence[Sequence[float]]], Tensor]


def places(sites: int, edges: int) -> list[tuple[int, int]]:
    return [(site, edge) for site in range(sites) for edge in range(edges)]


def gates_of(kept: set[tuple[int, int]], sites: int, edges: int) -> Gates:
    return [[float((site, edge) in kept) for edge in range(edges)] for site in range(sites)]


# Divergences of one output ---------------------------------------------------------------------------------


def kl(original: Tensor, masked: Tensor) -> float:
    p, q = original.softmax(0).tolist(), masked.softmax(0).tolist()
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


def mse(original: Tensor, masked: Tensor) -> float:
    differences = [(a - b) ** 2 for a, b in zip(original.tolist(), masked.tolist(), strict=True)]
    return sum(differences) / len(differences)


# Erasure search --------------------------------------------------------------------------------------------


def fewest(answer: Answer, same: Callable[[Tensor], bool], sites: int, edges: int) -> int:
    """How many messages the smallest sufficient set has."""
    for size in range(sites * edges + 1):
        for kept in itertools.combinations(places(sites, edges), size):
            if same(answer(gates_of(set(kept), sites, edges))):
                return size
    raise AssertionError("everything kept is the original")


def greedy(
    answer: Answer,
    same: Callable[[Tensor], bool],
    distance: Callable[[Tensor], float],
    sites: int,
    edges: int,
    at_once: int = 1,
    budget: int | None = None,
) -> set[tuple[int, int]]:
    """Drop the least noticed that leaves the answer; ``at_once`` of them, or half as many, where they can go together.

    No turn begins after ``budget`` runs.
    """
    kept, runs = set(places(sites, edges)), 0
    while budget is None or runs < budget:
        runs += len(kept)
        costs = []
        for place in sorted(kept):
            output = answer(gates_of(kept - {place}, sites, edges))
            if same(output):
                costs.append((distance(output), place))
        if not costs:
            return kept
        order = [place for _, place in sorted(costs)]
        size = min(at_once, len(order))
        while size > 1:
            runs += 1
            if same(answer(gates_of(kept - set(order[:size]), sites, edges))):
                break
            size //= 2
        kept -= set(order[:size])
    return kept


# Scores ----------------------------------------------------------------------------------------------------


def occlusion(answer: Answer, distance: Callable[[Tensor], float], sites: int, edges: int) -> Gates:
    """How far the output moves when one message alone is missing."""
    everything = set(places(sites, edges))
    return [
        [distance(answer(gates_of(everything - {(site, edge)}, sites, edges))) for edge in range(edges)]
        for site in range(sites)
    ]


def integrated_gradients(answer: Callable[..., Tensor], column: int, sites: int, edges: int, steps: int) -> Tensor:
    """[L, E] Gauss-Legendre quadrature of the gradient along the line from no message to all."""
    points, weights = np.polynomial.legendre.leggauss(steps)  # on [-1, 1]
    total = torch.zeros(sites, edges, dtype=torch.double)
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        z = torch.full((sites, edges), (1 + point) / 2, dtype=torch.double, requires_grad=True)
        answer(z)[column].backward()
        assert z.grad is not None
        total += weight / 2 * z.grad
    return total


def gradient_message(answer: Callable[..., Tensor], column: int, sites: int, edges: int) -> Tensor:
    """[L, E] the slope of the output in each message's scale, by differences on both sides of 1."""
    found, step = torch.zeros(sites, edges, dtype=torch.double), 1e-5
    for site, edge in places(sites, edges):
        ends = []
        for scale in (1 + step, 1 - step):
            gates = torch.ones(sites, edges, dtype=torch.double)
            gates[site, edge] = scale
            ends.append(float(answer(gates)[column]))
        found[site, edge] = (ends[0] - ends[1]) / (2 * step)
    return found


def grad_cam(
    moved: Callable[[dict[tuple[int, int, int], float]], Tensor], messages: Sequence[Sequence[Tensor]], column: int
) -> Tensor:
    """[L, E] by differences: ``moved({(site, edge, channel): by})`` is the output with that added to a message."""
    sites, edges, step = len(messages), len(messages[0]), 1e-5
    found = torch.zeros(sites, edges, dtype=torch.double)
    for site in range(sites):
        channels = len(messages[site][0])
        weights = [0.0] * channels
        for edge in range(edges):
            for channel in range(channels):
                ends = [float(moved({(site, edge, channel): by})[column]) for by in (step, -step)]
                weights[channel] += (ends[0] - ends[1]) / (2 * step) / edges
        for edge in range(edges):
            total = sum(w * float(m) for w, m in zip(weights, messages[site][edge], strict=True))
            found[site, edge] = max(total, 0.0)
    return found


def eig_search(
    answer: Answer, worth: Callable[[Tensor], float], sites: int, edges: int, sparsity: float, least: int
) -> tuple[list[float], set[int]]:
    """Slopes of edges, and the best prefix; ``worth`` is the log-probability of the predicted class."""

    def run(kept: set[int]) -> float:
        return worth(answer([[float(edge in kept) for edge in range(edges)]] * sites))

    everything = set(range(edges))
    slopes = [run(everything) - run(everything - {edge}) for edge in range(edges)]
    order = sorted(range(edges), key=lambda edge: -slopes[edge])
    longest = min(max(int((1 - sparsity) * edges + 1e-9), least), edges)
    best, most = set(order[: min(least, edges)]), -math.inf
    for size in range(least, longest + 1):
        inside = set(order[:size])
        value = math.exp(run(inside)) - math.exp(run(everything - inside))
        if value > most + 1e-9:
            best, most = inside, value
    return slopes, best


# Optimised for every graph ---------------------------------------------------------------------------------


def gnn_explainer(
    answer: Callable[..., Tensor], start: Tensor, column: int, steps: int, rate: float, size: float, entropy: float
) -> Tensor:
    """[L, E] masks: -log p(answer) + size * sum + entropy * mean entropy."""
    mask = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([mask], lr=rate)
    for _ in range(steps):
        z = mask.sigmoid()
        loss = -torch.log_softmax(answer(z), 0)[column]
        for one in z.flatten():
            undecided = -one * torch.log(one) - (1 - one) * torch.log(1 - one)
            loss = loss + size * one + entropy * undecided / z.numel()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return mask.detach().sigmoid()


def unamortised(
    answer: Callable[..., Tensor],
    divergence: Callable[[Tensor], Tensor],
    start: Tensor,
    baselines: Sequence[Tensor],
    tolerance: float,
    steps: int,
    rate: float,
) -> tuple[set[tuple[int, int]], Tensor, list[Tensor]]:
    """Kept gates, scores and baselines; ``answer(gates, baselines)``. Baselines that want a gradient are trained."""
    location = start.clone().requires_grad_()
    trained = [b for b in baselines if b.requires_grad]
    groups: list[dict[str, object]] = [{"params": [location]}]
    if trained:
        groups.append({"params": trained, "lr": rate / 10})
    optimiser = torch.optim.Adam(groups, lr=rate)
    multiplier = 1.0
    best, best_baselines = set(places(*start.shape)), [b.detach().clone() for b in baselines]
    for _ in range(steps):
        open_ = {(k, e) for k, e in places(*start.shape) if location[k, e] > 0}
        soft = location.sigmoid()
        hard = torch.tensor(gates_of(open_, *start.shape), dtype=torch.double)
        distance = divergence(answer(hard + (soft - soft.detach()), baselines))
        loss = (soft.mean() + multiplier * distance) / (1 + multiplier)
        optimiser.zero_grad()
        loss.backward()
        measured = distance.item()
        if measured <= tolerance and len(open_) < len(best):
            best, best_baselines = open_, [b.detach().clone() for b in baselines]
        optimiser.step()
        with torch.no_grad():
            location.clamp_(-3, 3)
        error = min(max((measured - tolerance) / tolerance, -1.0), 3.0)
        multiplier = min(max(multiplier * math.exp(0.05 * error), 0.01), 100.0)
    scores = location.detach().sigmoid()
    for place in sorted(best, key=lambda at: (float(scores[at]), at)):  # what can be done without, lowest score first
        without = torch.tensor(gates_of(best - {place}, *start.shape), dtype=torch.double)
        if float(divergence(answer(without, best_baselines))) <= tolerance:
            best = best - {place}
    return best, scores, best_baselines
