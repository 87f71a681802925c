"""`graphmask.compare`: every method, every seed, every metric, on one model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from graphmask import methods as registry
from graphmask.bars import steps
from graphmask.comparing import metrics as measures
from graphmask.comparing.result import Comparison
from graphmask.comparing.running import Gold, Parts, Run, check, run
from graphmask.divergence import Function
from graphmask.errors import GraphMaskError
from graphmask.explaining.method import Method
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.graphs.wrapped_batches import graphs_of
from graphmask.tapping.restore import restored

#: Makes a method: a class, or a function of the same arguments.
Make = Callable[..., Method]
Methods = Sequence[str | type[Method]] | Mapping[str, Make]


def compare(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    validation: Iterable[Any] | None = None,
    thresholds: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    methods: Methods | None = None,
    gold: Gold | None = None,
    metrics: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int | Sequence[int] = 3,
    index: Sequence[int] | None = None,
    forward: Forward | None = None,
    divergence: str | Function = "auto",
    tolerance: float = 0.03,
    epochs: int | None = None,
    repair: bool = False,
    progress: bool = True,
) -> Comparison:
    """Every method on one's own model and data, judged by every metric.

    Args:
        model, forward, divergence, tolerance: as in `GraphMask`. The model is never changed.
        loader: batches that methods learn from.
        validation: batches on which methods are calibrated and the thresholds of soft methods are chosen; by default
            those of ``loader``, and a note says so. Where ``gold`` is known of them, the threshold with the best F1;
            else the sparsest within tolerance of all thresholds and fractions of each graph.
        thresholds: batches for thresholds, where those should not be the ones of ``validation``.
        test: batches on which every figure is measured; by default those of ``loader``, and a note says so.
        methods: names or classes, or a dictionary from labels to what makes a method, for instance
            ``functools.partial(methods.get("pg_explainer"), size=0.1)``. By default all that are registered, but for
            costly ones, which a note names.
        gold: the true edges: the name of an attribute of batches, a function of a batch (bool [E], or [E, L] layer by
            layer), or a list with one tensor, or None, for each explanation.
        metrics: names, or a dictionary from names to options; by default all (`graphmask.comparing.metrics`).
        seeds: how many, or which ones.
        index: output rows of the one graph of ``test`` to be explained one by one.
        epochs: of methods that learn; by default their own.
        repair: let every method repair its explanations; by default each is judged by its own choice.
        progress: show a progress bar.
    """
    wanted, makers, numbers = measures.chosen(metrics), _makers(methods), _numbers(seeds)
    probe = registry.get("random")(model, forward, divergence, tolerance)
    model = probe.model
    parts, notes = _parts(probe, loader, (validation, thresholds, test), gold, index)
    decided = divergence if callable(divergence) else probe.divergence.name  # "auto" is decided once
    known: dict[str, Any] = {"forward": forward, "divergence": decided, "tolerance": tolerance}
    result = Comparison.empty(model, parts, probe, list(makers), numbers, wanted, notes + _left_out(methods))
    unfit = _unfit(makers, model, parts.test[0], forward)
    result.not_applicable |= unfit
    fitting = {name: partial(make, model, **known) for name, make in makers.items() if name not in unfit}
    with (
        restored(model),  # around all of it: libraries that are loaded on the way draw from the user's random state
        steps(len(numbers) * len(fitting), enabled=progress) as step,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "GraphMask", UserWarning)  # what it warns of is in the notes
        for name, make in fitting.items():
            _every_seed(result, name, make, wanted, step, epochs, repair)
    return result


def _every_seed(
    result: Comparison,
    name: str,
    make: Make,
    wanted: Mapping[str, Mapping[str, Any]],
    step: Callable[[str], None],
    epochs: int | None,
    repair: bool,
) -> None:
    """Run and measure one method; one that fails must not end a long comparison, and is listed."""
    for seed in result.about["seeds"]:
        step(f"{name}, seed {seed}")
        try:
            finished = run(name, make(seed=seed), result.parts, epochs=epochs, repair=repair)
        except Exception as error:
            result.failed(name, error)
            return
        measure(result, finished, wanted)
    across(result, name, wanted)


def measure(result: Comparison, found: Run, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Add every figure of a run to the result; a metric that cannot be had is noted once, with the reason."""
    figures: measures.Figures = {}
    for name, options in wanted.items():
        if name not in measures.METRICS:
            continue
        function, columns = measures.METRICS[name]
        try:
            figures |= function(found, **options)
        except GraphMaskError as error:
            figures |= dict.fromkeys(columns)
            result.note(f"{name} was not measured. {error}")
    result.add(found, figures, measures.curve(found) if "curves" in wanted else None)


