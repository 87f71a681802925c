"""One HTML file that shows explanations: verdict, certificate, sentence, graph, unrolled layers, edge table.

The file is complete in itself (no network, CSS and JavaScript inlined) and the same input gives the same bytes.
Words and numbers are rendered here and are readable without JavaScript; the drawings are made by ``page.js`` from
the JSON this module embeds. Nothing in here needs torch, so a saved explanation can be shown anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphmask.errors import GraphMaskError
from graphmask.files import write_bytes
from graphmask.report import question as questions
from graphmask.report import question_drawing, sentence
from graphmask.report.layout import layout

DRAW_ALL_EDGES_UP_TO = 400
DRAW_AT_MOST = 1500
TABLE_ROWS = 200
OUTPUT_VALUES = 8
LEGEND_TYPES = 24
LONGEST_SENTENCE = 400

# Okabe and Ito's palette, in the order page.css declares it (.c0 ... .c7).
COLOURS = ("blue", "vermillion", "green", "orange", "sky", "purple", "yellow", "ink")
# A type that is called after a colour is drawn in that colour: a "red" edge in blue would be a Stroop test.
COLOUR_WORDS = {
    "blue": 0, "red": 1, "vermillion": 1, "green": 2, "orange": 3, "sky": 4, "cyan": 4, "purple": 5, "pink": 5,
    "magenta": 5, "violet": 5, "yellow": 6, "black": 7, "grey": 7, "gray": 7, "white": 7,
}  # fmt: skip
DASHES = 3  # after eight types colours come back with another dash

KEPT, DROPPED, SILENT = 2, 1, 0
NUMERIC = re.compile(r"[<>]? ?[-+\N{MINUS SIGN}]?\d[\d,]*(\.\d+)? ?%?")  # a number somebody has written already
MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike the hyphen


@dataclass(frozen=True)
class Table:
    """A small table under the verdict, with a sentence on how to read it and a picture (SVG or PNG) if there are."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    note: str = ""
    figure: bytes | None = None


@dataclass(frozen=True)
class Whole:
    """What a graph is of which an `Example` shows a part. Counts are of the whole graph."""

    nodes: int
    edges: int
    kept_edges: int  # kept at some site
    messages: int
    kept: int  # messages
    numbers: list[int]  # of the example's edges, in the whole graph
    drawn: list[int]  # which of the example's edges are drawn; the others are in the table
    gold: Any = None  # [L, E] of the example's edges
    agreement: str = ""  # with the right answer


@dataclass(frozen=True)
class Example:
    """One explanation in plain Python. ``L`` sites, ``E`` edges."""

    title: str
    sites: tuple[str, ...]  # input side first
    num_nodes: int
    edges: list[tuple[int, int]]  # [E] (source, target); self-loops and duplicates are fine
    kept: list[list[bool]]  # [L][E]
    scores: list[list[float]]  # [L][E] in 0..1
    gated: list[list[bool]]  # [L][E] False where the edge carries no message at that site
    edge_types: list[str] | None  # [E]
    node_labels: list[str] | None  # [V]
    gold: list[list[bool]] | None  # [L][E] the known right answer, when there is one
    retained: float
    divergence: float
    tolerance: float
    faithful: bool
    same_prediction: bool | None
    original: list[float]
    masked: list[float]
    notes: list[str]
    paths: dict[int, list[list[tuple[int, int]]]] | None  # node -> paths of (site, edge) hops that end in it
    reverse: tuple[bool, ...] = ()  # [L] True where messages run from the target of an edge to its source
    tokens: list[str] | None = None  # [V] words of a sentence, in order
    roles: tuple[sentence.Role, ...] = ()
    predicate: int | None = None  # number of a token
    question: questions.Question | None = None  # node i is its mention i
    label: str | None = None
    predicted: str | None = None
    error: float | None = None  # share of output rows where they differ; None when not known
    asked: tuple[int, ...] = ()  # nodes that the explanation is about; none where it is about the graph
    whole: Whole | None = None  # None where this is all of it
    class_names: tuple[str, ...] = ()  # of the outputs, where there is one row of them

    def __post_init__(self) -> None:
        grids: dict[str, list[Any] | None] = {"kept": self.kept, "scores": self.scores, "gated": self.gated}
        for name, grid in {**grids, "gold": self.gold}.items():
            if grid is not None and [len(row) for row in grid] != [len(self.edges)] * len(self.sites):
                raise GraphMaskError(
                    f"Expected {name} of shape [{len(self.sites)}][{len(self.edges)}], got rows of "
                    f"{[len(row) for row in grid]}. Hint: one row per site, one value per edge."
                )
        if any(not 0 <= v < self.num_nodes for edge in self.edges for v in edge):
            raise GraphMaskError(f"Expected nodes 0..{self.num_nodes - 1} in edges, got one outside.")
        if any(not math.isfinite(score) for row in self.scores for score in row):
            raise GraphMaskError("Expected finite scores, got NaN or infinity. Hint: scores are probabilities.")
        sizes: tuple[tuple[Sequence[Any] | None, str, int], ...] = (
            (self.edge_types, "edge_types", len(self.edges)),
            (self.node_labels, "node_labels", self.num_nodes),
            (self.tokens, "tokens", self.num_nodes),
            (self.reverse or None, "values of reverse", len(self.sites)),
        )
        for labels, name, size in sizes:
            if labels is not None and len(labels) != size:
                raise GraphMaskError(f"Expected {size} {name}, got {len(labels)}.")
        words = range(len(self.tokens or ()))
        if any(not 0 <= start < end <= len(words) for start, end, _ in self.roles):
            raise GraphMaskError(f"Expected roles with 0 <= start < end <= {len(words)} tokens, got {self.roles}.")
        if self.predicate is not None and self.predicate not in words:
            raise GraphMaskError(f"Expected a predicate among {len(words)} tokens, got {self.predicate}.")
        if self.question is not None and len(self.question.mentions) > self.num_nodes:
            raise GraphMaskError(f"Expected at most {self.num_nodes} mentions, got {len(self.question.mentions)}.")

    def state(self, site: int, edge: int) -> int:
        if not self.gated[site][edge]:
            return SILENT
        return KEPT if self.kept[site][edge] else DROPPED

    def kept_sites(self) -> list[list[int]]:
        """Per edge, the sites that keep it."""
        found: list[list[int]] = [[] for _ in self.edges]
        for site, rows in enumerate(zip(self.kept, self.gated, strict=True)):
            for edge, both in enumerate(zip(*rows, strict=True)):
                if all(both):
                    found[edge].append(site)
        return found

    def messages(self) -> list[questions.Message]:
        """What is kept between the mentions of the question, the most telling first."""
        if self.question is None:
            return []
        reverse = self.reverse or (False,) * len(self.sites)
        return questions.messages(self.question, self.edges, self.edge_types, self.kept_sites(), self.scores, reverse)


