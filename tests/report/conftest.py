"""Two examples every test of the page can start from."""

from __future__ import annotations

from typing import Any

import pytest

from graphmask.report.page import Example


def make(**changes: Any) -> Example:
    """A two-layer relay: leaves 3, 4 -> mids 1, 2 -> root 0. Paths in ``paths`` are written out by hand."""
    values: dict[str, Any] = {
        "title": "Relay",
        "sites": ("first", "second"),
        "num_nodes": 6,
        "edges": [(3, 1), (4, 1), (5, 2), (1, 0), (2, 0)],
        "kept": [[True, True, False, False, False], [False, False, False, True, False]],
        "scores": [[0.9, 0.8, 0.3, 0.0, 0.0], [0.05, 0.1, 0.02, 0.97, 0.4]],
        "gated": [[True, True, True, False, False], [True] * 5],
        "edge_types": ["red", "blue", "red", "green", "green"],
        "node_labels": None,
        "gold": [[True, True, False, False, False], [False, False, False, True, True]],
        "retained": 0.375,
        "divergence": 0.004,
        "tolerance": 0.03,
        "faithful": True,
        "same_prediction": True,
        "original": [0.9, 0.1],
        "masked": [0.88, 0.12],
        "notes": ["query: red"],
        "paths": {0: [[(0, 0), (1, 3)], [(0, 1), (1, 3)]], 1: [[(0, 0)], [(0, 1)]], 2: []},
    }
    return Example(**{**values, **changes})


def make_plain(num_nodes: int, edges: list[tuple[int, int]], **changes: Any) -> Example:
    """One site, every third edge kept, no types, labels, gold or paths."""
    kept = [e % 3 == 0 for e in range(len(edges))]
    values: dict[str, Any] = {
        "sites": ("conv",),
        "num_nodes": num_nodes,
        "edges": edges,
        "kept": [kept],
        "scores": [[(0.5 + 0.5 * (e + 1) / len(edges)) if k else 0.1 for e, k in enumerate(kept)]],
        "gated": [[True] * len(edges)],
        "edge_types": None,
        "gold": None,
        "paths": None,
        "title": "Plain",
        "notes": [],
    }
    return make(**{**values, **changes})


@pytest.fixture
def example() -> Any:
    return make


@pytest.fixture
def plain() -> Any:
    return make_plain