def across(result: Comparison, name: str, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Add what is measured over all seeds of a method."""
    for metric in wanted:
        if metric in measures.ACROSS:
            result.across.setdefault(name, {}).update(measures.ACROSS[metric][0](result.runs[name]))


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    numbers = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not numbers:
        raise GraphMaskError("Expected at least one seed, got none.")
    return numbers


def _makers(methods: Methods | None) -> dict[str, Make]:
    if methods is None:
        return {name: method for name, method in registry.METHODS.items() if not method.costly}
    if isinstance(methods, str) or not methods:
        raise GraphMaskError(f"Expected a list of methods, or a dictionary of them, got {methods!r}.")
    if isinstance(methods, Mapping):
        return dict(methods)
    kinds = [registry.get(method) if isinstance(method, str) else method for method in methods]
    return {kind.name: kind for kind in kinds}


def _left_out(methods: Methods | None) -> list[str]:
    costly = [name for name, method in registry.METHODS.items() if method.costly and methods is None]
    why = "each explanation takes thousands of runs of the model. Name it to compare it."
    return [f"{name} was left out: {why}" for name in costly]


def _unfit(makers: Mapping[str, Make], model: nn.Module, batch: Any, forward: Forward | None) -> dict[str, str]:
    """Why some methods do not apply to this model, known before any work."""
    kinds = {name: getattr(make, "func", make) for name, make in makers.items()}
    reasons = {
        name: kind.why_not(model, batch, forward)
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, Method)
    }
    unfit = {name: reason for name, reason in reasons.items() if reason}
    if len(unfit) == len(makers):
        raise GraphMaskError("Expected a method that applies to this model, got none. " + " ".join(unfit.values()))
    return unfit


def _parts(
    probe: Method,
    loader: Iterable[Any],
    others: tuple[Iterable[Any] | None, Iterable[Any] | None, Iterable[Any] | None],
    gold: Gold | None,
    index: Sequence[int] | None,
) -> tuple[Parts, list[str]]:
    """The data by what it is used for, checked, and what is to be said about that."""
    validation, thresholds, test = others
    batches.check_loader(loader, "the loader")
    judged = list(graphs_of(loader if test is None else test, probe.forward))
    calibrating = next(some for some in (thresholds, validation, loader) if some is not None)
    told = gold if isinstance(gold, str) or callable(gold) else None
    true = check(probe, judged, told)
    if gold is not None and not (isinstance(gold, str) or callable(gold)):
        true = list(gold)  # one per explanation: compared with them when there are any
    thresholds_true = check(probe, calibrating, told, needed=False)
    notes = []
    if thresholds_true is None:
        notes.append(
            "Soft methods: of all thresholds, and all shares of each graph's messages, the sparsest that is within "
            "tolerance on average over the data they are chosen on."
        )
    else:
        notes.append(
            "Thresholds of soft methods: of .1, ..., .9 the one with the best F1 on the data they are chosen on."
        )
    if calibrating is loader:
        notes.append("No validation data were given: thresholds were chosen on the data that methods learn from.")
    if test is None:
        notes.append("No test data were given: figures are measured on the data that methods learn from.")
    rows = None if index is None else [int(row) for row in index]
    if rows is not None and len(judged) != 1:
        raise GraphMaskError(f"Expected one graph to explain rows of (index), got {len(judged)} batches.")
    parts = Parts(loader, validation, calibrating, judged, rows, true, thresholds_true)
    return parts, notes
