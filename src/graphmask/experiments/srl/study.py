"""Section 6 of the paper and its appendices, as tables over the explanations of a role labeller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask import analysis, methods
from graphmask.analysis.everything import Named, Planned
from graphmask.analysis.tables import table
from graphmask.experiments import fits as fitting
from graphmask.experiments import study as studies
from graphmask.experiments.buckets import in_order
from graphmask.experiments.srl import learning
from graphmask.experiments.srl.corpus import Corpus
from graphmask.experiments.srl.examples import Vocabularies
from graphmask.experiments.srl.model import Labeller
from graphmask.experiments.srl.scorer import Counts
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.tapping.masking import run as run_masked
from graphmask.tapping.messages import Messages
from graphmask.tapping.trace import record

if TYPE_CHECKING:
    import polars

Run = studies.Run[Corpus, Labeller]

#: The paper leaves out types that occur in less of the examples, and calls superfluous what is dropped more often.
OCCURRENCE, SUPERFLUOUS = 0.1, 0.99
#: Distances from here on count as one.
FAR, LONG = 10, 3
#: Examples on which methods that optimise for each are run.
SAMPLE = 64


def f1(output: Tensor, batch: Batch) -> tuple[float, float]:
    """Labelled F1 in per cent, as a ratio of sums."""
    count = learning.count_batch(output.argmax(1), batch)
    return 200.0 * count.correct, float(count.predicted + count.gold)


def predicate(explanation: Explanation) -> list[int]:
    return [explanation.info["predicate"]]


def predicted_roles(explanation: Explanation) -> list[int]:
    return [token for token, role in enumerate(explanation.info["roles"]) if role != "_"]


def labels(explanations: Iterable[Explanation], vocabularies: Vocabularies) -> polars.DataFrame:
    """Dependency labels by direction: probability of being kept and share of the kept, by kind (appendix I)."""
    import polars as pl

    frame = analysis.kept_by_type(explanations, group="kind").filter(pl.col("layer").is_null()).drop("layer")
    names = [vocabularies.edge_type_name(kind) for kind in frame["type"].to_list()]
    named = frame.with_columns(pl.Series("label", names)).select("group", "label", pl.exclude("group", "label", "type"))
    return named.sort("group", "share", "label", descending=[False, True, False])


def superfluous(frame: polars.DataFrame) -> list[str]:
    """Frequent labels that are dropped in practically all cases, whatever the kind and direction (of `labels`)."""
    import polars as pl

    bare = frame.with_columns(pl.col("label").str.split(" ").list.first().alias("bare"))
    sums = bare.group_by("bare").agg(
        pl.col("kept").sum(), pl.col("edges").sum(), pl.col("occurrence").max().alias("occurrence")
    )
    rare = pl.col("kept") <= (1 - SUPERFLUOUS) * pl.col("edges")
    return sorted(sums.filter((pl.col("occurrence") > OCCURRENCE) & rare)["bare"].to_list())


def aims(explanations: Iterable[Explanation]) -> dict[str, float]:
    """What kept edges point to: a predicted role, the predicate, an argument of another predicate, or else.

    Each edge counts once, as the first of these that is true of the node it sends to.
    """
    counts: Counter[str] = Counter()
    for explanation in explanations:
        info = explanation.info
        roles, others = set(predicted_roles(explanation)), set(info["other_arguments"])
        for target in explanation.edge_index[1].expand_as(explanation.kept)[explanation.kept].tolist():
            if target in roles:
                counts["predicted role"] += 1
            elif target == info["predicate"]:
                counts["predicate"] += 1
            else:
                counts["argument of another predicate" if target in others else "other"] += 1
    total = sum(counts.values())
    return {name: count / total for name, count in counts.most_common()}


def path_lengths(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """Paths from predicate to predicted role with 0, 1, 2 edges retained, by length and kind (table 3)."""
    return analysis.kept_by_path_length(explanations, predicate, predicted_roles, group="kind", longest=LONG)


def distances(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """Paths of which the last edge at least is retained, by token distance and kind (figure 4)."""
    import polars as pl

    frame = analysis.kept_by_distance(explanations, predicate, predicted_roles, group="kind")
    far = frame.with_columns(pl.col("distance").clip(upper_bound=FAR))
    sums = far.group_by("group", "distance").agg(pl.col("paths").sum(), pl.col("retained").sum())
    return sums.with_columns((pl.col("retained") / pl.col("paths")).alias("share")).sort("group", "distance")


@torch.no_grad()
def soft_gates(explainer: GraphMask, development: Sequence[Batch], test: Sequence[Batch]) -> dict[str, float]:
    """The heuristic that reads the model's own gates: drop messages one standard deviation below the mean gate.

    Mean and deviation are taken on development data; F1 on test, with dropped messages replaced by nothing.
    """

    def look(messages: Messages) -> Tensor:
        assert messages.attention is not None
        return messages.attention.view(-1)

    assert explainer.probe is not None
    nothing = [site.stand_in.left_out(explainer.probe.scales) for site in explainer.probe.sites]
    subject = explainer.subject
    with subject.frozen():
        traces = [record(subject, batch, look) for batch in development]
        values = torch.cat([trace.values[trace.carried] for trace in traces])
        mean, deviation = float(values.mean()), float(values.std())
        before = after = Counts()
        dropped = total = 0
        for batch in test:
            trace = record(subject, batch, look)
            kept = trace.carried & (trace.values >= mean - deviation)
            output = run_masked(subject, batch, trace.edge_map, kept, nothing)
            before += learning.count_batch(trace.output.argmax(1), batch)
            after += learning.count_batch(output.argmax(1), batch)
            dropped += int((trace.carried & ~kept).sum())
            total += int(trace.carried.sum())
    return {
        "mean": mean,
        "deviation": deviation,
        "dropped": dropped / total,
        "f1": after.f1,
        "f1_change": after.f1 - before.f1,
    }


def attribution(run: Run, names: Sequence[str], *, sample: int) -> polars.DataFrame:
    """Share of the attribution per layer, per method, on a sample of test examples (as table 6 for QA)."""
    test = run.corpus.parts["test"]
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:sample].sort().values.tolist()
    batches = [test.batch([number]) for number in chosen]
    by_method: dict[str, list[Explanation]] = {
        "graphmask": list(run.explainer.explain_all(batches, repair=False, allow_infeasible=True)),
    }
    for name in names:
        method = methods.get(name)(run.model, learning.forward, tolerance=run.explainer.tolerance, seed=0)
        method.fit(batches, progress=False)
        by_method[name] = list(method.explain_all(batches, repair=False, allow_infeasible=True))
    return analysis.attribution_by_layer(by_method)


def erosion(run: Run, *, draws: int = 10) -> polars.DataFrame:
    """F1 when random parts of the superfluous, then of the retained messages are dropped (appendix J)."""
    return analysis.erosion(run.explainer, run.test, f1, draws=draws, allow_infeasible=True)


def frequent(frame: polars.DataFrame, rows: int = 12) -> polars.DataFrame:
    """The labels a figure shows: frequent ones that are kept now and then (of `labels`)."""
    import polars as pl

    shown = frame.filter((pl.col("occurrence") > OCCURRENCE) & (pl.col("probability") > 1 - SUPERFLUOUS))
    return shown.group_by("group", maintain_order=True).head(rows)


#: Methods whose attribution is compared by layer; they explain each example for itself.
OTHERS = ("integrated_gradients", "gnn_explainer", "unamortised")


def plan(run: Run, fits: int) -> list[Planned]:
    """Every table of the study."""
    parts, test = run.corpus.parts, run.test
    explanations = cache(lambda: list(run.store))
    by_label = cache(lambda: labels(explanations(), run.corpus.vocabularies))

    def never() -> polars.DataFrame:
        return _table({label: 1.0 for label in superfluous(by_label())}, "label", "dropped")

    def soft() -> polars.DataFrame:
        return _table(soft_gates(run.explainer, in_order(parts["dev"]), test), "figure", "value")

    dropped = partial(analysis.layers_dropped, run.explainer, test, f1, allow_infeasible=True)
    note = f"{SAMPLE} test examples, drawn with seed 0"
    return [
        Planned("labels", "Dependency labels by kind of predicate", lambda: frequent(by_label())),
        Planned("superfluous", "Frequent labels that are always superfluous", never),
        Planned("aims", "What kept edges point to", lambda: _table(aims(explanations()), "target", "share")),
        Planned(
            "paths",
            "Paths from predicate to predicted role, by edges retained",
            lambda: path_lengths(explanations()),
        ),
        Planned(
            "distances", "Paths that are used, by distance of predicate and role", lambda: distances(explanations())
        ),
        Planned("soft_gates", "The model without messages whose own gates are low", soft),
        Planned("erosion", "F1 of the model without a random part of its messages", lambda: erosion(run)),
        Planned("dropped", "F1 of the model without one layer's messages", dropped),
        Planned(
            "attribution",
            "Share of the attribution per layer and method",
            lambda: attribution(run, OTHERS, sample=SAMPLE),
            note,
        ),
        *(fitting.plan(run, fits, SEED_FIGURES) if fits > 1 else ()),
    ]


SEED_FIGURES = ("seed", "f1", "masked_f1", "f1_change", "retained", "divergence", "flips", "faithful")


def figures(run: Run, tables: Sequence[Named]) -> dict[str, Any]:
    """The study's numbers for a file: the run's own, and every table as rows."""
    by_name = {named.name: named.frame for named in tables}
    summary = {key: run.figures[key] for key in ("f1", "masked_f1", "f1_change", "retained", "retained_per_site")}
    # The tables below are of the first fit.
    summary |= fitting.summary(by_name, ("masked_f1", "f1_change", "retained"))
    for key in ("tolerance", "by_kind", "divergence", "flips", "faithful", "examples"):
        summary[key] = run.figures[key]
    eroded: dict[str, dict[str, list[float]]] = {}
    for row in by_name["erosion"].iter_rows(named=True):
        eroded.setdefault(row["dropped"], {})[f"{row['fraction']:g}"] = [row["mean"], row["low"], row["high"]]
    summary["erosion"] = eroded
    pairs = ("aims", "soft_gates")
    summary |= {name: dict(by_name[name].iter_rows()) for name in pairs}
    summary["superfluous"] = by_name["superfluous"]["label"].to_list()
    rest = [name for name in by_name if name not in (*pairs, "erosion", "superfluous")]
    return summary | {name: by_name[name].to_dicts() for name in rest}


def _table(found: dict[str, float], name: str, value: str) -> polars.DataFrame:
    return table({name: str, value: float}, list(found.items()))
