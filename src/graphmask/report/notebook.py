"""An explanation as a notebook shows it: a card without scripts, styles of other cells or ids."""

from __future__ import annotations

import math
from html import escape as escape_markup

from graphmask.explanation import Explanation
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.report import metadata, part
from graphmask.report import molecule as molecules
from graphmask.report.layout import Layout, layout
from graphmask.report.molecule import Molecule
from graphmask.texts import visible


def escape(text: str) -> str:
    return escape_markup(visible(text))


#: A card is a glance: the page of `to_html` has the rest.
ALL_EDGES_UP_TO, AT_MOST, NAMED_NODES, LAYERS, LONGEST = 120, 120, 40, 12, 40
#: Molecules are drawn whole up to here: bonds lie side by side, and are two edges each.
LARGEST_MOLECULE = 400
KEPT, DROPPED, ASKED = "#0072b2", "#8a8f96", "#d55e00"


def card(explanation: Explanation) -> str:
    """HTML that stands by itself; text of the user's is escaped, colours suit light and dark notebooks."""
    heading = metadata.heading(explanation) or metadata.read_title(explanation) or "Explanation"
    if isinstance(explanation, HeteroExplanation):
        explanation = explanation.by_layer()
    kept, carried = int(explanation.kept.sum()), int(explanation.carried.sum())
    rows = "".join(
        _bar(name, int(k), int(c))
        for name, k, c in list(
            zip(explanation.site_titles, explanation.kept.sum(1), explanation.carried.sum(1), strict=True)
        )[:LAYERS]
    )
    if (features := explanation.features) is not None:
        rows = _bar(features.attribute, int(features.kept.sum()), int(features.carried.sum())) + rows
    more = len(explanation.sites) - LAYERS
    if more > 0:
        rows += f'<tr><td colspan="3" style="text-align:left">and {more} more layers</td></tr>'
    drawn = molecules.of(explanation)
    limit = ALL_EDGES_UP_TO if drawn is None else LARGEST_MOLECULE
    shown = part.of(explanation, all_up_to=limit, at_most=AT_MOST)
    note = ""
    if not shown.whole:
        note = (
            f"Drawn: {shown.drawn:,} of {shown.kept_edges:,} kept edges; the graph has {shown.total_edges:,} edges "
            f"and {shown.total_nodes:,} nodes."
        )
    good = explanation.faithful and explanation.same_prediction
    return (
        '<div style="font:14px/1.45 system-ui,sans-serif;max-width:46em;border:1px solid #8888;border-radius:8px;'
        'padding:.7em 1em;margin:.4em 0">'
        f'<div style="font-weight:600">{escape(heading)}</div>'
        f"<div>{kept:,} of {carried:,} messages kept.</div>"
        f'<div style="border-left:3px solid {"#009e73" if good else ASKED};padding-left:.5em;margin:.3em 0">'
        f"{escape(explanation.certificate)}</div>"
        '<div style="display:flex;flex-wrap:wrap;gap:1.2em;align-items:center">'
        f'<table style="border-collapse:collapse;font-size:13px;color:inherit"><tbody>{rows}</tbody></table>'
        f"{_picture(shown, drawn)}</div>"
        + (f'<div style="opacity:.75;font-size:12px">{escape(note)}</div>' if note else "")
        + "</div>"
    )


def _bar(name: str, kept: int, carried: int) -> str:
    width = 100 * kept / max(carried, 1)
    return (
        f'<tr><td style="text-align:left;padding:1px 8px 1px 0">{escape(name)}</td>'
        '<td style="padding:1px 8px 1px 0"><div style="width:90px;height:6px;border-radius:3px;background:#8883">'
        f'<div style="width:{width:.1f}%;height:6px;border-radius:3px;background:{KEPT}"></div></div></td>'
        f'<td style="text-align:right;white-space:nowrap">{kept:,} of {carried:,}</td></tr>'
    )


