"""What all methods share: explain = look at the original run, choose, verify by a masked run."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn

from graphmask import labels, store
from graphmask import team as distributed
from graphmask.divergence import Divergence, Function
from graphmask.errors import GraphMaskError
from graphmask.explaining import repairing
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.repairing import Repaired
from graphmask.explaining.rows import Index, RowsOnly, nodes_read, receptive_field, rows_of
from graphmask.explanation import ASKED, UNREPAIRED, Explanation, build_all
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.graphs.layout import Types, agreed
from graphmask.graphs.sites import Site
from graphmask.graphs.wrapped_batches import graph_in, graphs_of
from graphmask.hetero_explanation import notes
from graphmask.store import Store
from graphmask.store.columns import Metadata
from graphmask.store.writing import write
from graphmask.tapping import gradients
from graphmask.tapping.attention import check_heads
from graphmask.tapping.capture import check_model
from graphmask.tapping.messages import Messages
from graphmask.tapping.restore import freeze, guest
from graphmask.tapping.trace import record
from graphmask.team import Team


class Method(ABC):
    """Which edges did a trained model use, at which layer?

    Args:
        model: any PyTorch module with :class:`torch_geometric.nn.MessagePassing` layers or taps. It is never changed.
        forward: ``forward(model, batch) -> Tensor``; by default the model's signature is matched to the batch's
            attributes. Rows of the output are examples: graphs, nodes or candidate edges.
        divergence: ``"kl"``, ``"js"``, ``"cross_entropy"``, ``"bernoulli"``, ``"mse"``, ``"gaussian"``, or a callable
            ``(original, masked) -> [rows]``; ``"auto"`` picks by the output.
        tolerance: the divergence that still counts as the same prediction.
        seed: makes everything reproducible.
        heads: of attention: ``"each"`` head has gates of its own, as relations do, or all ``"together"`` share them.
    """

    name: ClassVar[str]
    soft: ClassVar[bool] = False  #: hard choices come from a threshold on the scores
    costly: ClassVar[bool] = False  #: thousands of runs of the model per graph: compared only where it is named
    threshold: float = 0.5  #: of a soft method
    precision: str | None = None  #: "bf16" runs the model under autocast

    def __init__(
        self,
        model: nn.Module,
        forward: Forward | None = None,
        divergence: str | Function = "auto",
        tolerance: float = 0.03,
        seed: int = 0,
        *,
        heads: str = "each",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise GraphMaskError(f"Expected a torch.nn.Module, got {type(model).__name__}.")
        check_model(model)
        if forward is None:
            batches.check_forward(model)
        self.model = model
        self.forward = forward or batches.default_forward
        self.divergence = Divergence(divergence)
        self.tolerance = check_tolerance(tolerance)
        self.seed, self.heads = seed, check_heads(heads)
        self.sites: tuple[Site, ...] | None = None
        self.types: Types | None = None  #: node and edge types of heterogeneous data, known with the sites

    # What a method is --------------------------------------------------------------------------------------

    def look(self, messages: Messages) -> Tensor:
        """One number per edge [E'] read off the original run; by default nothing is."""
        return messages.source.new_zeros(messages.source.shape, dtype=torch.float)

    @abstractmethod
    def choose(self, case: Case) -> Choice:
        """Scores and hard choices for every edge and site of a batch."""

    @classmethod
    def why_not(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> str | None:
        """Why this method does not apply to a model; None if it does."""
        return None

    def fit(self, loader: Iterable[Any], validation: Iterable[Any] | None = None, *, progress: bool = True) -> Any:
        """Learn from data what explaining needs; most methods need nothing."""
        with guest(self.model):
            batches.scan(graphs_of(loader, self.forward), "the loader")

    def check_ready(self, allow_infeasible: bool) -> None:
        """Raise if this method cannot explain yet; most can at once."""
        return

    # Explaining --------------------------------------------------------------------------------------------

    def explain(
        self,
        data: Any,
        *,
        index: Index | None = None,
        repair: bool = True,
        counterfactual: bool = False,
        allow_infeasible: bool = False,
        node_labels: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Explanation:
        """Explain one graph: the original run, the choice, and the masked run that verifies it.

        The explanation that comes back holds: the divergence is within tolerance and the prediction is the same. Where
        that cannot be had (a model that is not deterministic), a warning and `Explanation.unrepaired` say why.

        Args:
            data: one graph.
            index: why *this* row of the output (a node, a candidate edge, a graph of a batch), or these rows? The
                output is cut to them, divergence and flips are theirs, and edges from which they cannot be reached
                are neither kept nor counted. Layers are taken to work in the order in which they are called.
            repair: reopen dropped messages, best score first and as few as it takes, until for this very graph the
                divergence is within tolerance and the prediction is the same. Costs nothing where that is so at once.
                False gives the method's own choice, whatever it does to the output: to measure the method, to compare
                methods or fits.
            counterfactual: also find the fewest kept messages, highest scores first, whose replacement changes the
                prediction (`Explanation.counterfactual`): what was kept is then not only enough, but needed.
            allow_infeasible: explain although `fit` found no state within tolerance.
            node_labels: names of the nodes, for pictures, tables and pages; kept in ``info``.
            class_names: names of the outputs, likewise.
        """
        self.check_ready(allow_infeasible)
        found = self._explain(data, repair, "the data", index, counterfactual=counterfactual)
        if len(found) != 1:
            raise GraphMaskError(f"Expected one graph, got a batch of {len(found)}. Use explain_all([batch]).")
        if node_labels is not None or class_names is not None:
            found[0].info |= labels.given(found[0], node_labels, class_names)
        return found[0]

    @overload
    def explain_all(
        self,
        loader: Iterable[Any],
        *,
        out: None = None,
        repair: bool = True,
        counterfactual: bool = False,
        allow_infeasible: bool = False,
    ) -> Iterator[Explanation]: ...

    @overload
    def explain_all(
        self,
        loader: Iterable[Any],
        *,
        out: str | Path,
        metadata: Metadata | None = None,
        repair: bool = True,
        allow_infeasible: bool = False,
        progress: bool = True,
        shard_rows: int | None = None,
        shard: tuple[int, int] | None = None,
    ) -> Store: ...

    def explain_all(
        self,
        loader: Iterable[Any],
        *,
        out: str | Path | None = None,
        metadata: Metadata | None = None,
        repair: bool = True,
        counterfactual: bool = False,
        allow_infeasible: bool = False,
        progress: bool = True,
        shard_rows: int | None = None,
        shard: tuple[int, int] | None = None,
    ) -> Iterator[Explanation] | Store:
        """Explain every graph of every batch, a batch at a time; see `explain`.

        In several processes (see docs/distributed.md) each explains its share: of ``n`` processes, number ``r`` takes
        the batches ``r``, ``r + n``, ... The iterator gives a process its own; a store has those of all.

        Args:
            loader: any iterable of batches.
            out: a folder to write to. The explanations come back as a :class:`graphmask.store.Store`; without it, as
                an iterator. A run that was killed goes on where it was when it is called again with the same batches.
            metadata: ``metadata(batch)`` returns one dictionary of JSON values per graph, to be kept with its
                explanation as ``info``: tokens, names.
            repair: as in `explain`; False gives the method's own choices, as measurements and comparisons need them.
            counterfactual: as in `explain`; not written to a folder.
            allow_infeasible: explain although `fit` found no state within tolerance.
            progress: show a progress bar where there is ``out``.
            shard_rows: rows per file; the default suits most.
            shard: (rank, world): this is one of so many processes that write to ``out`` at once, each of which has the
                whole loader and explains the batches rank, rank + world, ...; by default, as they were launched.
        """
        batches.check_loader(loader, "the loader")
        self.check_ready(allow_infeasible)
        team = distributed.team()

        def explain(batch: Any, where: str) -> list[Explanation]:
            if counterfactual:
                return self._explain(team.place(batch), repair, where, counterfactual=True)
            return self._explain(team.place(batch), repair, where)

        if out is not None:
            if counterfactual:
                raise GraphMaskError("Expected counterfactual=True without out=DIR: a store does not keep them.")
            wanted = partial(write, self, explain, loader, out, repair=repair, metadata=metadata, progress=progress)
            return _by_all(wanted, team, out, shard, shard_rows)
        if metadata is not None or shard_rows is not None:
            raise GraphMaskError("Expected out=DIR together with metadata or shard_rows, got no folder to write to.")
        # The model is borrowed batch by batch: between two explanations it is the user's.
        return (
            explanation
            for number, batch in enumerate(loader)
            if number % team.size == team.rank
            for explanation in explain(batch, f"batch {number}")
        )

    def _explain(
        self,
        batch: Any,
        repair: bool,
        where: str,
        index: Index | None = None,
        forward: Forward | None = None,
        *,
        counterfactual: bool = False,
    ) -> list[Explanation]:
        """With ``index`` or another ``forward``, one explanation of the batch as a whole."""
        if forward is None and self.forward is batches.default_forward:
            batch = graph_in(batch)
        batches.check(batch, where)
        with guest(self.model):
            freeze(self.model, training=False)
            case = self._case(batch, where, index, forward)
            with gradients.needed():
                choice = self.choose(case)
            with torch.no_grad():
                masked = case.run(choice.kept, choice.baselines)
            repaired = repairing.repair(case, choice, masked) if repair else repairing.as_is(case, choice, masked)
            choice.kept = repaired.kept
            overturning = repairing.counterfactual(case, choice) if counterfactual else None
        _warn(repaired)
        return self._divide(case, choice, repaired, overturning)

    def _case(self, batch: Any, where: str, index: Index | None = None, forward: Forward | None = None) -> Case:
        """Run the original model."""
        whole = index is not None or forward is not None
        forward = batches.in_precision(forward or self.forward, self.precision)
        types = agreed(self.types, batches.types_of(batch), where, self.sites is not None)
        trace = record(self.model, forward, batch, self.sites, self.look, self.heads)
        if not bool(torch.isfinite(trace.output).all()):
            raise GraphMaskError(
                f"Expected finite model outputs, got NaN or infinity on {where}. Check the model on this data without "
                "GraphMask."
            )
        if trace.edge_index.shape[1]:  # without edges, hops of one layer look like its relations
            self.sites, self.types = trace.sites, types
        self.divergence.resolve(trace.output)
        case = Case(self.model, forward, self.divergence, self.tolerance, batch, trace, whole)
        if index is not None:
            _ask_about(case, rows_of(index, trace.output.shape[0]), where)
        return case

    def _divide(
        self,
        case: Case,
        choice: Choice,
        repaired: Repaired,
        overturning: tuple[Tensor, Tensor] | None = None,
    ) -> list[Explanation]:
        """One Explanation per graph of the batch."""
        trace, split, masked = case.trace, case.split, repaired.masked
        divergence, flips = case.distance(masked).clamp_min(0), case.flips(masked)  # rounding may leave -1e-11
        edge_type = trace.edge_type if trace.edge_type is not None else batches.tensor(case.batch, "edge_type")
        if edge_type is not None and edge_type.shape != split.edge_graph.shape:
            edge_type = None
        types = self.types or batches.types_of(case.batch)
        info = notes(types, case.batch, split)
        for own, why in zip(info, repaired.why, strict=True):
            if why is not None:
                own[UNREPAIRED] = why
        if isinstance(case.forward, RowsOnly) and case.forward.nodes:
            info[0][ASKED] = list(case.forward.nodes)
        if types is not None and edge_type is not None:
            known = [types.edge_types.index(kind) for kind in trace.edge_map.all_types]
            edge_type = torch.tensor(known, dtype=torch.long, device=edge_type.device)[edge_type]
        local = split.within(trace.edge_index)
        nodes = _nodes_per_graph(case)
        baselines = [baseline.detach().clone() for baseline in choice.baselines]
        edges, rows = _divider(split.edge_graph, split.count), _divider(split.row_graph, split.count)
        columns: dict[str, Iterable[Any]] = {
            "edge_index": edges(local, 1),
            "kept": edges(choice.kept, 1),
            "scores": edges(choice.scores, 1),
            "carried": edges(trace.carried, 1),
            "edge_type": repeat(None) if edge_type is None else edges(edge_type, 0),
            "original": rows(trace.output, 0),
            "masked": rows(masked, 0),
            "divergence": divergence.tolist(),
            "flips": flips.tolist(),
            "reopened": repaired.reopened.tolist(),
            "baselines": zip(*(b if b.dim() > 1 else repeat(b) for b in baselines), strict=False),
            "num_nodes": nodes,
            "tolerance": repeat(self.tolerance),
            "structure": repeat(trace.sites),
            "method": repeat(self.name),
            "index": repeat(case.forward.rows if isinstance(case.forward, RowsOnly) else None),
            "precision": repeat(self.precision),
            "counterfactual": repeat(None),
        }
        if overturning is not None:
            found, there = overturning
            parts = zip(edges(found, 1), there.tolist(), strict=True)
            columns["counterfactual"] = (part if is_there else None for part, is_there in parts)
        return build_all(columns, info)


def _by_all(
    wanted: Callable[..., Store], team: Team, out: str | Path, shard: tuple[int, int] | None, shard_rows: int | None
) -> Store:
    """Each process writes its share; what comes back is what all of them have written."""
    rank, world = shard or (team.rank, team.size)
    written = wanted(shard_rows=shard_rows, rank=rank, world=world)
    if team.size == 1:
        return written
    team.wait()
    return store.open(out)


def check_tolerance(tolerance: float) -> float:
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < float("inf"):
        raise GraphMaskError(f"Expected a finite tolerance above 0, got {tolerance!r}.")
    return float(tolerance)


def _warn(repaired: Repaired) -> None:
    reasons = [why for why in repaired.why if why is not None]
    if reasons:
        warnings.warn(
            f"Could not make {len(reasons)} of {len(repaired.why)} explanations hold, even with all their messages: "
            f"{reasons[0]}. Explanation.unrepaired says so of each; repair=False gives what was chosen.",
            UserWarning,
            stacklevel=4,
        )


def _ask_about(case: Case, rows: tuple[int, ...], where: str) -> None:
    """Cut the output to these rows, and the gates to those that can matter to them."""
    trace, count = case.trace, case.trace.output.shape[0]
    read = nodes_read(case.batch, trace, rows, count)
    field = receptive_field(trace, read)
    # A row that reads many nodes is a graph, or could be anything: no node is what was asked about.
    nodes = tuple(read.nonzero().view(-1).tolist()) if int(read.sum()) <= 2 * len(rows) else ()
    case.forward = RowsOnly(case.forward, rows, count, nodes)
    trace.output = trace.output[list(rows)]
    if torch.equal(field, trace.carried):
        return
    with torch.no_grad():
        alone = case.run(field, case.zeros())
    if not torch.allclose(alone, trace.output, rtol=1e-4, atol=1e-5):
        warnings.warn(
            f"Rows {rows[:5]} of {where} change when messages are dropped from which no edges lead to them: the model "
            "connects nodes by other ways than its layers' edges (pooling, attention over all nodes), or rows are not "
            "nodes, candidate edges or graphs. Every edge is taken to be able to reach them.",
            UserWarning,
            stacklevel=5,
        )
        return
    trace.carried = field


def _divider(owner: Tensor, count: int) -> Callable[[Tensor, int], Sequence[Tensor]]:
    """Divides a tensor along a dimension among its owners; without a copy where those of each lie together."""
    if count == 1:
        return lambda value, dim: (value,)
    sizes = torch.bincount(owner, minlength=count).tolist()
    if bool((owner[1:] >= owner[:-1]).all()):
        return lambda value, dim: value.split(sizes, dim)
    order = owner.argsort(stable=True)
    return lambda value, dim: value.index_select(dim, order).split(sizes, dim)


def _nodes_per_graph(case: Case) -> list[int]:
    trace, count = case.trace, case.split.count
    if case.split.sizes is not None:
        return case.split.sizes.sum(1).tolist()
    if trace.sizes is not None:
        return [int(trace.sizes.sum())] if case.whole else trace.sizes.tolist()
    if trace.graphs is not None and trace.nodes is not None:
        return [trace.nodes * trace.graphs // count] * count
    node_graph = batches.tensor(case.batch, "batch")
    if node_graph is not None and node_graph.numel() and not case.whole:
        return torch.bincount(node_graph, minlength=count).tolist()
    known = batches.num_nodes_of(case.batch, trace.edge_index)
    highest = int(trace.edge_index.max()) + 1 if trace.edge_index.numel() else 0
    return [max(known or 0, highest)]
