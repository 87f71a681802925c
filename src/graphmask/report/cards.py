"""One explanation as a card of the page: what is shown of it, in words for the template and as data for the script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphmask.report import question as questions
from graphmask.report import question_drawing, sentence
from graphmask.report.colours import COLOURS, natural, style_of
from graphmask.report.example import KEPT, SILENT, Example
from graphmask.report.layout import Layout, bends, layout
from graphmask.report.wording import in_line

DRAW_ALL_EDGES_UP_TO = 400
DRAW_AT_MOST = 1500
TABLE_ROWS = 200
OUTPUT_VALUES = 8
DIGITS = 4  # of outputs
#: More edges per node than these hide each other: only the kept ones are drawn.
CROWDED = 12
LEGEND_TYPES = 24
LONGEST_SENTENCE = 400


@dataclass(frozen=True)
class _Shown:
    """Which edges and nodes of an example are drawn and listed; a large graph is not shown whole."""

    drawn: list[int]  #: edges, in the drawings
    tabled: list[int]  #: edges, in the table
    nodes: list[int]
    remarks: list[str]  #: what is left out, in words
    crowded: bool = False  #: of the edges, the graph view shows only kept ones


def card(example: Example, slots: dict[str, int]) -> dict[str, Any]:
    """What the template needs for one example; ``data`` in it is for the script."""
    sites, edges = range(len(example.sites)), range(len(example.edges))
    state = [[example.state(s, e) for s in sites] for e in edges]
    asked = None if example.question is None else _question(example, example.question, slots)
    shown = _choose(example, state, asked)
    every = sorted({*shown.drawn, *shown.tabled})
    types = sorted({example.edge_types[e] for e in every}, key=natural) if example.edge_types else []
    data = _data(example, shown, every, state, types, slots)
    remarks = shown.remarks
    if example.tokens is not None and len(example.tokens) <= LONGEST_SENTENCE:
        data["sentence"] = _sentence(example, shown.drawn, state)
    elif example.tokens is not None:
        remarks.append(f"No sentence view: {len(example.tokens):,} tokens are too many for a row.")
    whole = example.whole
    total = len(edges) if whole is None else whole.edges
    hidden = total - len(shown.tabled)
    return {
        "example": example,
        "data": data,
        "remarks": remarks,
        "legend": [(label, style_of(slots[label])) for label in types[:LEGEND_TYPES]],
        "more_types": max(0, len(types) - LEGEND_TYPES),
        "has_silent": any(SILENT in state[e] for e in shown.drawn),
        "table_note": f"The {TABLE_ROWS} highest scoring of {total:,} edges." if hidden else "",
        "messages": sum(map(sum, example.gated)) if whole is None else whole.messages,
        "kept": sum(row.count(KEPT) for row in state) if whole is None else whole.kept,
        "agreement": _agreement(example) if whole is None else whole.agreement,
        "bar": _tolerance_bar(example),
        # With names of candidates, numbers of outputs would say the same once more.
        "outputs": [] if example.question is not None and example.question.before else _outputs(example),
        "question": asked,
    }


def _choose(example: Example, state: Sequence[Sequence[int]], asked: dict[str, Any] | None) -> _Shown:
    """All of a small graph; of a large one the best edges, of a question what its drawing shows."""
    sites, edges = range(len(example.sites)), range(len(example.edges))
    best = [max((example.scores[s][e] for s in sites if example.gated[s][e]), default=0.0) for e in edges]
    by_score = sorted(edges, key=lambda e: (-best[e], e))
    remarks = []
    drawn, tabled = list(edges), list(edges)
    whole = example.whole
    if whole is not None or len(edges) > DRAW_ALL_EDGES_UP_TO:
        tabled = sorted(by_score[:TABLE_ROWS])
    if asked is not None:
        drawn = asked["drawing"].edges
    elif whole is not None or len(edges) > DRAW_ALL_EDGES_UP_TO:
        kept_edges = [e for e in by_score if KEPT in state[e]]
        drawn = sorted(kept_edges[:DRAW_AT_MOST]) if whole is None else whole.drawn
        remarks += _cut(example, len(kept_edges), len(drawn))
    crowded = asked is None and len(drawn) == len(edges) > CROWDED * example.num_nodes
    if crowded:
        remarks.append(
            f"The graph view shows only kept edges: there are {len(edges):,} between {example.num_nodes} nodes."
        )
    if not any(KEPT in row for row in state):
        remarks.append(
            "No edge is kept: within the tolerance, this output does not depend on any message."
            if example.faithful and len(edges)
            else "No edge is kept."
        )
    if asked is not None:
        nodes = sorted(pill.node for pill in asked["drawing"].pills)
    elif len(drawn) < len(edges):
        nodes = sorted({*example.asked, *(v for e in drawn for v in example.edges[e])})
    else:
        nodes = list(range(example.num_nodes))
    return _Shown(drawn, tabled, nodes, remarks, crowded)


def _cut(example: Example, kept: int, drawn: int) -> list[str]:
    """What a drawing leaves out, in words."""
    whole = example.whole
    edges, nodes, kept = (
        (len(example.edges), example.num_nodes, kept) if whole is None else (whole.edges, whole.nodes, whole.kept_edges)
    )
    of = f"{edges:,} edges" if whole is None else f"{edges:,} edges and {nodes:,} nodes"
    notes = [f"This graph has {of}: the drawings show only kept edges and their nodes."]
    if kept > drawn and example.asked:
        notes.append(
            f"Of {kept:,} kept edges {drawn:,} are drawn: those on paths to what was asked about, then those with the "
            "highest score. Paths are those of the edges that are drawn."
        )
    elif kept > drawn:
        notes.append(f"Of {kept:,} kept edges the {drawn:,} with the highest score are drawn.")
    return notes


def _data(
    example: Example,
    shown: _Shown,
    every: Sequence[int],
    state: Sequence[Sequence[int]],
    types: list[str],
    slots: dict[str, int],
) -> dict[str, Any]:
    """What the script draws from."""
    sites, nodes = range(len(example.sites)), shown.nodes
    labels = example.node_labels or example.tokens or [str(v) for v in range(example.num_nodes)]
    edges = [example.edges[e] for e in shown.drawn]
    molecule = example.molecule if len(nodes) == example.num_nodes else None
    longest = max((len(labels[v]) for v in nodes), default=1)
    arranged = layout(nodes, edges, longest) if molecule is None else molecule.layout(edges)
    bend = _bends(example, shown, state, arranged)
    rows = nodes
    if arranged.columns or len(nodes) > 24:
        # The drawing's order from top to bottom keeps lines short; small graphs keep their own (say, of words).
        rows = sorted(nodes, key=lambda v: (arranged.positions[v][1], arranged.positions[v][0], v))
    data: dict[str, Any] = {
        "sites": example.names,
        "box": [arranged.width, arranged.height, arranged.radius, arranged.columns],
        "nodes": [[v, *arranged.positions[v], labels[v], arranged.loop_angles.get(v, 0)] for v in nodes],
        "names": {v: labels[v] for v in sorted({v for e in every for v in example.edges[e]} - set(nodes))},
        "rows": rows,
        "types": [[label, style_of(slots[label]), slots[label] % len(COLOURS) == 6] for label in types],
        "edges": [
            [
                e,
                *example.edges[e],
                types.index(example.edge_types[e]) if example.edge_types else -1,
                bend.get(e),
                state[e],
                [round(example.scores[s][e], 4) for s in sites],
                [int(example.gold[s][e]) for s in sites] if example.gold else None,
            ]
            for e in every
        ],
        "table": shown.tabled,
        "paths": None if example.paths is None else {str(v): p for v, p in sorted(example.paths.items()) if p},
        "search": _search_text(example, types),
        # The last is larger than any right answer's, and smaller where the right answer is not known.
        "sort": [
            round(example.retained, 6),
            _finite(example.divergence),
            example.title.lower(),
            -1 if example.error is None else example.error,
        ],
    }
    if molecule is not None:
        data["bonds"] = [[*line[:4], int(line[4])] for line in molecule.lines()]
    return data | _sometimes(example, shown)


def _bends(example: Example, shown: _Shown, state: Sequence[Sequence[int]], arranged: Layout) -> dict[int, float]:
    """How each drawn edge bends, so that parallel ones lie beside each other; of a crowded graph only kept ones do."""
    bend = dict(zip(shown.drawn, arranged.bends, strict=True))
    if not shown.crowded:
        return bend
    kept = [e for e in shown.drawn if KEPT in state[e]]
    return dict.fromkeys(bend, 0.0) | dict(zip(kept, bends([example.edges[e] for e in kept]), strict=True))


def _sometimes(example: Example, shown: _Shown) -> dict[str, Any]:
    """Data that few examples have."""
    data: dict[str, Any] = {}
    if example.asked:
        data["asked"] = example.asked
    if example.whole is not None:
        data["numbers"] = {e: example.whole.numbers[e] for e in shown.tabled}
    if shown.crowded:
        data["crowded"] = 1
    if any(example.reverse):
        data["reverse"] = [int(value) for value in example.reverse]
    return data


def _sentence(example: Example, drawn: Sequence[int], state: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Two drawings: of the arcs with something kept, and of all. Dropped arcs would push the others apart."""
    assert example.tokens is not None
    kept_by = example.kept_sites()
    carrying = [e for e in drawn if max(state[e], default=SILENT) > SILENT]
    reverse = example.reverse or (False,) * len(example.sites)
    all_arcs = sentence.arcs(example.edges, carrying, kept_by, example.edge_types, reverse)

    def drawing(arcs: Sequence[sentence.Arc]) -> dict[str, Any]:
        plan = sentence.layout(example.tokens or (), arcs, example.roles)
        return {
            "box": [plan.width, plan.height, plan.base],
            "words": plan.words,
            "arcs": [[p.arc.edges, p.left, p.right, p.top, p.label, p.arc.text] for p in plan.arcs],
            "roles": plan.roles,
        }

    some = [arc for arc in all_arcs if arc.kept]
    return {
        "words": example.tokens,
        "predicate": example.predicate,
        "kept": drawing(some),
        "all": drawing(all_arcs) if len(some) < len(all_arcs) else None,
    }


