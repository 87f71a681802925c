"""All methods on one task: what they find, what that does to the model, and what it costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphmask import experiments, methods
from graphmask.analysis.tally import Tally
from graphmask.bars import steps
from graphmask.comparing import compare as compare_methods
from graphmask.comparing import running
from graphmask.comparing.running import Parts, Run
from graphmask.errors import GraphMaskError
from graphmask.experiments import gold, runner
from graphmask.experiments.bench.markdown import table
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation

#: Graphs: to fit on, to calibrate GraphMask on, to choose thresholds on, to be judged by, to be explained one by one.
FIT, CALIBRATION, THRESHOLD, TEST, SINGLE = 24_000, 2_000, 256, 512, 4

#: Precision, recall and F1 of the paper's table 1.
PAPER: dict[str, dict[str, tuple[float, float, float]]] = {
    "star": {
        "erasure_search": (100.0, 16.7, 28.6),
        "integrated_gradients": (88.3, 93.5, 90.8),
        "information_bottleneck": (55.3, 51.5, 52.6),
        "gnn_explainer": (100.0, 16.8, 28.7),
        "unamortised": (96.7, 26.2, 41.2),
        "graphmask": (98.8, 100.0, 99.4),
    }
}


@dataclass
class Data:
    """The graphs of one seed."""

    fit: list[Batch]
    calibration: list[Batch]
    threshold: list[Batch]
    test: list[Batch]
    single: list[Batch]

    @classmethod
    def of(cls, task: Any, seed: int) -> Data:
        def draw(part: int, count: int, size: int = 64) -> list[Batch]:
            return task.generate(count, seed=(seed + 1) * 10_000 + part, batch_size=size)

        return cls(draw(0, FIT), draw(1, CALIBRATION), draw(2, THRESHOLD), draw(3, TEST), draw(4, SINGLE, 1))

    def parts(self) -> Parts:
        """As `graphmask.compare` has them. Thresholds are chosen on graphs of their own."""
        parts = Parts(self.fit, self.calibration, self.threshold, self.test)
        parts.gold, parts.thresholds_gold = _gold_of(self.test), _gold_of(self.threshold)
        return parts


def _gold_of(data: Sequence[Batch]) -> list[Tensor | None]:
    """Per graph, bool [E, L]."""
    return [part for batch in data for part in batch.gold.split(torch.bincount(_owner(batch)).tolist())]


def _owner(batch: Batch) -> Tensor:
    return batch.batch[batch.edge_index[0]]


def choose(names: Sequence[str], task: Any) -> tuple[list[str], dict[str, str]]:
    """The methods that apply to a task's model, and why the others do not: known before anything is trained."""
    wanted = list(names) or [name for name, method in methods.METHODS.items() if not method.costly]
    known = [methods.get(name) for name in wanted]  # an unknown name is an error before any work
    model, batch = task.make(seed=0), task.generate(2, seed=0)[0]
    reasons = {method.name: method.why_not(model, batch) for method in known}
    unfit = {name: reason for name, reason in reasons.items() if reason}
    for name in names:
        if name in unfit:
            raise GraphMaskError(f"{name} cannot be compared here. {unfit[name]}")
    return [name for name in wanted if name not in unfit], unfit


def measure(
    task_name: str, names: Sequence[str] = (), seeds: Sequence[int] = range(5), *, progress: bool = True
) -> tuple[dict[str, Any], dict[str, list[Explanation]], list[Batch]]:
    """Figures of every method, means over seeds; and, of the last seed, a few graphs each explained by all."""
    task = experiments.get(task_name)
    chosen, unfit = choose(names, task)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    examples: dict[str, list[Explanation]] = {}
    data: Data | None = None
    with runner.one_thread():
        for seed in seeds:
            with steps(1, enabled=progress) as step:
                step(f"seed {seed}: training the {task_name} model")
                model, _ = runner.train_model(task_name, seed)
            data = Data.of(task, seed)
            for name, run in _compared(model, data, chosen, seed, progress).items():
                figures, examples[name] = _figures(run, data)
                runs[name].append(figures)
    assert data is not None
    result: dict[str, Any] = {
        "task": task_name,
        "seeds": list(seeds),
        "graphs": {"fit": FIT, "threshold": THRESHOLD, "test": TEST},
        "methods": {name: _summary(by_seed) for name, by_seed in runs.items()},
    }
    _compare_times(result["methods"])
    blank = dict.fromkeys(next(iter(result["methods"].values())))
    result["methods"] |= {name: {**blank, "not_applicable": reason} for name, reason in unfit.items()}
    for name, (precision, recall, f1) in PAPER.get(task_name, {}).items():
        if name in runs:
            result["methods"][name]["paper"] = {"precision": precision, "recall": recall, "f1": f1}
    return result, examples, data.single


def _compare_times(found: dict[str, dict[str, Any]]) -> None:
    """What an explanation costs over what GraphMask's does, in batches and one graph at a time."""
    for line in found.values() if "graphmask" in found else ():
        for key, ms in (("times_in_batches", "ms_per_explanation"), ("times_alone", "ms_alone")):
            line[key] = line[ms] / found["graphmask"][ms]


