"""Every method on every model: each pair is one file, written as it comes, so that a killed run goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from graphmask import methods as registry
from graphmask.bars import steps
from graphmask.comparing import compare
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.bench.peers.models import MODELS, first_graphs
from graphmask.explaining.method import Method
from graphmask.files import read_json, write_bytes

#: What is measured. F-Fidelity needs a fine-tuned copy of each model, and draws 90 masks per explanation.
METRICS = ("gold", "sparsity", "sufficiency", "flips", "complement", "curves", "r_fidelity", "stability", "time")
#: Test graphs that every figure is measured on, and validation graphs that cuts of soft methods are chosen on.
GRAPHS = 40
#: Methods that search for each graph by itself for minutes, or say nothing about these models, are left out.
LEFT_OUT = ("subgraphx",)
#: These are measured last: the first is the slowest of the others, and every page waits for the second.
LAST = ("erasure_search", "graphmask")
#: Settings as published, where the defaults of this library are others.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gnn_explainer": {"steps": 100, "learning_rate": 0.01, "size": 0.005, "entropy": 1.0},
    "pg_explainer": {"size": 0.05, "summed": True, "entropy": 1.0, "temperature": (5.0, 2.0)},
}
ENDING = "_published"

Figures = dict[str, dict[str, Any]]


def chosen(wanted: Sequence[str] | None, known: Sequence[str], what: str) -> list[str]:
    """The names of a run, checked; by default all."""
    for name in wanted or ():
        if name not in known:
            raise GraphMaskError(f"Expected {what} among {', '.join(known)}, got {name!r}.")
    return list(wanted or known)


def method_names() -> list[str]:
    """In the order in which they are measured."""
    names = [name for name in registry.METHODS if name not in (*LEFT_OUT, *LAST)]
    quick = sorted(names, key=lambda name: registry.get(name).seeded)
    return [*quick, *(name + ENDING for name in PUBLISHED), *LAST]


def _made(name: str) -> tuple[type[Method], dict[str, Any]]:
    """The class behind a name, and settings that are not its defaults."""
    plain = name.removesuffix(ENDING)
    return registry.get(plain), PUBLISHED[plain] if plain != name else {}


def measure(
    models: Sequence[str], methods: Sequence[str], seeds: int, out: Path, *, progress: bool = True
) -> dict[str, Figures]:
    """Figures by model and method, one method after the other; what is in ``out`` already is not measured again."""
    figures: dict[str, Figures] = {name: {} for name in models}
    prepared = cache(lambda name: MODELS[name].prepare(out))
    with runner.one_thread(), steps(len(models) * len(methods), enabled=progress) as step:
        for method in methods:
            for name in models:
                step(f"{method}: {name}")
                path = out / "pairs" / f"{name}-{method}.json"
                number = seeds if _made(method)[0].seeded else 1
                line = known(path, number)
                if line is None:
                    line = _line(prepared(name), method, number, path)
                figures[name][method] = line
    return figures


def collect(models: Sequence[str], methods: Sequence[str], seeds: int, out: Path) -> dict[str, Figures]:
    """As `measure`, of what is in ``out`` alone."""
    figures: dict[str, Figures] = {}
    for name in models:
        for method in methods:
            line = known(out / "pairs" / f"{name}-{method}.json", seeds if _made(method)[0].seeded else 1)
            if line is not None:
                figures.setdefault(name, {})[method] = line
    return figures


def known(path: Path, seeds: int) -> dict[str, Any] | None:
    """What was measured before with as many seeds and graphs; None if nothing was."""
    try:
        result = read_json(path)
    except GraphMaskError:
        return None
    return result if len(result["about"]["seeds"]) == seeds and result["about"].get("graphs") == GRAPHS else None


def _line(prepared: Prepared, method: str, seeds: int, path: Path) -> dict[str, Any]:
    """One method on one model, as `graphmask.compare` measures it; why, where it says nothing about the model."""
    kind, settings = _made(method)
    line: dict[str, Any]
    test = first_graphs(prepared.test, GRAPHS)
    gold = None if prepared.gold is None else [_by_edge(gold) for gold in prepared.gold[:GRAPHS]]
    try:
        result = compare(
            prepared.model,
            prepared.fit,
            validation=prepared.validation,
            thresholds=first_graphs(prepared.validation, GRAPHS),
            test=test,
            methods={method: partial(kind, **settings)},
            gold=gold,
            metrics=METRICS,
            seeds=seeds,
            forward=prepared.forward,
            divergence=prepared.divergence,
            tolerance=prepared.tolerance,
            progress=False,
        )
    except GraphMaskError as error:  # no method applies: there is but one
        line = {"about": {"seeds": list(range(seeds))}, "methods": {}, "not_applicable": {method: str(error)}}
    else:
        line = result.to_json()
    line["about"]["graphs"] = GRAPHS
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(line, indent=1) + "\n").encode())
    return line


def _by_edge(gold: Tensor | None) -> Tensor | None:
    return gold.t() if gold is not None and gold.dim() > 1 else gold
