"""The study of section 5 and appendices J and K, on one run: which edges the model uses, for what, and who agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask import analysis, methods
from graphmask import explainer as explaining
from graphmask.analysis.everything import Named, Planned
from graphmask.analysis.tables import share, table
from graphmask.analysis.tally import Tally
from graphmask.experiments import fits as fitting
from graphmask.experiments import study as studies
from graphmask.experiments.buckets import in_order
from graphmask.experiments.qa import evidence, learning
from graphmask.experiments.qa.corpus import Corpus, record
from graphmask.experiments.qa.examples import Examples
from graphmask.experiments.qa.mentions import COREF, DOC_BASED, MATCH, RELATIONS
from graphmask.experiments.qa.model import EntityGCN, forward, make
from graphmask.experiments.qa.presets import Preset
from graphmask.experiments.qa.questions import SUBJECT
from graphmask.explanation import Explanation

if TYPE_CHECKING:
    import polars

Run = studies.Run[Corpus, EntityGCN]

#: Methods whose attribution is compared; they explain each example for itself.
OTHERS = ("unamortised", "gnn_explainer", "integrated_gradients")
#: Test questions that they explain: all with evidence, so that the same explanations serve twice.
SAMPLE, AT_ONCE = 200, 50


def correct(output: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Accuracy in per cent, a value per question."""
    return 100.0 * (output.argmax(1) == batch["y"])


