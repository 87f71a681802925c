"""Names that help and suggestions need, without importing what they name: that would take seconds."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from graphmask.errors import GraphMaskError

#: Tasks whose answer is known, and the studies on text. tests/test_cli.py holds all of these against what there is.
TASKS, STUDIES = ("star", "relay"), ("srl", "qa")
METHODS = (
    "graphmask",
    "erasure_search",
    "integrated_gradients",
    "information_bottleneck",
    "gnn_explainer",
    "unamortised",
    "gate_scores",
    "pg_explainer",
    "occlusion",
    "gradient_message",
    "grad_cam",
    "lrp",
    "eig_search",
    "subgraphx",
    "random",
)
PRECISIONS = ("bf16",)


def check(what: str, value: str, known: Iterable[str]) -> str:
    """The value, if it is among the known ones; else an error that names them and the one that was meant."""
    known = list(known)
    if value in known:
        return value
    close = get_close_matches(value, known, 1)
    meant = f" Did you mean {close[0]}?" if close else ""
    raise GraphMaskError(f"Expected {what} among {', '.join(known)}, got {value!r}.{meant}")


def check_least(option: str, value: int, least: int) -> int:
    if value < least:
        raise GraphMaskError(f"Expected {option} to be {least} or more, got {value}.")
    return value
