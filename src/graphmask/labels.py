"""Names that go with an explanation in its ``info``: which keys are known, and that they fit the graph.

`graphmask.report.metadata` has the table of all keys. Keys that are not known are the user's own and kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation


def given(
    explanation: Explanation, node_labels: Sequence[str] | None, class_names: Sequence[str] | None
) -> dict[str, Any]:
    """The names that were passed to `explain`, as ``info`` has them."""
    names = {}
    if node_labels is not None:
        names["node_labels"] = [str(label) for label in node_labels]
    if class_names is not None:
        names["classes"] = [str(name) for name in class_names]
    check(names, explanation, "the data")
    return names


def check(info: Mapping[str, Any], explanation: Explanation, where: str) -> None:
    """Raise for a known key whose value does not fit the graph, because its names could not be shown."""
    edges = explanation.edge_index.shape[1]
    sizes = {"node_labels": (explanation.num_nodes, "node"), "tokens": (explanation.num_nodes, "node")}
    sizes["edge_labels"] = (edges, "edge")
    if "mentions" in info:  # of a question, whose nodes may be padded
        del sizes["node_labels"]
    for key, (count, what) in sizes.items():
        value = info.get(key)
        if value is not None and (not isinstance(value, list | tuple) or len(value) != count):
            got = f"{len(value)}" if isinstance(value, list | tuple) else type(value).__name__
            raise GraphMaskError(
                f"Expected {key!r} of {where} to be a list with one text per {what}, {count}, got {got}."
            )
    classes = info.get("classes")
    if classes is not None and not isinstance(classes, list | tuple):
        raise GraphMaskError(f"Expected 'classes' of {where} to be a list of names, got {type(classes).__name__}.")
    width = explanation.original.shape[-1] if explanation.original.dim() > 1 else 0
    if classes is not None and width > 1 and len(classes) < width:
        raise GraphMaskError(
            f"Expected a name for each of the {width} outputs in 'classes' of {where}, got {len(classes)}."
        )
    smiles = info.get("smiles")
    if smiles is not None and not isinstance(smiles, str):
        raise GraphMaskError(f"Expected 'smiles' of {where} to be a text, got {type(smiles).__name__}.")
    gold = info.get("gold")
    shape = [edges] * len(explanation.structure)
    if gold is not None and not (isinstance(gold, list | tuple) and [_length(row) for row in gold] == shape):
        raise GraphMaskError(f"Expected 'gold' of {where} to be lists of true and false, {len(shape)} of {edges}.")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else -1
