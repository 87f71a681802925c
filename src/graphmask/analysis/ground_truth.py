"""Explanations against edges known to matter, and PyG's own metrics where they apply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.analysis.tables import table
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars
    import torch_geometric.explain


@dataclass(frozen=True)
class Agreement:
    """Precision, recall and F1 in per cent."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, kept: Tensor, gold: Tensor) -> Agreement:
        both, found, wanted = (int(t.sum()) for t in (kept & gold, kept, gold))
        precision, recall = 100 * both / max(found, 1), 100 * both / max(wanted, 1)
        return cls(precision, recall, 200 * both / max(found + wanted, 1))


def ground_truth(explanations: Iterable[Explanation], gold: Iterable[Tensor]) -> polars.DataFrame:
    """Precision, recall, F1 and area under the ROC curve of kept edges and their scores.

    Args:
        explanations: any iterable, for instance a store.
        gold: for each of them its true edges, bool [E], of an edge at any layer, or [E, L], layer by layer.

    Columns:
        layer: null for an edge at any layer, or for all gates if ``gold`` knows layers.
        site: its name.
        average: "micro", over the edges of all graphs, or "mean", over graphs (those without an answer left out: no
            precision where nothing is kept, no recall without true edges, no area without both kinds).
        precision, recall, f1, auc: from 0 to 1.
        graphs: that count in it.
    """
    kept: list[Tensor] = []
    scores: list[Tensor] = []
    truth: list[Tensor] = []
    sites: tuple[str, ...] = ()
    for number, (explanation, answer) in enumerate(_pairs(explanations, gold)):
        sites = explanation.sites
        answer = torch.as_tensor(answer, device=explanation.kept.device)
        edges, layers = explanation.edge_index.shape[1], len(sites)
        if answer.dtype != torch.bool or tuple(answer.shape) not in {(edges,), (edges, layers)}:
            raise GraphMaskError(
                f"Expected gold of graph {number} to be bool of shape [{edges}] or [{edges}, {layers}], got "
                f"{answer.dtype} of shape {list(answer.shape)}."
            )
        if truth and truth[0].dim() != answer.dim():
            raise GraphMaskError(f"Expected gold of all graphs with layers or without, found both (graph {number}).")
        whole = answer.dim() == 1
        kept.append(explanation.kept.any(0) if whole else explanation.kept.t())
        scores.append(explanation.scores.amax(0) if whole else explanation.scores.t())
        truth.append(answer)
    if not truth:
        raise GraphMaskError("Expected at least one explanation, found none. Is it a spent iterator?")
    rows: list[tuple[Any, ...]] = []
    for layer in [None, *range(truth[0].shape[1] if truth[0].dim() > 1 else 0)]:
        parts = [_part(k, s, t, layer) for k, s, t in zip(kept, scores, truth, strict=True)]
        name = None if layer is None else sites[layer]
        everything = _figures(*(torch.cat(some) for some in zip(*parts, strict=True)))
        rows.append((layer, name, "micro", *everything, len(parts)))
        means = [_mean(column) for column in zip(*(_figures(*part) for part in parts), strict=True)]
        rows.append((layer, name, "mean", *means, len(parts)))
    figures = {"precision": float, "recall": float, "f1": float, "auc": float}
    return table({"layer": int, "site": str, "average": str} | figures | {"graphs": int}, rows)


def _pairs(explanations: Iterable[Explanation], gold: Iterable[Tensor]) -> Iterable[tuple[Explanation, Tensor]]:
    try:
        yield from zip(explanations, gold, strict=True)
    except ValueError as error:
        if isinstance(error, GraphMaskError):
            raise
        raise GraphMaskError(f"Expected one gold per explanation, got another number ({error}).") from None


def _part(kept: Tensor, scores: Tensor, truth: Tensor, layer: int | None) -> tuple[Tensor, Tensor, Tensor]:
    if layer is None:
        return kept.flatten(), scores.flatten(), truth.flatten()
    return kept[:, layer], scores[:, layer], truth[:, layer]