def render(
    examples: Sequence[Example],
    *,
    title: str,
    verdict: str,
    tables: Sequence[Table] = (),
    charts: Sequence[Any] = (),
    figures: Sequence[tuple[str, str]] | None = None,
    contents: bool = False,
    remark: str = "",
) -> str:
    """The complete HTML document.

    ``charts`` (see :mod:`graphmask.report.charts`) stand at the top, each folds out into its table; where there are
    any, ``tables`` follow the examples. ``figures`` are (number, what it is) for the top, by default over the examples;
    with ``contents`` there are links to the sections; ``remark`` stands above the examples.
    """
    slots = type_slots(label for example in examples for label in example.edge_types or ())
    cards = [_card(example, slots) for example in examples]
    here = Path(__file__).parent
    script = (here / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, lean=_lean)
    return environment.get_template("page.html.jinja").render(
        title=title,
        verdict=verdict,
        tables=[_aligned(number, table) for number, table in enumerate(tables, start=len(charts))],
        charts=[(chart, _aligned(number, chart.table)) for number, chart in enumerate(charts)],
        cards=cards,
        figures=_figures(examples) if figures is None else figures,
        contents=contents and bool(tables or charts),
        remark=remark,
        any_error=any(example.error is not None for example in examples),
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data=_embed([card["data"] for card in cards]),
    )


def write(path: str | Path, html: str) -> None:
    """A reader sees the old page or the new one, never half of one."""
    # A lone surrogate in a label cannot be encoded; a question mark in its place can.
    write_bytes(path, html.encode("utf-8", errors="replace"))


