"""What all methods share: explain = look at the original run, choose, verify by a masked run."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn

from graphmask import labels, store
from graphmask import team as distributed
from graphmask.devices import placed
from graphmask.divergence import Divergence, Function
from graphmask.errors import GraphMaskError, warn
from graphmask.explaining import repairing
from graphmask.explaining.asked import Asked, State
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.dividing import divide
from graphmask.explaining.pieces import Alike, pieces
from graphmask.explaining.repairing import Repaired
from graphmask.explaining.rows import Index, asked_about, rows_of
from graphmask.explanation import Explanation
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.graphs.layout import Types, agreed
from graphmask.graphs.sites import Site
from graphmask.hetero_explanation import types_of
from graphmask.store import Store
from graphmask.store.columns import Metadata
from graphmask.store.writing import write
from graphmask.tapping import compiled, gradients
from graphmask.tapping.attention import check_heads
from graphmask.tapping.capture import check_model
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import nothing, record
from graphmask.team import Team


class Method(ABC):
    """Which edges did a trained model use, at which layer?

    Args:
        model: any PyTorch module with :class:`torch_geometric.nn.MessagePassing` layers or taps. It is restored after
            every call.
        forward: ``forward(model, batch) -> Tensor``; by default the model's signature is matched to the batch's
            attributes. Rows of the output are examples: graphs, nodes or candidate edges.
        divergence: ``"kl"``, ``"js"``, ``"cross_entropy"``, ``"bernoulli"``, ``"mse"``, ``"gaussian"``, or a callable
            ``(original, masked) -> [rows]``; ``"auto"`` picks by the output.
        tolerance: the largest divergence that is allowed.
        seed: the seed of all random numbers.
        heads: for attention: with ``"each"`` every head has gates of its own, with ``"together"`` all heads share them.
        leaky_keys: for attention, and for comparison only: a dropped pair keeps its own logit in the softmax.
    """

    name: ClassVar[str]
    soft: ClassVar[bool] = False  #: hard choices come from a threshold on the scores
    costly: ClassVar[bool] = False  #: thousands of runs of the model per graph: compared only where it is named
    seeded: ClassVar[bool] = False  #: what it finds depends on the seed
    #: The attribute, a module, that holds all that `look` reads beside messages: questions about one graph may share a
    #: run. Where it is not said, each has its own.
    looks_with: ClassVar[str | None] = None
    threshold: float = 0.5  #: of a soft method
    fraction: float | None = None  #: of a soft method: how much of each graph to keep, whatever the threshold

    def __init__(
        self,
        model: nn.Module,
        forward: Forward | None = None,
        divergence: str | Function = "auto",
        tolerance: float = 0.03,
        seed: int = 0,
        *,
        heads: str = "each",
        leaky_keys: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise GraphMaskError(f"Expected a torch.nn.Module, got {type(model).__name__}.")
        model = compiled.original(model)
        check_model(model)
        if forward is None:
            batches.check_forward(model)
        self.subject = Subject(
            model,
            forward or batches.default_forward,
            Divergence(divergence),
            heads=check_heads(heads),
            leaky_keys=leaky_keys,
        )
        self.tolerance, self.seed, self.asked = check_tolerance(tolerance), seed, Asked()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, tolerance={self.tolerance:g})"

    @property
    def model(self) -> nn.Module:
        return self.subject.model

    @property
    def forward(self) -> Forward:
        """How the model is called on a batch."""
        return self.subject.forward

    @property
    def divergence(self) -> Divergence:
        return self.subject.divergence

    @property
    def precision(self) -> str | None:
        """``"bf16"`` where the model runs under autocast."""
        return self.subject.precision

    @property
    def heads(self) -> str:
        return self.subject.heads

    @property
    def sites(self) -> tuple[Site, ...] | None:
        """Where messages flow; None before the first run of the model."""
        return self.subject.sites

    @property
    def types(self) -> Types | None:
        """Node and edge types of heterogeneous data, known with the sites."""
        return self.subject.types

    # What a method is --------------------------------------------------------------------------------------

    def look(self, messages: Messages) -> Tensor:
        """One number per edge [E'], read from the messages of the original run; zero by default."""
        return nothing(messages)

    @abstractmethod
    def choose(self, case: Case) -> Choice:
        """Scores and hard choices for every edge and site of a batch."""

    def chosen(self, case: Case) -> Choice:
        """As `choose`; of a soft method with a fraction, so many messages of each graph, highest scores first."""
        choice = self.choose(case)
        if self.soft and self.fraction is not None:
            (choice.kept,) = case.best(choice.scores, (self.fraction,))
        return choice

    @classmethod
    def why_not(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> str | None:
        """The reason why this method does not apply to a model; None if it does."""
        return None

    def fit(self, loader: Iterable[Any], validation: Iterable[Any] | None = None, *, progress: bool = True) -> Any:
        """Learn from data what explaining needs; most methods need nothing."""
        loader = self.subject.take_all(loader)
        with self.subject.frozen():
            batches.scan(loader, "the loader")
            self.subject = found_on(self.subject, loader)

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

        The explanation holds: the divergence is within tolerance and the prediction is the same. Where that cannot be
        achieved (a model that is not deterministic), a warning and `Explanation.unrepaired` give the reason.

        Args:
            data: one graph.
            index: explain only this row of the output (a node, a candidate edge, a graph of a batch), or these rows.
                The output is cut to them, divergence and flips are theirs, and edges from which they cannot be reached
                are neither kept nor counted. Layers are assumed to work in the order in which they are called.
            repair: reopen dropped messages, best score first and as few as necessary, until the divergence of this
                graph is within tolerance and its prediction is the same. Costs nothing where that is so at once. False
                returns the method's own choice, whatever it does to the output: to measure or compare methods or fits.
            counterfactual: also find the fewest kept messages, highest scores first, whose replacement changes the
                prediction (`Explanation.counterfactual`).
            allow_infeasible: explain although `fit` found no state within tolerance.
            node_labels: names of the nodes, for pictures, tables and pages; kept in ``info``.
            class_names: names of the outputs; kept in ``info`` too.
        """
        self.check_ready(allow_infeasible)
        explanations = self._explain(data, repair, "the data", index, counterfactual=counterfactual)
        if len(explanations) != 1:
            raise GraphMaskError(f"Expected one graph, got a batch of {len(explanations)}. Use explain_all([batch]).")
        if node_labels is not None or class_names is not None:
            explanations[0].info |= labels.given(explanations[0], node_labels, class_names)
        return explanations[0]

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
            out: a folder to write to. The result is then a :class:`graphmask.store.Store`, otherwise an iterator. A run
                that was killed resumes when it is called again with the same batches.
            metadata: ``metadata(batch)`` returns one dictionary of JSON values per graph, which is kept with its
                explanation as ``info``: tokens, names.
            repair: as in `explain`; False returns the method's own choices, for measurements and comparisons.
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

        method = copy.copy(self)  # what is found on the first batch holds for the others of this call

        def explain(batch: Any, where: str) -> list[Explanation]:
            more = {"counterfactual": True} if counterfactual else {}
            explained = method._explain(batch, repair, where, **more)
            if method.sites is None and any(explanation.edge_index.shape[1] for explanation in explained):
                method.subject = replace(method.subject, sites=explained[0].structure, types=types_of(explained[0]))
            return explained

        if out is not None:
            if counterfactual or self.subject.features is not None:
                asked = "counterfactual=True" if counterfactual else "features=..."
                raise GraphMaskError(f"Expected {asked} without out=DIR: a store does not keep them.")
            wanted = partial(write, method, explain, loader, out, repair=repair, metadata=metadata, progress=progress)
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
        *,
        counterfactual: bool = False,
    ) -> list[Explanation]:
        """One explanation per graph; with ``index``, one of the batch as a whole."""
        with self.subject.frozen():
            explanations: list[Explanation] = []
            alike = Alike()
            for piece in pieces(self.subject, batch) if index is None else [batch]:
                # Without a name of its own here: what the original run left behind is let go of as early as can be.
                explanations += self.explain_case(self.case(piece, where, index=index), repair, counterfactual, alike)
            return explanations

    def explain_case(
        self, case: Case, repair: bool = True, counterfactual: bool = False, alike: Alike | None = None
    ) -> list[Explanation]:
        """Choose, verify by a masked run, repair, and divide by graph; inside `Subject.frozen`, like `case`.

        ``alike`` is shared by explanations of parts of one batch.
        """
        with gradients.needed():
            choice = self.chosen(case)
        # What was read off every edge has served: of attention it is as large as all scores.
        case = replace(case, trace=replace(case.trace, values=choice.scores))
        with torch.no_grad():
            masked = case.run(choice.kept, choice.baselines)
        repaired = repairing.repair(case, choice, masked) if repair else repairing.as_is(case, choice, masked)
        choice.kept = repaired.kept
        overturning = repairing.counterfactual(case, choice) if counterfactual else None
        _warn(repaired)
        return divide(case, choice, repaired, self.name, overturning, alike)

    def case(
        self, batch: Any, where: str = "the batch", *, index: Index | None = None, forward: Forward | None = None
    ) -> Case:
        """Run the original model on a batch: what `choose` chooses from, and measurements are made on.

        Call it, and what you do with the case, inside ``with method.subject.frozen():``, which restores the model.

        Args:
            batch: one or more graphs.
            where: the batch's name in error messages.
            index: as in `explain`.
            forward: another way to call the model. With ``index`` or ``forward`` the batch is one case as a whole.
        """
        batch = self.subject.take(batch) if forward is None else placed(batch, self.subject.device)
        batches.check(batch, where)
        subject = self.subject if forward is None else replace(self.subject, forward=forward)
        types = agreed(subject.types, batches.types_of(batch), where, subject.sites is not None)
        whole = index is not None or forward is not None
        if index is None:
            trace = record(subject, batch, self.look)
        else:  # others about the same graph may follow
            read = None if self.looks_with is None else getattr(self, self.looks_with)
            trace = self.asked.trace(State.of(subject, batch, read), lambda: record(subject, batch, self.look))
        if not isfinite(float(trace.output.sum())) and not bool(torch.isfinite(trace.output).all()):
            raise GraphMaskError(
                f"Expected finite model outputs, got NaN or infinity on {where}. Check the model on this data without "
                "GraphMask."
            )
        subject.divergence.resolve(trace.output)
        if subject.sites is None:
            subject = replace(subject, sites=trace.sites, types=types)
        case = Case(subject, self.tolerance, batch, trace, whole)
        return case if index is None else asked_about(case, rows_of(index, trace.output.shape[0]), where)


def _by_all(
    wanted: Callable[..., Store], team: Team, out: str | Path, shard: tuple[int, int] | None, shard_rows: int | None
) -> Store:
    """Each process writes its share; the result is the store of all that they have written."""
    rank, world = shard or (team.rank, team.size)
    written = wanted(shard_rows=shard_rows, rank=rank, world=world)
    if team.size == 1:
        return written
    team.wait()
    return store.open(out)


def found_on(subject: Subject, loader: Iterable[Any]) -> Subject:
    """The subject with the sites, and the types of heterogeneous data, that the first batch of a loader shows."""
    (first,), types = batches.first_few(loader, 1)
    sites = record(replace(subject, sites=None), first, nothing).sites
    return replace(subject, sites=sites, types=types)


def check_tolerance(tolerance: float) -> float:
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < float("inf"):
        raise GraphMaskError(f"Expected a finite tolerance above 0, got {tolerance!r}.")
    return float(tolerance)


def _warn(repaired: Repaired) -> None:
    reasons = [why for why in repaired.why if why is not None]
    if reasons:
        warn(
            f"Could not make {len(reasons)} of {len(repaired.why)} explanations hold, even with all their messages: "
            f"{reasons[0]}. Explanation.unrepaired says so of each; repair=False gives what was chosen."
        )
