"""Examples every test of the page can start from, and a browser to open them in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmask.explanation import Explanation
from graphmask.graphs.sites import Site
from graphmask.report.page import Example, Table, render, write

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIEWPORT = {"width": 1280, "height": 1000}
WHY = "THE PAGE WAS NOT TESTED IN A BROWSER: "


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


def explain(
    edges: Sequence[tuple[int, int]],
    kept: Sequence[Sequence[int]],
    *,
    nodes: int | None = None,
    reverse: Sequence[bool] = (),
    types: Sequence[int] | None = None,
    **changes: Any,
) -> Explanation:
    """An explanation of a graph with these ``edges``; ``kept`` lists the edges kept at each site."""
    mask = torch.zeros(len(kept), len(edges), dtype=torch.bool)
    for site, chosen in enumerate(kept):
        mask[site, list(chosen)] = True
    directions = reverse or [False] * len(kept)
    values: dict[str, Any] = {
        "edge_index": torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t(),
        "kept": mask,
        "scores": torch.where(mask, 0.9, 0.1),
        "carried": torch.ones_like(mask),
        "original": torch.tensor([[0.0, 2.0, -1.0]]),
        "masked": torch.tensor([[0.1, 1.9, -1.0]]),
        "divergence": 0.01,
        "flips": 0.0,
        "tolerance": 0.03,
        "structure": tuple(Site(f"conv{i + 1}", f"conv{i + 1}", (0,), r) for i, r in enumerate(directions)),
        "baselines": tuple(torch.zeros(2) for _ in kept),
        "num_nodes": nodes if nodes is not None else max((max(edge) for edge in edges), default=-1) + 1,
        "edge_type": None if types is None else torch.tensor(types),
    }
    return Explanation(**{**values, **changes})


WORDS = ["Prices", "that", "fell", "sharply", "will", "rebound"]
#: A dependency parse, each arc in both directions, and a loop; numbers 0 to 10.
ARCS = [(2, 0), (0, 2), (1, 2), (2, 1), (3, 2), (2, 3), (0, 5), (5, 0), (4, 5), (5, 4), (5, 5)]
DEPENDENCIES = ["NMOD", "NMOD", "SBJ", "SBJ", "MNR", "MNR", "SBJ", "SBJ", "VC", "VC", "self"]


def make_sentence(*, reverse: Sequence[bool] = (), info: dict[str, Any] | None = None, **changes: Any) -> Explanation:
    """Two layers: which -> fell -> Prices -> rebound and some more."""
    notes = {
        "tokens": WORDS,
        "edge_labels": DEPENDENCIES,
        "roles": [{"start": 0, "end": 4, "label": "A1"}, {"start": 5, "end": 6, "label": "V"}],
        "predicate": 5,
        "label": 1,
        **(info or {}),
    }
    kept = [[0, 1, 2, 4, 10], [0, 6, 7, 10]]
    return explain(ARCS, kept, reverse=reverse, info=notes, **changes)


@pytest.fixture
def sentence() -> Any:
    return make_sentence


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(WHY + "playwright is not installed")
    if not os.path.exists(CHROMIUM):
        pytest.skip(WHY + f"no Chromium at {CHROMIUM}")
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield instance
        instance.close()


@pytest.fixture(scope="session")
def tab(browser: Any) -> Any:
    """A tab that one test after the other uses, because each new one starts processes for a second."""
    return browser.new_context(viewport=VIEWPORT).new_page()


def as_new(tab: Any, viewport: dict[str, int] = VIEWPORT, color_scheme: str = "light") -> None:
    """Nothing shown, the pointer nowhere near, a screen of this size and colour."""
    tab.goto("about:blank")
    tab.mouse.move(0, 0)
    tab.set_viewport_size(viewport)
    tab.emulate_media(media="null", color_scheme=color_scheme, reduced_motion="no-preference", forced_colors="none")


@pytest.fixture
def visit(browser: Any, tab: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; afterwards insists that nothing was logged and nothing was fetched.

    The first file that a test opens is shown in the tab of all tests, others and those with rare options in new ones.
    """
    trouble: list[str] = []
    contexts = []
    borrowed: list[tuple[str, Callable[[Any], Any]]] = []

    def open_file(path: Path, **options: Any) -> Any:
        watching: list[tuple[str, Callable[[Any], Any]]] = [
            ("console", lambda message: trouble.append(f"console: {message.text}")),
            ("pageerror", lambda error: trouble.append(f"error: {error}")),
            ("dialog", lambda dialog: (trouble.append("dialog"), dialog.dismiss())),
        ]
        if borrowed or options.keys() - {"viewport", "color_scheme"}:
            contexts.append(browser.new_context(**{"viewport": VIEWPORT, **options}))
            opened = contexts[-1].new_page()
        else:
            opened = tab
            as_new(tab, **options)
            borrowed.extend(watching)
        for event, handler in watching:
            opened.on(event, handler)
        allowed = path.as_uri()

        def gate(route: Any) -> None:
            # A figure lies in the page itself, as a data: address.
            if route.request.url == allowed or route.request.url.startswith("data:"):
                route.continue_()
            else:
                trouble.append(f"request: {route.request.url}")
                route.abort()

        opened.route("**/*", gate)
        opened.goto(allowed)
        return opened

    yield open_file
    for context in contexts:
        context.close()
    if borrowed:
        tab.goto("about:blank")  # what it may still log or fetch is known now
        tab.unroute("**/*")
        for event, handler in borrowed:
            tab.remove_listener(event, handler)
    assert trouble == []


@pytest.fixture
def show(visit: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens examples as a page."""

    def open_page(*examples: Example, **options: Any) -> Any:
        path = tmp_path / "page.html"
        table = Table("Methods", ["method", "F1"], [["GraphMask", 0.99], ["other", 0.5]])
        write(path, render(examples, title="Title", verdict="Verdict.", tables=[table]))
        return visit(path, **options)

    return open_page
