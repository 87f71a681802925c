"""The explanations of a batch as columns. No loop here runs over edges."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphmask import labels
from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError
from graphmask.explanation import Explanation
from graphmask.graphs import batches

if TYPE_CHECKING:
    import pyarrow as pa

#: For the graphs of a batch, one dictionary of JSON values each.
Metadata = Callable[[Any], Sequence[Mapping[str, Any]]]
Array = np.ndarray[Any, Any]


def schemas(output: str | None) -> tuple[pa.Schema, pa.Schema]:
    """Schemas of the two tables, of graphs and of edges, for outputs of a dtype."""
    import pyarrow as pa

    real = pa.float64() if output == "float64" else pa.float32()
    graphs = [
        ("graph", pa.int64(), "number of the graph, in the order of the loader"),
        ("num_nodes", pa.int64(), "nodes"),
        ("num_edges", pa.int64(), "edges, as the user passed them"),
        ("divergence", pa.float64(), "between original and masked output, mean over output rows"),
        ("flips", pa.float64(), "share of output rows whose prediction changed"),
        ("tolerance", pa.float64(), "the divergence that still counts as the same prediction"),
        ("faithful", pa.bool_(), "the divergence is within tolerance"),
        ("retained", pa.float64(), "share of gates that are open"),
        ("reopened", pa.int64(), "gates that repair opened again"),
        ("method", pa.string(), "who chose"),
        ("prediction", pa.list_(pa.int32()), "class, or yes (1) and no (0), per output row; null for a regression"),
        ("label", pa.list_(pa.float64()), "batch.y of the graph, or of its nodes; null if there is none"),
        ("shape", pa.list_(pa.int64()), "shape of original and masked"),
        ("original", pa.list_(real), "the model's output, row by row"),
        ("masked", pa.list_(real), "its output with hard gates"),
        ("baselines", pa.list_(pa.list_(real)), "what replaces a dropped message, per site; null: as in store.json"),
        ("metadata", pa.string(), "the user's own notes, as JSON; null if there are none"),
    ]
    edges = [
        ("graph", pa.int64(), "number of the graph, in the order of the loader"),
        ("layer", pa.int16(), "number of the site, input side first"),
        ("edge", pa.int32(), "position in edge_index"),
        ("source", pa.int32(), "edge_index[0]"),
        ("target", pa.int32(), "edge_index[1]"),
        ("type", pa.int32(), "edge_type; null if there is none"),
        ("score", pa.float32(), "higher means more needed; GraphMask's is the probability that the gate is open"),
        ("kept", pa.bool_(), "the gate is open"),
        ("carried", pa.bool_(), "the layer sends a message along the edge; Store.edges leaves out where not"),
    ]

    def described(columns: list[tuple[str, Any, str]]) -> pa.Schema:
        return pa.schema([pa.field(name, kind, metadata={"description": text}) for name, kind, text in columns])

    return described(graphs), described(edges)


def tables(
    batch: Any,
    explanations: list[Explanation],
    first: int,
    divergence: Divergence,
    baselines: tuple[Tensor, ...],
    notes: list[str] | None,
    where: str,
) -> tuple[pa.Table, pa.Table]:
    """Rows for the graphs and the edges of a batch whose first graph has the number ``first``."""
    graphs, edges = schemas(name_of(explanations[0].original.dtype))
    columns = _edges(explanations, where)
    kept, carried = (np.bincount(columns["graph"], columns[name], len(explanations)) for name in ("kept", "carried"))
    per_graph = _graphs(batch, explanations, divergence, baselines) | {
        "retained": kept / np.maximum(carried, 1),
        "metadata": notes,
    }
    per_graph["graph"], columns["graph"] = np.arange(first, first + len(explanations)), columns["graph"] + first
    return _table(per_graph, graphs), _table(columns, edges)


def _edges(explanations: list[Explanation], where: str) -> dict[str, Any]:
    """Rows of the table of edges, sorted by graph, then layer, then edge."""
    edges = np.array([e.edge_index.shape[1] for e in explanations])
    sizes = len(explanations[0].structure) * edges
    within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    layer, edge = np.divmod(within, np.repeat(edges, sizes))
    column = edge + np.repeat(edges.cumsum() - edges, sizes)  # in the edges of all graphs side by side
    source, target = _beside([e.edge_index for e in explanations])
    types = [e.edge_type for e in explanations if e.edge_type is not None]
    return {
        "graph": np.repeat(np.arange(len(explanations)), sizes),
        "layer": layer,
        "edge": edge,
        "source": source[column],
        "target": target[column],
        "type": _types(types, where)[column] if types else None,
        "score": _beside([e.scores for e in explanations])[layer, column],
        "kept": _beside([e.kept for e in explanations])[layer, column],
        "carried": _beside([e.carried for e in explanations])[layer, column],
    }


def _types(types: list[Tensor], where: str) -> Array:
    whole = _beside(types)
    if types[0].is_floating_point() or (whole.size and not -(2**31) <= whole.min() <= whole.max() < 2**31):
        raise GraphMaskError(f"Expected edge_type of {where} to be integers of 32 bits, got {types[0].dtype}.")
    return whole


def _graphs(
    batch: Any, found: list[Explanation], divergence: Divergence, baselines: tuple[Tensor, ...]
) -> dict[str, Any]:
    values = ("num_nodes", "divergence", "flips", "tolerance", "faithful", "reopened", "method")
    original, masked = (cpu(torch.cat([getattr(e, name) for e in found])) for name in ("original", "masked"))
    lengths = np.array([e.original.shape[0] for e in found])
    return {
        **{name: [getattr(e, name) for e in found] for name in values},
        "num_edges": [e.edge_index.shape[1] for e in found],
        "prediction": _lists(_predictions(divergence, original), lengths),
        "label": _labels(batch, found),
        "shape": [list(e.original.shape) for e in found],
        "original": _lists(original, lengths),
        "masked": _lists(masked, lengths),
        "baselines": _own_baselines(found, baselines),
    }


def _predictions(divergence: Divergence, original: Tensor) -> Tensor | None:
    """What `Divergence.flips` compares."""
    if not divergence.has_classes:
        return None
    if divergence.name == "bernoulli" or original.dim() < 2 or original.shape[-1] < 2:
        return (divergence.logits(original) > 0).int()
    return original.argmax(-1).int()


def _labels(batch: Any, explanations: list[Explanation]) -> Any:
    """``batch.y`` where it has one row per graph, or one per node or output row."""
    count = len(explanations)
    y, owner = batches.labels_of(batch, sum(len(explanation.original) for explanation in explanations))
    if y is None or y.is_complex() or y.layout != torch.strided:
        return None
    y = cpu(y).reshape(y.shape or 1).double()
    if len(y) == count:
        return _lists(y, np.ones(count, dtype=int))
    if owner is not None and owner.shape == y.shape[:1]:
        owner = cpu(owner)
        return _lists(y[owner.argsort(stable=True)], torch.bincount(owner, minlength=count).numpy())
    if count == 1 and len(y) in (explanations[0].num_nodes, explanations[0].original.shape[0]):
        return _lists(y, np.array([len(y)]))
    return None


def _own_baselines(explanations: list[Explanation], shared: tuple[Tensor, ...]) -> list[list[list[float]] | None]:
    """None for graphs that have the shared ones; mostly all graphs of a batch hold the very same tensors."""
    own: dict[tuple[int, ...], list[list[float]] | None] = {}
    for explanation in explanations:
        key = tuple(map(id, explanation.baselines))
        if key not in own:
            mine = [cpu(baseline) for baseline in explanation.baselines]
            same = all(torch.equal(a, b) for a, b in zip(mine, shared, strict=True))
            own[key] = None if same else [baseline.tolist() for baseline in mine]
    return [own[tuple(map(id, explanation.baselines))] for explanation in explanations]


def notes_of(metadata: Metadata | None, batch: Any, explanations: list[Explanation], where: str) -> list[str] | None:
    """The user's notes on the graphs of a batch, and what explanations say of themselves, as JSON."""
    count, own = len(explanations), [explanation.info_on_file() for explanation in explanations]
    if metadata is None:
        return [json.dumps(info, ensure_ascii=False) for info in own] if any(own) else None
    notes = metadata(batch)
    if not isinstance(notes, Sequence) or isinstance(notes, str) or len(notes) != count:
        got = type(notes).__name__ if not isinstance(notes, Sequence) or isinstance(notes, str) else len(notes)
        raise GraphMaskError(
            f"Expected metadata(batch) to return a list of {count} dictionaries, one per graph of {where}, got {got}."
        )
    descriptions = [f"graph {number} of {where}" for number in range(count)]
    for note, explanation, description in zip(notes, explanations, descriptions, strict=True):
        if isinstance(note, Mapping):
            labels.check(note, explanation, description)
    return [_note(note, info, description) for note, info, description in zip(notes, own, descriptions, strict=True)]


