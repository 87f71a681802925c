"""Fitted explainers, one per case and session, and small tools that several laws share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import Explanation, GraphMask
from graphmask.graphs import batches
from graphmask.tapping import capture
from graphmask.tapping.masking import by_user_edges
from graphmask.tapping.messages import Messages
from reference.hasty import HASTY, halve

from .cases import BY_NAME, Case
from .untouched import snapshot

#: A few steps; `halve` then shuts about half of the gates.
QUICK = HASTY
#: A tolerance that bare gates rarely keep, and by which none of the gates that are tried here diverge. At 1e-4 two
#: cases had gates that diverge by .99995e-4 and .9997e-4: rounding, which differs between orders and batches, decided.
STRICT = 1.03e-4


def run(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        return batches.default_forward(model, batch)


def discover(model: nn.Module, batch: Any) -> tuple[capture.Tap, list[Messages]]:
    seen: list[Messages] = []

    def visit(messages: Messages) -> None:
        seen.append(messages)

    with torch.no_grad(), capture.tap(model, visit, batches.edge_index_of(batch)) as state:
        batches.default_forward(model, batch)
    return state, seen


def run_masked(
    model: nn.Module, batch: Any, state: capture.Tap, gates: Tensor, baselines: list[Tensor] | None = None
) -> Tensor:
    """The model's output with gates [L, E]."""
    visit = by_user_edges(gates, baselines or zeros(state))
    edge_index = batches.edge_index_of(batch)
    if edge_index is None:
        edge_index = state.edge_map.edge_index
    with torch.no_grad(), capture.tap(model, visit, edge_index, tuple(state.sites)):
        return batches.default_forward(model, batch)


def zeros(state: capture.Tap) -> list[Tensor]:
    """Per site the baseline that simply leaves messages out."""
    return [site.stand_in.left_out(torch.zeros(())) for site in state.sites]


def drawn(state: capture.Tap, generator: torch.Generator) -> list[Tensor]:
    """Per site a random baseline; weights are positive, as a layer that takes their root expects."""
    found = []
    for site in state.sites:
        baseline = torch.randn(site.stand_in.message + site.stand_in.others, generator=generator)
        start = site.stand_in.message + site.stand_in.logits
        baseline[start:] = baseline[start:].abs()
        found.append(baseline)
    return found


@dataclass
class Fitted:
    case: Case
    model: nn.Module
    explainer: GraphMask
    before: dict[str, Any]  #: snapshots around fit
    after: dict[str, Any]

    def explain(self, batch: Any, *, repair: bool = False) -> Explanation:
        """The bare gates, unless they are to be repaired."""
        return self.explainer.explain(batch, repair=repair, allow_infeasible=True)

    def explain_all(self, loader: list[Any], *, repair: bool = False) -> list[Explanation]:
        return list(self.explainer.explain_all(loader, repair=repair, allow_infeasible=True))

    @contextmanager
    def strict(self, tolerance: float = STRICT) -> Iterator[None]:
        """Inside, a tolerance that bare gates rarely keep: there is much to repair."""
        known, self.explainer.tolerance = self.explainer.tolerance, tolerance
        try:
            yield
        finally:
            self.explainer.tolerance = known


def fit(case: Case) -> Fitted:
    model = case.model()
    loader = case.loader()
    before = snapshot(model)
    explainer = GraphMask(model, recipe=QUICK)
    explainer.fit(loader, progress=False)
    halve(explainer, loader)
    return Fitted(case, model, explainer, before, snapshot(model))


@cache
def fitted(name: str) -> Fitted:
    return fit(BY_NAME[name])


def same(a: Explanation, b: Explanation) -> bool:
    """Bit for bit."""
    return (
        a.sites == b.sites
        and all(
            torch.equal(getattr(a, name), getattr(b, name))
            for name in ("edge_index", "kept", "scores", "carried", "original", "masked")
        )
        and all(torch.equal(x, y) for x, y in zip(a.baselines, b.baselines, strict=True))
        and (a.divergence, a.flips, a.tolerance, a.num_nodes) == (b.divergence, b.flips, b.tolerance, b.num_nodes)
    )


def columns(explanation: Explanation, case: Case, graph: Any) -> Tensor:
    """[E] for every edge of the graph its column in the explanation."""
    if case.ordered:
        return torch.arange(graph.num_edges)
    keys = explanation.edge_index.t().tolist()
    return torch.tensor([keys.index(edge) for edge in graph.edge_index.t().tolist()])
