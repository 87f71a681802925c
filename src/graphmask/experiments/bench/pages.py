"""What writing a page costs: `Explanation.to_html` from a thousand edges upwards."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from graphmask.bars import steps
from graphmask.experiments.runner import one_thread
from graphmask.explanation import Explanation
from graphmask.explanation_contents import ASKED
from graphmask.graphs.sites import Site

SMALLEST, LAYERS, EDGES_PER_NODE, KEPT = 1000, 2, 4, 0.3


def random_explanation(edges: int, seed: int = 0, *, nodes: int | None = None, asked: bool = False) -> Explanation:
    """Of a random graph: three messages of ten are kept, with scores above one half. ``asked`` is about node 17."""
    generator = torch.Generator().manual_seed(seed)
    nodes = nodes or max(edges // EDGES_PER_NODE, 20)
    kept = torch.rand(LAYERS, edges, generator=generator) < KEPT
    noise = torch.rand(LAYERS, edges, generator=generator) / 2
    return Explanation(
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        kept=kept,
        scores=torch.where(kept, 0.5 + noise, noise),
        carried=torch.ones_like(kept),
        original=torch.zeros(nodes, 3),
        masked=torch.zeros(nodes, 3),
        divergence=0.01,
        flips=0.0,
        tolerance=0.03,
        structure=tuple(Site(f"conv{k + 1}", f"conv{k + 1}", (0,), kind="GCNConv") for k in range(LAYERS)),
        baselines=tuple(torch.zeros(2) for _ in range(LAYERS)),
        num_nodes=nodes,
        index=(17,) if asked else None,
        info={ASKED: [17]} if asked else {},
    )


def sizes(largest: int) -> list[int]:
    """1,000, 10,000 and so on, up to ``largest``."""
    return [SMALLEST * 10**power for power in range(max(0, round(math.log10(largest / SMALLEST))) + 1)]


def measure(largest: int, seed: int = 0, *, rounds: int = 3, progress: bool = True) -> dict[str, Any]:
    """CPU seconds (the least of some rounds) and bytes of pages about whole graphs, and about one node of them."""
    lines: list[dict[str, Any]] = []
    total = 2 * len(sizes(largest))
    with tempfile.TemporaryDirectory() as folder, one_thread(), steps(total, enabled=progress) as step:
        path = Path(folder) / "page.html"
        random_explanation(SMALLEST, seed).to_html(path)  # loads what every page needs
        for edges in sizes(largest):
            row: dict[str, Any] = {"edges": edges}
            for name, asked in (("graph", False), ("node", True)):
                step(f"{edges:,} edges, about the {name}")
                explanation = random_explanation(edges, seed, asked=asked)
                times = []
                for _ in range(rounds):
                    started = time.thread_time()
                    explanation.to_html(path)
                    times.append(time.thread_time() - started)
                row[name] = {"cpu_seconds": min(times), "bytes": path.stat().st_size}
            lines.append(row)
    return {"seed": seed, "rounds": rounds, "layers": LAYERS, "sizes": lines, "growth": growth(lines)}


def growth(found: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """How much more a page costs than the one before it, over how many more edges it has: 1 is linear."""
    return [
        {
            name: after[name]["cpu_seconds"] / before[name]["cpu_seconds"] / (after["edges"] / before["edges"])
            for name in ("graph", "node")
        }
        for before, after in pairwise(found)
    ]


def rows(figures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """For the terminal and the documentation."""
    header = ["edges", "CPU s", "MB", "growth (1 is linear)", "one node: CPU s", "MB", "growth"]
    table: list[list[Any]] = []
    for row, grown in zip(figures["sizes"], [None, *figures["growth"]], strict=True):
        cells: list[Any] = [f"{row['edges']:,}"]
        for name in ("graph", "node"):
            cells += [f"{row[name]['cpu_seconds']:.2f}", f"{row[name]['bytes'] / 1e6:.2f}"]
            cells.append("" if grown is None else f"{grown[name]:.2f}")
        table.append(cells)
    return header, table
