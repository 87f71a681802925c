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
from torch_geometric.data import Batch, Data, HeteroData

from graphmask.errors import GraphMaskError
from graphmask.graphs import layout
from graphmask.graphs.edges import EdgeMap, effective_edges
from graphmask.graphs.layout import Layout, Types

Forward = Callable[[nn.Module, Any], Tensor]
_MISSING = object()


def attribute(batch: Any, name: str) -> Any:
    """``batch.name`` or ``batch[name]``; `_MISSING` when there is none or it is None."""
    if isinstance(batch, HeteroData):
        value = layout.attribute(batch, name)
    else:
        value = batch.get(name, _MISSING) if isinstance(batch, (Mapping, Data)) else getattr(batch, name, _MISSING)
    return _MISSING if value is None else value


def tensor(batch: Any, name: str) -> Tensor | None:
    value = attribute(batch, name)
    return value if isinstance(value, Tensor) else None


def default_forward(model: nn.Module, batch: Any) -> Tensor:
    """Match the model's own signature against the batch's attributes.

    A plain tuple is passed as positional arguments; a model with one argument that is no attribute of the
    batch gets the batch itself. Of a sampled subgraph (`seeds_of`) only the rows of the seeds are returned. Of
    HeteroData, ``x_dict`` (or ``x``) is a dictionary by type.
    """
    output, seeds = _logits(_matched(model, batch), batch), seeds_of(batch)
    if seeds is None or not isinstance(output, Tensor) or output.dim() == 0 or seeds >= output.shape[0]:
        return output
    return output[:seeds] if output.shape[0] == num_nodes_of(batch, None) else output


def _logits(output: Any, batch: Any) -> Any:
    """Of what models of `transformers` return, the logits."""
    logits, mask = getattr(output, "logits", None), tensor(batch, "attention_mask")
    if isinstance(output, Tensor) or not isinstance(logits, Tensor):
        return output
    if logits.dim() > 2 and mask is not None and mask.shape == logits.shape[:2] and not bool(mask.all()):
        raise GraphMaskError(
            f"Expected logits with one row per sequence, or sequences without padding, got {tuple(logits.shape)} and "
            "padding, whose logits mean nothing. Say which positions count: "
            "GraphMask(model, forward=lambda model, batch: model(**batch).logits[:, 0])."
        )
    return logits


def seeds_of(batch: Any) -> int | None:
    """How many nodes of a sampled subgraph were asked for: they come first, the others are their surroundings.

    As PyG's loaders say it: an integer ``batch_size`` beside ``n_id`` or ``input_id``. None of any other batch.
    """
    size = attribute(batch, "batch_size") if isinstance(batch, (Mapping, Data)) else _MISSING
    if not isinstance(size, int) or attribute(batch, "edge_label_index") is not _MISSING:
        return None
    sampled = any(attribute(batch, name) is not _MISSING for name in ("n_id", "input_id"))
    return size if sampled else None


def _matched(model: nn.Module, batch: Any) -> Tensor:
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
    by_type = [name for name, value in arguments.items() if isinstance(value, dict) and not name.endswith("_dict")]
    if not (isinstance(batch, HeteroData) and by_type):
        return model(**arguments)
    try:
        return model(**arguments)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise GraphMaskError(
            f"Expected a model for heterogeneous graphs together with HeteroData, got {type(model).__name__}, which "
            f"does not take {', '.join(by_type)} as dictionaries by type ({type(error).__name__}: {error!s:.120}). "
            "Pass data.to_homogeneous(), make the model heterogeneous with torch_geometric.nn.to_hetero, or say how to "
            "call it: GraphMask(model, forward=lambda model, batch: ...)."
        ) from error


def check_forward(model: nn.Module) -> None:
    """Raise for a module that only holds others and cannot be called."""
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):
        raise GraphMaskError(
            f"Expected a model that can be called, got {type(model).__name__}, which has no forward(). Write one, or "
            "say how to run it: GraphMask(model, forward=lambda model, batch: ...)."
        )


