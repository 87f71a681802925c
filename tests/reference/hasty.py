"""Explainers that have learnt next to nothing, with about half of their gates shut: enough for laws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphmask import GraphMask
from graphmask.fitting.recipe import Recipe

#: A few steps, from gates as they are drawn: those of different edges differ from the start.
HASTY = Recipe(steps=6, initial_location=None)


@torch.no_grad()
def halve(explainer: GraphMask, loader: Iterable[Any]) -> None:
    """Put every site's threshold into the widest gap in the middle half of its locations."""
    assert explainer.probe is not None
    found = list(explainer.explain_all(loader, repair=False, allow_infeasible=True))
    for site in range(len(explainer.probe.sites)):
        scores = torch.cat([e.scores[site][e.carried[site]] for e in found]).double().unique()
        if len(scores) < 2:
            continue
        locations = torch.logit(scores)
        low = len(locations) // 4
        middle = locations[low : max(len(locations) - low, low + 2)]
        widest = int(middle.diff().argmax())
        explainer.probe.gate(site).shift += (middle[widest] + middle[widest + 1]) / 2
