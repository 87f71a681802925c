"""Tables about explanations: every function takes any iterable of explanations and returns a small table.

Explanations are read once, in blocks: a store of millions streams through. Tables are `polars.DataFrame`, and need
``pip install graphmask[store]``.
"""

from __future__ import annotations

from graphmask.analysis.attention import heads, kinds
from graphmask.analysis.audits import baseline_swap, frontier, mean_messages, tolerance_curve
from graphmask.analysis.connections import connections
from graphmask.analysis.curves import area_under, sparsity_curve
from graphmask.analysis.edge_types import edge_types, edge_types_of_store, kept_by_type, type_overlap
from graphmask.analysis.erosion import erosion
from graphmask.analysis.fidelity import characterisation, complement, sufficiency
from graphmask.analysis.ground_truth import ground_truth, pyg_metrics
from graphmask.analysis.heads_dropped import heads_dropped
from graphmask.analysis.inverses import inverses
from graphmask.analysis.layers import attribution_by_layer, attribution_levels, layers_dropped
from graphmask.analysis.leakage import baseline_leakage, mask_leakage
from graphmask.analysis.noise import noise_stability
from graphmask.analysis.path_lengths import kept_by_distance, kept_by_path_length
from graphmask.analysis.paths import count_paths, edges_on_paths, list_paths, path_patterns, paths_into
from graphmask.analysis.robust_fidelity import fine_tuned, finetuned_fidelity, robust_fidelity
from graphmask.analysis.silence import deletion, silence
from graphmask.analysis.stability import consensus, fleiss_kappa, stability

__all__ = [
    "area_under",
    "attribution_by_layer",
    "attribution_levels",
    "baseline_leakage",
    "baseline_swap",
    "characterisation",
    "complement",
    "connections",
    "consensus",
    "count_paths",
    "deletion",
    "edge_types",
    "edge_types_of_store",
    "edges_on_paths",
    "erosion",
    "fine_tuned",
    "finetuned_fidelity",
    "fleiss_kappa",
    "frontier",
    "ground_truth",
    "heads",
    "heads_dropped",
    "inverses",
    "kept_by_distance",
    "kept_by_path_length",
    "kept_by_type",
    "kinds",
    "layers_dropped",
    "list_paths",
    "mask_leakage",
    "mean_messages",
    "noise_stability",
    "path_patterns",
    "paths_into",
    "pyg_metrics",
    "robust_fidelity",
    "silence",
    "sparsity_curve",
    "stability",
    "sufficiency",
    "tolerance_curve",
    "type_overlap",
]
