"""Explanations made by hand and at random, and a method whose choices are known."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from graphmask import Explanation
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.graphs.sites import Site
from reference.small import WIDTH


def explanation_of(
    edges: list[tuple[int, int]],
    kept: list[list[int]],
    *,
    nodes: int = 5,
    types: list[int] | None = None,
    carried: list[list[int]] | None = None,
    reverse: tuple[bool, ...] = (),
    **fields: Any,
) -> Explanation:
    """``kept`` and ``carried`` name the edges of every site; all are carried unless told."""
    sites = len(kept)
    reverse = reverse or (False,) * sites
    flags = torch.zeros(sites, len(edges), dtype=torch.bool)
    sent = torch.full_like(flags, carried is None)
    for site in range(sites):
        flags[site, kept[site]] = True
        if carried is not None:
            sent[site, carried[site]] = True
    values: dict[str, Any] = {
        "edge_index": torch.tensor(edges, dtype=torch.long).view(-1, 2).t(),
        "kept": flags,
        "scores": torch.where(flags, 0.875, 0.25) * sent,
        "carried": sent,
        "original": torch.tensor([[1.0, -1.0]]),
        "masked": torch.tensor([[0.5, -1.0]]),
        "divergence": 0.02,
        "flips": 0.0,
        "tolerance": 0.03,
        "structure": tuple(Site(f"layer{k}", f"layer{k}", (0,), reverse[k]) for k in range(sites)),
        "baselines": tuple(torch.full((3,), float(k)) for k in range(sites)),
        "num_nodes": nodes,
        "edge_type": None if types is None else torch.tensor(types, dtype=torch.long),
    }
    return Explanation(**values | fields)


@st.composite
def explanations(
    draw: st.DrawFn, *, typed: bool | None = None, most: int = 3, sites: int = 3, nodes: int = 4, edges: int = 6
) -> list[Explanation]:
    """A few graphs explained by one model: edges may repeat, lead back, or to the same node; or there are none.

    Hypothesis draws a seed: left to itself it prefers graphs so small that hardly any has a path.
    """
    random = Random(draw(st.integers(0, 2**32)))
    layers = random.randint(1, sites)
    sizes = [(random.randint(1, nodes), random.randint(0, edges)) for _ in range(random.randint(1, most))]
    typed = random.random() < 0.7 if typed is None else typed
    reverse = tuple(random.random() < 0.3 for _ in range(layers))
    found = []
    for number, (count, size) in enumerate(sizes):
        pairs = [(random.randrange(count), random.randrange(count)) for _ in range(size)]
        # Per gate: nothing is sent, sent and dropped, or kept.
        state = [[random.choice([0, 1, 2, 2]) for _ in pairs] for _ in range(layers)]
        explanation = explanation_of(
            pairs,
            [[e for e, s in enumerate(row) if s == 2] for row in state],
            nodes=count,
            types=[random.randrange(3) for _ in pairs] if typed else None,
            carried=[[e for e, s in enumerate(row) if s >= 1] for row in state],
            reverse=reverse,
            info={
                "group": random.choice(["N", "V"]),
                "sources": [random.randrange(count) for _ in range(random.randrange(3))],
                "targets": [random.randrange(count) for _ in range(random.randrange(3))],
                "number": number,
            },
        )
        scores = [[random.choice([0.0, 0.125, 0.375, 0.5, 0.875, 1.0]) for _ in pairs] for _ in range(layers)]
        explanation.scores = torch.tensor(scores).view(layers, len(pairs)) * explanation.carried
        found.append(explanation)
    return found


BASELINES = [torch.full((WIDTH,), 0.3, dtype=torch.double), torch.tensor([-0.2, 0.5, 0.1], dtype=torch.double)]


def scores_of(case: Case) -> Tensor:
    return case.uniform(7)


class Fixed(Method):
    """Keeps what a random number says, and has baselines: of a `reference.small.Small` with two layers."""

    name = "fixed"

    def choose(self, case: Case) -> Choice:
        return case.cut(scores_of(case), 0.5, BASELINES)
