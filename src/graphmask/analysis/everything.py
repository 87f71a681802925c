"""All tables that apply, in the order a reader wants them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from graphmask.analysis.audits import baseline_swap, frontier, tolerance_curve
from graphmask.analysis.edge_types import edge_types_of_store, type_overlap
from graphmask.analysis.erosion import erosion
from graphmask.analysis.inverses import inverses
from graphmask.analysis.layers import attribution_by_layer, attribution_levels, layers_dropped
from graphmask.analysis.leakage import baseline_leakage, mask_leakage
from graphmask.analysis.paths import path_patterns
from graphmask.method import Method
from graphmask.store import Store

if TYPE_CHECKING:
    import polars


class Named(NamedTuple):
    """A table with its name for files and its title for people."""

    name: str
    title: str
    frame: polars.DataFrame


def of_store(store: Store) -> Iterator[Named]:
    """What explanations alone tell; they stream through once per table."""
    method = {"": store}
    yield Named(
        "edge_types", "Kept edges by layer and type, beside the type's base rate", edge_types_of_store(store.edges)
    )
    yield Named("layers", "Share of the kept, and of the score, per layer", _of(attribution_by_layer(method)))
    yield Named("levels", "Share of messages above each attribution level", _of(attribution_levels(method)))
    yield Named("patterns", "Retained paths by the types of their edges", path_patterns(store))
    yield Named("inverses", "Kept edges whose inverse is kept", inverses(store))
    yield Named("overlap", "Types that join the same two nodes", type_overlap(store))
    yield Named("mask_leakage", "Can the prediction be read off the mask pattern?", mask_leakage(store))


def of_model(method: Method, loader: Iterable[Any]) -> Iterator[Named]:
    """What running the model tells."""
    yield Named(
        "erosion", "The model without a random part of its messages", erosion(method, loader, allow_infeasible=True)
    )
    yield Named(
        "dropped", "The model without one layer's messages", layers_dropped(method, loader, allow_infeasible=True)
    )
    yield Named("frontier", "Sparsity against divergence", frontier(method, loader, allow_infeasible=True))
    yield Named("tolerance", "Changed predictions by tolerance", tolerance_curve(method, loader, allow_infeasible=True))
    yield Named("baselines", "The same edges, other baselines", baseline_swap(method, loader, allow_infeasible=True))
    yield Named(
        "baseline_leakage",
        "Can the prediction be read off where baselines stand?",
        baseline_leakage(method, loader, allow_infeasible=True),
    )


def _of(frame: polars.DataFrame) -> polars.DataFrame:
    return frame.drop("method")
