"""No analysis holds more explanations than a few blocks of them, however many there are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graphmask import Explanation, analysis
from graphmask.analysis import side_by_side
from graphmask.experiments.bench import store as bench

GRAPHS, AT_ONCE = 300, 20
#: Every analysis that takes explanations. `consensus` gives an iterator.
ANALYSES: dict[str, Callable[[Any], Any]] = {
    "attribution_by_layer": lambda found: analysis.attribution_by_layer({"": found}),
    "attribution_levels": lambda found: analysis.attribution_levels({"": found}),
    "connections": lambda found: analysis.connections(found, [0], [1]),
    "consensus": lambda found: [None for _ in analysis.consensus([found, explanations([])])],
    "edge_types": analysis.edge_types,
    "edges_on_paths": lambda found: analysis.edges_on_paths(found, sources=[0]),
    "ground_truth": lambda found: analysis.ground_truth(found, (e.kept.any(0) for e in explanations([]))),
    "inverses": analysis.inverses,
    "kept_by_distance": lambda found: analysis.kept_by_distance(found, [0], [1]),
    "kept_by_path_length": lambda found: analysis.kept_by_path_length(found, [0], [1]),
    "kept_by_type": lambda found: analysis.kept_by_type(found, group=lambda explanation: explanation.num_nodes),
    "mask_leakage": lambda found: analysis.mask_leakage(found, shuffles=1),
    "path_patterns": analysis.path_patterns,
    "stability": lambda found: analysis.stability([found, explanations([])]),
    "type_overlap": analysis.type_overlap,
}
#: These take one explanation, a method, or a frame.
OTHERS = {
    "baseline_leakage",
    "baseline_swap",
    "count_paths",
    "edge_types_of_store",
    "erosion",
    "fleiss_kappa",
    "frontier",
    "heads",  # these three in tests/attention
    "heads_dropped",
    "kinds",
    "pyg_metrics",
    "layers_dropped",
    "list_paths",
    "mean_messages",
    "paths_into",
    "tolerance_curve",
    "sufficiency",
    "complement",
    "deletion",
    "silence",
    "characterisation",
    "sparsity_curve",  # from here on they run the model: tests/comparing
    "area_under",
    "robust_fidelity",
    "finetuned_fidelity",
    "fine_tuned",
    "noise_stability",
}


def explanations(alive: list[int]) -> Iterator[Explanation]:
    """Says how many of those it gave are still held."""
    given: weakref.WeakSet[Explanation] = weakref.WeakSet()
    method = bench.Drawn()
    for batch in bench.Random(GRAPHS, 3, 10):
        found = method._explain(batch, False, "")
        while found:
            explanation = found.pop(0)
            given.add(explanation)
            alive.append(len(given))
            yield explanation


def test_all_are_here() -> None:
    assert {*ANALYSES, *OTHERS} == {*analysis.__all__}


@pytest.mark.parametrize("name", ANALYSES)
def test_few_blocks_are_held_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "GRAPHS_AT_ONCE", AT_ONCE)
    alive: list[int] = []
    ANALYSES[name](explanations(alive))
    assert len(alive) == GRAPHS
    assert max(alive) <= 3 * AT_ONCE + 2  # one that was, one that is, one that is being gathered