def _question(example: Example, asked: questions.Question, slots: dict[str, int]) -> dict[str, Any]:
    drawing = question_drawing.draw(asked, example.messages(), len(example.sites))
    chips, more_chips = questions.chips(asked)
    passages, more_passages = questions.passages(asked, [pill.node for pill in drawing.pills])
    return {
        "query": asked.query,
        "chips": chips,
        "more_chips": more_chips,
        "drawing": drawing,
        "counts": questions.counts(asked, example.edges, example.edge_types, example.kept, example.gated),
        "styles": {label: style_of(slots[label]) for label in {*(example.edge_types or ())}},
        "passages": passages,
        "more_passages": more_passages,
    }


def _search_text(example: Example, types: Sequence[str]) -> str:
    """Each text once: a graph may have hundreds of nodes of the same name."""
    roles = [label for _, _, label in example.roles]
    texts = [example.title, *example.notes, *(example.node_labels or ()), *(example.tokens or ()), *types, *roles]
    if example.question is not None:
        texts += [example.question.query, *example.question.candidates]
    return "\n".join(dict.fromkeys(text.lower() for text in texts))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tolerance_bar(example: Example) -> dict[str, float]:
    """Percentages on a scale where the tolerance sits at 60, unless the divergence is so large it would not fit."""
    divergence = example.divergence if math.isfinite(example.divergence) else math.inf
    scale = max(example.tolerance / 0.6, min(divergence, example.tolerance * 8) * 1.04) or 1.0
    return {
        "fill": round(100 * min(1.0, max(0.0, divergence) / scale), 2),
        "tick": round(100 * example.tolerance / scale, 2),
    }