def types(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """Table 2: the share of a layer's edges of each type that is kept, and of all kept edges."""
    shares = analysis.edge_types(explanations)
    return _named(shares, "type")


def overlap(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """How many COREF edges run beside a MATCH edge: of those kept, of all."""
    overlaps = analysis.type_overlap(explanations)
    return overlaps.filter((overlaps["type"] == COREF) & (overlaps["other"] == MATCH)).drop("type", "other")


def candidates_connected(explanations: Iterable[Explanation]) -> dict[str, float | None]:
    """Share of the predicted, of the right, and of the other candidates that a kept path from the subject reaches.

    ``arriving``: share of the predicted answers into which any kept edge leads.
    """
    counts = {name: [0, 0] for name in ("predicted", "right", "other", "arriving")}
    for explanation in explanations:
        info = explanation.info
        reached = _reached(explanation)
        into = torch.zeros(explanation.num_nodes, dtype=torch.bool)
        into[explanation.edge_index[1, explanation.kept.any(0)]] = True
        hit, entered = set(), set()
        named = set()
        for node, (*_, entity) in enumerate(info["mentions"]):
            if entity != SUBJECT:
                named.add(entity)
                hit |= {entity} if reached[node] else set()
                entered |= {entity} if into[node] else set()
        predicted, right = info["predicted"], info["answer"]
        for entity in named:
            for name in _roles(entity, predicted, right):
                counts[name][0] += entity in hit
                counts[name][1] += 1
        counts["arriving"][0] += predicted in entered
        counts["arriving"][1] += 1
    return {name: share(part, whole) for name, (part, whole) in counts.items()}


def _roles(entity: int, predicted: int, right: int) -> list[str]:
    roles = [name for name, which in (("predicted", predicted), ("right", right)) if entity == which]
    return roles or ["other"]


def _reached(explanation: Explanation) -> Tensor:
    """bool [N]: the end of a kept path from a mention of the subject."""
    start = torch.zeros(explanation.num_nodes, dtype=torch.bool)
    start[explanation.info["subject_nodes"]] = True
    reached = torch.zeros_like(start)
    sender, receiver = explanation.edge_index
    for kept in explanation.kept:
        lies = kept & (reached | start)[sender]
        reached = reached.index_fill(0, receiver[lies], True)
    return reached


def patterns(explanations: Iterable[Explanation], rows: int = 20) -> polars.DataFrame:
    """The commonest kept paths from the subject, by their types of edges."""
    commonest = analysis.path_patterns(explanations, sources="subject_nodes").head(rows)
    names = [" > ".join(RELATIONS[kind] for kind in pattern) for pattern in commonest["pattern"].to_list()]
    columns = {"path": str, "length": int, "paths": float, "share": float}
    return table(columns, zip(names, commonest["length"], commonest["paths"], commonest["share"], strict=True))


def shapes(explanations: Iterable[Explanation]) -> polars.DataFrame:
    """The paper's two forms of paths: COMPLEMENT, then one or two MATCH or DOC-BASED edges; and all others."""
    paths = analysis.path_patterns(explanations, sources="subject_nodes")
    sums: Counter[str] = Counter()
    for pattern, part in zip(paths["pattern"].to_list(), paths["share"].to_list(), strict=True):
        either = ("MATCH or DOC-BASED" if kind in (MATCH, DOC_BASED) else RELATIONS[kind] for kind in pattern)
        sums[" > ".join(either)] += part
    return table({"path": str, "share": float}, sums.most_common())


def sample(examples: Examples, size: int, seed: int = 0) -> list[int]:
    """Numbers of some questions with evidence."""
    known = torch.tensor([number for number, question in enumerate(examples.questions) if question.evidence])
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    return known[order[:size]].sort().values.tolist()


def compared(run: Run, size: int) -> dict[str, list[Explanation]]:
    """A sample of the test questions explained by every method, GraphMask first, a random choice last."""
    test = run.corpus.parts["test"]
    chosen = sample(test, size)
    batches = [test.batch(chosen[low : low + AT_ONCE]) for low in range(0, len(chosen), AT_ONCE)]
    by_method: dict[str, list[Explanation]] = {
        "graphmask": list(run.explainer.explain_all(batches, repair=False, allow_infeasible=True)),
    }
    for name in (*OTHERS, "random"):
        method = methods.get(name)(run.model, forward, tolerance=run.explainer.tolerance, seed=0)
        method.fit(batches, progress=False)
        by_method[name] = list(method.explain_all(batches, repair=False, allow_infeasible=True))
    for explanations in by_method.values():
        for number, explanation in zip(chosen, explanations, strict=True):
            explanation.info |= record(test, number, int(explanation.original.argmax()))
    return by_method


def forms(run: Run, explanations: Sequence[Explanation], preset: Preset) -> polars.DataFrame:
    """The same model over lists of edges, explained through ordinary hooks, beside the matrix form.

    Gates of the edge form see the message and the relation as well; those of the matrix form see the two states.

    Columns:
        form, retained, accuracy_change, divergence.
        output: largest difference between the two forms' scores of a mentioned candidate.
        kappa: agreement of the edge form's masks with the matrix form's.
    """
    test, path = run.corpus.parts["test"], run.folder / "fits" / "edges.graphmask"
    twin = make("edges", run.corpus.words.table, preset.sizes, run.corpus.candidates, seed=0)
    twin.load_state_dict(run.model.state_dict())
    twin.eval()
    if not path.exists():
        seed = run.explainer.seed
        learning.fit(twin, run.corpus, preset, seed=seed, form="edges", progress=False).save(path)
    explainer = explaining.load(path, twin, forward=forward)
    theirs = list(explainer.explain_all(in_order(test, form="edges"), repair=False, allow_infeasible=True))
    pairs = list(zip(explanations, theirs, strict=True))
    apart = max(float((one.original - other.original).abs().max()) for one, other in pairs)
    opened = torch.cat([(one.kept.long() + other.kept.long()).flatten() for one, other in pairs])
    kappa = analysis.fleiss_kappa(torch.stack([2 - opened, opened], 1))
    rows = []
    for form, measured in (("matrix", run.figures), ("edges", run.study.measure(run.corpus, twin, explainer, theirs))):
        figures = (measured[name] for name in ("retained", "accuracy_change", "divergence"))
        rows.append((form, *figures, apart, kappa))
    columns = {"retained": float, "accuracy_change": float, "divergence": float, "output": float, "kappa": float}
    return table({"form": str} | columns, rows)


def plan(run: Run, fits: int, preset: Preset) -> list[Planned]:
    """Every table of the study."""
    test, size = run.test, len(sample(run.corpus.parts["test"], SAMPLE))
    explanations = cache(lambda: list(run.store))
    by_method = cache(lambda: compared(run, SAMPLE))

    def of_all(analysed: Callable[..., polars.DataFrame], *more: Any, **options: Any) -> Callable[[], polars.DataFrame]:
        return lambda: analysed(explanations(), *more, **options)

    def reached() -> polars.DataFrame:
        return _pairs(candidates_connected(explanations()), "which", "share")

    def agreed() -> polars.DataFrame:
        return evidence.agreement({"graphmask, all of test": explanations(), **by_method()})

    eroded = partial(analysis.erosion, run.explainer, test, correct, allow_infeasible=True)
    note = f"{size} test questions with evidence, drawn with seed 0"
    tables = [
        Planned("rules", "Accuracy of rules without a model", lambda: _pairs(run.figures["rules"], "rule", "accuracy")),
        Planned("types", "Edges kept, by type and layer", of_all(types)),
        Planned("overlap", "COREF edges that run beside a MATCH edge", of_all(overlap)),
        Planned(
            "connections",
            "Kept edges at the query's mentions and the answer's",
            of_all(analysis.connections, "subject_nodes", "predicted_nodes"),
        ),
        Planned(
            "on_paths",
            "Kept edges on paths from mentions of the query",
            of_all(analysis.edges_on_paths, sources="subject_nodes"),
        ),
        Planned("candidates", "Candidates that a kept path from the query reaches", reached),
        Planned("patterns", "Commonest kept paths from the query", of_all(patterns)),
        Planned("shapes", "Kept paths from the query, MATCH and DOC-BASED as one", of_all(shapes)),
        Planned("inverses", "Kept edges whose inverse is kept too", of_all(analysis.inverses)),
        Planned(
            "dropped", "Accuracy, and answers that stay, without one layer's messages", lambda: knock_out(run, test)
        ),
        Planned("erosion", "Accuracy without a random part of the messages", eroded),
        Planned(
            "attribution",
            "Share of the attribution per layer",
            lambda: analysis.attribution_by_layer(by_method()),
            note,
        ),
        Planned("levels", "Messages that score above a level", lambda: analysis.attribution_levels(by_method()), note),
        Planned("evidence", "Agreement with people's evidence", agreed, f"all others: {note}"),
    ]
    if fits > 1:
        tables.append(
            Planned("forms", "Adjacency matrices and lists of edges", lambda: forms(run, explanations(), preset))
        )
        tables += fitting.plan(run, fits, SEED_FIGURES)
    return tables


SEED_FIGURES = ("seed", "masked_accuracy", "accuracy_change", "retained", "divergence", "flips", "faithful")
OWN = ("accuracy", "masked_accuracy", "accuracy_change", "prior", "rules", "retained", "retained_per_site")
REST = ("tolerance", "divergence", "flips", "faithful", "examples", "lost", "train_cpu_seconds", "fit_seconds")


def figures(run: Run, tables: Sequence[Named]) -> dict[str, Any]:
    """The study's numbers for a file: the run's own, and every table as rows."""
    by_name = {named.name: named.frame for named in tables}
    summary: dict[str, Any] = {key: run.figures[key] for key in OWN}
    tally = Tally.of(run.store)
    summary["retained_by_layer"] = [count / tally.kept for count, _ in tally.per_site]
    # The tables are of the first fit.
    summary |= fitting.summary(by_name, ("masked_accuracy", "accuracy_change", "retained"))
    dropped = by_name["dropped"].filter(by_name["dropped"]["layer"].is_not_null())
    accuracy, agreement = (dropped.filter(dropped["measure"] == name)["value"].to_list() for name in KNOCK_OUT)
    summary |= {"knockout": accuracy, "knockout_agreement": agreement}
    attribution = by_name["attribution"]
    summary["ranks_agree"] = ranks_agree(attribution, accuracy)
    summary["ranks_agree_by_answers"] = ranks_agree(attribution, agreement)
    agreed = {row["method"]: row for row in by_name["evidence"].iter_rows(named=True)}
    auc = {name: row["auc"] for name, row in agreed.items()}
    summary["evidence"] = {"auc": auc.pop("graphmask, all of test"), **auc}
    summary |= {key: run.figures[key] for key in REST}
    return summary | {"tables": {named.name: named.frame.to_dicts() for named in tables}}


#: Accuracy, as in the paper, and the answers that stay the same: of those that change, as many may get better as worse.
KNOCK_OUT = ("score", "agreement")


def knock_out(run: Run, test: Iterable[Any]) -> polars.DataFrame:
    """The model without one layer's messages."""
    import polars as pl

    frames = [analysis.layers_dropped(run.explainer, test, score, allow_infeasible=True) for score in (correct, None)]
    return pl.concat(frames).filter(pl.col("measure").is_in(KNOCK_OUT))


def ranks_agree(attribution: polars.DataFrame, left: Sequence[float]) -> dict[str, bool]:
    """Per method: does a layer without which less is left get more of the attribution?

    That of a method with hard gates is what it keeps.
    """
    order = sorted(range(len(left)), key=lambda layer: left[layer])
    agree = {}
    for name in attribution["method"].unique(maintain_order=True).to_list():
        column = "score_share" if methods.get(name).soft else "kept_share"
        shares = attribution.filter(attribution["method"] == name).sort("layer")[column].to_list()
        agree[name] = sorted(range(len(shares)), key=lambda layer: -shares[layer]) == order
    return agree


def _named(frame: polars.DataFrame, column: str) -> polars.DataFrame:
    """Names of relations for their numbers."""
    import polars as pl

    return frame.with_columns(pl.col(column).replace_strict(dict(enumerate(RELATIONS)), return_dtype=pl.String))


def _pairs(found: Mapping[str, float | None], name: str, value: str) -> polars.DataFrame:
    return table({name: str, value: float}, list(found.items()))
