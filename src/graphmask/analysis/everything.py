"""All tables that apply, in the order of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from graphmask.analysis.audits import baseline_swap, frontier, tolerance_curve
from graphmask.analysis.edge_types import edge_types_of_store, type_overlap
from graphmask.analysis.erosion import erosion
from graphmask.analysis.inverses import inverses
from graphmask.analysis.layers import attribution_by_layer, attribution_levels, layers_dropped
from graphmask.analysis.leakage import FEWEST, baseline_leakage, mask_leakage
from graphmask.analysis.paths import path_patterns
from graphmask.analysis.silence import deletion, silence
from graphmask.explaining.method import Method
from graphmask.graphs.sites import layers_of
from graphmask.hetero_explanation import TYPE_NAMES
from graphmask.store import Store

if TYPE_CHECKING:
    import polars


class Named(NamedTuple):
    """A table, its name in files, its title, and a note that says which part of the data it is of, if not of all."""

    name: str
    title: str
    frame: polars.DataFrame
    note: str = ""

    def for_json(self) -> dict[str, Any]:
        rows = [list(row) for row in self.frame.rows()]
        return {"title": self.title, "note": self.note, "columns": self.frame.columns, "rows": rows}


class Planned(NamedTuple):
    """A table that is not computed yet; titles and number of tables are known before."""

    name: str
    title: str
    work: Callable[[], polars.DataFrame]
    note: str = ""

    def work_out(self) -> Named:
        return Named(self.name, self.title, self.work(), self.note)


#: Sums over explanations: name -> title, and the table of a store, which streams through.
STREAMED: dict[str, tuple[str, Callable[[Store], polars.DataFrame]]] = {
    "edge_types": (
        "Kept edges by layer and type, beside the type's base rate",
        lambda store: edge_types_of_store(_by_layer(store)),
    ),
    "layers": (
        "Share of the kept, and of the score, per layer",
        lambda store: attribution_by_layer({"": store}).drop("method"),
    ),
    "levels": (
        "Share of messages above each attribution level",
        lambda store: attribution_levels({"": store}).drop("method"),
    ),
    "patterns": ("Retained paths by the types of their edges", path_patterns),
    "inverses": ("Kept edges whose inverse is kept", inverses),
    "overlap": ("Types that join the same two nodes", type_overlap),
}
#: What needs the model again, some hundred times per graph: name -> title, and the table of a method and batches.
RUN_AGAIN: dict[str, tuple[str, Callable[..., polars.DataFrame]]] = {
    "erosion": ("The model without a random part of its messages", erosion),
    "dropped": ("The model without one layer's messages", layers_dropped),
    "frontier": ("Sparsity against divergence", frontier),
    "tolerance": ("Changed predictions by tolerance", tolerance_curve),
    "baselines": ("The same edges, other baselines", baseline_swap),
    "baseline_leakage": ("Can the prediction be read off where baselines stand?", baseline_leakage),
    "silence": ("Are dropped messages without influence? Their content exchanged at random", silence),
    "deletion": ("The model without edges that no layer keeps", deletion),
}
#: What is no sum is worked out from so many explanations, or batches where the model runs, drawn with this seed.
SAMPLE, BATCHES, SEED = 10_000, 8, 0


def of_store(store: Store) -> list[Planned]:
    """Tables from explanations alone, in memory that does not grow with their number."""

    def work(analysis: Callable[[Store], polars.DataFrame]) -> polars.DataFrame:
        return _with_names(analysis(store), type_names(store))

    plan = [Planned(name, title, partial(work, analysis)) for name, (title, analysis) in STREAMED.items()]
    return [*plan, *([mask_leakage_of(store)] if has_one_class_each(store) else [])]


def type_names(store: Store) -> list[str] | None:
    """Names of edge types, where data is heterogeneous or was made by `HeteroData.to_homogeneous`."""
    return store.types.names if store.types is not None else store[0].info.get(TYPE_NAMES)


def _by_layer(store: Store) -> polars.LazyFrame:
    """Rows with numbers of layers, which sites of several edge types may share, in place of sites."""
    import polars as pl

    return store.edges.with_columns(
        pl.col("layer").replace_strict(list(range(len(store.structure))), layers_of(store.structure))
    )


def _with_names(frame: polars.DataFrame, names: list[str] | None) -> polars.DataFrame:
    import polars as pl

    if names is None:
        return frame
    numbers = list(range(len(names)))

    def named(values: polars.Expr) -> polars.Expr:
        return values.replace_strict(numbers, names, default=values.cast(pl.String), return_dtype=pl.String)

    single = [named(pl.col(column)) for column in ("type", "other") if column in frame.columns]
    lists = [pl.col(column).list.eval(named(pl.element())) for column in ("pattern",) if column in frame.columns]
    return frame.with_columns(*single, *lists)


def mask_leakage_of(store: Store) -> Planned:
    """`mask_leakage` on a sample of fixed size, because its probe is fitted to all masks at once."""
    note = drawn(min(SAMPLE, len(store)), len(store))
    title = "Can the prediction be read off the mask pattern?"
    return Planned(
        "mask_leakage", title, lambda: mask_leakage(store.sample(SAMPLE, SEED), seed=SEED, most=SAMPLE), note
    )


def has_one_class_each(store: Store) -> bool:
    """True if every graph has one predicted class and there are enough graphs for a probe."""
    import polars as pl

    one = (pl.col("shape").list.first() == 1) & pl.col("prediction").is_not_null()
    return len(store) >= FEWEST and bool(store.graphs.select(one.all()).collect(engine="streaming").item())


def of_model(method: Method, batches: Sequence[Any]) -> list[Planned]:
    """Tables that need further runs of the model, on a sample of the batches; notes say on how many graphs."""
    some, note = sample(batches)
    return [
        Planned(name, title, partial(analysis, method, some, allow_infeasible=True), note)
        for name, (title, analysis) in RUN_AGAIN.items()
    ]


def sample(batches: Sequence[Any]) -> tuple[list[Any], str]:
    """A sample of the batches, the same one every time, and a note on how many graphs of how many it has."""
    chosen = sorted(Random(SEED).sample(range(len(batches)), min(BATCHES, len(batches))))
    some = [batches[number] for number in chosen]
    return some, drawn(_graphs(some), _graphs(batches))


def _graphs(batches: Iterable[Any]) -> int:
    return sum(batch.num_graphs for batch in batches)


def drawn(used: int, of: int) -> str:
    """A note on how many of how many were drawn; empty if all were."""
    return "" if used == of else f"{used:,} of {of:,} graphs, drawn with seed {SEED}"