def _outputs(example: Example) -> list[dict[str, Any]]:
    pairs = list(zip(example.original, example.masked, strict=False))[:OUTPUT_VALUES]
    finite = [v for pair in pairs for v in pair if math.isfinite(v)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    span = (high - low) or 1.0

    def bar(value: float) -> tuple[float, float]:
        end = value if math.isfinite(value) else 0.0
        return round(100 * (min(end, 0) - low) / span, 2), round(100 * abs(end) / span, 2)

    zero = round(-100 * low / span, 2)
    decimals = DIGITS - 1 - math.floor(math.log10(max(high, -low) or 1.0))  # of the largest value, for all
    texts = in_line([round(v, decimals) if math.isfinite(v) else v for pair in pairs for v in pair])
    numbers = ["value"] if len(example.original) == 1 else [str(number) for number in range(len(pairs))]
    names = example.class_names if len(example.class_names) >= len(example.original) else numbers
    return [
        {"name": name, "before": before, "after": after, "bars": (bar(a), bar(b)), "zero": zero}
        for (a, b), before, after, name in zip(pairs, texts[::2], texts[1::2], names, strict=False)
    ]


def _agreement(example: Example) -> str:
    """How the kept messages compare with the known right answer, in words."""
    if example.gold is None:
        return ""
    pairs = [
        (g, k)
        for gold, kept, gated in zip(example.gold, example.kept, example.gated, strict=True)
        for g, k, carries in zip(gold, kept, gated, strict=True)
        if carries
    ]
    right, kept = sum(g for g, _ in pairs), sum(g and k for g, k in pairs)
    return agreement(right, kept, sum(k and not g for g, k in pairs))


def agreement(right: int, kept: int, others: int) -> str:
    """How many right messages are kept, and how many others, in words."""
    return f"{kept} of {right} right messages kept, and {others or 'no'} {'other' if others == 1 else 'others'}"
