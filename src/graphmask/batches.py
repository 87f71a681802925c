"""What a batch is: how to call the model on it, which graph it holds, and what is wrong with it."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphmask.capture import effective_edges
from graphmask.errors import GraphMaskError

Forward = Callable[[nn.Module, Any], Tensor]
_MISSING = object()


def attribute(batch: Any, name: str) -> Any:
    """``batch.name`` or ``batch[name]``; `_MISSING` when there is none or it is None."""
    value = batch.get(name, _MISSING) if isinstance(batch, (Mapping, Data)) else getattr(batch, name, _MISSING)
    return _MISSING if value is None else value


def tensor(batch: Any, name: str) -> Tensor | None:
    value = attribute(batch, name)
    return value if isinstance(value, Tensor) else None


def default_forward(model: nn.Module, batch: Any) -> Tensor:
    """Match the model's own signature against the batch's attributes.

    A plain tuple is passed as positional arguments; a model with one argument that is no attribute of the
    batch gets the batch itself.
    """
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return model(*batch)
    parameters = _parameters(type(model).forward)
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    if len(required) == 1 and (required[0].name == "batch" or attribute(batch, required[0].name) is _MISSING):
        return model(batch)
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        value = attribute(batch, parameter.name)
        if value is _MISSING and parameter.name == "batch" and isinstance(batch, Data):
            value = torch.zeros(num_nodes_of(batch, None) or 0, dtype=torch.long, device=_device(batch))  # one graph
        if value is not _MISSING:
            arguments[parameter.name] = value
        elif parameter.default is inspect.Parameter.empty:
            raise GraphMaskError(
                f"Expected the batch to have {parameter.name!r}, which {type(model).__name__}.forward asks for, found "
                f"{_contents(batch)}. Say how to call the model: GraphMask(model, forward=lambda model, batch: ...)."
            )
    return model(**arguments)


@functools.cache
def _parameters(forward: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """What a model's forward asks for, without self; reading a signature costs as much as a small layer."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    return tuple(p for p in inspect.signature(forward).parameters.values() if p.kind in kinds)[1:]


def _device(batch: Data) -> torch.device | None:
    return next((value.device for value in batch.to_dict().values() if isinstance(value, Tensor)), None)


def _contents(batch: Any) -> str:
    if isinstance(batch, Data):
        return f"{type(batch).__name__} with {', '.join(sorted(batch.keys()))}"
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(str, batch))}"
    return f"a {type(batch).__name__}"


def call(forward: Forward, model: nn.Module, batch: Any) -> Tensor:
    """Run the model and check what comes back."""
    output = forward(model, batch)
    if not isinstance(output, Tensor):
        raise GraphMaskError(
            f"Expected the model to return one tensor, got {type(output).__name__}. "
            "Pick the output to explain: GraphMask(model, forward=lambda model, batch: model(...)[0])."
        )
    if not output.is_floating_point() or output.dim() == 0:
        raise GraphMaskError(
            "Expected a floating point output with one row per example, got "
            f"{output.dtype} of shape {tuple(output.shape)}."
        )
    return output


#: What a model can be asked to run in. Not fp16: small slopes at the gates would vanish.
PRECISIONS = {"bf16": torch.bfloat16}


def check_precision(precision: str | None) -> str | None:
    if precision not in {None, *PRECISIONS}:
        raise GraphMaskError(f"Expected precision {' or '.join(map(repr, PRECISIONS))}, or none, got {precision!r}.")
    return precision


def in_precision(forward: Forward, precision: str | None) -> Forward:
    """Autocast for the model; its output, and all that is made of it, in full precision."""
    if precision is None:
        return forward

    def call(model: nn.Module, batch: Any) -> Tensor:
        device = next((p.device.type for p in model.parameters()), "cpu")
        with torch.autocast(device, PRECISIONS[precision]):
            output = forward(model, batch)
        return output.float() if isinstance(output, Tensor) and output.dtype in PRECISIONS.values() else output

    return call


def edge_index_of(batch: Any) -> Tensor | None:
    """The graph as the user passed it, [2, E]; None when only the model knows it (taps)."""
    for name in ("edge_index", "adj_t"):
        value = attribute(batch, name)
        if value is not _MISSING:
            return effective_edges(value)
    if isinstance(batch, tuple):
        for value in batch:
            if isinstance(value, Tensor) and value.dtype == torch.long and value.dim() == 2 and value.shape[0] == 2:
                return value
    return None


def num_nodes_of(batch: Any, edge_index: Tensor | None) -> int | None:
    if isinstance(batch, Data):
        with warnings.catch_warnings():
            # Where PyG can only guess from edge_index it says so; here the guess will do.
            warnings.simplefilter("ignore")
            return batch.num_nodes
    x = tensor(batch, "x")
    if x is None and isinstance(batch, tuple) and len(batch) > 1 and batch[1] is edge_index:
        x = batch[0] if isinstance(batch[0], Tensor) and batch[0].is_floating_point() else None  # (x, edge_index, ...)
    return None if x is None else x.shape[0]