def _picture(shown: part.Part, molecule: Molecule | None) -> str:
    some = shown.explanation
    if not some.num_nodes or (not shown.edges and not shown.asked):
        return ""
    molecule = molecule if shown.whole else None
    labels = molecules.names(metadata.labels(some).nodes, molecule)
    names = [visible(name) for name in labels] if labels else [str(number) for number in shown.nodes]
    edges = [(int(u), int(v)) for u, v in some.edge_index.t().tolist()]
    if molecule is None:
        arranged = layout(range(some.num_nodes), edges, min(max(map(len, names), default=1), LONGEST))
    else:
        arranged = molecule.layout(edges)
    kept, carried = some.kept.any(0).tolist(), some.carried.any(0).tolist()
    reverse = bool(some.structure) and all(site.reverse for site in some.structure)
    lines = [] if molecule is None else [_bond(*line) for line in molecule.lines()]
    for edge in sorted(range(len(edges)), key=lambda e: kept[e]):
        if not (kept[edge] or carried[edge]):
            continue
        ends = edges[edge][::-1] if reverse else edges[edge]
        (x0, y0), (x1, y1) = (arranged.positions[v] for v in ends)
        lines.append(_line(x0, y0, x1, y1, arranged.radius, arranged.bends[edge] * (-1 if reverse else 1), kept[edge]))
    dots, xs = [], [arranged.positions[node][0] for node in range(len(names))]
    for node, name in enumerate(names):
        x, y = arranged.positions[node]
        ring = f'stroke="{ASKED}" stroke-width="3.5"' if node in shown.asked else 'stroke="currentColor"'
        dots.append(f'<circle cx="{x}" cy="{y}" r="{arranged.radius:.1f}" fill="#8883" {ring}/>')
        if len(names) <= NAMED_NODES or node in shown.asked:
            dots.append(_name(name, x, y, arranged, xs))
    width, height = arranged.width, arranged.height
    return (
        f'<svg role="img" aria-label="graph with kept edges" viewBox="0 0 {width} {height}" '
        f'style="width:min(100%,{min(width, 420):.0f}px);max-height:440px">{"".join(lines)}{"".join(dots)}</svg>'
    )


def _name(name: str, x: float, y: float, arranged: Layout, xs: list[float]) -> str:
    """Inside its node, below it or, at the ends of a drawing in columns, beside it."""
    anchor, at, down = "middle", x, 4.0 if arranged.radius > 12 else arranged.radius + 11
    if arranged.columns and arranged.radius <= 12 and x in (min(xs), max(xs)):
        first = x == min(xs)
        anchor, at, down = "end" if first else "start", x + (-1 if first else 1) * (arranged.radius + 4), 4.0
    text = escape(name if len(name) <= 14 else name[:13] + "…")
    return (
        f'<text x="{at:.1f}" y="{y + down:.1f}" font-size="11" text-anchor="{anchor}" fill="currentColor">{text}</text>'
    )


def _bond(x0: float, y0: float, x1: float, y1: float, dashed: bool) -> str:
    style = ' stroke-dasharray="4 4"' if dashed else ""
    return f'<path d="M{x0} {y0}L{x1} {y1}" fill="none" stroke="{DROPPED}" stroke-width="1.4"{style}/>'


def _line(x0: float, y0: float, x1: float, y1: float, radius: float, bend: float, kept: bool) -> str:
    style = f'stroke="{KEPT}" stroke-width="2.6"' if kept else f'stroke="{DROPPED}" stroke-dasharray="2 4"'
    length = math.hypot(x1 - x0, y1 - y0)
    if length < 1e-6:
        reach = radius * 2.2 + 4 * bend
        return (
            f'<path d="M{x0 - radius:.1f} {y0:.1f}C{x0 - reach:.1f} {y0 - 2 * reach:.1f} {x0 + reach:.1f} '
            f'{y0 - 2 * reach:.1f} {x0 + radius:.1f} {y0:.1f}" fill="none" {style}/>'
        )
    along, across = ((x1 - x0) / length, (y1 - y0) / length), (-(y1 - y0) / length, (x1 - x0) / length)
    side = bend * min(22.0, 0.25 * length)
    mx, my = (x0 + x1) / 2 + across[0] * side, (y0 + y1) / 2 + across[1] * side
    sx, sy = x0 + along[0] * radius, y0 + along[1] * radius
    ex, ey = x1 - along[0] * (radius + 2), y1 - along[1] * (radius + 2)
    head = ""
    if kept:
        tips = [(ex - 8 * along[0] + s * 4 * across[0], ey - 8 * along[1] + s * 4 * across[1]) for s in (1, -1)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(ex, ey), *tips])
        head = f'<polygon points="{corners}" fill="{KEPT}"/>'
    return f'<path d="M{sx:.1f} {sy:.1f}Q{mx:.1f} {my:.1f} {ex:.1f} {ey:.1f}" fill="none" {style}/>{head}'
