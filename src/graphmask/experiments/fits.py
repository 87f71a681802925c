"""The same gates fitted with several seeds: is what they say the model's doing, or the seed's?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmask import analysis
from graphmask import explainer as explaining
from graphmask.analysis.everything import Planned
from graphmask.analysis.tables import table
from graphmask.experiments.study import Run
from graphmask.explainer import GraphMask

if TYPE_CHECKING:
    import polars


def several(
    folder: Path,
    first: GraphMask,
    fits: int,
    fit: Callable[[int, Path], GraphMask],
    load: Callable[[Path], GraphMask],
) -> Iterator[GraphMask]:
    """``first``, then fits with the seeds that follow its own: ``fit(seed, checkpoint)``.

    Each is kept in the folder, so that an analysis that is repeated or was killed does not fit again.
    """
    yield first
    for seed in range(first.seed + 1, first.seed + fits):
        path = folder / f"{seed}.graphmask"
        if not path.exists():
            unfinished = path.with_suffix(".safetensors")
            fit(seed, unfinished).save(path)
            unfinished.unlink(missing_ok=True)
        yield load(path)


def compared(run: Run[Any, Any], fits: int) -> tuple[polars.DataFrame, list[dict[str, Any]]]:
    """Gates with other seeds for the model of a run: how far they agree, and the figures of each."""
    study = run.study
    figures, masks = [], []
    for explainer in several(
        run.folder / "fits",
        run.explainer,
        fits,
        lambda seed, path: study.fit(run.corpus, run.model, seed=seed, checkpoint=path, progress=False),
        lambda path: explaining.load(path, run.model, forward=study.forward),
    ):
        explanations = list(explainer.explain_all(run.test, repair=False, allow_infeasible=True))
        figures.append({"seed": explainer.seed, **study.measure(run.corpus, run.model, explainer, explanations)})
        masks.append(explanations)
    return analysis.stability(masks), figures


def plan(run: Run[Any, Any], fits: int, columns: Sequence[str]) -> list[Planned]:
    """The two tables of `compared`, from one comparison; ``columns`` are figures of each fit."""
    compare = cache(lambda: compared(run, fits))

    def each() -> polars.DataFrame:
        kinds = {name: int if name == "seed" else float for name in columns}
        return table(kinds, [tuple(fit[name] for name in columns) for fit in compare()[1]])

    return [
        Planned("stability", f"Agreement of {fits} fits", lambda: compare()[0]),
        Planned("seeds", "Each fit on test data", each),
    ]


def summary(tables: dict[str, polars.DataFrame], averaged: Sequence[str]) -> dict[str, Any]:
    """Of those two tables: agreement over all layers, how many fits, and means over fits of what one might owe to luck.

    Without them nothing.
    """
    if "stability" not in tables:
        return {}
    whole = tables["stability"].filter(tables["stability"]["layer"].is_null()).row(0, named=True)
    seeds = tables["seeds"]
    means = {key: seeds[key].mean() for key in averaged}
    return {"kappa": whole["kappa"], "jaccard": whole["jaccard"], "fits": seeds.height, **means}
