"""What files contain of a fit, and the probe that is rebuilt from such a description and its tensors."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from graphmask import files
from graphmask.fitting.recipe import Recipe
from graphmask.gates.networks import SiteSpec
from graphmask.gates.probe import Probe
from graphmask.graphs import batches
from graphmask.graphs.layout import Types
from graphmask.graphs.sites import Site
from graphmask.tapping.subject import Subject


def describe(subject: Subject, probe: Probe, tolerance: float, recipe: Recipe, seed: int) -> dict[str, Any]:
    """Everything that must agree for two fits to be the same fit."""
    return {
        "model": files.fingerprint(subject.model),
        "tolerance": tolerance,
        "seed": seed,
        "hidden": probe.hidden,
        "recipe": asdict(recipe),
        "precision": subject.precision,
        "heads": subject.heads,
        "features": None if subject.features is None else subject.features.kind,
        "leaky_keys": subject.leaky_keys,
        "divergence": subject.divergence.state(),
        "custom_forward": subject.forward is not batches.default_forward,
        "sites": [site.to_json() for site in probe.sites],
        "types": subject.types,
        "specs": [spec.to_json() for spec in probe.specs],
    }


def probe_of(
    description: dict[str, Any], state: dict[str, Tensor], rungs: list[dict[str, Tensor]], device: torch.device
) -> Probe:
    """The probe that a file describes, with its weights; ``rungs`` must fit it too."""
    specs = [SiteSpec(**spec) for spec in description["specs"]]
    sites = tuple(
        Site.from_json(site).with_message(spec.message) for site, spec in zip(description["sites"], specs, strict=True)
    )
    calls: dict[str, list[int]] = {}
    for site in sites:
        calls.setdefault(site.module, []).extend(site.calls)
    if any(sorted(numbers) != list(range(len(numbers))) for numbers in calls.values()):
        raise ValueError(f"calls of a module that are not counted from 0: {calls}")
    hidden, seed = description["hidden"], description["seed"]
    with torch.device("meta"):  # where sizes take no memory: a file may claim any
        claimed = Probe(sites, specs, hidden, seed).state_dict()
    shapes = {name: value.shape for name, value in claimed.items()}
    for tensors in (state, *rungs):
        if {name: value.shape for name, value in tensors.items()} != shapes:
            raise TypeError("tensors of other sizes than its description says")
        spoilt = [name for name, value in tensors.items() if not bool(torch.isfinite(value).all())]
        if spoilt:
            raise ValueError(f"NaN or infinity in {spoilt[0]}")
    probe = Probe(sites, specs, hidden, seed)
    probe.load_state_dict(state)
    return probe.to(device).eval()


def subject_of(subject: Subject, description: dict[str, Any], probe: Probe) -> Subject:
    """The model with the sites and types that a file describes."""
    return replace(subject, sites=probe.sites, types=Types.from_json(description.get("types")))
