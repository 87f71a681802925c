"""GraphMask under default settings; per-layer scores become one number per edge, and for a node those of its paths."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphmask.analysis.tally import Tally
from graphmask.experiments.bench.leaderboard.sets import Board, Question, together
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation

T = TypeVar("T")


@dataclass
class Answer:
    """What a method says about one prediction."""

    scores: Tensor  #: float [E]
    kept: Tensor  #: bool [E]
    sufficiency: float  #: probability of the predicted class with all edges, less that with the kept ones alone
    flipped: bool


def lead_to(values: Tensor, edge_index: Tensor, nodes: Tensor, count: int) -> Tensor:
    """[Q, L, E]: how far a message can come on its way to each node.

    Gates [L, E] know nothing of the node that is asked for; what is its own are the paths that end in it. A message
    counts as much as it is open itself, times the best continuation: the product of gates along the most open path.
    Nodes hold their own state from layer to layer.
    """
    source, target = edge_index
    arriving = torch.zeros(len(nodes), count, dtype=values.dtype)
    arriving[torch.arange(len(nodes)), nodes] = 1
    by_layer = []
    for gate in values.flip(0):
        through = gate * arriving[:, target]
        by_layer.append(through)
        arriving = arriving.scatter_reduce(1, source.expand(len(nodes), -1), through, "amax")
    return torch.stack(by_layer[::-1], 1)


def certificate(original: Tensor, masked: Tensor) -> tuple[float, bool]:
    """Of one row: by how much the predicted class became less likely, and whether another one is now predicted."""
    choice = int(original.argmax())
    return float(original.softmax(-1)[choice] - masked.softmax(-1)[choice]), int(masked.argmax()) != choice


def answer_graphs(explanations: Sequence[Explanation]) -> list[Answer]:
    """One rule for all sets: the score of an edge is the mean over layers; it is kept if some layer keeps it."""
    return [Answer(e.scores.mean(0), e.kept.any(0), *certificate(e.original[0], e.masked[0])) for e in explanations]


def answer_nodes(explanation: Explanation, questions: Sequence[Question]) -> list[Answer]:
    """The same for nodes of one graph. Messages that do not lead to a node cannot change its masked output."""
    nodes = torch.tensor([question.node for question in questions])
    edge_index, count = explanation.edge_index, explanation.num_nodes
    scores = lead_to(explanation.scores, edge_index, nodes, count).mean(1)
    kept = lead_to(explanation.kept.float(), edge_index, nodes, count).amax(1) > 0
    return [
        Answer(s, k, *certificate(explanation.original[node], explanation.masked[node]))
        for s, k, node in zip(scores, kept, nodes.tolist(), strict=True)
    ]


@dataclass
class Fit:
    answers: list[Answer]
    ms: float  #: per explanation in batches; for nodes of one graph, which is explained once, per node
    ms_alone: float  #: one at a time
    seconds: float
    retained: list[float]  #: per layer, on the graphs that were asked about
    feasible: bool


#: Predictions explained one at a time, and runs of a batch, for the clock alone.
ALONE, REPEATS = 10, 15


def timed(job: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """What it returns, and its milliseconds of this thread: what other processes take of the machine does not count."""
    started = time.thread_time()
    result = job(*arguments)
    return result, 1000 * (time.thread_time() - started)


def run(board: Board, seed: int, questions: Sequence[Question]) -> Fit:
    explainer = GraphMask(board.model, seed=seed)
    history, fit_ms = timed(lambda: explainer.fit(board.fit, board.calibration, progress=False))

    def explain(batch: Data) -> list[Explanation]:
        return list(explainer.explain_all([batch], repair=False, allow_infeasible=True))

    whole = questions[0].graph if board.of_nodes else together(questions)
    explanations = explain(whole)
    in_batches = statistics.median(timed(explain, whole)[1] for _ in range(REPEATS))
    alone = [timed(explain, question.graph)[1] for question in questions[:ALONE]]
    answers = answer_nodes(explanations[0], questions) if board.of_nodes else answer_graphs(explanations)
    return Fit(
        answers,
        in_batches / len(questions),
        statistics.median(alone),
        fit_ms / 1000,
        Tally.of(explanations).retained_per_site,
        history.feasible,
    )
