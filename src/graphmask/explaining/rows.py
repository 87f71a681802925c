"""The output rows that a question is about, and the messages that can reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError, warn
from graphmask.explaining.case import Case, Choice
from graphmask.graphs import batches
from graphmask.graphs.retained_paths import passed_on
from graphmask.tapping.subject import Rows
from graphmask.tapping.trace import Trace

#: A row of the output, several, or a mask over all of them.
Index = int | Sequence[int] | Tensor


def rows_of(index: Index, count: int) -> tuple[int, ...]:
    """The row numbers, checked against an output of ``count`` rows."""
    try:
        rows = torch.as_tensor(index).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise GraphMaskError(f"Expected index to be a row number, several, or a mask, got {index!r:.80}.") from None
    if rows.dtype == torch.bool:
        if rows.shape != (count,):
            raise GraphMaskError(
                f"Expected a mask over the {count} output rows as index, got one of shape {tuple(rows.shape)}."
            )
        rows = rows.nonzero()
    rows = rows.reshape(-1)
    if rows.is_floating_point() or rows.is_complex() or rows.numel() == 0:
        got = "none" if rows.numel() == 0 else f"{rows.dtype}"
        raise GraphMaskError(f"Expected at least one output row (integers) as index, got {got}.")
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= count:
        raise GraphMaskError(
            f"Expected index to name output rows 0 to {count - 1}, got {low if low < 0 else high}. "
            "Rows of the output are nodes, candidate edges or graphs, whichever the model predicts."
        )
    return tuple(rows.tolist())


def receptive_field(trace: Trace, read: Tensor) -> Tensor:
    """bool [L, E]: messages from which the final states of the nodes ``read`` (bool [N]) can be reached."""
    return passed_on(trace.edge_index, trace.carried.float(), trace.sites, read) > 0


def for_rows(choice: Choice, trace: Trace, read: Tensor) -> Choice:
    """The choice where only the nodes ``read`` (bool [N]) matter: a message counts as far as it is passed on to them.

    A kept message is dropped if no kept message carries it on to one of these nodes: it cannot change any row that is
    asked about. Scores are multiplied along the best path, as the probability that all its gates are open.
    """
    kept = passed_on(trace.edge_index, choice.kept.float(), trace.sites, read) > 0
    return replace(choice, kept=kept, scores=passed_on(trace.edge_index, choice.scores, trace.sites, read))


def nodes_read(batch: Any, trace: Trace, rows: tuple[int, ...], count: int) -> Tensor:
    """bool [N]: the nodes from whose final states these of ``count`` rows are computed.

    A row is a candidate edge (``edge_label_index``; both its ends), a node, a graph (all its nodes) or an edge. Where
    the counts fit several of these, their nodes are united; where they fit none, all nodes are meant. For HeteroData, a
    row may be a node of any type that has as many nodes as there are rows.
    """
    edges = trace.edge_index
    highest = int(edges.max()) + 1 if edges.numel() else 0
    nodes = max(batches.num_nodes_of(batch, edges) or 0, highest, (trace.graphs or 0) * (trace.nodes or 0))
    if trace.sizes is not None:
        nodes = int(trace.sizes.sum())
    at = torch.tensor(rows, device=edges.device)
    owner, graphs, per_graph = batches.tensor(batch, "batch"), 1, 1
    if trace.graphs is not None and trace.nodes is not None:
        graphs, per_graph = trace.graphs, max(count // trace.graphs, 1)
        owner = torch.arange(graphs, device=edges.device).repeat_interleave(trace.nodes)
    elif trace.graphs is not None and trace.sizes is not None:
        graphs, per_graph = trace.graphs, max(count // trace.graphs, 1)
        owner = torch.arange(graphs, device=edges.device).repeat_interleave(trace.sizes)
    elif owner is not None and owner.numel():
        graphs = max(int(owner.max()) + 1, int(getattr(batch, "num_graphs", 0) or 0))
    read = torch.zeros(nodes, dtype=torch.bool, device=edges.device)
    candidates = batches.tensor(batch, "edge_label_index")
    if candidates is not None and candidates.shape[1] == count:
        read[candidates[:, at].flatten()] = True
    if batches.adapter(batch).by_type:
        for first in batches.adapter(batch).first_nodes(batch, count):  # the nodes of one type
            read[first + at] = True
    elif count in (nodes, batches.seeds_of(batch)):
        read[at] = True
    elif count == graphs * per_graph:
        read |= torch.isin(owner, at // per_graph) if owner is not None and owner.numel() else True
    elif not bool(read.any()) and count == trace.edge_map.count:
        read[edges[:, at].flatten()] = True
    return read if bool(read.any()) else torch.ones_like(read)


def asked_about(case: Case, rows: tuple[int, ...], where: str) -> Case:
    """The case with its output cut to these rows, and only the gates that can matter to them."""
    trace, count = case.trace, case.trace.output.shape[0]
    read = nodes_read(case.batch, trace, rows, count)
    field = receptive_field(trace, read)
    # A row that reads many nodes is a graph, or could be anything: no node is what was asked about.
    nodes = tuple(read.nonzero().view(-1).tolist()) if int(read.sum()) <= 2 * len(rows) else ()
    trace = replace(trace, output=trace.output[list(rows)])
    case = replace(case, subject=replace(case.subject, rows=Rows(rows, count, nodes)), trace=trace)
    if torch.equal(field, trace.carried):
        return case
    with torch.no_grad():
        alone = case.run(field, case.zeros())
    if not torch.allclose(alone, trace.output, rtol=1e-4, atol=1e-5):
        warn(
            f"Rows {rows[:5]} of {where} change when messages are dropped from which no edges lead to them: the model "
            "connects nodes by other ways than its layers' edges (pooling, attention over all nodes), or rows are not "
            "nodes, candidate edges or graphs. Every edge is taken to be able to reach them."
        )
        return case
    return replace(case, trace=replace(trace, carried=field), read=read)
