"""An explanation as a table: one row per edge and layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.report import metadata

if TYPE_CHECKING:
    import pandas
    import polars


def columns(explanation: Explanation, node_labels: Sequence[str] | None = None) -> dict[str, Any]:
    """Arrays of equal length, layer after layer, in the order of ``edge_index``."""
    sites, edges = explanation.kept.shape
    labels = metadata.labels(explanation, node_labels)
    source, target = explanation.edge_index.cpu()
    turned = torch.tensor([site.reverse for site in explanation.structure], dtype=torch.bool)[:, None]
    ways = ((source, target), (target, source))
    ends = [torch.where(turned, other, one).expand(sites, edges).reshape(-1).numpy() for one, other in ways]
    names = np.array(labels.nodes if labels.nodes is not None else [], dtype=object)
    kinds = None if labels.edges is None else np.array(labels.edges, dtype=object)
    arrays: dict[str, Any] = {
        "layer": np.repeat(np.arange(sites), edges),
        "site": np.repeat(np.array(explanation.sites, dtype=object), edges),
        "site_name": np.repeat(np.array(explanation.site_titles, dtype=object), edges),
        "edge": np.tile(np.arange(edges), sites),
        "source": ends[0],
        "target": ends[1],
    }
    if len(names):
        arrays |= {"source_name": names[ends[0]], "target_name": names[ends[1]]}
    if kinds is not None:
        arrays["type"] = np.tile(kinds, sites)
    arrays["carried"] = explanation.carried.cpu().reshape(-1).numpy()
    arrays["kept"] = explanation.kept.cpu().reshape(-1).numpy()
    arrays["score"] = explanation.scores.cpu().double().reshape(-1).numpy()
    return arrays


def to_pandas(explanation: Explanation, node_labels: Sequence[str] | None = None) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise GraphMaskError("Expected pandas for to_pandas(). Try: pip install pandas, or use to_polars().") from None
    return pandas.DataFrame(columns(explanation, node_labels))


def to_polars(explanation: Explanation, node_labels: Sequence[str] | None = None) -> polars.DataFrame:
    try:
        import polars
    except ImportError:
        raise GraphMaskError("Expected polars for to_polars(). Try: pip install graphmask[store]") from None
    arrays = columns(explanation, node_labels)
    texts: dict[str, Any] = {name: polars.String for name, value in arrays.items() if value.dtype == object}
    # Arrays of Python objects become lists of text first: polars would otherwise keep them as objects.
    plain = {name: value.tolist() if name in texts else value for name, value in arrays.items()}
    return polars.DataFrame(plain, schema_overrides=texts)
