"""What a page shows, in plain Python: one explanation, or a table. Both check themselves."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.report import question as questions
from graphmask.report import sentence
from graphmask.report.molecule import Molecule

#: What an edge does at a site.
KEPT, DROPPED, SILENT = 2, 1, 0


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
    unseen: tuple[str, ...] = ()  # modules that can mix nodes by other ways than messages
    molecule: Molecule | None = None  # atom i is node i: the graph is drawn as chemists draw it
    titles: tuple[str, ...] = ()  # [L] the sites by readable names; without, their exact names are shown

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
            (self.titles or None, "titles", len(self.sites)),
            (None if self.molecule is None else self.molecule.symbols, "atoms", self.num_nodes),
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

    @property
    def names(self) -> tuple[str, ...]:
        """[L] the sites as a reader sees them."""
        return self.titles or self.sites

    def state(self, site: int, edge: int) -> int:
        if not self.gated[site][edge]:
            return SILENT
        return KEPT if self.kept[site][edge] else DROPPED

    def kept_sites(self) -> list[list[int]]:
        """Per edge, the sites that keep it."""
        by_edge: list[list[int]] = [[] for _ in self.edges]
        for site, pair in enumerate(zip(self.kept, self.gated, strict=True)):
            for edge, both in enumerate(zip(*pair, strict=True)):
                if all(both):
                    by_edge[edge].append(site)
        return by_edge

    def messages(self) -> list[questions.Message]:
        """What is kept between the mentions of the question, the most telling first."""
        if self.question is None:
            return []
        reverse = self.reverse or (False,) * len(self.sites)
        return questions.messages(self.question, self.edges, self.edge_types, self.kept_sites(), self.scores, reverse)


def as_table(value: Table | tuple[Any, ...]) -> Table:
    """A table as the page draws it.

    Takes a `Table`; ``(title, frame)`` where the frame is of polars (or anything with ``columns`` and ``rows()``);
    ``(title, [header, row, row, ...])``; or ``(title, header, rows)``.
    """
    if isinstance(value, Table):
        return value
    if len(value) == 3:
        caption, header, rows = value
    elif len(value) == 2 and hasattr(value[1], "columns"):
        caption, header, rows = value[0], value[1].columns, value[1].rows()
    elif len(value) == 2 and len(value[1]):
        caption, (header, *rows) = value
    else:
        raise GraphMaskError("Expected a table as (title, frame), (title, [header, *rows]) or (title, header, rows).")
    header = [str(name) for name in header]
    rows = [[_cell(cell) for cell in row] for row in rows]
    odd = next((row for row in rows if len(row) != len(header)), None)
    if odd is not None:
        raise GraphMaskError(f"Expected {len(header)} cells in every row of {caption!r}, got {len(odd)}.")
    return Table(str(caption), header, rows)


def _cell(value: Any) -> str | float:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Real):  # numpy's are among them
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(_cell(part)) for part in value)
    return str(value)
