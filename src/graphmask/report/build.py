"""From explanations to the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmask.bars import through
from graphmask.explanation import Explanation
from graphmask.graphs import retained_paths
from graphmask.hetero_explanation import HeteroExplanation
from graphmask.report import cards as limits
from graphmask.report import metadata, overview, part, question_drawing
from graphmask.report import molecule as molecules
from graphmask.report.cards import LONGEST_SENTENCE, OUTPUT_VALUES
from graphmask.report.example import Example, Table, Whole, as_table
from graphmask.report.gallery import Gallery, Totals
from graphmask.report.page import render, write
from graphmask.report.part import Part
from graphmask.report.question import is_question
from graphmask.words import first_of

#: Paths listed per node of a page: more than a person follows.
PATHS = 50
#: And per graph, in all: paths of every node of a large graph would be most of its page.
PATHS_IN_ALL = 5000
#: Examples of a report: as many as stay quick to open, and more than a person looks at.
EXAMPLES = 200


def example(
    explanation: Explanation,
    title: str | None = None,
    *,
    node_labels: Sequence[str] | None = None,
    edge_labels: Sequence[str] | None = None,
    gold: Tensor | None = None,
    notes: Sequence[str] = (),
    type_names: Mapping[int, str] | Sequence[str] | None = None,
) -> Example:
    """One explanation in the plain form the page draws. What is not given here is read from its ``info``."""
    if isinstance(explanation, HeteroExplanation) and gold is None and explanation.info.get("gold") is None:
        explanation = explanation.by_layer()  # a drawing per layer, not one per layer and edge type
    heading = metadata.read_title(explanation) or metadata.heading(explanation)
    shown, whole = _shown(explanation, gold)
    if whole is not None:
        node_labels = None if node_labels is None else [node_labels[number] for number in shown.nodes]
        edge_labels = None if edge_labels is None else [edge_labels[number] for number in shown.edges]
        gold = None if whole.gold is None else whole.gold
    all_of_it, explanation = explanation, shown.explanation
    facts = metadata.read(explanation, type_names)
    drawn = molecules.of(explanation, notes=facts.notes)
    nodes = molecules.names(facts.node_labels, drawn) if node_labels is None else [str(label) for label in node_labels]
    edges = facts.edge_labels if edge_labels is None else [str(label) for label in edge_labels]
    made = Example(
        title=title if title is not None else heading or "Graph",
        sites=explanation.sites,
        num_nodes=explanation.num_nodes,
        edges=[(u, v) for u, v in explanation.edge_index.t().tolist()],
        kept=explanation.kept.tolist(),
        scores=explanation.scores.cpu().double().tolist(),
        gated=explanation.carried.tolist(),
        edge_types=edges,
        node_labels=nodes,
        gold=facts.gold if gold is None else gold.tolist(),
        retained=all_of_it.retained,
        divergence=explanation.divergence,
        tolerance=explanation.tolerance,
        faithful=explanation.faithful,
        same_prediction=explanation.same_prediction,
        original=_values(explanation.original),
        masked=_values(explanation.masked),
        notes=[*notes, *facts.notes, *_features(all_of_it), *_caveats(explanation)],
        paths=None,
        reverse=tuple(site.reverse for site in explanation.structure),
        tokens=facts.tokens,
        roles=tuple(facts.roles),
        predicate=facts.predicate,
        question=facts.question,
        label=facts.label,
        predicted=facts.predicted,
        error=facts.error,
        asked=tuple(shown.asked),
        whole=whole,
        class_names=_class_names(explanation),
        unseen=explanation.unseen,
        titles=explanation.site_titles,
        molecule=drawn,
    )
    return replace(made, paths=_paths(explanation, made))


def _features(explanation: Explanation) -> list[str]:
    """What was kept of the input, in words."""
    features = explanation.features
    return [] if features is None else [features.in_words(metadata.labels(explanation).nodes)]


def _caveats(explanation: Explanation) -> list[str]:
    """What the reader of a card must know beside its figures."""
    caveats = []
    if explanation.unrepaired:
        caveats.append(f"Could not be repaired: {explanation.unrepaired}.")
    if explanation.unseen:
        caveats.append(
            f"Not seen: {first_of(explanation.unseen, 5)}. Through these, nodes can act on each other without "
            "messages, and no gate stops that: what is said here is about the messages."
        )
    return caveats


def _shown(explanation: Explanation, gold: Tensor | None) -> tuple[Part, Whole | None]:
    """The part of an explanation that is drawn, and what the page says of the rest; None if there is no rest."""
    # Views of sentences and questions choose for themselves: what they show, they show whole.
    own = len(explanation.info.get("tokens") or ()) in range(1, LONGEST_SENTENCE + 1) or is_question(explanation.info)
    limit = explanation.edge_index.shape[1] if own else limits.DRAW_ALL_EDGES_UP_TO
    shown = part.of(explanation, all_up_to=limit, at_most=limits.DRAW_AT_MOST, others=limits.TABLE_ROWS)
    if shown.whole:
        return shown, None
    known = gold if gold is not None else _grid(explanation)
    whole = Whole(
        shown.total_nodes,
        shown.total_edges,
        shown.kept_edges,
        int(explanation.carried.sum()),
        int(explanation.kept.sum()),
        shown.edges,
        shown.chosen,
    )
    if known is not None:
        known = known.to(explanation.kept.device).bool()
        right, kept = known & explanation.carried, explanation.kept & explanation.carried
        whole = replace(
            whole,
            gold=known[:, shown.edges],
            agreement=limits.agreement(int(right.sum()), int((right & kept).sum()), int((kept & ~right).sum())),
        )
    return shown, whole


def _grid(explanation: Explanation) -> Tensor | None:
    try:
        gold = torch.tensor(explanation.info["gold"])
    except (KeyError, TypeError, ValueError):
        return None
    return gold if gold.shape == explanation.kept.shape else None


def _paths(explanation: Explanation, made: Example) -> dict[int, list[list[tuple[int, int]]]]:
    """Retained paths by the node in which they end: of what was asked about first, and no more than a page can hold."""
    index = retained_paths.incoming(explanation.edge_index, explanation.kept, explanation.structure)
    # A question may have hundreds of nodes that are not drawn: paths to those would be most of the page.
    nodes = (
        range(made.num_nodes) if made.question is None else question_drawing.choose(made.question, made.messages())[0]
    )
    by_node: dict[int, list[list[tuple[int, int]]]] = {}
    left = PATHS_IN_ALL
    for node in dict.fromkeys([*made.asked, *nodes]):
        paths = retained_paths.ending_in(node, index, explanation.structure, limit=min(PATHS, left))
        by_node[node] = [[(hop.site, hop.edge) for hop in path] for path in paths]
        left -= len(paths)
    return by_node


def _class_names(explanation: Explanation) -> tuple[str, ...]:
    """Names of the outputs, where they are of one example."""
    names, output = explanation.info.get("classes"), explanation.original
    one = output.dim() > 1 and output.shape[0] == 1
    return tuple(map(str, names)) if one and isinstance(names, list | tuple) else ()


def _values(output: Tensor) -> list[float]:
    """Output values to show; none if there are many rows, for instance one per token."""
    several = output.dim() > 1 and output.shape[0] > 1 and output.numel() > OUTPUT_VALUES
    return [] if several else output.flatten().cpu().double().tolist()


def verdict(explanations: Iterable[Explanation]) -> str:
    """A sentence on the explanations, with numbers that are computed from them."""
    totals = Totals()
    for explanation in explanations:
        totals.add(explanation)
    return totals.verdict


def write_page(
    path: str | Path,
    explanations: Sequence[Explanation],
    *,
    title: str,
    titles: Sequence[str] | None = None,
    node_labels: Sequence[Sequence[str] | None] | None = None,
    edge_labels: Sequence[Sequence[str] | None] | None = None,
    gold: Sequence[Tensor | None] | None = None,
    notes: Sequence[Sequence[str]] | None = None,
    tables: Sequence[Table] = (),
) -> Path:
    """One self-contained HTML file; the sequences run along the explanations."""
    nothing = [None] * len(explanations)
    examples = [
        example(explanation, name, node_labels=nodes, edge_labels=edges, gold=answer, notes=remarks)
        for explanation, name, nodes, edges, answer, remarks in zip(
            explanations,
            titles or [_title(e, number if len(explanations) > 1 else None) for number, e in enumerate(explanations)],
            node_labels or nothing,
            edge_labels or nothing,
            gold or nothing,
            notes or [()] * len(explanations),
            strict=True,
        )
    ]
    write(path, render(examples, title=title, verdict=verdict(explanations), tables=tables))
    return Path(path)


def write_report(
    path: str | Path,
    explanations: Iterable[Explanation],
    *,
    tables: Sequence[Table | tuple[Any, ...]] = (),
    title: str = "What the model used",
    examples: int = EXAMPLES,
    type_names: Mapping[int, str] | Sequence[str] | None = None,
    analysed: Mapping[str, Any] | None = None,
    gold: Table | None = None,
    progress: bool = False,
) -> Path:
    """One self-contained HTML file about any number of explanations, which are read once and not held.

    The verdict and the figures are over all of them, the gallery shows at most ``examples``: wrong predictions,
    the largest divergences, the most and the least retained, and others drawn evenly. ``tables`` become sections
    (see :func:`as_table`), ``analysed`` is what `graphmask analyse` found, by name, and ``gold`` the comparison with
    the known answer: charts where there are charts for it, else tables below the examples. With ``progress`` there are
    bars, one while explanations are read and one while examples are drawn.
    Names and tokens come from each explanation's ``info`` (see :mod:`graphmask.report.metadata`).
    """
    sections = [as_table(table) for table in tables]
    totals, gallery = Totals(), Gallery(examples)
    for explanation in through(explanations, "explanations", enabled=progress):
        totals.add(explanation)
        gallery.add(explanation)
    cards = [
        example(
            chosen.explanation,
            _title(chosen.explanation, chosen.number),
            notes=[f"Shown because {' and '.join(chosen.reasons)}."] if chosen.reasons else (),
            type_names=type_names,
        )
        for chosen in through(gallery.chosen(), "examples", enabled=progress)
    ]
    remark = ""
    if len(cards) < totals.count:
        remark = (
            f"{len(cards):,} of {totals.count:,} explanations are shown: wrong predictions, the largest divergences, "
            "those that keep most and least, and others drawn at random. Each card says why it is shown."
        )
    charts, others = overview.of(totals, analysed, gold)
    html = render(
        _telling_first(cards),
        title=title,
        verdict=totals.verdict,
        tables=[*sections, *others],
        charts=charts,
        figures=totals.figures,
        contents=True,
        remark=remark,
    )
    write(path, html)
    return Path(path)


def _telling_first(cards: list[Example]) -> list[Example]:
    """Put an example first in which some messages are kept, and not so many that the drawing hides them."""

    def kept(card: Example) -> int:
        return sum(map(sum, card.kept))

    if not cards or kept(cards[0]):
        return cards
    some = next((card for card in cards if 2 <= kept(card) <= 40 and card.faithful), None)
    some = some or next((card for card in cards if kept(card)), None)
    return cards if some is None else [some, *(card for card in cards if card is not some)]


def _title(explanation: Explanation, number: int | None) -> str:
    alone = "Graph" if number is None else f"Graph {number}"
    return metadata.read_title(explanation) or metadata.heading(explanation) or alone
