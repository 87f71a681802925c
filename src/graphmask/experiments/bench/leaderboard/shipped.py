"""PyTorch Geometric's explainers as shipped: its classes, its defaults, on a copy of the model each time."""

from __future__ import annotations

import copy
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench.leaderboard.ours import REPEATS, Answer, certificate, timed
from graphmask.experiments.bench.leaderboard.sets import Board, Question, together
from graphmask.explanation import Explanation
from graphmask.graphs.batches import default_forward
from graphmask.methods import get
from graphmask.tapping.masking import masked

#: Epochs of PGExplainer, as in its documentation, and the predictions it learns from.
PG_EPOCHS, PG_LEARNS_FROM = 30, 20


@dataclass
class Shipped:
    """Scores of one method with one seed; ``notes`` say what it did to the model."""

    scores: list[Tensor]
    ms: float  #: per explanation, in a batch where the method can take one
    ms_alone: float  #: one at a time
    notes: list[str] = field(default_factory=list)


#: Of one graph, its arguments: a number per edge.
Explain = Callable[[Data, dict[str, Any]], Tensor]


def _explain(board: Board, model: nn.Module, algorithm: object, kind: str, node_mask: str | None) -> Explain:
    from torch_geometric.explain import Explainer, ModelConfig

    level = "node" if board.of_nodes else "graph"
    config = ModelConfig("multiclass_classification", level, "raw")
    explainer = Explainer(model, algorithm, kind, config, node_mask_type=node_mask, edge_mask_type="object")
    return lambda graph, arguments: explainer(graph.x, graph.edge_index, **arguments).edge_mask.detach()


def _arguments(question: Question, model: nn.Module, target: bool) -> dict[str, Any]:
    """Keywords of a call; methods that explain a phenomenon are given the model's own prediction."""
    graph = question.graph
    more: dict[str, Any] = dict(question.extras)
    if target:
        with torch.no_grad():
            more = {"target": model(graph.x, graph.edge_index, **more).argmax(-1), **more}
    return more if question.node is None else {**more, "index": question.node}


def _simple(board: Board, model: nn.Module, algorithm: object) -> Explain:
    return _explain(board, model, algorithm, "model", "attributes")


def gnn_explainer(board: Board, model: nn.Module) -> Explain:
    from torch_geometric.explain import GNNExplainer

    return _simple(board, model, GNNExplainer())


def graphmask_explainer(board: Board, model: nn.Module) -> Explain:
    from torch_geometric.explain import GraphMaskExplainer

    return _simple(board, model, GraphMaskExplainer(board.layers, log=False))


def captum_explainer(board: Board, model: nn.Module) -> Explain:
    from torch_geometric.explain import CaptumExplainer

    return _simple(board, model, CaptumExplainer("IntegratedGradients"))


def pg_explainer(board: Board, model: nn.Module) -> Explain:
    from torch_geometric.explain import PGExplainer

    algorithm = PGExplainer(epochs=PG_EPOCHS, lr=0.003)
    explain = _explain(board, model, algorithm, "phenomenon", None)
    lessons = [(q.graph, _arguments(q, model, True)) for q in board.learn[:PG_LEARNS_FROM]]
    for epoch in range(PG_EPOCHS):
        for graph, arguments in lessons:
            algorithm.train(epoch, model, graph.x, graph.edge_index, **arguments)
    return explain


METHODS: dict[str, Callable[[Board, nn.Module], Explain]] = {
    "pyg_gnn_explainer": gnn_explainer,
    "pyg_pg_explainer": pg_explainer,
    "pyg_graphmask_explainer": graphmask_explainer,
    "pyg_captum_explainer": captum_explainer,
}
#: Those that explain a phenomenon, not the model: they are told what it predicts.
TOLD = ("pyg_pg_explainer",)
#: Those whose answer for a graph is the same whether or not others are in the batch. A node is always asked for alone.
BATCHED = ("pyg_pg_explainer",)


def run(name: str, board: Board, seed: int, questions: Sequence[Question]) -> Shipped:
    """Explain one prediction after the other; raises `GraphMaskError` where the method cannot."""
    model, scores, times = copy.deepcopy(board.model), [], []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        try:
            method = METHODS[name](board, model)

            def explain(question: Question) -> Tensor:
                # From a graph to the explanation of what the model predicts: who must be told that has to ask first.
                return method(question.graph, _arguments(question, model, name in TOLD))

            for question in questions:
                score, ms = timed(explain, question)
                scores.append(score)
                times.append(ms)
            alone = each = statistics.median(times)
            if name in BATCHED and not board.of_nodes:
                batch = Question(together(questions), None, torch.cat(scores), torch.cat(scores))
                runs = [timed(explain, batch)[1] for _ in range(REPEATS)]
                each = statistics.median(runs) / len(questions)
        except Exception as error:  # whatever it raises is what its users see
            raise GraphMaskError(f"{type(error).__name__}: {error}") from error
    if not all(bool(torch.isfinite(score).all()) for score in scores):
        raise GraphMaskError("NaN or infinite scores")
    return Shipped(scores, each, alone, _altered(board, model, questions[0]))


def _altered(board: Board, model: nn.Module, question: Question) -> list[str]:
    """Does the copy still answer as the original does?"""
    with torch.no_grad():
        before, after = (default_forward(m, question.graph) for m in (board.model, model))
    if torch.allclose(before, after, atol=1e-5):
        return []
    same = float((before.argmax(-1) == after.argmax(-1)).float().mean())
    moved = float((before.softmax(-1) - after.softmax(-1)).abs().max())
    return [f"leaves the model altered: probabilities move by up to {moved:.2f}, {same:.0%} of predictions agree"]


def judge(board: Board, questions: Sequence[Question], scores: Sequence[Tensor]) -> list[Answer]:
    """Hard choices of soft methods: as many edges as the gold has, the highest scores; the others' messages are 0."""
    looked: dict[int, Explanation] = {}
    answers = []
    for question, score in zip(questions, scores, strict=True):
        allowed = torch.where(question.asked, score.double(), -torch.inf)
        kept = torch.zeros_like(question.asked)
        kept[allowed.topk(int(question.gold.sum())).indices] = True
        graph, row = question.graph, question.node or 0
        if id(graph) not in looked:
            # Of this only the sites and the output count: what is dropped is told below.
            looked[id(graph)] = get("random")(board.model).explain(graph, repair=False)
        chosen = replace(looked[id(graph)], kept=kept & looked[id(graph)].carried)
        with torch.no_grad(), masked(board.model, chosen) as model:
            without = default_forward(model, graph)
        answers.append(Answer(score, kept, *certificate(chosen.original[row], without[row])))
    return answers
