"""Pictures in matplotlib: an explanation on one pair of axes, and how a fit went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.fitting.history import History
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.report import metadata, part
from graphmask.report import molecule as molecules
from graphmask.report.figures import DASHES, MARKERS, PALETTE, arrow
from graphmask.report.layout import layout
from graphmask.report.molecule import Molecule
from graphmask.texts import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: More edges than these are not drawn whole: only kept ones are, the highest scores first, and so many at most.
ALL_EDGES_UP_TO, AT_MOST = 200, 300
#: With more nodes, names would lie on top of each other.
NAMED_NODES = 60
#: A longer name takes no more room.
LONGEST = 60


def axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The given axes or those of a new figure, in whatever backend the user has chosen."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot
    except ImportError:
        raise GraphMaskError("Expected matplotlib for pictures. Try: pip install graphmask[plot]") from None
    return matplotlib.pyplot.subplots(figsize=size, layout="constrained")[1]


def layer_number(explanation: Explanation, layer: int | str) -> int:
    """Of a layer by number (from the end if negative) or by name."""
    names = explanation.sites
    for known in (names, explanation.site_titles):
        if isinstance(layer, str) and layer in known:
            return known.index(layer)
    if not isinstance(layer, str) and -len(names) <= layer < len(names):
        return int(layer) % len(names)
    raise GraphMaskError(f"Expected a layer among {', '.join(names)}, or 0 to {len(names) - 1}, got {layer!r}.")


def plot(
    explanation: Explanation,
    ax: Axes | None = None,
    layer: int | str | None = None,
    node_labels: Sequence[str] | None = None,
    molecule: Any = None,
) -> Axes:
    """See `Explanation.plot`."""
    drawn = molecules.of(explanation, molecule)
    labels = molecules.names(metadata.labels(explanation, node_labels).nodes, drawn)
    if isinstance(explanation, HeteroExplanation):
        explanation = explanation.by_layer()
    at = None if layer is None else layer_number(explanation, layer)
    ax = axes(ax, (6.4, 5.2))
    limit = ALL_EDGES_UP_TO if drawn is None else explanation.edge_index.shape[1]
    shown = part.of(explanation, all_up_to=limit, at_most=AT_MOST)
    some = shown.explanation
    names = [visible(labels[number]) if labels else str(number) for number in shown.nodes]
    edges = [(int(u), int(v)) for u, v in some.edge_index.t().tolist()]
    if drawn is None:
        arranged = layout(range(some.num_nodes), edges, min(max(map(len, names), default=1), LONGEST))
    else:
        arranged = drawn.layout(edges)
        _bonds(ax, drawn)
    handles = _edges(ax, some, arranged, at)
    _nodes(ax, arranged, names, shown.asked, at_most=NAMED_NODES, inside=drawn is not None)
    ax.set_axis_off()
    ax.set_aspect("equal")
    # The drawing's own box: nodes in one line would otherwise leave axes without a width, which hide them.
    ax.set_xlim(0, arranged.width)
    ax.set_ylim(arranged.height, 0)
    ax.set_title(_title(explanation, shown, at), fontsize=9.5, parse_math=False)
    if handles:
        legend = ax.legend(handles=handles, fontsize=8, frameon=False, loc="upper center", ncols=min(len(handles), 4),
                           bbox_to_anchor=(0.5, 0.0))  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
    return ax


def _title(explanation: Explanation, shown: part.Part, layer: int | None) -> str:
    rows = slice(None) if layer is None else slice(layer, layer + 1)
    kept, carried = int(explanation.kept[rows].sum()), int(explanation.carried[rows].sum())
    where = "" if layer is None else f" at {explanation.site_titles[layer]}"
    lines = [f"{kept:,} of {carried:,} messages kept{where}", explanation.certificate]
    if heading := metadata.heading(explanation):
        lines.insert(0, heading)
    if not shown.whole:
        lines.append(
            f"{shown.drawn:,} of {shown.kept_edges:,} kept edges are drawn; "
            f"the graph has {shown.total_edges:,} edges and {shown.total_nodes:,} nodes"
        )
    return "\n".join(lines)


def _edges(ax: Axes, some: Explanation, arranged: Any, layer: int | None) -> list[Any]:
    """Draws them; returns what the legend needs. Colours tell which layers keep an edge or, of one layer, its type."""
    from matplotlib.lines import Line2D

    kinds, titles = metadata.read(some).edge_labels, some.site_titles
    sites = range(len(some.sites)) if layer is None else [layer]
    groups: dict[str, str] = {}
    dropped = False
    fates = []
    for edge in range(some.edge_index.shape[1]):
        by = [site for site in sites if bool(some.kept[site, edge])]
        if by:
            name = kinds[edge] if layer is not None and kinds else " and ".join(titles[site] for site in by)
            fates.append((edge, by, name))
        elif any(bool(some.carried[site, edge]) for site in sites):
            fates.append((edge, [], ""))
            dropped = True
    for name in sorted({name for _, by, name in fates if by}):
        groups[name] = PALETTE[len(groups) % len(PALETTE)]
    for edge, by, name in sorted(fates, key=lambda fate: bool(fate[1])):  # kept ones on top
        site = by[-1] if by else next(site for site in sites if bool(some.carried[site, edge]))
        arrow(ax, some, site, edge, arranged, groups.get(name, "#8a8f96"), f"plot-{edge}")
    handles = [
        Line2D([], [], color=colour, label=f"kept, {visible(name, LONGEST)}")
        for name, colour in list(groups.items())[:7]
    ]
    if dropped:
        handles.append(Line2D([], [], color="#8a8f96", ls=":", label="dropped"))
    return handles


def _bonds(ax: Axes, molecule: Molecule) -> None:
    """The molecule itself, behind what is kept of it."""
    for number, (x0, y0, x1, y1, dashed) in enumerate(molecule.lines()):
        (line,) = ax.plot([x0, x1], [y0, y1], color="#8a8f96", lw=1.1, ls=(0, (4, 3)) if dashed else "-", zorder=0.5)
        line.set_gid(f"bond-{number}")


def _nodes(
    ax: Axes, arranged: Any, names: Sequence[str], asked: Sequence[int], at_most: int, inside: bool = False
) -> None:
    """Circles with names below them, or ``inside`` them where they are symbols of atoms."""
    if not names:
        return
    from matplotlib.patheffects import withStroke

    clear = [withStroke(linewidth=2.5, foreground="white")]  # a name that an edge crosses stays readable
    xs, ys = zip(*(arranged.positions[node] for node in range(len(names))), strict=True)
    size = 170 if inside else 60 if len(names) <= 30 else 30 if len(names) <= 80 else 12
    ax.scatter(xs, ys, s=size, c="white", edgecolors="#555555", zorder=3)
    for node in asked:
        marked = ax.scatter(
            [xs[node]], [ys[node]], s=3.2 * size, facecolors="none", edgecolors="#d55e00", lw=2, zorder=4
        )
        marked.set_gid(f"asked-{node}")
    for node, name in enumerate(names):
        if inside:
            ax.annotate(name, (xs[node], ys[node]), fontsize=7.5, ha="center", va="center", zorder=5, parse_math=False)
        elif len(names) <= at_most or node in asked:
            # In columns, names of the first and the last stand beside their nodes: below, they would touch.
            side = ("right", -7) if arranged.columns and xs[node] == min(xs) else ("left", 7)
            beside = arranged.columns and xs[node] in (min(xs), max(xs))
            ax.annotate(name if len(name) <= 14 else name[:13] + "…", (xs[node], ys[node]),
                        xytext=(side[1], 0) if beside else (0, -6), textcoords="offset points", fontsize=7.5, zorder=5,
                        ha=side[0] if beside else "center", va="center" if beside else "top",
                        path_effects=clear, parse_math=False)  # fmt: skip


def plot_history(history: History, ax: Axes | None = None) -> Axes:
    """See `History.plot`."""
    if not history.epochs:
        raise GraphMaskError("Expected the history of a fit that was judged on the way, found none. Call fit() first.")
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    ax = axes(ax, (6.4, 3.8))
    at = list(range(1, len(history.epochs) + 1))
    for site, shares in enumerate(zip(*(epoch.verdict.retained for epoch in history.epochs), strict=True)):
        name = history.names[site] if site < len(history.names) else f"layer {site}"
        (line,) = ax.plot(at, shares, color=PALETTE[site % len(PALETTE)], marker=MARKERS[site % len(MARKERS)], ms=4)
        line.set_label(f"kept, {name}")
    ax.set_ylim(0, 1.02)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel("verdict on hard gates, in the order of the fit", fontsize=9)
    ax.set_ylabel("messages kept", fontsize=9)
    right = ax.twinx()
    right.plot(
        at, [epoch.verdict.divergence for epoch in history.epochs], color="#222222", ls=DASHES[1], label="divergence"
    )
    right.axhline(history.tolerance, color="#222222", lw=1, ls=":", label=f"tolerance {history.tolerance:.3g}")
    right.set_ylim(0, 1.1 * max(history.tolerance, *(epoch.verdict.divergence for epoch in history.epochs)))
    right.set_ylabel("divergence", fontsize=9)
    handles = [*ax.get_lines(), *right.get_lines()]
    legend = ax.legend(
        handles=handles, fontsize=8, frameon=False, loc="upper center", ncols=3, bbox_to_anchor=(0.5, -0.16)
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    ax.set_title(history.outcome, fontsize=9.5, parse_math=False)
    return ax
