"""One fit with default settings, and every figure of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from graphmask.analysis.ground_truth import Agreement, area
from graphmask.analysis.scoring import studied
from graphmask.analysis.silence import deletion, silence
from graphmask.analysis.tally import Tally
from graphmask.experiments.bench.battery import masks
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.explainer import GraphMask
from graphmask.explanation import Explanation
from graphmask.fitting.recipe import Recipe

#: A site that keeps at least this share is thrown open.
OPEN = 0.999
#: Whether an open site needed to be: this share of its messages is replaced.
TENTH = 0.1
#: Graphs that are also explained with repair, at most, in whole batches.
REPAIRED = 100


def _silence(explainer: GraphMask, test: list[Any]) -> dict[str, float]:
    """How far the masked output moves, at most, when dropped edges exchange their content."""
    frame = silence(explainer, test, draws=1, allow_infeasible=True)
    return {"divergence": frame["divergence"].item(), "moved": frame["moved"].item()}


def _deletion(explainer: GraphMask, test: list[Any]) -> dict[str, dict[str, float]]:
    """Share of edges, divergence and changed predictions, by which edges are deleted."""
    frame = deletion(explainer, test, draws=1, allow_infeasible=True)
    return {row.pop("deleted").replace(" ", "_"): row for row in frame.to_dicts()}


#: Audits, by name: each is given the fitted explainer and the test batches, and returns figures for JSON.
AUDITS: dict[str, Callable[[GraphMask, list[Any]], dict[str, Any]]] = {"silence": _silence, "deletion": _deletion}


def measure(
    prepared: Prepared, seed: int, *, epochs: int | None = None, recipe: Recipe | None = None
) -> dict[str, Any]:
    """Fit GraphMask on a model of the battery as everybody gets it, and judge it on the test graphs.

    ``epochs`` is for tests of this very module, ``recipe`` for the ablation; other figures have the defaults.
    """
    started = time.perf_counter()
    explainer = GraphMask(
        prepared.model,
        prepared.forward,
        prepared.divergence,
        tolerance=prepared.tolerance,
        seed=seed,
        recipe=recipe or Recipe(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cpu = time.process_time()
        history = explainer.fit(prepared.fit, prepared.validation, epochs=epochs, progress=False)
        cpu = time.process_time() - cpu
        bare = list(explainer.explain_all(prepared.test, repair=False, allow_infeasible=True))
        certificates, repaired, before = _certified(explainer, prepared, bare)
        kept, carried = (torch.cat([getattr(e, name) for e in bare], 1) for name in ("kept", "carried"))
        tally = Tally.of(bare)
        per_site = tally.retained_per_site
        open_sites = [site for site, share in enumerate(per_site) if share >= OPEN and bool(carried[site].any())]
        figures: dict[str, Any] = {
            "sites": list(bare[0].sites),
            "tolerance": explainer.tolerance,
            "graphs": len(bare),
            "kept_per_site": per_site,
            "kept": tally.retained,
            "open": open_sites,
            "open_needed": needed(explainer, prepared.test, open_sites),
            **{key: tally.means[key] for key in ("divergence", "flips")},
            "within": Tally.of(certificates).means["faithful"],
            "repaired": _summary(repaired) | {f"{key}_before": value for key, value in _summary(before).items()},
            "explanations_repaired": len(repaired),
            "gold": against(bare, prepared.gold, prepared.noise),
            "audits": {name: audit(explainer, prepared.test) for name, audit in AUDITS.items()},
        }
    trained = prepared.train_cpu_seconds
    return {
        **figures,
        "feasible": history.feasible,
        "steps": history.steps,
        "fit_cpu_seconds": cpu,
        "train_cpu_seconds": trained,
        "fit_over_training": None if trained is None else cpu / trained,
        "wall_seconds": time.perf_counter() - started,
        "score": prepared.score,
        "masks": masks.packed(kept, carried),
    }


def _certified(
    explainer: GraphMask, prepared: Prepared, bare: list[Explanation]
) -> tuple[list[Explanation], list[Explanation], list[Explanation]]:
    """What is held to the tolerance one by one; the same, or some of it, with repair; and those without.

    Of one large graph these are explanations of single rows.
    """
    single = prepared.single
    if single is not None:
        alone, mended = (
            [explainer.explain(single.batch, index=row, repair=repair, allow_infeasible=True) for row in single.rows]
            for repair in (False, True)
        )
        return alone, mended, alone
    some, count = [], 0
    for batch in prepared.test:
        if count >= REPAIRED:
            break
        some.append(batch)
        count += int(getattr(batch, "num_graphs", 1))
    mended = list(explainer.explain_all(some, repair=True, allow_infeasible=True))
    return bare, mended, bare[: len(mended)]


def _summary(explanations: Sequence[Explanation]) -> dict[str, Any]:
    means = Tally.of(explanations).means
    names = {"kept": "retained", "divergence": "divergence", "within": "faithful", "flips": "flips"}
    return {name: means[key] for name, key in names.items()}


def needed(explainer: GraphMask, test: Sequence[Any], sites: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Of sites that are thrown open: does replacing a random tenth of their messages break the tolerance?

    All other messages stay; what replaces a message is the fitted baseline. By the site's number, the mean divergence
    over the output rows, and whether that is above the tolerance.
    """
    if not sites:
        return {}
    rng = torch.Generator().manual_seed(0)
    totals, rows = dict.fromkeys(sites, 0.0), 0
    with studied(explainer, test, True) as cases, torch.no_grad():
        for case, choice in cases:
            rows += case.trace.output.shape[0]
            for site in sites:
                gates = torch.ones_like(case.trace.carried)
                gates[site] = torch.rand(gates.shape[1], generator=rng) >= TENTH
                masked = case.run(gates, choice.baselines)
                totals[site] += float(case.divergence(case.trace.output, masked).sum())
    means = {site: total / rows for site, total in totals.items()}
    return {str(site): {"divergence": mean, "needed": mean > explainer.tolerance} for site, mean in means.items()}


