"""Figures for papers: one graph explained by several methods, methods compared, analyses as bars and curves.

The file's ending decides the format (svg, png, pdf). The same input gives the same bytes as SVG and PNG.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.files import write_bytes
from graphmask.report.layout import Layout, layout
from graphmask.texts import visible

TITLES = {
    "graphmask": "GraphMask",
    "erasure_search": "erasure search",
    "integrated_gradients": "integrated gradients",
    "information_bottleneck": "information bottleneck",
    "gnn_explainer": "GNNExplainer",
    "unamortised": "non-amortised",
    "gate_scores": "gate scores",
    "attention_weights": "attention weights",
    "attention_rollout": "attention rollout",
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
#: Okabe and Ito's, told apart by colour-blind readers; the yellow is left out, it vanishes on paper.
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#222222"]
HATCHES = ["", "//", "xx", "\\\\", "--", "++", "||"]  # so that bars differ on a grey printer, too
DASHES = ["-", "--", "-.", ":"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
#: As many characters of a name, and of a title, as there is room for in a figure.
NAME, TITLE = 60, 200


def side_by_side(
    path: str | Path, explanations: Mapping[str, Explanation], *, colours: Sequence[str], question: str
) -> Path:
    """One graph: a column per method, a row per site. ``colours`` names the colour or kind of each edge.

    Kept edges are drawn whole, dropped ones dotted; the wider a line, the higher the score.
    """
    plt = _pyplot()
    chosen = [name for name in PAPER_ORDER if name in explanations] or list(explanations)
    first = explanations[chosen[0]]
    edges = [(int(u), int(v)) for u, v in first.edge_index.t().tolist()]
    arranged = layout(range(first.num_nodes), edges)
    rows = len(first.sites)
    kinds = {kind: PALETTE[number % len(PALETTE)] for number, kind in enumerate(dict.fromkeys(colours))}
    paint = [kind if _is_colour(kind) else kinds[kind] for kind in colours]
    figure, axes = plt.subplots(rows, len(chosen), figsize=(2.3 * len(chosen), 2.5 * rows + 0.6), squeeze=False)
    for column, name in enumerate(chosen):
        explanation = explanations[name]
        for row in range(rows):
            axis = axes[row][column]
            for edge in range(len(edges)):
                if bool(explanation.carried[row, edge]):
                    arrow(axis, explanation, row, edge, arranged, paint[edge], f"{column}-{row}-{edge}")
            xs, ys = zip(*(arranged.positions[node] for node in range(first.num_nodes)), strict=True)
            axis.scatter(xs, ys, s=45, c="white", edgecolors="#555555", zorder=3)
            axis.set_axis_off()
            axis.set_aspect("equal")
            axis.invert_yaxis()
            axis.margins(0.12)
            if row == 0:
                axis.set_title(TITLES.get(name) or visible(name, NAME), fontsize=10, parse_math=False)
            if rows > 1 and column == 0:
                axis.text(
                    -0.05, 0.5, visible(first.site_titles[row], NAME), rotation=90, transform=axis.transAxes,
                    va="center", fontsize=9, parse_math=False,
                )  # fmt: skip
    named = dict(zip(colours, paint, strict=True))
    legend = [plt.Line2D([], [], color=shade, label=visible(kind, NAME)) for kind, shade in named.items()]
    legend += [
        plt.Line2D([], [], color="#555555", label="kept"),
        plt.Line2D([], [], color="#555555", ls=":", label="dropped"),
    ]
    columns = min(len(legend), 2 + 2 * len(chosen))
    _plain(figure.legend(handles=legend, loc="lower center", ncols=columns, frameon=False, fontsize=8))
    figure.suptitle(visible(question, TITLE), fontsize=10, parse_math=False)
    figure.tight_layout(rect=(0, 0.07, 1, 0.97))
    return _save(figure, path)


def arrow(axis: Any, explanation: Explanation, row: int, edge: int, arranged: Layout, colour: str, name: str) -> None:
    from matplotlib.patches import FancyArrowPatch

    source, target = explanation._ends(row, edge)
    (x0, y0), (x1, y1) = arranged.positions[source], arranged.positions[target]
    kept = bool(explanation.kept[row, edge])
    bend = arranged.bends[edge] * (1 if source == int(explanation.edge_index[0, edge]) else -1)
    if source == target:  # a loop around the upper side of its node; further ones reach further out
        x0, x1 = x0 - 0.8 * arranged.radius, x1 + 0.8 * arranged.radius
        bend = -9.0 - 3 * bend
    wide = 0.7 if source == target else 2.4
    patch = FancyArrowPatch(
        (x0, y0),
        (x1, y1),
        arrowstyle="-|>" if kept else "-",
        mutation_scale=10,
        connectionstyle=f"arc3,rad={0.22 * bend:.3f}",
        color=colour,
        linewidth=0.8 + wide * float(explanation.scores[row, edge].clamp(0, 1)),
        linestyle="-" if kept else ":",
        alpha=1.0 if kept else 0.45,
        shrinkA=0 if source == target else 5,
        shrinkB=0 if source == target else 5,
        clip_on=False,
    )
    patch.set_gid(f"{'kept' if kept else 'dropped'}-{name}")  # names it in an SVG
    axis.add_patch(patch)


def bars(
    path: str | Path,
    title: str,
    groups: Mapping[str, Mapping[str, float]],
    *,
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    y_label: str = "share",
    per_cent: bool = True,
) -> Path:
    """Grouped bars: ``groups[name][series]`` is a height, for instance of an edge type at a layer.

    A series may be missing from a group. ``intervals`` are (low, high) in the same form. With ``per_cent`` the
    heights are shares and the axis says so.
    """
    if not groups or not any(groups.values()):
        raise GraphMaskError("Expected at least one bar, got none.")
    plt = _pyplot()
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(series)
    figure, axis = plt.subplots(figsize=(max(4.0, min(16.0, 1.6 + 0.3 * len(groups) * (len(series) + 1))), 3.6))
    for number, name in enumerate(series):
        there = [(at, group) for at, group in enumerate(groups) if name in groups[group]]
        at = [position + (number - (len(series) - 1) / 2) * width for position, _ in there]
        heights = [groups[group][name] for _, group in there]
        drawn = axis.bar(
            at, heights, width * 0.94, color=PALETTE[number % len(PALETTE)], label=visible(name, NAME),
            hatch=HATCHES[number % len(HATCHES)], edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        for (_, group), bar in zip(there, drawn, strict=True):
            bar.set_gid(f"bar-{list(groups).index(group)}-{number}")
        known = [
            (x, height, (intervals or {}).get(group, {}).get(name))
            for x, height, (_, group) in zip(at, heights, there, strict=True)
        ]
        for x, height, interval in known:
            if interval is not None:
                axis.errorbar(
                    x, height, [[max(0.0, height - interval[0])], [max(0.0, interval[1] - height)]],
                    color="black", lw=0.9, capsize=2,
                )  # fmt: skip
    names = [visible(group, NAME) for group in groups]
    long = max(map(len, names)) * len(names) > 16 * figure.get_figwidth()
    axis.set_xticks(range(len(names)), names, fontsize=8)
    for label in axis.get_xticklabels():
        label.set_parse_math(False)
    axis.margins(x=0.02)
    if long:
        plt.setp(axis.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    _finish(axis, title, "", y_label, per_cent, len(series))
    return _save(figure, path)


def curve(
    path: str | Path,
    title: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    *,
    x_label: str = "",
    y_label: str = "",
    per_cent: bool = False,
    log_x: bool = False,
) -> Path:
    """Lines over ``x`` with a band from ``intervals`` (low, high) where given, say a confidence interval."""
    for name, values in [*series.items(), *(intervals or {}).items()]:
        if len(values) != len(x):
            raise GraphMaskError(f"Expected {len(x)} values of {name!r}, one for each x, got {len(values)}.")
    if not series or not len(x):
        raise GraphMaskError("Expected at least one point, got none.")
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(5.2, 3.6))
    for number, (name, values) in enumerate(series.items()):
        colour = PALETTE[number % len(PALETTE)]
        (line,) = axis.plot(
            x, values, color=colour, ls=DASHES[number % len(DASHES)], marker=MARKERS[number % len(MARKERS)], ms=4.5,
            label=visible(name, NAME),
        )  # fmt: skip
        line.set_gid(f"curve-{number}")
        if intervals is not None and name in intervals:
            low, high = zip(*intervals[name], strict=True)
            axis.fill_between(x, low, high, color=colour, alpha=0.18, lw=0).set_gid(f"band-{number}")
    if log_x:
        axis.set_xscale("log")
    axis.grid(axis="y", color="#dddddd", lw=0.6)
    _finish(axis, title, x_label, y_label, per_cent, len(series))
    return _save(figure, path)


def _finish(axis: Any, title: str, x_label: str, y_label: str, per_cent: bool, series: int) -> None:
    from matplotlib.ticker import PercentFormatter

    if per_cent:
        low, high = axis.get_ylim()
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if high - low >= 0.1 else None))
    # A title or a name is the user's text: a dollar sign in it is not mathematics.
    axis.set_title(visible(title, TITLE), fontsize=10, parse_math=False)
    axis.set_xlabel(x_label, fontsize=9, parse_math=False)
    axis.set_ylabel(y_label, fontsize=9, parse_math=False)
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if series > 1:
        _plain(axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0))


def _plain(legend: Any) -> None:
    for text in legend.get_texts():
        text.set_parse_math(False)


def comparison(path: str | Path, figures: dict[str, Any]) -> Path:
    """Precision, recall and F1 of every method, with the paper's F1 where it has one."""
    plt = _pyplot()
    by_method = figures["methods"]
    names = [name for name, f in by_method.items() if "not_applicable" not in f]
    figure, axis = plt.subplots(figsize=(1.1 * len(names) + 2, 3.6))
    for offset, (key, shade) in enumerate((("precision", "#b3cde3"), ("recall", "#8c96c6"), ("f1", "#810f7c"))):
        at = [number + 0.26 * (offset - 1) for number in range(len(names))]
        heights = [by_method[name][key] for name in names]
        errors = [by_method[name][f"{key}_std"] for name in names]
        axis.bar(at, heights, 0.25, yerr=errors, color=shade, label="F1" if key == "f1" else key, error_kw={"lw": 0.8})
    paper = [
        (number + 0.26, by_method[name]["paper"]["f1"])
        for number, name in enumerate(names)
        if "paper" in by_method[name]
    ]
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
    # Not is_color_like: that takes an edge type called "b" or "0.5" for a colour.
    from matplotlib.colors import CSS4_COLORS

    return name.lower() in CSS4_COLORS


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise GraphMaskError("Expected matplotlib for figures. Try: pip install graphmask[methods]") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _save(figure: Any, path: str | Path) -> Path:
    import matplotlib
    import matplotlib.pyplot

    path = Path(path)
    kind = path.suffix.removeprefix(".").lower() or "png"
    # Without a fixed salt the names inside an SVG are random; dates and versions change bytes, too.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "graphmask"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata.get(kind), bbox_inches="tight")
    matplotlib.pyplot.close(figure)
    write_bytes(path, buffer.getvalue())
    return path
