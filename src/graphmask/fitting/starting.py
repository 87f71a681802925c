"""The start of a fit: its first batches, the sites they show, and the initial values of gates and baselines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphmask.errors import GraphMaskError
from graphmask.fitting.recipe import Recipe
from graphmask.gates import hard_concrete
from graphmask.gates.probe import Probe
from graphmask.graphs import batches
from graphmask.graphs.layout import Types
from graphmask.ops.kernels import LIMIT
from graphmask.tapping.subject import Subject
from graphmask.team import Team, groups

#: Steps on whose batches two kinds of baselines are tried.
FIRST_STEPS = 4
#: Scales of the noise that are tried, and the share of the tolerance that it may cost where all gates are wide open.
SCALES, UNNOTICED = (1.0, 0.75, 0.5, 0.35, 0.25), 0.01


@dataclass(frozen=True)
class First:
    """The first batches of a fit."""

    opening: list[Any]  #: all up to the first step that has edges
    seen: list[Any]  #: sites and scales are found on these, the first of them has edges
    steps: list[list[Any]]  #: step by step, those of this process: baselines are tried on these
    types: Types | None  #: of heterogeneous data


def first_batches(loader: Iterable[Any], team: Team, accumulate: int) -> First:
    """The first batches that have edges, from the loader's first steps; ``seen`` is empty if none has any."""
    together = team.size * accumulate
    opening: list[Any] = []
    seen: list[Any] = []
    steps: list[list[Any]] = []
    for group in groups(loader, together):
        if not seen:
            opening += group
        if not any(map(batches.has_edges, group)):
            continue
        if not seen:
            seen = sorted(group, key=lambda batch: not batches.has_edges(batch))
        steps.append(group[team.rank :: team.size])
        if len(steps) == FIRST_STEPS:
            break
    types = None
    if seen and batches.adapter(seen[0]).by_type:  # some batches may lack types: sites are found on one with most
        (most, *_), types = batches.first_few(loader, FIRST_STEPS)
        seen = [most, *(seen if together > 1 else ())]
    return First(opening, seen, steps, types)


def found_on(first: First, subject: Subject, hidden: int, seed: int) -> tuple[Probe, Subject]:
    """Gates and baselines for the sites that the first batches show, and the model with these sites.

    The divergence is resolved by the output, and must fit it.
    """
    if not first.seen:
        raise GraphMaskError("Expected at least one batch with edges in the loader, found none.")
    probe, output = Probe.discover(subject, first.seen[0], hidden, seed, more=first.seen[1:])
    if not bool(torch.isfinite(output).all()):
        raise GraphMaskError(
            "Expected finite model outputs, got NaN or infinity on the first batch. "
            "Check the model on this data without GraphMask."
        )
    subject.divergence.resolve(output)
    subject.divergence(output, output)
    return probe, replace(subject, sites=probe.sites, types=first.types)


def put_at_start(probe: Probe, subject: Subject, first: First, recipe: Recipe, tolerance: float, team: Team) -> float:
    """Set locations and baselines to the recipe's initial values, the same in all processes; return the noise scale."""
    if recipe.initial_location is not None:
        for site in range(len(probe.sites)):
            probe.gate(site).start_at(recipe.initial_location)
    if recipe.start == "auto":
        probe.start_baselines(subject, first.steps, tolerance, team)
    elif recipe.start == "mean":
        probe.mean_baselines()
    team.align(probe)
    return 1.0 if recipe.sampled else noise_scale(probe, subject, first, tolerance, team)


@torch.no_grad()
def noise_scale(probe: Probe, subject: Subject, first: First, tolerance: float, team: Team) -> float:
    """The largest scale of the noise that wide open gates do not notice.

    Noise shuts a wide open gate once in twenty thousand draws. Where a row of the output hangs on many messages, or one
    message moves it by many times the tolerance, that alone costs more than is aimed at, and nothing would ever shut.
    """
    generator = torch.Generator(subject.device).manual_seed(0)
    runs = [(batch, probe.original(subject, batch)) for mine in first.steps for batch in mine]
    noises = [hard_concrete.logistic(original.values, generator) for _, original in runs]
    for scale in SCALES[:-1]:
        sums = torch.zeros(2, dtype=torch.double)
        for (batch, original), noise in zip(runs, noises, strict=True):
            gates = hard_concrete.soft(torch.full_like(noise, LIMIT), noise, scale)
            masked = probe.masked(subject, batch, original.edge_map, gates)
            distance = subject.divergence(original.output, masked)
            sums += torch.tensor([float(distance.sum()), len(distance)], dtype=torch.double)
        divergence, rows = team.sum(sums).tolist()
        if divergence <= UNNOTICED * tolerance * rows:
            return scale
    return SCALES[-1]
