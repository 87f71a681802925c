"""From answers to figures: one line of the leaderboard."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from graphmask.analysis.ground_truth import area
from graphmask.analysis.stability import fleiss_kappa
from graphmask.experiments.bench.leaderboard.ours import Answer
from graphmask.experiments.bench.leaderboard.sets import Question

#: What is reported, and which way is better.
FIGURES = ("auc", "f1", "flips", "kappa", "ms", "sufficiency")


def auc(scores: Tensor, gold: Tensor) -> float:
    """ROC AUC in per cent; ties count one half."""
    return 100 * area(scores, gold)


def pooled(questions: Sequence[Question], values: Sequence[Tensor]) -> Tensor:
    """All edges that were asked about, of all questions."""
    return torch.cat([value[question.asked] for question, value in zip(questions, values, strict=True)])


def kappa(questions: Sequence[Question], runs: Sequence[Sequence[Answer]]) -> float | None:
    """Fleiss' kappa: every seed rates every edge as kept or dropped."""
    if len(runs) < 2:
        return None
    votes = torch.stack([pooled(questions, [answer.kept for answer in run]) for run in runs]).sum(0)
    return fleiss_kappa(torch.stack([votes, len(runs) - votes], 1))


def summary(questions: Sequence[Question], runs: Sequence[Sequence[Answer]], ms: Sequence[float]) -> dict[str, object]:
    """Means over runs (seeds); AUC and F1 over the pooled edges, in per cent; and each run's own AUC."""
    gold = pooled(questions, [question.gold for question in questions])
    aucs, f1s, each = [], [], []
    for run in runs:
        aucs.append(auc(pooled(questions, [answer.scores for answer in run]), gold))
        kept = pooled(questions, [answer.kept for answer in run])
        f1s.append(200 * float((kept & gold).sum()) / max(float(kept.sum() + gold.sum()), 1.0))
        each += [auc(a.scores[q.asked], q.gold[q.asked]) for q, a in zip(questions, run, strict=True) if _mixed(q)]
    answers = [answer for run in runs for answer in run]
    return {
        "auc": statistics.fmean(aucs),
        "f1": statistics.fmean(f1s),
        "flips": statistics.fmean(answer.flipped for answer in answers),
        "kappa": kappa(questions, runs),
        "ms": statistics.fmean(ms),
        "sufficiency": statistics.fmean(answer.sufficiency for answer in answers),
        "auc_per_seed": aucs,
        "auc_per_instance": statistics.fmean(each) if each else None,
        "instances": len(questions),
    }


def _mixed(question: Question) -> bool:
    """Both kinds of edges are there."""
    gold = question.gold[question.asked]
    return bool(gold.any()) and not bool(gold.all())