def number(value: str | float) -> str:
    """A number as a person would write it; text stays as it is."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else MINUS + "∞"
    if value == int(value) and abs(value) < 1e9 and (isinstance(value, int) or abs(value) >= 1000):
        text = f"{int(value):,}"
    else:
        text = f"{value + 0.0:.3g}"  # turns -0.0 into 0
    return text.replace("-", MINUS) if re.fullmatch(r"[-\d.,]+", text) else text


def in_line(values: Sequence[str | float]) -> list[str]:
    """Numbers as text with the same decimals, so that they can be compared at a glance."""
    texts = [f"{v:.4g}" for v in values if not isinstance(v, str) and math.isfinite(v)]
    if not any("." in text for text in texts) or any("e" in text for text in texts):
        return [number(v) for v in values]
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [
        number(v) if isinstance(v, str) or not math.isfinite(v) else f"{v:,.{decimals}f}".replace("-", MINUS)
        for v in values
    ]


def _aligned(place: int, table: Table) -> dict[str, Any]:
    columns = list(zip(*table.rows, strict=True))
    numeric = [
        any(not isinstance(v, str) for v in column) or all(NUMERIC.fullmatch(str(v)) for v in column)
        for column in columns
    ]
    slug = re.sub(r"[^a-z0-9]+", "-", table.caption.lower()).strip("-")[:40]
    return {
        "anchor": f"section-{place}-{slug}".rstrip("-"),  # with its number, because captions may be alike
        "caption": table.caption,
        "note": table.note,
        "figure": _data_address(table.figure) if table.figure else None,
        "header": list(zip(table.header, numeric or [False] * len(table.header), strict=True)),
        "rows": [list(zip(row, numeric, strict=True)) for row in zip(*map(in_line, columns), strict=True)],
    }


def _data_address(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "svg+xml"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def percent(value: float) -> str:
    if not math.isfinite(value):
        return number(value)
    if 0 < value < 0.0005 or 0.9995 <= value < 1:  # rounding must not claim all or nothing
        return "< 0.1%" if value < 0.5 else "> 99.9%"
    return f"{value:.{0 if value in (0, 1) else 1}%}"


def type_slots(labels: Iterable[str]) -> dict[str, int]:
    """Colour and dash of every edge type, the same on all cards: slot % 8 is the colour, slot // 8 the dash."""
    ordered = sorted(set(labels), key=_natural)
    taken: dict[str, int] = {}
    for label in ordered:
        words = re.findall(r"[a-z]+", label.lower())
        wanted = next((COLOUR_WORDS[word] for word in words if word in COLOUR_WORDS), None)
        if wanted is not None and wanted not in taken.values():
            taken[label] = wanted
    free = (slot for slot in range(len(ordered) + len(COLOURS)) if slot not in set(taken.values()))
    return {label: taken[label] if label in taken else next(free) for label in ordered}