def check(batch: Any, where: str = "the batch") -> None:
    """Raise for a graph that no model could be explained on."""
    raw = edge_index_of(batch) if isinstance(batch, tuple) else attribute(batch, "edge_index")
    if isinstance(raw, Tensor) and raw.layout != torch.strided:
        raw = _MISSING  # a sparse matrix under that name is checked by its own constructor
    if isinstance(raw, Tensor):
        if raw.dtype not in (torch.int64, torch.int32) or raw.dim() != 2 or raw.shape[0] != 2:
            raise GraphMaskError(
                f"Expected edge_index of {where} to be int64 of shape [2, E], got {raw.dtype} of shape "
                f"{tuple(raw.shape)}."
            )
        nodes = num_nodes_of(batch, raw)
        if raw.numel() and nodes is not None:
            low, high = (int(end) for end in raw.aminmax())
            if low < 0 or (high >= nodes and not _bipartite(batch)):
                raise GraphMaskError(
                    f"Expected edge_index of {where} to name nodes 0 to {nodes - 1}, got {low} to {high}."
                )
    for name, value in items(batch):
        if isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided:
            # One sum tells of most tensors that all is finite; only a sum that is not is looked into.
            bad = 0 if bool(torch.isfinite(value.sum())) else int((~torch.isfinite(value)).sum())
            if bad:
                raise GraphMaskError(
                    f"Expected finite numbers in {name!r} of {where}, got {bad} that are NaN or infinite."
                )


def _bipartite(batch: Any) -> bool:
    return isinstance(attribute(batch, "x"), (tuple, list)) or isinstance(attribute(batch, "x_src"), Tensor)


def items(batch: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(batch, Data):
        return [(key, batch[key]) for key in batch.keys()]  # noqa: SIM118 - Data is no mapping
    if isinstance(batch, Mapping):
        return [(str(key), value) for key, value in batch.items()]
    if isinstance(batch, tuple):
        return [(f"element {number}", value) for number, value in enumerate(batch)]
    return [(key, value) for key, value in vars(batch).items()] if hasattr(batch, "__dict__") else []


def check_loader(loader: Any, name: str) -> None:
    if not isinstance(loader, Iterable) or isinstance(loader, (Data, Mapping, Tensor, str)):
        raise GraphMaskError(
            f"Expected {name} to be an iterable of batches (a DataLoader, a list), got {type(loader).__name__}. "
            "For one graph pass [data]."
        )


def scan(loader: Iterable[Any], name: str) -> int:
    """Check every batch before any work starts; returns how many there are."""
    check_loader(loader, name)
    count = 0
    for count, batch in enumerate(loader, start=1):
        check(batch, f"batch {count - 1} of {name}")
    if count == 0:
        raise GraphMaskError(f"Expected {name} to hold at least one batch, found none. Is it a spent iterator?")
    if iter(loader) is loader:
        raise GraphMaskError(
            f"Expected {name} to be iterable again and again, got an iterator that is spent after one pass. "
            "Pass a DataLoader or a list."
        )
    return count


def repeat(batch: Data, copies: int) -> Data | None:
    """One graph several times side by side, as PyG batches graphs; None if PyG cannot."""
    single = batch.clone() if isinstance(batch, Batch) else batch
    if isinstance(single, Batch):
        single = Data.from_dict({key: value for key, value in single.to_dict().items() if key not in {"batch", "ptr"}})
    try:
        return Batch.from_data_list([single] * copies)
    except (RuntimeError, ValueError, TypeError):
        return None


@dataclass
class Split:
    """Where the graphs of a batch lie: which edges, nodes and output rows are whose."""

    edge_graph: Tensor  #: [E]
    row_graph: Tensor  #: [rows]
    first_node: Tensor  #: [B] subtracted from node numbers
    count: int


def split(
    batch: Any,
    edge_index: Tensor,
    rows: int,
    graph_of_edge: Tensor | None = None,
    graphs: int | None = None,
    nodes: int | None = None,
) -> Split:
    """Divide a batch into its graphs.

    ``graph_of_edge``, the number of ``graphs`` and of ``nodes`` in each come from taps that know them (adjacency
    matrices).
    """
    device = edge_index.device
    if graph_of_edge is not None and graphs is not None:
        if rows % graphs:
            raise _unclear(rows, graphs)
        row_graph = torch.arange(graphs, device=device).repeat_interleave(rows // graphs)
        return Split(graph_of_edge, row_graph, torch.arange(graphs, device=device) * (nodes or 0), graphs)
    node_graph = tensor(batch, "batch")
    if node_graph is None or node_graph.numel() == 0:
        zeros = torch.zeros(edge_index.shape[1], dtype=torch.long, device=device)
        return Split(zeros, torch.zeros(rows, dtype=torch.long, device=device), zeros.new_zeros(1), 1)
    count = max(int(node_graph.max()) + 1, int(getattr(batch, "num_graphs", 0) or 0))
    sizes = torch.bincount(node_graph, minlength=count)
    first_node = sizes.cumsum(0) - sizes
    edge_graph = node_graph[edge_index[0]]
    candidates = tensor(batch, "edge_label_index")
    if rows == count:
        row_graph = torch.arange(count, device=device)
    elif rows == node_graph.shape[0]:
        row_graph = node_graph
    elif candidates is not None and rows == candidates.shape[1]:
        row_graph = node_graph[candidates[0]]
    elif rows == edge_index.shape[1]:
        row_graph = edge_graph
    else:
        raise _unclear(rows, count)
    return Split(edge_graph, row_graph, first_node, count)


def _unclear(rows: int, count: int) -> GraphMaskError:
    return GraphMaskError(
        f"Expected output rows to be the batch's graphs ({count}), nodes, edges or candidate edges, got {rows} rows: "
        "cannot tell which row belongs to which graph. Use batches of one graph."
    )
