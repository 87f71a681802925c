"""GraphMask: fit once over a data set, then explain any graph by two runs of the model. Start reading here."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphmask import files, locks
from graphmask import team as distributed
from graphmask.devices import device_of
from graphmask.divergence import Function
from graphmask.errors import GraphMaskError, warn
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method, check_tolerance
from graphmask.explaining.rows import for_rows
from graphmask.fitting import checkpoint, history, saved, starting
from graphmask.fitting.calibration import MARGIN, sparsest
from graphmask.fitting.held_out import divided
from graphmask.fitting.history import History
from graphmask.fitting.loop import run
from graphmask.fitting.progress import Progress
from graphmask.fitting.recipe import RECIPES, Recipe
from graphmask.fitting.training import Training, take
from graphmask.gates import hard_concrete
from graphmask.gates.probe import Probe
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.graphs.wrapped_batches import Repeatable, graphs_of
from graphmask.store import identity
from graphmask.tapping import gradients
from graphmask.tapping.features import FeatureTap, check_kind
from graphmask.tapping.messages import Messages
from graphmask.tapping.weights import Weights
from graphmask.team import ALONE, Team, WorkerLost

if TYPE_CHECKING:
    from accelerate import Accelerator


class GraphMask(Method):
    r"""Differentiable edge masking (`Schlichtkrull, De Cao and Titov, ICLR 2021 <https://arxiv.org/abs/2010.00577>`_).

    .. math::
        \max_\lambda \min_{\pi, b} \sum_{\mathcal G \in \mathcal D} \Big( \sum_k \sum_{(u,v)}
        \mathbf 1[z^{(k)}_{u,v} \neq 0] \Big) + \lambda \big( D[f(\mathcal G) \| f(\mathcal G_S)] - \beta \big)

    One small gate network per site, trained once over a data set and without look-ahead, decides for every edge
    whether its message may be replaced by a learned baseline.

    Args:
        model: any PyTorch module with :class:`torch_geometric.nn.MessagePassing` layers or taps. It is restored after
            every call.
        forward: ``forward(model, batch) -> Tensor``; by default the model's signature is matched to the batch's
            attributes. Rows of the output are examples: graphs, nodes or candidate edges.
        divergence: ``"kl"``, ``"js"``, ``"cross_entropy"``, ``"bernoulli"``, ``"mse"``, ``"gaussian"``, or a callable
            ``(original, masked) -> [rows]``; ``"auto"`` picks by the output.
        tolerance: the largest divergence that is allowed.
        seed: the seed of all random numbers. The same seed gives the same explanations on the same machine.
        recipe: ``"noisy"`` (default), ``"paper"``, or a :class:`graphmask.fitting.recipe.Recipe`.
        hidden: width of the gate networks.
        precision: ``"bf16"`` runs the model under autocast, in `fit` and for every explanation; gates and divergence
            stay in full precision. The default is the precision set in ``accelerate``, else the model's own.
        recompute: use less memory in `fit`: PyG layers run again in the backward pass and keep no messages.
        heads: for attention: with ``"each"`` every head has gates of its own, with ``"together"`` all heads share them.
        features: also gate the input, as one more site below the layers: ``"nodes"`` for the features ``x`` of every
            node, ``"each"`` for every single number in them, ``"edges"`` for the ``edge_attr`` of every edge. See
            `Explanation.features`.
        leaky_keys: for attention, and for comparison only: a dropped pair keeps its own logit in the softmax, so that
            its key still influences the weights of the other pairs.
    """

    name = "graphmask"
    seeded = True
    looks_with = "probe"

    def __init__(
        self,
        model: nn.Module,
        forward: Forward | None = None,
        divergence: str | Function = "auto",
        tolerance: float = 0.03,
        seed: int = 0,
        *,
        recipe: str | Recipe = "noisy",
        hidden: int = 32,
        precision: str | None = None,
        recompute: bool = False,
        heads: str = "each",
        features: str | None = None,
        leaky_keys: bool = False,
    ) -> None:
        super().__init__(model, forward, divergence, tolerance, seed, heads=heads, leaky_keys=leaky_keys)
        if isinstance(recipe, str) and recipe not in RECIPES:
            raise GraphMaskError(f"Expected a recipe among {', '.join(RECIPES)} or a Recipe, got {recipe!r}.")
        self.recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
        tap = None if check_kind(features) is None or features is None else FeatureTap(features)
        self.subject = replace(self.subject, precision=batches.check_precision(precision), features=tap)
        self.hidden, self.recompute = hidden, recompute
        self.probe: Probe | None = None
        self.history: History | None = None
        self.weights: Weights | None = None  # of the model, when the gates were fitted to it
        self.rungs: list[dict[str, Tensor]] = []  # snapshots of the probe, for other tolerances

    # Fitting -----------------------------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
        accumulate: int = 1,
        accelerator: Accelerator | None = None,
    ) -> History:
        """Train the gates on batches of graphs that the model has been, or could have been, trained on.

        Args:
            loader: any iterable of batches that can be iterated more than once.
            validation: batches on which gates are judged, in addition to those of ``loader``, to which gates may be
                overfitted. With fewer than 200 examples here, up to 15 % of ``loader`` is held out for judging too, if
                it is a list of batches or a `DataLoader`.
            epochs: passes over ``loader``; by default as many as make 1,000 steps. With several sites there are
                up to 2.5 times as many while hard gates leave more than half of the tolerance unused.
            checkpoint: a file written after every epoch; if it exists, fitting resumes from it with the same result.
            progress: show a progress bar.
            accumulate: batches per step, run one after the other; the step is that of one batch with all their graphs.
            accelerator: the program's own, if it has one. Without it, processes started by ``accelerate launch`` or
                ``torchrun`` find each other by themselves. Each takes its share of the batches of every step; all end
                with the same gates. See docs/distributed.md.
        """
        if accumulate < 1:
            raise GraphMaskError(f"Expected at least one batch per step, got accumulate={accumulate}.")
        team = distributed.team(accelerator)
        if self.precision is None:
            told = batches.check_precision(distributed.precision(accelerator))
            self.subject = replace(self.subject, precision=told)
        try:
            with locks.alone_at(checkpoint, team.rank, team.size):
                return self._fit(loader, validation, epochs, checkpoint, progress, accumulate, team)
        except WorkerLost as lost:
            there = checkpoint is not None and Path(checkpoint).exists()
            advice = f"the checkpoint at {checkpoint} resumes" if there else "with checkpoint=FILE it could resume"
            raise WorkerLost(f"{lost} Start the same run again: {advice}.") from lost

    def _fit(
        self,
        loader: Iterable[Any],
        validation: Iterable[Any] | None,
        epochs: int | None,
        path: str | Path | None,
        progress: bool,
        accumulate: int,
        team: Team,
    ) -> History:
        with self.subject.frozen():  # also for the scan: a shuffling loader draws from the user's random state
            loader = graphs_of(loader, self.forward)
            validation = None if validation is None else graphs_of(validation, self.forward)
            count = batches.scan(loader, "the loader")
            if count > 1:
                batches.check_cached(self.model)
            if validation is not None:
                batches.scan(validation, "the validation loader")
            if epochs is not None and epochs < 1:
                raise GraphMaskError(f"Expected at least one epoch, got {epochs}.")
            whole, (loader, split_off) = loader, divided(loader, validation, team.size * accumulate)
            if loader is not whole:
                count = sum(1 for _ in loader)
            loader = self.subject.take_all(loader)
            again = Repeatable(loader, self.seed)
            parts = [data for data in (validation, split_off) if data is not None]
            held_out = [Repeatable(self.subject.take_all(data), self.seed) for data in parts]
            training = self.begin(loader, epochs, count, team, accumulate)
            if path is not None:
                checkpoint.resume(training, path)

            def mode(train: bool) -> None:
                self.subject.freeze(training=train and self.recipe.dropout)

            with Progress(training, enabled=progress and team.first) as bar:

                def on_epoch(current: Training) -> None:
                    bar.epoch(current)
                    if path is not None:
                        if team.first:
                            checkpoint.save(current, path)
                        team.wait()

                with gradients.needed():
                    record = run(training, loader, again, held_out, mode=mode, on_step=bar.step, on_epoch=on_epoch)
        self.probe, self.history, self.subject = training.probe.eval(), record, training.subject
        self.rungs = training.rungs
        self.weights = Weights(self.model)
        if record.advice():
            warn(f"GraphMask: {record.advice()}")
        return record

    @property
    def frontier(self) -> list[history.Point]:
        """What is kept at which tolerance, measured at the end of `fit`; every row is a state that `at` can return.

        A row is the last state with some thresholds, or a snapshot from earlier in the fit, at a smaller target.
        """
        return history.points(self._fitted().frontier, MARGIN)

    def at(self, tolerance: float) -> GraphMask:
        """An explainer for another tolerance, without data or training: the sparsest measured state that meets it."""
        check_tolerance(tolerance)
        chosen = sparsest(self._fitted().frontier, tolerance)
        if chosen is None:
            least = min((point.tolerance for point in self.frontier if max(point.kept) < 1), default=float("inf"))
            raise GraphMaskError(
                f"Expected a tolerance that some state of this fit meets while it drops something, got "
                f"{tolerance:.3g}; the smallest is {least:.3g}. See `frontier`, or fit with this tolerance."
            )
        other = copy.copy(self)
        other.probe, other.history, other.tolerance = copy.deepcopy(self.probe), replace(self._fitted()), tolerance
        assert other.probe is not None
        other.history.tolerance = tolerance
        take(other.probe, chosen, self.rungs, other.history)
        return other

    def _fitted(self) -> History:
        if self.probe is None or self.history is None:
            raise GraphMaskError("Expected a fitted GraphMask. Call fit(loader) first, or load(path, model).")
        return self.history

    def calibrate(self, validation: Iterable[Any], *, tolerance: float | None = None) -> History:
        """Choose thresholds again, on other data or for another tolerance; gates and baselines are not changed.

        This takes seconds where fitting takes minutes. If no thresholds are within the tolerance, nothing changes.

        Args:
            validation: batches that can be iterated more than once.
            tolerance: the largest divergence that is allowed; by default, as when fitted.
        """
        before, probe = self._fitted(), self.probe
        validation = self.subject.take_all(validation)
        tolerance = check_tolerance(self.tolerance if tolerance is None else tolerance)
        with self.subject.frozen(), torch.no_grad():
            batches.scan(validation, "the validation loader")
            probe = copy.deepcopy(probe)
            assert probe is not None
            probe.load_state_dict(self.rungs[-1])
            training = Training(probe, self.subject, tolerance, self.recipe, self.seed, 1)
            training.rungs, training.step = self.rungs[:-1], training.steps
            training.hard = list(before.frontier[0].thresholds)  # not zero in files of earlier versions
            training.finish(Repeatable(validation, self.seed), [])
        record = replace(before, feasible=training.history.feasible, verdict=training.history.verdict)
        record.tolerance, record.frontier = tolerance, training.history.frontier
        if not record.feasible:
            raise GraphMaskError(
                f"Expected thresholds within tolerance {tolerance:.3g} on the validation data that drop something, "
                "found none. Raise the tolerance, or fit again."
            )
        self.probe, self.history, self.tolerance = probe, record, tolerance
        return record

    def begin(
        self, loader: Iterable[Any], epochs: int | None, count: int, team: Team = ALONE, accumulate: int = 1
    ) -> Training:
        """A fit before its first step, on a loader of ``count`` batches; inside `Subject.frozen`, like `case`."""
        torch.manual_seed(self.seed)
        first = starting.first_batches(loader, team, accumulate)
        self._agree(team, count, first.opening)
        probe, subject = starting.found_on(first, self.subject, self.hidden, self.seed if self.recipe.drawn else 0)
        noise = starting.put_at_start(probe, subject, first, self.recipe, self.tolerance, team)
        per_epoch = -(-count // (team.size * accumulate))
        if epochs is None:
            epochs = -(-self.recipe.steps // per_epoch)
        same = (self.tolerance, self.recipe, self.seed, epochs * per_epoch, team, accumulate)
        return Training(probe, subject, *same, recompute=self.recompute, noise=noise)

    def _agree(self, team: Team, count: int, opening: list[Any]) -> None:
        """Raise if processes were given different models or data: each would fit something else, unnoticed."""
        if team.size > 1:
            what = {
                "model": files.fingerprint(self.model),
                "seed": self.seed,
                "number of batches": count,
                "batches, in the same order,": identity.content_of(
                    {str(number): identity.content_of(batch) for number, batch in enumerate(opening)}
                ),
            }
            team.agree(
                what,
                "Give every process the same model and the whole loader, seeded alike: batches are shared out here.",
            )

    # Explaining --------------------------------------------------------------------------------------------

    def look(self, messages: Messages) -> Tensor:
        assert self.probe is not None
        return self.probe.gate(messages.site)(messages)

    def choose(self, case: Case) -> Choice:
        """Keep open gates; their locations were computed from the original run."""
        assert self.probe is not None
        locations = case.trace.values
        if locations.numel() and not float(locations.max()) < torch.inf:
            sound = all(bool(torch.isfinite(weight).all()) for weight in self.probe.parameters())
            why = "messages here are too large; scale the inputs" if sound else "their weights are not; fit again"
            raise GraphMaskError(f"Expected finite numbers from the gates, got NaN or infinity: {why}.")
        if case.whole:  # what cannot reach the rows that are asked about is not carried
            locations = locations.masked_fill(~case.trace.carried, -torch.inf)
        scores = hard_concrete.probability_open(locations)  # exactly 0 where nothing is carried: -inf was read
        choice = Choice(scores, hard_concrete.hard(locations), self.probe.stand_ins())
        return choice if case.read is None else for_rows(choice, case.trace, case.read)

    def check_ready(self, allow_infeasible: bool) -> None:
        verdict = self._fitted().verdict
        if self.weights is not None and self.weights.changed(self.model):
            warn(
                "The model's weights have changed since GraphMask was fitted to it. Every explanation is still "
                "verified on the model as it is now, but may need much repair. Fit again."
            )
        if not allow_infeasible and verdict is not None and verdict.divergence > self.tolerance:
            raise GraphMaskError(
                f"Fitting found no state within tolerance {self.tolerance:.3g}: hard gates diverge by "
                f"{verdict.divergence:.3g} and change {verdict.flips:.1%} of the predictions: explanations would "
                "not be faithful. Fit for more epochs, raise the tolerance, or pass allow_infeasible=True."
            )

    # Files -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write gates, baselines and settings; the model itself is not in the file."""
        if self.probe is None or self.history is None:
            raise GraphMaskError("Expected a fitted GraphMask to save. Call fit(loader) first.")
        described = saved.describe(self.subject, self.probe, self.tolerance, self.recipe, self.seed)
        description = {**described, "history": checkpoint.history_to_json(self.history)}
        tensors = {f"probe.{key}": value for key, value in self.probe.state_dict().items()}
        files.write(path, "explainer", tensors | checkpoint.rungs_to_tensors(self.rungs), description)