def _note(note: Any, own: dict[str, Any], where: str) -> str:
    if not isinstance(note, Mapping) or not all(isinstance(key, str) for key in note):
        raise GraphMaskError(f"Expected metadata of {where} to be a dictionary with text as keys, got {note!r:.80}.")
    try:
        text = json.dumps({**note, **own}, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphMaskError(
            f"Expected metadata of {where} to be what JSON can hold (text, finite numbers, lists, dictionaries), got "
            f"{note!r:.80} ({error})."
        ) from None
    return text


def _beside(parts: list[Tensor]) -> Array:
    """Tensors of several graphs concatenated along the last dimension, as a numpy array."""
    whole = cpu(torch.cat(parts, -1))
    return (whole.float() if whole.is_floating_point() else whole).numpy()


def _lists(rows: Tensor | None, lengths: Array) -> Any:
    """An array of lists that hold, one after the other, the values of so many rows."""
    import pyarrow as pa

    if rows is None:
        return None
    width = int(np.prod(rows.shape[1:], dtype=int))
    offsets = np.concatenate([[0], np.cumsum(lengths * width)])
    values = rows.float() if rows.is_floating_point() and rows.dtype != torch.double else rows
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values.reshape(-1).numpy()))


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for column in schema:
        values = columns[column.name]
        if values is None:
            values = pa.nulls(len(columns["graph"]), column.type)
        elif isinstance(values, pa.Array):
            values = values.cast(column.type)
        elif isinstance(values, np.ndarray):
            values = pa.array(values.astype(column.type.to_pandas_dtype(), copy=False))
        else:
            values = pa.array(values, column.type)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=schema)


def dtypes(example: Explanation) -> dict[str, str | None]:
    """The dtypes of tensors, which the columns do not record."""
    kind = example.edge_type
    return {
        "edge_index": name_of(example.edge_index.dtype),
        "edge_type": None if kind is None else name_of(kind.dtype),
        "output": name_of(example.original.dtype),
    }


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str | None) -> torch.dtype | None:
    dtype = None if name is None else getattr(torch, name)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is no type of tensor")
    return dtype


def cpu(value: Tensor) -> Tensor:
    return value.detach().cpu()
