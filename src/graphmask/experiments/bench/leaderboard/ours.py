"""GraphMask under default settings; per-layer scores become one number per edge."""

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
from graphmask.graphs.retained_paths import passed_on

T = TypeVar("T")


@dataclass
class Answer:
    """What a method says about one prediction."""

    scores: Tensor  #: float [E]
    kept: Tensor  #: bool [E]
    sufficiency: float  #: probability of the predicted class with all edges, less that with the kept ones alone
    flipped: bool


def certificate(original: Tensor, masked: Tensor) -> tuple[float, bool]:
    """Of one row: by how much the predicted class became less likely, and whether another one is now predicted."""
    choice = int(original.argmax())
    return float(original.softmax(-1)[choice] - masked.softmax(-1)[choice]), int(masked.argmax()) != choice


def answer_graphs(explanations: Sequence[Explanation]) -> list[Answer]:
    """One rule for all sets: the score of an edge is the mean over layers; it is kept if some layer keeps it."""
    return [Answer(e.scores.mean(0), e.kept.any(0), *certificate(e.original[0], e.masked[0])) for e in explanations]


def answer_nodes(explanation: Explanation, questions: Sequence[Question]) -> list[Answer]:
    """The same for nodes of one graph, from one explanation of all: as ``explain(graph, index=node)`` says it of each.

    Messages that are not passed on to a node cannot change its masked output.
    """
    edge_index, structure = explanation.edge_index, explanation.structure
    answers = []
    for question in questions:
        node = torch.zeros(explanation.num_nodes, dtype=torch.bool)
        node[question.node] = True
        scores = passed_on(edge_index, explanation.scores, structure, node).mean(0)
        kept = passed_on(edge_index, explanation.kept.float(), structure, node).amax(0) > 0
        outcome = certificate(explanation.original[node][0], explanation.masked[node][0])
        answers.append(Answer(scores, kept, *outcome))
    return answers


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
