"""GraphMask: fit once over a data set, then explain any graph by two runs of the model. Start reading here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import batches, checkpoint, hard_concrete, storage
from graphmask.batches import Forward
from graphmask.capture import Messages, Site
from graphmask.case import Case, Choice
from graphmask.divergence import Function
from graphmask.errors import GraphMaskError
from graphmask.gates import SiteSpec
from graphmask.guest import freeze, guest
from graphmask.method import Method
from graphmask.probe import Probe
from graphmask.progress import Progress
from graphmask.training import RECIPES, History, Recipe, Training, run


class GraphMask(Method):
    r"""Differentiable edge masking (`Schlichtkrull, De Cao and Titov, ICLR 2021 <https://arxiv.org/abs/2010.00577>`_).

    .. math::
        \max_\lambda \min_{\pi, b} \sum_{\mathcal G \in \mathcal D} \Big( \sum_k \sum_{(u,v)}
        \mathbf 1[z^{(k)}_{u,v} \neq 0] \Big) + \lambda \big( D[f(\mathcal G) \| f(\mathcal G_S)] - \beta \big)

    One small gate network per site, trained once over a data set and without look-ahead, decides for every edge
    whether its message may be replaced by a learned baseline.

    Args:
        model: any PyTorch module with :class:`torch_geometric.nn.MessagePassing` layers or taps. It is never changed.
        forward: ``forward(model, batch) -> Tensor``; by default the model's signature is matched to the batch's
            attributes. Rows of the output are examples: graphs, nodes or candidate edges.
        divergence: ``"kl"``, ``"js"``, ``"cross_entropy"``, ``"bernoulli"``, ``"mse"``, ``"gaussian"``, or a callable
            ``(original, masked) -> [rows]``; ``"auto"`` picks by the output.
        tolerance: the divergence that still counts as the same prediction.
        seed: makes everything reproducible.
        recipe: ``"concave"`` (default), ``"paper"``, or a :class:`graphmask.training.Recipe`.
        hidden: width of the gate networks.
        recompute: fit in less memory: PyG layers run again in the backward pass instead of keeping their messages.
    """

    name = "graphmask"

    def __init__(
        self,
        model: nn.Module,
        forward: Forward | None = None,
        divergence: str | Function = "auto",
        tolerance: float = 0.03,
        seed: int = 0,
        *,
        recipe: str | Recipe = "concave",
        hidden: int = 32,
        recompute: bool = False,
    ) -> None:
        super().__init__(model, forward, divergence, tolerance, seed)
        if isinstance(recipe, str) and recipe not in RECIPES:
            raise GraphMaskError(f"Expected a recipe among {', '.join(RECIPES)} or a Recipe, got {recipe!r}.")
        self.recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
        self.hidden = hidden
        self.recompute = recompute
        self.probe: Probe | None = None
        self.history: History | None = None

    # Fitting -----------------------------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
    ) -> History:
        """Train the gates on batches of graphs that the model has been, or could have been, trained on.

        Args:
            loader: any iterable of batches that can be iterated again and again.
            validation: batches on which hard thresholds are calibrated; some of ``loader`` if left out.
            epochs: passes over ``loader``; by default as many as make 1,000 steps per site (3,000 at most).
            checkpoint: a file written after every epoch; if it exists, fitting resumes from it with the same result.
            progress: show a progress bar.
        """
        with guest(self.model):  # also for the scan: a shuffling loader draws from the user's random state
            count = batches.scan(loader, "the loader")
            if validation is not None:
                batches.scan(validation, "the validation loader")
            if epochs is not None and epochs < 1:
                raise GraphMaskError(f"Expected at least one epoch, got {epochs}.")
            held_out = _Repeatable(loader if validation is None else validation, self.seed)
            freeze(self.model, training=False)
            training = self._start(loader, epochs, count)
            if checkpoint is not None:
                _resume(training, self, checkpoint)

            def mode(train: bool) -> None:
                freeze(self.model, training=train)

            with Progress(training, enabled=progress) as bar:

                def on_epoch(current: Training) -> None:
                    bar.epoch(current)
                    if checkpoint is not None:
                        _checkpoint(current, self, checkpoint)

                history = run(training, loader, held_out, mode=mode, on_step=bar.step, on_epoch=on_epoch)
        self.probe, self.history, self.sites = training.probe, history, training.probe.sites
        return history

    def _start(self, loader: Iterable[Any], epochs: int | None, count: int) -> Training:
        """Find the sites on the first batch that has edges; set up gates, baselines and divergence."""
        torch.manual_seed(self.seed)
        some: list[Any] = []
        for batch in loader:
            edge_index = batches.edge_index_of(batch)
            if edge_index is None or edge_index.shape[1]:
                some.append(batch)
            if len(some) == 4:
                break
        if not some:
            raise GraphMaskError("Expected at least one batch with edges in the loader, found none.")
        probe, output = Probe.discover(self.model, self.forward, some[0], self.hidden, self.seed)
        probe.recompute = self.recompute
        if not bool(torch.isfinite(output).all()):
            raise GraphMaskError(
                "Expected finite model outputs, got NaN or infinity on the first batch. "
                "Check the model on this data without GraphMask."
            )
        self.divergence.resolve(output)
        self.divergence(output, output)  # a divergence that does not fit the output must say so now
        if self.recipe.start == "auto":
            probe.start_baselines(self.model, self.forward, some, self.divergence, self.tolerance)
        elif self.recipe.start == "mean":
            probe.mean_baselines()
        if epochs is None:
            epochs = -(-self.recipe.total_steps(len(probe.sites)) // count)
        return Training(
            probe, self.model, self.forward, self.divergence, self.tolerance, self.recipe, self.seed, epochs * count
        )

    # Explaining --------------------------------------------------------------------------------------------

    def look(self, messages: Messages) -> Tensor:
        assert self.probe is not None
        return self.probe.gate(messages.site)(messages)

    def choose(self, case: Case) -> Choice:
        """Open gates are kept: locations were read off the original run."""
        assert self.probe is not None
        locations = case.trace.values
        scores = hard_concrete.probability_open(locations)  # exactly 0 where nothing is carried: -inf was read
        return Choice(scores, hard_concrete.hard(locations), list(self.probe.baselines))

    def check_ready(self, allow_infeasible: bool) -> None:
        if self.probe is None or self.history is None:
            raise GraphMaskError("Expected a fitted GraphMask. Call fit(loader) first, or load(path, model).")
        verdict = self.history.verdict
        if not self.history.feasible and not allow_infeasible and verdict is not None:
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
        description = {
            **_describe(self, self.probe),
            "history": checkpoint.history_to_json(self.history),
        }
        storage.write(path, "explainer", self.probe.state_dict(), description)


def load(
    path: str | Path, model: nn.Module, *, forward: Forward | None = None, divergence: Function | None = None
) -> GraphMask:
    """A fitted GraphMask from a file, for the same model; pass again what cannot be saved (functions)."""
    tensors, description = storage.read(path, "explainer")
    with storage.understood(path, "explainer"):
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
    )
    if storage.fingerprint(model) != description["model"]:
        raise GraphMaskError(
            f"Expected the model that {path} was made for, got one with other parameters. "
            "Load the weights that were explained, or fit again."
        )
    explainer.divergence.load_state(description["divergence"])
    sites = tuple(Site.from_json(site) for site in description["sites"])
    probe = Probe(sites, [SiteSpec(**spec) for spec in description["specs"]], explainer.hidden, explainer.seed)
    probe.load_state_dict(tensors)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    explainer.probe, explainer.sites = probe.to(device), sites
    explainer.history = checkpoint.history_from_json(description["history"])
    return explainer


def _describe(explainer: GraphMask, probe: Probe) -> dict[str, Any]:
    """Everything that must agree for two fits to be the same fit."""
    return {
        "model": storage.fingerprint(explainer.model),
        "tolerance": explainer.tolerance,
        "seed": explainer.seed,
        "hidden": explainer.hidden,
        "recipe": asdict(explainer.recipe),
        "divergence": explainer.divergence.state(),
        "custom_forward": explainer.forward is not batches.default_forward,
        "sites": [asdict(site) for site in probe.sites],
        "specs": [spec.to_json() for spec in probe.specs],
    }


def _checkpoint(training: Training, explainer: GraphMask, path: str | Path) -> None:
    checkpoint.save(training, path, {**_describe(explainer, training.probe), "steps": training.steps})


def _resume(training: Training, explainer: GraphMask, path: str | Path) -> None:
    if Path(path).exists():
        checkpoint.load(training, path, {**_describe(explainer, training.probe), "steps": training.steps})


class _Repeatable:
    """A loader that gives the same batches in the same order every time, shuffled or not."""

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed

    def __iter__(self) -> Iterator[Any]:
        torch.manual_seed(self.seed)
        return iter(self.loader)
