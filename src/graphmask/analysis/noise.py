"""Does noise on the input that hardly changes the output change the explanation?"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphmask.analysis.stability import stability
from graphmask.analysis.tables import table
from graphmask.errors import GraphMaskError
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.graphs import batches
from graphmask.graphs.wrapped_batches import graph_in

if TYPE_CHECKING:
    import polars


def noise_stability(
    method: Method,
    loader: Iterable[Any],
    explanations: Sequence[Explanation],
    *,
    scale: float = 0.01,
    seed: int = 0,
    repair: bool = False,
    allow_infeasible: bool = False,
) -> polars.DataFrame:
    """Agreement between the explanations of graphs and of the same graphs with noise on their node features.

    It can show that explanations hang on details the model ignores. It cannot show that a stable explanation is right:
    one that never looks at the input agrees with itself perfectly. Features that mean something only as exact values
    (one-hot columns, numbers of words) are moved off what the model knows, though by little.

    Args:
        method: that made the explanations; it explains again.
        loader: their batches.
        explanations: of these, in the same order.
        scale: the noise's standard deviation, over the root mean square of the column it is added to.
        seed: of the noise.
        repair, allow_infeasible: as in `Method.explain`.

    Columns:
        same: share of explanations for which the noise leaves all predictions as they are. Only these are compared.
        kappa, agreement, jaccard: of `stability`, for all layers together; null where no graph is left.
    """
    if not scale > 0:
        raise GraphMaskError(f"Expected a scale above 0, got {scale!r}.")
    generator = torch.Generator().manual_seed(seed)
    index = [explanation.index for explanation in explanations]
    noisy = (with_noise(graph_in(batch), scale, generator) for batch in loader)
    if any(rows is not None for rows in index):
        again = [
            method.explain(batch, index=rows, repair=repair, allow_infeasible=allow_infeasible)
            for batch, rows in zip(noisy, index, strict=True)
            if rows is not None
        ]
    else:
        again = list(method.explain_all(list(noisy), repair=repair, allow_infeasible=allow_infeasible))
    if len(again) != len(explanations):
        raise GraphMaskError(f"Expected explanations of the loader's {len(again)} graphs, got {len(explanations)}.")
    same = [
        not bool(method.divergence.flips(a.original, b.original).any())
        for a, b in zip(explanations, again, strict=True)
    ]
    pairs = [(a, b) for a, b, alike in zip(explanations, again, same, strict=True) if alike]
    figures: tuple[float | None, ...] = (None, None, None)
    if pairs:
        whole = stability([[a for a, _ in pairs], [b for _, b in pairs]]).to_dicts()[-1]
        figures = whole["kappa"], whole["agreement"], whole["jaccard"]
    columns = {"same": float, "kappa": float, "agreement": float, "jaccard": float}
    return table(columns, [(sum(same) / max(len(same), 1), *figures)])


def with_noise(batch: Any, scale: float, generator: torch.Generator) -> Any:
    """A copy of a batch whose node features ``x`` are moved a little; the batch itself is not touched."""
    if batches.adapter(batch).by_type:
        stores = [store for store in batch.node_stores if "x" in store and store.x.is_floating_point()]
        if stores:
            other = copy.copy(batch)
            for store in stores:
                other[store._key].x = _moved(store.x, scale, generator)
            return other
    elif isinstance(batch, (Data, Mapping)):
        x = batch.get("x")
        if isinstance(x, Tensor) and x.is_floating_point():
            copied: Any = copy.copy(batch) if isinstance(batch, Data) else dict(batch)
            copied["x"] = _moved(x, scale, generator)
            return copied
    raise GraphMaskError("Expected batches with node features x of real numbers, found none to add noise to.")


def _moved(x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    size = x.square().mean(0, keepdim=True).sqrt() if x.shape[0] else x
    return x + scale * size * torch.randn(x.shape, generator=generator).to(x)