def load(
    path: str | Path, model: nn.Module, *, forward: Forward | None = None, divergence: Function | None = None
) -> GraphMask:
    """A fitted GraphMask from a file, for the same model; pass again what cannot be saved (functions)."""
    tensors, description = files.read(path, "explainer")
    with files.understood(path, "explainer"):
        return _load(path, model, tensors, description, forward, divergence)


def _load(
    path: str | Path,
    model: nn.Module,
    tensors: dict[str, Tensor],
    description: dict[str, Any],
    forward: Forward | None,
    divergence: Function | None,
) -> GraphMask:
    if description["divergence"]["name"] == "custom" and divergence is None:
        raise GraphMaskError(f"Expected the divergence function that {path} was fitted with; pass divergence=...")
    if description["custom_forward"] and forward is None:
        raise GraphMaskError(f"Expected the forward function that {path} was fitted with; pass forward=...")
    explainer = GraphMask(
        model,
        forward,
        divergence or description["divergence"]["name"],
        description["tolerance"],
        description["seed"],
        recipe=Recipe(**description["recipe"]),
        hidden=description["hidden"],
        **{key: description[key] for key in ("precision", "heads", "features", "leaky_keys") if key in description},
    )
    model = explainer.model
    if files.fingerprint(model) != description["model"]:
        raise GraphMaskError(
            f"Expected the model that {path} was made for, got one with other parameters. "
            "Load the weights that were explained, or fit again."
        )
    explainer.divergence.load_state(description["divergence"])
    device = device_of(model) or torch.device("cpu")
    state, rungs = checkpoint.part(tensors, "probe."), checkpoint.rungs_from_tensors(tensors)
    explainer.probe = saved.probe_of(description, state, rungs, device)
    explainer.subject = saved.subject_of(explainer.subject, description, explainer.probe)
    explainer.history = checkpoint.history_from_json(description["history"])
    explainer.weights = Weights(model)
    explainer.rungs = [{name: value.to(device) for name, value in rung.items()} for rung in rungs]
    if any(not -1 <= one.rung < max(len(rungs) - 1, 0) for one in explainer.history.frontier):
        raise TypeError("states of its frontier that are not in it")
    return explainer
