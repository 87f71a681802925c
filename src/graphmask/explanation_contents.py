"""What a file may say of an explanation: checked where it is read, so that all that use it may count on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Keys of ``info`` by which an explanation says why it could not be repaired, so that files and stores keep it,
UNREPAIRED = "graphmask.unrepaired"
#: the modules that can mix nodes by other ways than messages,
UNSEEN = "graphmask.unseen"
#: and the nodes that `index` asked about, where rows of the output are nodes or pairs of them.
ASKED = "graphmask.asked"

_FLAGS = {torch.bool}
_NUMBERS = {torch.int32, torch.int64}
_REALS = {torch.half, torch.bfloat16, torch.float, torch.double}
_TYPES = {"edge_index": _NUMBERS, "scores": _REALS, "original": _REALS, "masked": _REALS}
_TYPES["edge_type"] = _NUMBERS | {torch.int8, torch.int16, torch.uint8}
_TYPES |= dict.fromkeys(("kept", "carried", "counterfactual"), _FLAGS)


def check_tensors(tensors: dict[str, Tensor], sites: int) -> None:
    """Raise unless the tensors are of the shapes and types that an explanation has."""
    edges, output = tensors["edge_index"].shape[1], tensors["original"].shape
    expected = {"edge_index": (2, edges), "edge_type": (edges,), "original": output, "masked": output}
    expected |= dict.fromkeys(("kept", "scores", "carried", "counterfactual"), (sites, edges))
    for name, value in tensors.items():
        if value.shape != expected[name] or value.dtype not in _TYPES[name]:
            raise TypeError(f"{name} of shape {tuple(value.shape)} and {value.dtype}, not {tuple(expected[name])}")


def check_ends(edge_index: Tensor, num_nodes: int | Tensor) -> None:
    """Raise unless edges join nodes that are there; ``num_nodes`` may be said of each edge."""
    if bool(((edge_index < 0) | (edge_index >= num_nodes)).any()):
        raise ValueError("edges of nodes that are not there")


def check_values(values: dict[str, Any]) -> None:
    """Raise unless notes, method and rows are of the types that an explanation has."""
    info = values["info"]
    texts = [values["method"], values.get("precision") or "", info.get(UNREPAIRED) or "", *info.get(UNSEEN, ())]
    if not isinstance(info, dict) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"texts of other types: {texts!r:.80}")
    # Of the output a file has only the rows that were asked about: how many there were it does not say.
    for numbers, end in ((values.get("index") or (), 1 << 53), (info.get(ASKED, ()), values["num_nodes"])):
        if not all(type(number) is int and 0 <= number < end for number in numbers):
            raise ValueError(f"rows or nodes that are not there: {numbers!r:.80}")