def check_cached(model: nn.Module) -> None:
    """Raise for layers that would send every batch along the edges of the first."""
    names = [name for name, module in model.named_modules() if getattr(module, "cached", False) is True]
    if names:
        raise GraphMaskError(
            f"Expected layers that look at each batch's own edges, got cached=True at {', '.join(map(repr, names))}: "
            f"such a layer keeps the first graph it sees. Set model.{names[0]}.cached = False (and the others'): "
            "weights stay as they are. Or fit on the one whole graph: fit([data])."
        )


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
    if isinstance(batch, HeteroData):
        return f"HeteroData with {', '.join(sorted({name.rsplit('.', 1)[-1] for name, _ in layout.items(batch)}))}"
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(str, batch))}"
    return f"a {type(batch).__name__}"


def call(forward: Forward, model: nn.Module, batch: Any) -> Tensor:
    """Run the model and check what comes back."""
    output = forward(model, batch)
    if not isinstance(output, Tensor):
        keys = list(output) if isinstance(output, Mapping) and output else [0]
        which = f", of {', '.join(map(repr, keys))}" if isinstance(output, Mapping) else ""
        raise GraphMaskError(
            f"Expected the model to return one tensor, got {type(output).__name__}. Pick the output to explain{which}: "
            f"GraphMask(model, forward=lambda model, batch: model(...)[{keys[0]!r}])."
        )
    if output.is_floating_point() and output.dim() == 0:
        raise GraphMaskError(
            "Expected a floating point output with one row per example, got "
            f"{output.dtype} of shape (): a squeeze() has taken the only example's row away, or all were summed. Write "
            "squeeze(-1) in the model, or GraphMask(model, forward=lambda model, batch: model(...).reshape(-1))."
        )
    if not output.is_floating_point():
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
    if isinstance(batch, HeteroData):
        return Layout.of(batch).edge_index()
    for name in ("edge_index", "adj_t"):
        value = attribute(batch, name)
        if value is not _MISSING:
            return effective_edges(value)
    if isinstance(batch, tuple):
        for value in batch:
            if isinstance(value, Tensor) and value.dtype == torch.long and value.dim() == 2 and value.shape[0] == 2:
                return value
    return None


def edge_map_of(batch: Any) -> EdgeMap:
    """What tells whose edges a layer sends along."""
    return Layout.of(batch).edge_map() if isinstance(batch, HeteroData) else EdgeMap(edge_index_of(batch))


def labels_of(batch: Any, rows: int) -> tuple[Tensor | None, Tensor | None]:
    """``batch.y`` of graphs, nodes or output rows, and the graph of each where that is known."""
    return layout.labels(batch, rows) if isinstance(batch, HeteroData) else (tensor(batch, "y"), tensor(batch, "batch"))


def types_of(batch: Any) -> Types | None:
    """Node and edge types of a heterogeneous batch."""
    return layout.types_of(batch) if isinstance(batch, HeteroData) else None


def has_edges(batch: Any) -> bool:
    """Also of a batch whose edges only the model knows."""
    edge_index = edge_index_of(batch)
    return edge_index is None or edge_index.shape[1] > 0


def first_few(loader: Iterable[Any], count: int) -> tuple[list[Any], Types | None]:
    """Batches that have edges, to find sites on the first of them; of heterogeneous ones also the types of all."""
    some, types = layout.some(loader, has_edges, count)
    if not some:
        raise GraphMaskError("Expected at least one batch with edges in the loader, found none.")
    return some, types


def num_nodes_of(batch: Any, edge_index: Tensor | None) -> int | None:
    if isinstance(batch, HeteroData):
        return sum(Layout.of(batch).counts)
    if isinstance(batch, Data):
        if isinstance(batch.get("x"), Tensor):
            return batch.num_nodes
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
    if isinstance(batch, HeteroData):
        layout.check(batch, where)
        raw: Any = _MISSING
    else:
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
        if nodes == 0:
            raise GraphMaskError(
                f"Expected {where} to have nodes, found a graph without any. Leave such graphs out, for instance "
                "[data for data in dataset if data.num_nodes]."
            )
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
    if isinstance(batch, HeteroData):
        return layout.items(batch)
    if isinstance(batch, Data):
        return [(key, batch[key]) for key in batch.keys()]  # noqa: SIM118 - Data is no mapping
    if isinstance(batch, Mapping):
        return [(str(key), value) for key, value in batch.items()]
    if isinstance(batch, tuple):
        return [(f"element {number}", value) for number, value in enumerate(batch)]
    return [(key, value) for key, value in vars(batch).items()] if hasattr(batch, "__dict__") else []


