"""Figures for papers: one graph explained by several methods, and methods compared."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.report.layout import layout
from graphmask.storage import write_bytes

TITLES = {
    "graphmask": "GraphMask",
    "erasure_search": "erasure search",
    "integrated_gradients": "integrated gradients",
    "information_bottleneck": "information bottleneck",
    "gnn_explainer": "GNNExplainer",
    "unamortised": "non-amortised",
    "gate_scores": "gate scores",
    "pg_explainer": "PGExplainer",
    "occlusion": "occlusion",
    "random": "random",
}
#: The six of the paper's figure, in its order.
PAPER_ORDER = (
    "erasure_search",
    "gnn_explainer",
    "unamortised",
    "integrated_gradients",
    "information_bottleneck",
    "graphmask",
)
PALETTE = ["#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#222222", "#8c564b", "#17becf"]


def side_by_side(path: Path, explanations: Mapping[str, Explanation], *, colours: Sequence[str], question: str) -> Path:
    """One graph: a column per method, a row per site. ``colours`` names each edge's colour or kind, for people.

    Kept edges are drawn whole, dropped ones dotted; the wider a line, the higher the score.
    """
    plt = _pyplot()
    chosen = [name for name in PAPER_ORDER if name in explanations] or list(explanations)
    first = explanations[chosen[0]]
    edges = [(int(u), int(v)) for u, v in first.edge_index.t().tolist()]
    place = layout(range(first.num_nodes), edges)
    rows = len(first.sites)
    kinds = {kind: PALETTE[number % len(PALETTE)] for number, kind in enumerate(dict.fromkeys(colours))}
    paint = [kind if _is_colour(kind) else kinds[kind] for kind in colours]
    figure, axes = plt.subplots(rows, len(chosen), figsize=(2.3 * len(chosen), 2.5 * rows + 0.6), squeeze=False)
    for column, name in enumerate(chosen):
        explanation = explanations[name]
        for row in range(rows):
            axis = axes[row][column]
            for edge, (u, v) in enumerate(edges):
                (x0, y0), (x1, y1) = place.positions[u], place.positions[v]
                kept = bool(explanation.kept[row, edge])
                axis.annotate(
                    "",
                    (x1, y1),
                    (x0, y0),
                    arrowprops={
                        "arrowstyle": "-|>" if kept else "-",
                        "color": paint[edge],
                        "linewidth": 0.8 + 2.4 * float(explanation.scores[row, edge].clamp(0, 1)),
                        "linestyle": "-" if kept else ":",
                        "alpha": 1.0 if kept else 0.45,
                        "shrinkA": 5,
                        "shrinkB": 5,
                    },
                )
            xs, ys = zip(*(place.positions[node] for node in range(first.num_nodes)), strict=True)
            axis.scatter(xs, ys, s=45, c="white", edgecolors="#555555", zorder=3)
            axis.set_axis_off()
            axis.set_aspect("equal")
            axis.invert_yaxis()
            axis.margins(0.12)
            if row == 0:
                axis.set_title(TITLES.get(name, name), fontsize=10)
            if rows > 1 and column == 0:
                axis.text(-0.05, 0.5, first.sites[row], rotation=90, transform=axis.transAxes, va="center", fontsize=9)
    legend = [plt.Line2D([], [], color=p, label=k) for k, p in dict(zip(colours, paint, strict=True)).items()]
    legend += [
        plt.Line2D([], [], color="#555555", label="kept"),
        plt.Line2D([], [], color="#555555", ls=":", label="dropped"),
    ]
    figure.legend(handles=legend, loc="lower center", ncols=len(legend), frameon=False, fontsize=8)
    figure.suptitle(question, fontsize=10)
    figure.tight_layout(rect=(0, 0.07, 1, 0.97))
    return _save(figure, path)


def comparison(path: Path, figures: dict[str, Any]) -> Path:
    """Precision, recall and F1 of every method, with the paper's F1 where it has one."""
    plt = _pyplot()
    found = figures["methods"]
    names = [name for name, f in found.items() if "not_applicable" not in f]
    figure, axis = plt.subplots(figsize=(1.1 * len(names) + 2, 3.6))
    for offset, (key, shade) in enumerate((("precision", "#b3cde3"), ("recall", "#8c96c6"), ("f1", "#810f7c"))):
        at = [number + 0.26 * (offset - 1) for number in range(len(names))]
        heights = [found[name][key] for name in names]
        errors = [found[name][f"{key}_std"] for name in names]
        axis.bar(at, heights, 0.25, yerr=errors, color=shade, label="F1" if key == "f1" else key, error_kw={"lw": 0.8})
    paper = [(number + 0.26, found[name]["paper"]["f1"]) for number, name in enumerate(names) if "paper" in found[name]]
    if paper:
        axis.scatter(*zip(*paper, strict=True), marker="_", s=160, color="black", zorder=3, label="F1 in the paper")
    axis.set_xticks(range(len(names)), [TITLES.get(name, name).replace(" ", "\n") for name in names], fontsize=8)
    axis.set_ylim(0, 108)
    axis.set_ylabel("per cent")
    axis.set_title(f"{figures['task']}: kept edges against the known answer", fontsize=10)
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    return _save(figure, path)


def _is_colour(name: str) -> bool:
    from matplotlib.colors import is_color_like

    return bool(is_color_like(name))


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise GraphMaskError("Expected matplotlib for figures. Try: pip install graphmask[methods]") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.removeprefix(".") or "png", dpi=150)
    matplotlib.pyplot.close(figure)
    write_bytes(path, buffer.getvalue())
    return path
