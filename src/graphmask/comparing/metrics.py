"""Every metric is one function, of a `Run` or of all runs of a method; its docstring says what it can and cannot show.

A metric returns figures by the names of `COLUMNS`. None stands for a figure that does not exist here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphmask import analysis
from graphmask.analysis.fidelity import DROPPED, KEPT, ZERO
from graphmask.analysis.robust_fidelity import ACCURACY, BETA, DIVERGENCE, PROBABILITY
from graphmask.comparing.running import Run
from graphmask.errors import GraphMaskError

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Column:
    """A figure of a table."""

    label: str
    better: int  #: 1 if high is good, -1 if low is, 0 if neither
    about: str
    share: bool = True  #: shown in per cent


COLUMNS: dict[str, Column] = {
    "retained": Column("kept", 0, "share of messages that are kept"),
    "divergence": Column("divergence", -1, "of the output with only the kept messages from the original", share=False),
    "within": Column("within tolerance", 1, "share of explanations whose divergence is within tolerance"),
    "flips": Column("flips", -1, "share of predictions that change with only the kept messages"),
    "complement": Column("complement", 1, "divergence with only the dropped messages", share=False),
    "complement_flips": Column("complement flips", 1, "share of predictions that change with only the dropped ones"),
    "keep_area": Column("area, kept", -1, "area under divergence over the fraction kept", share=False),
    "drop_area": Column("area, dropped", 1, "area under divergence over the fraction dropped", share=False),
    "r_plus": Column("R-Fidelity+", 1, "loss without a random tenth of the explanation", share=False),
    "r_minus": Column("R-Fidelity-", -1, "loss without a random tenth of the other edges", share=False),
    "r_delta": Column("R-Fidelity delta", 1, "difference of the two", share=False),
    "f_plus": Column(
        "F-Fidelity+", 1, "the fine-tuned model's loss without random edges of the explanation", share=False
    ),
    "f_minus": Column("F-Fidelity-", -1, "the same without random other edges", share=False),
    "f_delta": Column("F-Fidelity delta", 1, "difference of the two", share=False),
    "kappa": Column("kappa, seeds", 1, "agreement of seeds on what is kept, beyond chance", share=False),
    "noise_kappa": Column("kappa, noise", 1, "agreement with explanations of slightly noisy inputs", share=False),
    "precision": Column("precision", 1, "of kept edges, all graphs together"),
    "recall": Column("recall", 1, "of true edges, all graphs together"),
    "f1": Column("F1", 1, "harmonic mean of precision and recall"),
    "auc": Column("AUC", 1, "area under the ROC curve of scores, all graphs together"),
    "precision_graph": Column("precision, per graph", 1, "mean over graphs"),
    "recall_graph": Column("recall, per graph", 1, "mean over graphs"),
    "f1_graph": Column("F1, per graph", 1, "mean over graphs"),
    "auc_graph": Column("AUC, per graph", 1, "mean over graphs"),
    "fit_seconds": Column("fit, CPU s", -1, "CPU seconds of fitting", share=False),
    "ms": Column("explain, CPU ms", -1, "CPU milliseconds per explanation, in the batches given", share=False),
}


# Of one run ------------------------------------------------------------------------------------------------


def sparsity(run: Run) -> Figures:
    """The share of messages that is kept, all layers and graphs together.

    It says how short an explanation is, and nothing of whether it is right: an empty one is the shortest.
    """
    kept, carried = (sum(int(getattr(e, name).sum()) for e in run.explanations) for name in ("kept", "carried"))
    return {"retained": kept / max(carried, 1)}


def sufficiency(run: Run) -> Figures:
    """How far the output moves with only the kept messages, the others replaced as the method does (PyG's fidelity-).

    It can show that what was kept is enough for this very model. It cannot show that all of it is needed, and keeping
    everything is perfect; read it beside what is kept. A learned baseline may itself carry part of an answer. The
    masked model sees inputs it was not trained on.
    """
    count = max(len(run.explanations), 1)
    return {
        "divergence": sum(e.divergence for e in run.explanations) / count,
        "within": sum(e.faithful for e in run.explanations) / count,
    }


def flips(run: Run) -> Figures:
    """The share of output rows whose prediction changes with only the kept messages.

    It can show the failure a user would notice. It cannot show how close to failing an explanation is, a model that is
    very sure of itself forgives nearly anything, and a regression has no prediction to change.
    """
    if not run.method.divergence.has_classes:
        return {"flips": None}
    return {"flips": sum(e.flips for e in run.explanations) / max(len(run.explanations), 1)}


def complement(run: Run) -> Figures:
    """How far the output moves with only the dropped messages, the others zero (PyG's fidelity+).

    It can show that what was kept is needed. It cannot show that it is enough, and rises with the size of what is kept:
    keeping everything is perfect here, too. A model with two ways to the same answer scores low although either was
    right. Zeros stand for all messages, whatever a method's own baseline is.
    """
    rows = analysis.complement(
        run.method, run.parts.judged, run.explanations, replaced_by=(ZERO,), allow_infeasible=True
    ).to_dicts()
    values = {row["measure"]: row["value"] for row in rows if row["layer"] is None}
    return {"complement": values["divergence"], "complement_flips": values.get("flips")}


def curves(run: Run, *, levels: Sequence[float] = analysis.curves.LEVELS) -> Figures:
    """Areas under the sparsity curves: divergence as more and more messages are kept, or dropped, best scores first.

    They can show whether the order of the scores is good, without any threshold. They cannot show whether a method
    knows where to stop, and methods whose scores tie (hard choices) are judged by the order of edges among ties. Zeros
    stand for what is left out, so that all methods are judged by the same masked model.
    """
    areas: Figures = {}
    for side, name in ((KEPT, "keep_area"), (DROPPED, "drop_area")):
        areas[name] = analysis.area_under(curve(run, side=side, levels=levels))
    return areas


def curve(run: Run, *, side: str = KEPT, levels: Sequence[float] = analysis.curves.LEVELS) -> Any:
    """The table of `graphmask.analysis.sparsity_curve`, with zeros in place of messages."""
    return analysis.sparsity_curve(
        run.method,
        run.parts.judged,
        run.explanations,
        side=side,
        levels=levels,
        replaced_by=ZERO,
        allow_infeasible=True,
    )


def r_fidelity(run: Run, *, samples: int = 50, sizes: Sequence[float] | None = None) -> Figures:
    """R-Fidelity (arXiv 2310.01820) of what is kept: `graphmask.analysis.robust_fidelity`.

    It can show whether a random tenth of the explanation matters more than a random tenth of the rest, on graphs close
    to those the model knows. It cannot show sufficiency, and a larger explanation loses a larger number of edges.
    """
    frame = analysis.robust_fidelity(
        run.method, run.parts.judged, run.explanations, samples=samples, sizes=sizes, allow_infeasible=True
    )
    return _signed("r", frame)


#: Explanation sizes over which F-Fidelity is averaged.
SIZES = tuple(number / 10 for number in range(1, 10))


def f_fidelity(
    run: Run,
    *,
    samples: int = 10,
    sizes: Sequence[float] | None = SIZES,
    beta: float = BETA,
    steps: int = 1000,
    labels: bool | None = None,
) -> Figures:
    """F-Fidelity (arXiv 2410.02970), mean over explanation sizes: `graphmask.analysis.finetuned_fidelity`.

    It can rank the order of scores at equal sizes, with a model that was fine-tuned on graphs that lack random edges.
    It judges another model than the explained one, and where any tenth of the edges can be spared it tells nothing
    apart. Published are 50 draws and sizes from 5 to 95 % in steps of 5; here 10 draws at nine sizes, which are as many
    draws as two sizes have there. ``samples`` and ``sizes`` can be set.
    """
    tuned = run.parts.tuned(run.method, beta=beta, steps=steps, labels=labels)
    frame = analysis.finetuned_fidelity(
        run.method,
        run.parts.judged,
        run.explanations,
        tuned=tuned,
        beta=beta,
        samples=samples,
        sizes=sizes,
        allow_infeasible=True,
    )
    return _signed("f", frame)


def _signed(letter: str, frame: Any) -> Figures:
    """By probability where there is one; else by accuracy; of a regression by divergence."""
    rows = {row["measure"]: row for row in frame.to_dicts()}
    row = next(rows[name] for name in (PROBABILITY, ACCURACY, DIVERGENCE) if name in rows)
    return {f"{letter}_{side}": row[side] for side in ("plus", "minus", "delta")}


def noise(run: Run, *, scale: float = 0.01) -> Figures:
    """Kappa between explanations of the inputs and of slightly noisy ones: `graphmask.analysis.noise_stability`.

    It can show that explanations hang on what the model ignores. It cannot show that they are right: a method that
    never looks at the input scores 1.
    """
    frame = analysis.noise_stability(run.method, run.parts.judged, run.explanations, scale=scale, allow_infeasible=True)
    return {"noise_kappa": frame["kappa"].item()}


def gold(run: Run) -> Figures:
    """Precision, recall, F1 and AUC against edges known to matter, of all edges together and mean over graphs.

    It can show whether an explanation is what somebody holds to be the right answer. It cannot show whether the *model*
    works that way: where it does not, a faithful explanation scores low, and that is no fault of its. AUC judges
    scores, whatever the threshold; the other three judge what is kept.
    """
    if run.parts.gold is None:
        return {}
    known = [(e, truth) for e, truth in zip(run.explanations, run.parts.gold, strict=True) if truth is not None]
    rows = analysis.ground_truth((e for e, _ in known), (truth for _, truth in known)).to_dicts()
    figures: Figures = {}
    for row in rows:
        if row["layer"] is None:
            ending = "" if row["average"] == "micro" else "_graph"
            figures |= {f"{name}{ending}": row[name] for name in ("precision", "recall", "f1", "auc")}
    return figures


def time(run: Run) -> Figures:
    """CPU seconds of fitting, and CPU milliseconds per explanation, in the batches that were given.

    They depend on the machine and on the size of the batches: compare within one table only. What choosing a threshold
    took is in neither.
    """
    return {
        "fit_seconds": run.fit_seconds,
        "ms": 1000 * run.explain_seconds / max(len(run.explanations), 1),
    }


# Of all runs of a method -----------------------------------------------------------------------------------


def stability(runs: Sequence[Run]) -> Figures:
    """Fleiss' kappa of what is kept, over the method's seeds: `graphmask.analysis.stability`.

    It can show that an explanation is chance. It cannot show that it is right: a method without randomness scores 1
    whatever it keeps, and so do fits that all keep everything.
    """
    if len(runs) < 2:
        return {"kappa": None}
    return {"kappa": analysis.stability([run.explanations for run in runs]).to_dicts()[-1]["kappa"]}


Metric = Callable[..., Figures]
#: Functions of one run, with the names of their figures.
METRICS: dict[str, tuple[Metric, tuple[str, ...]]] = {
    "sparsity": (sparsity, ("retained",)),
    "sufficiency": (sufficiency, ("divergence", "within")),
    "flips": (flips, ("flips",)),
    "complement": (complement, ("complement", "complement_flips")),
    "curves": (curves, ("keep_area", "drop_area")),
    "r_fidelity": (r_fidelity, ("r_plus", "r_minus", "r_delta")),
    "f_fidelity": (f_fidelity, ("f_plus", "f_minus", "f_delta")),
    "noise": (noise, ("noise_kappa",)),
    "gold": (
        gold,
        tuple(f"{name}{ending}" for ending in ("", "_graph") for name in ("precision", "recall", "f1", "auc")),
    ),
    "time": (time, ("fit_seconds", "ms")),
}
#: Functions of all runs of a method.
ACROSS: dict[str, tuple[Metric, tuple[str, ...]]] = {"stability": (stability, ("kappa",))}
ALL = {**METRICS, **ACROSS}


def chosen(metrics: Sequence[str] | Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Names of metrics with their options, checked; all of them if None."""
    wanted = ALL if metrics is None else metrics
    if isinstance(wanted, str):
        raise GraphMaskError(f"Expected a list of metrics, got the text {wanted!r}.")
    selected = {name: dict(metrics[name]) if isinstance(metrics, Mapping) else {} for name in wanted}
    for name, options in selected.items():
        if name not in ALL:
            raise GraphMaskError(f"Expected metrics among {', '.join(ALL)}, got {name!r}.")
        known = list(inspect.signature(ALL[name][0]).parameters)[1:]
        wrong = [option for option in options if option not in known]
        if wrong:
            raise GraphMaskError(f"Expected options of {name} among {', '.join(known) or 'none'}, got {wrong[0]!r}.")
    return selected
