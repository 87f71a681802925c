"""What a page reads from an explanation's ``info``: names, tokens and roles, the right answer.

All keys are optional, all values plain JSON. What does not fit its graph is left out and said on the card: one
record that does not fit must not prevent the report.

========================  =============================================================================================
``title``                 heading of the example; ``id`` or ``name`` will do
``notes``                 a sentence or a list of them
``node_labels``           one text per node
``edge_labels``           one text per edge; without, ``edge_type`` by number
``edge_type_names``       names of the numbers in ``edge_type``
``gold``                  the right answer, ``[L][E]`` of true and false
``smiles``                a molecule whose atoms are the nodes, in their order: drawn as one where RDKit is there
``tokens``                one word per node: there is a sentence view
``roles``                 ``{"start": 3, "end": 5, "label": "A0"}`` for words 3 and 4, or one text per word
                          (nothing, ``"_"`` and ``"O"`` are no role)
``predicate``             number of the word the roles belong to
``label``                 the right class, or one per output row
``prediction``            what the model answered, where it is not simply the largest of several outputs
``classes``               names of the classes
``documents``             lists of tokens: with ``mentions``, there is a question view
``mentions``              ``[document, start, end, entity]`` per node (nodes without are padding); ``entity`` is the
                          number of a candidate, or -1 for the subject of the question
``query``                 what is asked
``candidates``            names of the answers there are to choose from; instead of ``classes``
``answer``, ``predicted`` numbers of candidates: right, and the model's; instead of ``label`` and ``prediction``
``evidence``              numbers of the documents that people marked as needed
========================  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation, rows_in_words
from graphmask.explanation_contents import ASKED
from graphmask.hetero_explanation import TYPE_NAMES, HeteroExplanation
from graphmask.report import question as questions
from graphmask.report.sentence import Role

NO_ROLE = ("", "_", "O")


@dataclass
class Metadata:
    title: str | None = None
    notes: list[str] = field(default_factory=list)
    node_labels: list[str] | None = None
    edge_labels: list[str] | None = None
    gold: list[list[bool]] | None = None
    tokens: list[str] | None = None
    roles: list[Role] = field(default_factory=list)
    predicate: int | None = None
    question: questions.Question | None = None
    label: str | None = None
    predicted: str | None = None
    error: float | None = None  #: share of output rows whose prediction is not the label


def read(explanation: Explanation, type_names: Mapping[int, str] | Sequence[str] | None = None) -> Metadata:
    """Everything the page can show, in the form it shows it."""
    info, nodes, edges = explanation.info, explanation.num_nodes, explanation.edge_index.shape[1]
    facts = Metadata()
    facts.title = read_title(explanation)
    notes = info.get("notes") or []
    facts.notes = [notes] if isinstance(notes, str) else [str(note) for note in notes]
    if questions.is_question(info):
        try:
            facts.question = questions.read(info, nodes, _row(explanation.original), _row(explanation.masked))
        except GraphMaskError as error:
            facts.notes.append(f"Left out: the question view. {error}")
    facts.node_labels = _node_labels(info, nodes, facts)
    facts.edge_labels = _texts(info, "edge_labels", edges, "edges", facts.notes)
    if isinstance(explanation, HeteroExplanation):
        facts.node_labels = facts.node_labels or explanation.node_labels
        facts.edge_labels = facts.edge_labels or explanation.edge_labels
    if facts.edge_labels is None and explanation.edge_type is not None:
        type_names = type_names or info.get(TYPE_NAMES)
        kind = "head" if {site.heads for site in explanation.structure} == {"each"} else "type"
        facts.edge_labels = [_type_name(int(value), type_names, kind) for value in explanation.edge_type.tolist()]
    gold = info.get("gold")
    if gold is not None:
        if _is_grid(gold, len(explanation.sites), edges):
            facts.gold = [[bool(value) for value in row] for row in gold]
        else:
            facts.notes.append(f'Left out: "gold" is not of shape [{len(explanation.sites)}][{edges}].')
    facts.tokens = _texts(info, "tokens", nodes, "nodes", facts.notes)
    if facts.tokens is not None:
        facts.roles = _roles(info.get("roles"), len(facts.tokens), facts.notes)
        predicate = info.get("predicate")
        if isinstance(predicate, int) and 0 <= predicate < len(facts.tokens):
            facts.predicate = predicate
        elif predicate is not None:
            facts.notes.append('Left out: "predicate" is not the number of a token.')
        facts.node_labels = facts.node_labels or facts.tokens
    facts.label, facts.predicted, facts.error = _answers(explanation)
    return facts


def read_title(explanation: Explanation) -> str | None:
    info = explanation.info
    return next((str(info[key]) for key in ("title", "id", "name") if info.get(key) is not None), None)


def heading(explanation: Explanation) -> str:
    """Which rows were asked about, by the names of their nodes where these have any; empty if it was about all."""
    if explanation.index is None:
        return ""
    asked = [int(node) for node in explanation.info.get(ASKED, ())]
    names = [name for name in (_name_of(explanation, node) for node in asked[:5]) if name]
    if not names:
        return rows_in_words(explanation.index).capitalize()
    # A row may be a pair of nodes: then there are more nodes than rows.
    more = f" and {len(asked) - 5} more" if len(asked) > 5 else ""
    return f"{rows_in_words(explanation.index).capitalize()} ({', '.join(names)}{more})"


def _name_of(explanation: Explanation, node: int) -> str | None:
    """Of one node, without reading the names of all."""
    for key in ("node_labels", "tokens"):
        names = explanation.info.get(key)
        if isinstance(names, list | tuple) and len(names) == explanation.num_nodes:
            return str(names[node])
    return " ".join(map(str, explanation.node(node))) if isinstance(explanation, HeteroExplanation) else None


class Labels(NamedTuple):
    """Readable names: one per node and one per edge, where there are any."""

    nodes: list[str] | None
    edges: list[str] | None


def labels(explanation: Explanation, node_labels: Sequence[str] | None = None) -> Labels:
    """Names of nodes and of edge types, from ``node_labels`` or from the explanation itself."""
    if node_labels is not None and len(node_labels) != explanation.num_nodes:
        raise GraphMaskError(f"Expected {explanation.num_nodes} node_labels, one per node, got {len(node_labels)}.")
    facts = read(explanation)
    return Labels(
        facts.node_labels if node_labels is None else [str(label) for label in node_labels], facts.edge_labels
    )


def _node_labels(info: Mapping[str, Any], nodes: int, metadata: Metadata) -> list[str] | None:
    """Those of a question may end where its mentions do; without any, they are what is mentioned."""
    if metadata.question is None:
        return _texts(info, "node_labels", nodes, "nodes", metadata.notes)
    mentions, labels = len(metadata.question.mentions), info.get("node_labels")
    count = mentions if isinstance(labels, list | tuple) and len(labels) == mentions else nodes
    texts = _texts(info, "node_labels", count, "nodes", metadata.notes)
    if texts is None:
        texts = [metadata.question.text(node) for node in range(mentions)]
    return [*texts, *["padding"] * (nodes - len(texts))]


def _row(output: Tensor) -> list[float]:
    """The only row of an output, or nothing."""
    rows = output.reshape(-1, output.shape[-1]) if output.dim() and output.numel() else output.new_zeros(0, 0)
    return [float(value) for value in rows[0].tolist()] if rows.shape[0] == 1 else []


def error_of(explanation: Explanation) -> float | None:
    """Share of output rows whose prediction is not the label; None where that is not known."""
    return _answers(explanation)[2]


def _type_name(value: int, names: Mapping[int, str] | Sequence[str] | None, kind: str) -> str:
    if isinstance(names, Mapping):
        return str(names.get(value, f"{kind} {value}"))
    return str(names[value]) if names is not None and 0 <= value < len(names) else f"{kind} {value}"


def _texts(info: Mapping[str, Any], key: str, count: int, of: str, notes: list[str]) -> list[str] | None:
    values = info.get(key)
    if values is None:
        return None
    if not isinstance(values, list | tuple):
        notes.append(f'Left out: "{key}" is not a list.')
    elif len(values) != count:
        notes.append(f'Left out: "{key}" has {len(values):,} entries for {count:,} {of}.')
    else:
        return [str(value) for value in values]
    return None


def _is_grid(value: Any, rows: int, columns: int) -> bool:
    lists = isinstance(value, list | tuple) and all(isinstance(row, list | tuple) for row in value)
    return lists and [len(row) for row in value] == [columns] * rows


def _roles(value: Any, count: int, notes: list[str]) -> list[Role]:
    if value is None:
        return []
    roles = []
    try:
        if any(isinstance(role, Mapping) for role in value):
            roles = [Role(int(role["start"]), int(role["end"]), str(role["label"])) for role in value]
            if any(not 0 <= role.start < role.end <= count for role in roles):
                raise ValueError
        elif len(value) == count:
            roles = [Role(i, i + 1, str(v)) for i, v in enumerate(value) if v is not None and str(v) not in NO_ROLE]
        elif len(value):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        notes.append(
            'Left out: "roles" is neither one text per token nor a list of {"start", "end", "label"} with '
            f"0 <= start < end <= {count} (end is not included)."
        )
        return []
    return roles


def _answers(explanation: Explanation) -> tuple[str | None, str | None, float | None]:
    """The label and the prediction as texts, and the share of rows on which they differ."""
    info = explanation.info
    keys = ("answer", "predicted", "candidates") if questions.is_question(info) else ("label", "prediction", "classes")
    label, predicted, names = _flat(info.get(keys[0])), _flat(info.get(keys[1])), info.get(keys[2])
    output = explanation.original
    # One value per row may be a logit, a probability or a regression: no prediction is read into it.
    if predicted is None and output.dim() and output.shape[-1] > 1 and output.numel():
        predicted = output.reshape(-1, output.shape[-1]).argmax(-1).tolist()
        if label is not None and any(isinstance(value, float) and not value.is_integer() for value in label):
            predicted = None  # targets of a regression are not classes
    told, named = ([_class_name(value, names) for value in values or []] for values in (label, predicted))
    error = None
    if label and predicted and len(label) == len(predicted):
        differ = [_differ(*pair, names) for pair in zip(label, predicted, strict=True)]
        error = None if None in differ else sum(map(bool, differ)) / len(differ)
    return _join(told), _join(named), error


def _differ(label: Any, predicted: Any, names: Any) -> bool | None:
    """None if that cannot be told: a name cannot be compared with the number of a class."""
    if isinstance(label, int) and isinstance(predicted, int):
        return label != predicted  # by number: a class may be called "1948", and two may have one name
    one, other = _class_name(label, names), _class_name(predicted, names)
    return None if one.isdigit() != other.isdigit() else one != other


def _flat(value: Any) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [inner for part in value for inner in _flat(part) or []]
    return [value]


def _class_name(value: Any, names: Any) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, int) and isinstance(names, list | tuple) and 0 <= value < len(names):
        return str(names[value])
    return str(value)


def _join(values: Sequence[str] | None) -> str | None:
    if not values:
        return None
    return ", ".join(values[:6]) + (f", … ({len(values)} in all)" if len(values) > 6 else "")