def _compared(model: nn.Module, data: Data, names: Sequence[str], seed: int, progress: bool) -> dict[str, Run]:
    """The runs of `graphmask.compare`; a method that fails is an error here, for all apply."""
    comparison = compare_methods(
        model,
        data.fit,
        validation=data.calibration,
        thresholds=data.threshold,
        test=data.test,
        gold="gold",
        methods=names,
        metrics=(),
        seeds=[seed],
        progress=progress,
    )
    for name, reason in comparison.not_applicable.items():
        raise GraphMaskError(f"{name} could not be compared. {reason}")
    return {name: runs[0] for name, runs in comparison.runs.items()}


def _run(method: Method, data: Data) -> tuple[dict[str, Any], list[Explanation]]:
    return _figures(running.run(method.name, method, data.parts()), data)


def _figures(run: Run, data: Data) -> tuple[dict[str, Any], list[Explanation]]:
    """Of one run; and single graphs, explained one by one."""
    method, explanations = run.method, run.explanations
    started = time.process_time()
    alone = [method.explain(graph, repair=False, allow_infeasible=True) for graph in data.single]
    single = time.process_time() - started
    agreement = gold.compare(explanations, data.test)
    tally = Tally.of(explanations)
    kept_per_site = [kept for kept, _ in tally.per_site]
    figures = {
        **{key: agreement[key] for key in ("precision", "recall", "f1")},
        "f1_per_site": [site["f1"] for site in agreement["per_site"]],
        **{key: tally.means[key] for key in ("retained", "divergence", "flips")},
        "layer_share": [part / max(tally.kept, 1) for part in kept_per_site],
        "ms_per_explanation": 1000 * run.explain_seconds / len(explanations),
        "ms_alone": 1000 * single / len(alone),
        "fit_seconds": run.fit_seconds,
    }
    if run.threshold is not None:
        figures["threshold"] = run.threshold
    return figures, alone


def best_threshold(explanations: Sequence[Explanation], data: Sequence[Batch]) -> float:
    """The one of .1, ..., .9 with the highest F1 against gold."""
    return running.best_threshold(explanations, _gold_of(data))


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean of every figure, and its standard deviation over seeds beside it."""
    result: dict[str, Any] = {}
    for key, value in runs[0].items():
        if isinstance(value, list):
            columns = list(zip(*(run[key] for run in runs), strict=True))
            result[key] = [statistics.fmean(column) for column in columns]
            result[f"{key}_std"] = [_deviation(column) for column in columns]
        else:
            column = [run[key] for run in runs]
            result[key], result[f"{key}_std"] = statistics.fmean(column), _deviation(column)
    return result


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


Table = tuple[str, list[str], list[list[str]]]


def tables(figures: dict[str, Any]) -> list[Table]:
    """Title, header and rows: agreement with gold, what the choices do to the model, cost."""
    applicable = {name: f for name, f in figures["methods"].items() if "not_applicable" not in f}

    def rows(*columns: Callable[[dict[str, Any]], str]) -> list[list[str]]:
        return [[name, *(column(f) for column in columns)] for name, f in applicable.items()]

    def spread(key: str, digits: int = 1) -> Callable[[dict[str, Any]], str]:
        # One seed has no spread; "± 0.0" would claim that there is none.
        several = len(figures["seeds"]) > 1
        return lambda f: f"{f[key]:.{digits}f}" + (f" ± {f[f'{key}_std']:.{digits}f}" if several else "")

    def times_graphmask(f: dict[str, Any]) -> str:
        return f"{f['times_alone']:,.1f}" if "times_alone" in f else ""

    return [
        (
            "kept edges against the known answer, per cent",
            ["method", "precision", "recall", "F1", "F1 in the paper", "F1 per layer", "threshold"],
            rows(
                spread("precision"),
                spread("recall"),
                spread("f1"),
                lambda f: f"{f['paper']['f1']:.1f}" if "paper" in f else "",
                lambda f: " / ".join(f"{value:.1f}" for value in f["f1_per_site"]),
                lambda f: f"{f['threshold']:.2f}" if "threshold" in f else "",
            ),
        ),
        (
            "the model without what was dropped",
            ["method", "retained", "divergence", "answers changed", "share of the kept per layer"],
            rows(
                lambda f: f"{f['retained']:.1%}",
                spread("divergence", 3),
                lambda f: f"{f['flips']:.1%}",
                lambda f: " / ".join(f"{value:.0%}" for value in f["layer_share"]),
            ),
        ),
        (
            "cost on one thread",
            ["method", "fit, s", "ms per explanation, in batches", "one graph alone", "alone, times GraphMask"],
            rows(
                lambda f: f"{f['fit_seconds']:.1f}",
                lambda f: f"{f['ms_per_explanation']:.2f}",
                lambda f: f"{f['ms_alone']:.1f}",
                times_graphmask,
            ),
        ),
    ]


def markdown(figures: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, figures["seeds"]))
    spread = "; mean ± standard deviation over seeds" if len(figures["seeds"]) > 1 else ""
    parts = [f"{figures['task']}, {'seeds' if spread else 'seed'} {seeds}{spread}.\n"]
    for title, header, body in tables(figures):
        parts.append(f"\n{title}\n\n{table(header, body)}")
    return "".join(parts) + "".join(f"\n{line}\n" for line in not_applicable(figures))


def not_applicable(figures: dict[str, Any]) -> list[str]:
    """A line for every method that says nothing about this model."""
    left_out = {name: f["not_applicable"] for name, f in figures["methods"].items() if "not_applicable" in f}
    return [f"{name} does not apply. {reason}" for name, reason in left_out.items()]