def _natural(label: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts "type 2" before "type 10"."""
    return [(int(n) if n else -1, t) for n, t in re.findall(r"(\d{1,18})|(\D+)", label)], label


def _style_of(slot: int) -> str:
    return f"c{slot % len(COLOURS)} d{slot // len(COLOURS) % DASHES}"


def _lean(html: str) -> Markup:
    """Without indentation, a quarter of the markup of a card."""
    return Markup(re.sub(r"\n\s+", "\n", html))


def _embed(data: object) -> Markup:
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no label can end the script element or begin a comment
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _card(example: Example, slots: dict[str, int]) -> dict[str, Any]:
    sites, edges = range(len(example.sites)), range(len(example.edges))
    best = [max((example.scores[s][e] for s in sites if example.gated[s][e]), default=0.0) for e in edges]
    by_score = sorted(edges, key=lambda e: (-best[e], e))
    state = [[example.state(s, e) for s in sites] for e in edges]
    remarks = []
    drawn, tabled = list(edges), list(edges)
    asked = None if example.question is None else _question(example, example.question, slots)
    whole = example.whole
    if whole is not None or len(edges) > DRAW_ALL_EDGES_UP_TO:
        tabled = sorted(by_score[:TABLE_ROWS])
    if asked is not None:
        drawn = asked["drawing"].edges
    elif whole is not None or len(edges) > DRAW_ALL_EDGES_UP_TO:
        kept = [e for e in by_score if KEPT in state[e]]
        drawn = sorted(kept[:DRAW_AT_MOST]) if whole is None else whole.drawn
        remarks += _cut(example, len(kept), len(drawn))
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
    labels = example.node_labels or example.tokens or [str(v) for v in range(example.num_nodes)]
    place = layout(nodes, [example.edges[e] for e in drawn], max((len(labels[v]) for v in nodes), default=1))
    bend = dict(zip(drawn, place.bends, strict=True))
    shown = sorted({*drawn, *tabled})
    types = sorted({example.edge_types[e] for e in shown}, key=_natural) if example.edge_types else []
    rows = nodes
    if place.columns or len(nodes) > 24:
        # The drawing's order from top to bottom keeps lines short; small graphs keep their own (say, of words).
        rows = sorted(nodes, key=lambda v: (place.positions[v][1], place.positions[v][0], v))
    data: dict[str, Any] = {
        "sites": example.sites,
        "box": [place.width, place.height, place.radius, place.columns],
        "nodes": [[v, *place.positions[v], labels[v], place.loop_angles.get(v, 0)] for v in nodes],
        "names": {v: labels[v] for v in sorted({v for e in shown for v in example.edges[e]} - set(nodes))},
        "rows": rows,
        "types": [[label, _style_of(slots[label]), slots[label] % len(COLOURS) == 6] for label in types],
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
            for e in shown
        ],
        "table": tabled,
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
    if example.asked:
        data["asked"] = example.asked
    if whole is not None:
        data["numbers"] = {e: whole.numbers[e] for e in tabled}
    if any(example.reverse):
        data["reverse"] = [int(value) for value in example.reverse]
    if example.tokens is not None and len(example.tokens) <= LONGEST_SENTENCE:
        data["sentence"] = _sentence(example, drawn, state)
    elif example.tokens is not None:
        remarks.append(f"No sentence view: {len(example.tokens):,} tokens are too many for a row.")
    total = len(edges) if whole is None else whole.edges
    hidden = total - len(tabled)
    return {
        "example": example,
        "data": data,
        "remarks": remarks,
        "legend": [(label, _style_of(slots[label])) for label in types[:LEGEND_TYPES]],
        "more_types": max(0, len(types) - LEGEND_TYPES),
        "has_silent": any(SILENT in state[e] for e in drawn),
        "table_note": f"The {TABLE_ROWS} highest scoring of {total:,} edges." if hidden else "",
        "messages": sum(map(sum, example.gated)) if whole is None else whole.messages,
        "kept": sum(row.count(KEPT) for row in state) if whole is None else whole.kept,
        "agreement": _agreement(example) if whole is None else whole.agreement,
        "bar": _tolerance_bar(example),
        # With names of candidates, numbers of outputs would say the same once more.
        "outputs": [] if example.question is not None and example.question.before else _outputs(example),
        "question": asked,
    }


def _cut(example: Example, kept: int, drawn: int) -> list[str]:
    """What a drawing leaves out, in words."""
    whole = example.whole
    edges, nodes, kept = (
        (len(example.edges), example.num_nodes, kept) if whole is None else (whole.edges, whole.nodes, whole.kept_edges)
    )
    of = f"{edges:,} edges" if whole is None else f"{edges:,} edges and {nodes:,} nodes"
    found = [f"This graph has {of}: the drawings show only kept edges and their nodes."]
    if kept > drawn and example.asked:
        found.append(
            f"Of {kept:,} kept edges {drawn:,} are drawn: those on paths to what was asked about, then those with the "
            "highest score. Paths are those of the edges that are drawn."
        )
    elif kept > drawn:
        found.append(f"Of {kept:,} kept edges the {drawn:,} with the highest score are drawn.")
    return found


def _sentence(example: Example, drawn: Sequence[int], state: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Two drawings: of the arcs with something kept, and of all. Dropped arcs would push the others apart."""
    assert example.tokens is not None
    kept = example.kept_sites()
    carrying = [e for e in drawn if max(state[e], default=SILENT) > SILENT]
    reverse = example.reverse or (False,) * len(example.sites)
    found = sentence.arcs(example.edges, carrying, kept, example.edge_types, reverse)

    def drawing(arcs: Sequence[sentence.Arc]) -> dict[str, Any]:
        plan = sentence.layout(example.tokens or (), arcs, example.roles)
        return {
            "box": [plan.width, plan.height, plan.base],
            "words": plan.words,
            "arcs": [[p.arc.edges, p.left, p.right, p.top, p.label, p.arc.text] for p in plan.arcs],
            "roles": plan.roles,
        }

    some = [arc for arc in found if arc.kept]
    return {
        "words": example.tokens,
        "predicate": example.predicate,
        "kept": drawing(some),
        "all": drawing(found) if len(some) < len(found) else None,
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
        "styles": {label: _style_of(slots[label]) for label in {*(example.edge_types or ())}},
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
    texts = in_line([v for pair in pairs for v in pair])
    names = example.class_names if len(example.class_names) >= len(example.original) else map(str, range(len(pairs)))
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
    right, found = sum(g for g, _ in pairs), sum(g and k for g, k in pairs)
    return agreement(right, found, sum(k and not g for g, k in pairs))


def agreement(right: int, found: int, extra: int) -> str:
    return f"{found} of {right} right messages found, {extra or 'none'} too many"


def _figures(examples: Sequence[Example]) -> list[tuple[str, str]]:
    """Numbers over all examples; with a single one its card says it all."""
    if len(examples) < 2:
        return []
    n = len(examples)
    faithful = sum(example.faithful for example in examples)
    figures = [
        (f"{faithful:,} of {n:,}", "within tolerance"),
        (percent(sum(example.retained for example in examples) / n), "kept, mean of graphs"),
        (number(max(example.divergence for example in examples)), "largest divergence"),
    ]
    told = [example.same_prediction for example in examples if example.same_prediction is not None]
    if told:
        figures.insert(1, (f"{sum(told):,} of {len(told):,}", "same prediction"))
    return figures
