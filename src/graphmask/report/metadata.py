"""What a page reads from an explanation's ``info``: names, tokens and roles, the right answer.

All keys are optional, all values plain JSON. What does not fit its graph is left out and said on the card: one
odd record must not cost a reader the whole report.

========================  =============================================================================================
``title``                 heading of the example; ``id`` or ``name`` will do
``notes``                 a sentence or a list of them
``node_labels``           one text per node
``edge_labels``           one text per edge; without, ``edge_type`` by number
``gold``                  the right answer, ``[L][E]`` of true and false
``tokens``                one word per node: there is a sentence view
``roles``                 ``{"start": 3, "end": 5, "label": "A0"}`` for words 3 and 4, or one text per word
                          (nothing, ``"_"`` and ``"O"`` are no role)
``predicate``             number of the word the roles belong to
``label``                 the right class, or one per output row
``prediction``            what the model answered, where it is not simply the largest of several outputs
``classes``               names of the classes
========================  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphmask.explanation import Explanation
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
    label: str | None = None
    predicted: str | None = None
    error: float | None = None  #: share of output rows whose prediction is not the label


def read(explanation: Explanation, type_names: Mapping[int, str] | Sequence[str] | None = None) -> Metadata:
    """Everything the page can show, in the form it shows it."""
    info, nodes, edges = explanation.info, explanation.num_nodes, explanation.edge_index.shape[1]
    found = Metadata()
    found.title = next((str(info[key]) for key in ("title", "id", "name") if info.get(key) is not None), None)
    notes = info.get("notes") or []
    found.notes = [notes] if isinstance(notes, str) else [str(note) for note in notes]
    found.node_labels = _texts(info, "node_labels", nodes, "nodes", found.notes)
    found.edge_labels = _texts(info, "edge_labels", edges, "edges", found.notes)
    if found.edge_labels is None and explanation.edge_type is not None:
        found.edge_labels = [_type_name(int(value), type_names) for value in explanation.edge_type.tolist()]
    gold = info.get("gold")
    if gold is not None:
        if _is_grid(gold, len(explanation.sites), edges):
            found.gold = [[bool(value) for value in row] for row in gold]
        else:
            found.notes.append(f'Left out: "gold" is not of shape [{len(explanation.sites)}][{edges}].')
    found.tokens = _texts(info, "tokens", nodes, "nodes", found.notes)
    if found.tokens is not None:
        found.roles = _roles(info.get("roles"), len(found.tokens), found.notes)
        predicate = info.get("predicate")
        if isinstance(predicate, int) and 0 <= predicate < len(found.tokens):
            found.predicate = predicate
        elif predicate is not None:
            found.notes.append('Left out: "predicate" is not the number of a token.')
        found.node_labels = found.node_labels or found.tokens
    found.label, found.predicted, found.error = _answers(explanation)
    return found


def error_of(explanation: Explanation) -> float | None:
    """Share of output rows whose prediction is not the label; None where that is not known."""
    return _answers(explanation)[2]


def _type_name(value: int, names: Mapping[int, str] | Sequence[str] | None) -> str:
    if isinstance(names, Mapping):
        return str(names.get(value, f"type {value}"))
    return str(names[value]) if names is not None and 0 <= value < len(names) else f"type {value}"


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
    found = []
    try:
        if any(isinstance(role, Mapping) for role in value):
            found = [Role(int(role["start"]), int(role["end"]), str(role["label"])) for role in value]
            if any(not 0 <= role.start < role.end <= count for role in found):
                raise ValueError
        elif len(value) == count:
            found = [Role(i, i + 1, str(v)) for i, v in enumerate(value) if v is not None and str(v) not in NO_ROLE]
        elif len(value):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        notes.append(
            'Left out: "roles" is neither one text per token nor a list of {"start", "end", "label"} with '
            f"0 <= start < end <= {count} (end is not included)."
        )
        return []
    return found


def _answers(explanation: Explanation) -> tuple[str | None, str | None, float | None]:
    """The label and the prediction as texts, and the share of rows on which they differ."""
    info = explanation.info
    names = info.get("classes")
    label, predicted = _flat(info.get("label")), _flat(info.get("prediction"))
    output = explanation.original
    # One value per row may be a logit, a probability or a regression: no prediction is read into it.
    if predicted is None and output.dim() and output.shape[-1] > 1 and output.numel():
        predicted = output.reshape(-1, output.shape[-1]).argmax(-1).tolist()
        if label is not None and any(isinstance(value, float) and not value.is_integer() for value in label):
            predicted = None  # targets of a regression are not classes
    if predicted is not None:
        predicted = [_class_name(value, names) for value in predicted]
    if label is not None:
        label = [_class_name(value, names) for value in label]
    error = None
    if label and predicted and len(label) == len(predicted):
        # A name cannot be compared with the number of a class.
        comparable = all(a.isdigit() == b.isdigit() for a, b in zip(label, predicted, strict=True))
        if comparable:
            error = sum(a != b for a, b in zip(label, predicted, strict=True)) / len(label)
    return _join(label), _join(predicted), error


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