def check_loader(loader: Any, name: str) -> None:
    if not isinstance(loader, Iterable) or isinstance(loader, (Data, HeteroData, Mapping, Tensor, str)):
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


def repeat(batch: Data | HeteroData, copies: int) -> Data | HeteroData | None:
    """One graph several times side by side, as PyG batches graphs; None if PyG cannot."""
    single = batch.clone() if isinstance(batch, Batch) else batch
    if isinstance(single, Batch) and isinstance(single, HeteroData):
        single = single.get_example(0)
    elif isinstance(single, Batch):
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
    place: Tensor | None = None  #: [N] a node's number within its graph, where those of a graph do not lie together
    sizes: Tensor | None = None  #: [B, T] nodes by node type
    row_each: bool = False  #: one output row per graph, in their order

    def within(self, edge_index: Tensor) -> Tensor:
        """Edges of the batch, with nodes numbered within their graphs."""
        if self.count == 1:
            return edge_index
        found = edge_index - self.first_node[self.edge_graph] if self.place is None else self.place[edge_index]
        return found.to(edge_index.dtype)


def split(
    batch: Any,
    edge_index: Tensor,
    rows: int,
    graph_of_edge: Tensor | None = None,
    graphs: int | None = None,
    nodes: int | Tensor | None = None,
) -> Split:
    """Divide a batch into its graphs.

    ``graph_of_edge``, the number of ``graphs`` and of ``nodes`` in each come from taps that know them (adjacency
    matrices, attention).
    """
    device = edge_index.device
    if isinstance(batch, HeteroData):
        found = layout.divide(batch, rows)
        return Split(found.edge_graph, found.row_graph, found.sizes[:, 0], len(found.sizes), found.place, found.sizes)
    if graph_of_edge is not None and graphs is not None:
        if rows % graphs:
            raise _unclear(rows, graphs)
        row_graph = torch.arange(graphs, device=device).repeat_interleave(rows // graphs)
        if isinstance(nodes, Tensor):
            return Split(graph_of_edge, row_graph, nodes.cumsum(0) - nodes, graphs, row_each=rows == graphs)
        return Split(graph_of_edge, row_graph, torch.arange(graphs, device=device) * (nodes or 0), graphs)
    node_graph = tensor(batch, "batch")
    if node_graph is None or node_graph.numel() == 0:
        return unsplit(batch, edge_index, rows)
    count = max(int(node_graph.max()) + 1, int(getattr(batch, "num_graphs", 0) or 0))
    sizes = torch.bincount(node_graph, minlength=count)
    first_node = sizes.cumsum(0) - sizes
    place = None
    if bool((node_graph[1:] < node_graph[:-1]).any()):  # as in what `to_homogeneous` makes of a heterogeneous batch
        order = node_graph.argsort(stable=True)
        within = torch.arange(len(order), device=device) - first_node[node_graph[order]]
        place = torch.empty_like(order).scatter_(0, order, within)
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
    return Split(edge_graph, row_graph, first_node, count, place, row_each=rows == count)


def unsplit(batch: Any, edge_index: Tensor, rows: int) -> Split:
    """All of a batch as one graph."""
    zeros = torch.zeros(edge_index.shape[1], dtype=torch.long, device=edge_index.device)
    sizes = torch.tensor([Layout.of(batch).counts]) if isinstance(batch, HeteroData) else None
    return Split(zeros, zeros.new_zeros(rows), zeros.new_zeros(1), 1, sizes=sizes)


def _unclear(rows: int, count: int) -> GraphMaskError:
    return GraphMaskError(
        f"Expected output rows to be the batch's graphs ({count}), nodes, edges or candidate edges, got {rows} rows: "
        "cannot tell which row belongs to which graph. Use batches of one graph."
    )