def _figures(kept: Tensor, scores: Tensor, truth: Tensor) -> tuple[float | None, ...]:
    agreement = Agreement.of(kept, truth)
    some, wanted = bool(kept.any()), bool(truth.any())
    return (
        agreement.precision / 100 if some else None,
        agreement.recall / 100 if wanted else None,
        agreement.f1 / 100 if some or wanted else None,
        area(scores, truth) if wanted and not bool(truth.all()) else None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def area(scores: Tensor, truth: Tensor) -> float:
    """Under the ROC curve: the chance that a true one scores higher than another, ties count half."""
    right, wrong = scores[truth].double(), scores[~truth].double().sort().values
    below = torch.searchsorted(wrong, right, right=False)
    up_to = torch.searchsorted(wrong, right, right=True)
    return float((below + up_to).double().mean() / (2 * len(wrong)))


def pyg_metrics(
    explainer: torch_geometric.explain.Explainer,
    explanations: Sequence[torch_geometric.explain.Explanation],
    gold: Sequence[Tensor] | None = None,
) -> polars.DataFrame:
    """PyG's own metrics of explanations that its ``Explainer`` made, and a note where they do not apply.

    They put ``edge_mask`` on all layers alike and zeros in place of messages: of a model with baselines or with other
    edges at every layer they measure something else than `sufficiency` and `complement` do.

    Args:
        explainer: PyG's, with any algorithm.
        explanations: it made.
        gold: bool [E] for each, for PyG's ``groundtruth_metrics`` (needs torchmetrics).

    Columns:
        metric: "fidelity+", "fidelity-", "characterisation", "unfaithfulness"; with gold also "accuracy", "recall",
            "precision", "f1_score", "auroc".
        value: mean over explanations; null if it does not apply.
        note: why it does not, or what to think of it.
    """
    from torch_geometric.explain import metric

    from graphmask.analysis.fidelity import harmonic

    explanations = list(explanations)
    if not explanations:
        raise GraphMaskError("Expected at least one explanation, found none.")
    names, note = ("fidelity+", "fidelity-", "characterisation", "unfaithfulness"), _why_not(explainer)
    rows: list[tuple[str, float | None, str]] = [(name, None, note) for name in names]
    if not note:
        both = [metric.fidelity(explainer, explanation) for explanation in explanations]
        needed, enough = (sum(column) / len(both) for column in zip(*both, strict=True))
        distance = sum(metric.unfaithfulness(explainer, e) for e in explanations) / len(both)
        single = explanations[0].prediction.dim() < 2 or explanations[0].prediction.shape[-1] == 1
        caveat = "always 0 of one logit: a softmax over one column is 1" if single else ""
        values = needed, enough, harmonic(needed, 1 - enough, 0.5), distance
        rows = [(name, value, "") for name, value in zip(names[:3], values, strict=False)]
        rows.append((names[3], None if single else distance, caveat))
    if gold is not None:
        rows += _against(explanations, gold)
    return table({"metric": str, "value": float, "note": str}, rows)


def _why_not(explainer: torch_geometric.explain.Explainer) -> str:
    from torch_geometric.explain.config import ModelMode
    from torch_geometric.nn import MessagePassing, RGCNConv

    if explainer.model_config.mode == ModelMode.regression:
        return "PyG defines it for classes only: use sufficiency and complement, measured by divergence"
    if any(isinstance(m, RGCNConv) for m in explainer.model.modules() if isinstance(m, MessagePassing)):
        return "PyG's mask does not fit RGCNConv, which sends relation by relation: use sufficiency and complement"
    return ""


def _against(
    explanations: Sequence[torch_geometric.explain.Explanation], gold: Sequence[Tensor]
) -> list[tuple[str, float | None, str]]:
    from torch_geometric.explain import metric
    from torch_geometric.explain.metric.basic import METRICS

    try:
        import torchmetrics  # noqa: F401
    except ImportError:
        return [(name, None, "needs torchmetrics; ground_truth does not") for name in METRICS]
    pairs = zip(explanations, gold, strict=True)
    figures = [metric.groundtruth_metrics(explanation.edge_mask, answer.long()) for explanation, answer in pairs]
    means = [sum(column) / len(figures) for column in zip(*figures, strict=True)]
    return [(name, value, "edge_mask above 1/2 counts as kept") for name, value in zip(METRICS, means, strict=True)]