def against(
    explanations: Sequence[Explanation],
    gold: Sequence[Tensor | None] | None,
    noise: Sequence[Tensor | None] | None = None,
) -> dict[str, Any] | None:
    """Precision, recall, F1 (per cent) and AUC (0 to 1) over all messages of the explanations that have gold.

    Gold bool [E] is compared with edges kept at any site and with the highest score over sites; gold [L, E] site by
    site. ``noise`` marks messages that cannot matter: ``noise_auc`` ranks gold against those alone.
    """
    if gold is None:
        return None
    noises = noise or [None] * len(gold)
    known = [(e, g, n) for e, g, n in zip(explanations, gold, noises, strict=True) if g is not None]
    if not known:
        return None
    layered = known[0][1].dim() > 1
    kept = torch.cat([e.kept if layered else e.kept.any(0)[None] for e, _, _ in known], 1)
    scores = torch.cat([e.scores if layered else e.scores.amax(0)[None] for e, _, _ in known], 1)
    truth = torch.cat([g if layered else g[None] for _, g, _ in known], 1)
    figures: dict[str, Any] = {"graphs": len(known), **_agreement(kept, scores, truth)}
    if layered:
        figures["per_site"] = [_agreement(*row) for row in zip(kept, scores, truth, strict=True)]
    marks = [n for _, _, n in known if n is not None]
    if len(marks) == len(known):
        idle = torch.cat([n if layered else n[None] for n in marks], 1)
        either = truth | idle
        figures["noise_auc"] = area(scores[either], truth[either])
    return figures


def _agreement(kept: Tensor, scores: Tensor, truth: Tensor) -> dict[str, float | None]:
    both_kinds = bool(truth.any()) and not bool(truth.all())
    return {**asdict(Agreement.of(kept, truth)), "auc": area(scores, truth) if both_kinds else None}
