"""Every method on every model: each pair is one file, written as it comes, so that a killed run goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from graphmask import methods as registry
from graphmask.bars import steps
from graphmask.comparing import compare
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.bench.peers.models import MODELS
from graphmask.files import read_json, write_bytes

#: What is measured. F-Fidelity needs a fine-tuned copy of each model, and draws 90 masks per explanation.
METRICS = ("gold", "sparsity", "sufficiency", "flips", "complement", "curves", "r_fidelity", "stability", "time")
#: Methods that search for each graph by itself for minutes, or say nothing about these models, are left out.
LEFT_OUT = ("subgraphx",)

Figures = dict[str, dict[str, Any]]


def chosen(wanted: Sequence[str] | None, known: Sequence[str], what: str) -> list[str]:
    """The names of a run, checked; by default all."""
    for name in wanted or ():
        if name not in known:
            raise GraphMaskError(f"Expected {what} among {', '.join(known)}, got {name!r}.")
    return list(wanted or known)


def method_names() -> list[str]:
    return [name for name in registry.METHODS if name not in LEFT_OUT]


def measure(
    models: Sequence[str], methods: Sequence[str], seeds: int, out: Path, *, progress: bool = True
) -> dict[str, Figures]:
    """Figures by model and method; what is in ``out`` already is not measured again."""
    found: dict[str, Figures] = {name: {} for name in models}
    with runner.one_thread(), steps(len(models) * len(methods), enabled=progress) as step:
        for name in models:
            prepared: Prepared | None = None
            for method in methods:
                step(f"{name}: {method}")
                path = out / "pairs" / f"{name}-{method}.json"
                number = seeds if registry.get(method).seeded else 1
                line = _known(path, number)
                if line is None:
                    prepared = prepared or MODELS[name].prepare(out)
                    line = _line(prepared, method, number, path)
                found[name][method] = line
    return found


def _known(path: Path, seeds: int) -> dict[str, Any] | None:
    try:
        found = read_json(path)
    except GraphMaskError:
        return None
    return found if len(found["about"]["seeds"]) == seeds else None


def _line(prepared: Prepared, method: str, seeds: int, path: Path) -> dict[str, Any]:
    """One method on one model, as `graphmask.compare` measures it; why, where it says nothing about the model."""
    try:
        result = compare(
            prepared.model,
            prepared.fit,
            validation=prepared.validation,
            test=prepared.test,
            methods=[method],
            gold=None if prepared.gold is None else [_by_edge(gold) for gold in prepared.gold],
            metrics=METRICS,
            seeds=seeds,
            forward=prepared.forward,
            divergence=prepared.divergence,
            tolerance=prepared.tolerance,
            progress=False,
        )
    except GraphMaskError as error:  # no method applies: there is but one
        found = {"about": {"seeds": list(range(seeds))}, "methods": {}, "not_applicable": {method: str(error)}}
    else:
        found = result.to_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(found, indent=1) + "\n").encode())
    return found


def _by_edge(gold: Tensor | None) -> Tensor | None:
    return gold.t() if gold is not None and gold.dim() > 1 else gold
