"""GraphMask, or any other method of this library, as an algorithm of `torch_geometric.explain`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import ExplainerAlgorithm, HeteroExplanation
from torch_geometric.explain import Explanation as PygExplanation
from torch_geometric.explain.config import ExplanationType, ModelMode, ModelReturnType

from graphmask.divergence import Divergence
from graphmask.errors import GraphMaskError, warn
from graphmask.explaining.method import Method
from graphmask.explanation import Explanation
from graphmask.graphs.batches import Forward, call
from graphmask.hetero_explanation import HeteroExplanation as TypedExplanation
from graphmask.tapping import compiled
from graphmask.tapping.restore import restored

#: Divergences that fit a mode of PyG's; the first is what "auto" becomes.
FITTING = {
    ModelMode.multiclass_classification: ("kl", "js", "cross_entropy"),
    ModelMode.binary_classification: ("bernoulli",),
    ModelMode.regression: ("gaussian", "mse"),
}


class SiteExplanation(PygExplanation):
    """PyG's explanation with the masks of every site as further fields: ``site_mask`` and ``site_kept`` [E, L]."""

    def is_edge_attr(self, key: str) -> bool:
        # PyG goes by sizes, which mislead where there are as many nodes, or sites, as edges.
        return key in {"site_mask", "site_kept"} or (key != "sites" and bool(super().is_edge_attr(key)))

    def is_node_attr(self, key: str) -> bool:
        return key not in {"site_mask", "site_kept", "sites"} and bool(super().is_node_attr(key))


class GraphMaskAlgorithm(ExplainerAlgorithm):
    """What PyG's ``Explainer`` calls to have an output explained by a method of this library.

    .. code-block:: python

        explainer = Explainer(
            model,
            algorithm=GraphMaskAlgorithm(graphmask_explainer),
            explanation_type="model",
            edge_mask_type="object",
            model_config=ModelConfig(mode="multiclass_classification", task_level="node", return_type="raw"),
        )
        explanation = explainer(x, edge_index, index=10)

    The explanation has PyG's ``edge_mask`` [E], the highest score of an edge over the sites where it is kept and 0
    where it is kept at none, and beside it ``sites``, ``site_mask`` (scores) and ``site_kept`` [E, L], ``divergence``,
    ``flips``, ``faithful`` and ``masked`` (the output without what was dropped); ``unrepaired`` where there is a reason
    why it does not hold, ``unseen`` where modules can mix nodes by other ways than messages.

    The model is called as PyG calls it, ``model(x, edge_index, **kwargs)``; a ``forward`` of the method's own is
    used for fitting only. ``target`` is not needed: what is explained is the model's own output.

    Args:
        method: of the model that is explained; fitted, if it needs to be.
        fit_on: batches to fit the method on at the first call if it is not fitted yet.
        repair, allow_infeasible: as in `Method.explain`.
    """

    def __init__(
        self,
        method: Method,
        *,
        fit_on: Iterable[Any] | None = None,
        repair: bool = True,
        allow_infeasible: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(method, Method):
            raise GraphMaskError(f"Expected a GraphMask or another graphmask method, got {type(method).__name__}.")
        self.method, self.fit_on = method, fit_on
        self.repair, self.allow_infeasible = repair, allow_infeasible

    # Settings ----------------------------------------------------------------------------------------------

    def supports(self) -> bool:
        """True, or a `GraphMaskError` that says which setting does not fit."""
        config = self.explainer_config
        if config.explanation_type != ExplanationType.model:
            raise GraphMaskError(
                f"Expected explanation_type='model', got {config.explanation_type.value!r}: this method measures how "
                "far the model's own output moves, not its distance from a label."
            )
        if config.node_mask_type is not None or config.edge_mask_type is None:
            kind = None if config.node_mask_type is None else config.node_mask_type.value
            raise GraphMaskError(
                f"Expected edge_mask_type='object' and node_mask_type=None, got node_mask_type={kind!r}: "
                "messages are masked, nodes and their features are not."
            )
        self._agree(self.method.divergence)
        return True

    def _agree(self, divergence: Divergence) -> None:
        """Check that the divergence reads the output as PyG is told to; "auto" is decided by PyG's setting."""
        mode, fitting = self.model_config.mode, FITTING[self.model_config.mode]
        if divergence.name == "auto" and mode != ModelMode.regression:
            divergence.name = divergence.choice = fitting[0]
        if divergence.name not in (*fitting, "custom"):
            raise GraphMaskError(
                f"Expected a divergence for mode={mode.value!r} ({' or '.join(map(repr, fitting))}, with a tolerance "
                f"in its units), got {divergence.name!r}. Change the model_config, or fit with another divergence."
            )
        told = self.model_config.return_type == ModelReturnType.probs
        reads = divergence.resolved and divergence.has_classes and divergence.name != "custom"
        if reads and divergence.probabilities != told:
            raise GraphMaskError(
                f"Expected outputs that are {('logits', 'probabilities')[divergence.probabilities]}, as the method has "
                f"read them, got return_type={self.model_config.return_type.value!r} in the model_config."
            )

    # Explaining --------------------------------------------------------------------------------------------

    def forward(
        self,
        model: nn.Module,
        x: Tensor | dict[str, Tensor],
        edge_index: Tensor | dict[Any, Tensor],
        *,
        target: Tensor | None = None,
        index: int | Tensor | None = None,
        **kwargs: Any,
    ) -> PygExplanation | HeteroExplanation:
        if compiled.original(model) is not self.method.model:
            raise GraphMaskError(
                "Expected the model that the method was made for, got another "
                f"{type(model).__name__}. Make the Explainer and the method with the same object."
            )
        if isinstance(x, dict) or isinstance(edge_index, dict):
            return self._hetero(x, edge_index, index, kwargs)
        if not isinstance(edge_index, Tensor):
            raise GraphMaskError(
                f"Expected edge_index to be a tensor [2, E], or adj_t, got {type(edge_index).__name__}. "
                "Call the Explainer as explainer(x, edge_index, ...)."
            )
        self._make_ready()

        def as_pyg_calls(model: nn.Module, batch: Any) -> Tensor:
            rest = {name: batch[name] if isinstance(value, Tensor) else value for name, value in kwargs.items()}
            return model(batch["x"], batch["edge_index"], **rest)

        explanation = self._explain(Data(**{"x": x, "edge_index": edge_index, **kwargs}), index, as_pyg_calls)
        pyg = explanation.to_pyg()
        result = SiteExplanation.from_dict(pyg.to_dict())
        result.edge_mask = _edge_mask(explanation.scores, explanation.kept)
        result.sites, result.masked = explanation.sites, explanation.masked
        _certify(result, explanation)
        return result

    def _make_ready(self) -> None:
        try:
            self.method.check_ready(True)
        except GraphMaskError as error:
            if self.fit_on is None:
                raise GraphMaskError(
                    f"{error} Or say what to fit on: GraphMaskAlgorithm(method, fit_on=loader)."
                ) from None
            warn(f"{type(self.method).__name__} was not fitted yet and is fitted now, on fit_on.")
            self.method.fit(self.fit_on, progress=False)
        self.method.check_ready(self.allow_infeasible)

    def _explain(self, data: Any, index: int | Tensor | None, forward: Forward) -> Explanation:
        divergence = self.method.divergence
        if not divergence.resolved:  # a method that needs no fit; PyG knows what kind of numbers the model returns
            with restored(self.method.model), torch.no_grad():
                self.method.model.eval()
                divergence.resolve(call(forward, self.method.model, data))
            divergence.probabilities = self.model_config.return_type == ModelReturnType.probs
        with self.method.subject.frozen():
            case = self.method.case(data, "the graph given to the Explainer", index=index, forward=forward)
            (explanation,) = self.method.explain_case(case, repair=self.repair)
        self._agree(self.method.divergence)
        return explanation

    def _hetero(self, x: Any, edge_index: Any, index: int | Tensor | None, kwargs: dict[str, Any]) -> HeteroExplanation:
        """Dictionaries by type, as heterogeneous models take them."""
        if not isinstance(x, dict) or not isinstance(edge_index, dict):
            raise GraphMaskError("Expected x and edge_index to be both dictionaries by type, or both tensors.")
        self._make_ready()
        data = HeteroData()
        data.set_value_dict("x", x)
        data.set_value_dict("edge_index", edge_index)
        for name, value in kwargs.items():
            if isinstance(value, dict):
                data.set_value_dict(name.removesuffix("_dict"), value)
            else:
                data[name] = value

        def as_pyg_calls(model: nn.Module, batch: Any) -> Tensor:
            rest = {n: batch.collect(n.removesuffix("_dict")) if isinstance(v, dict) else v for n, v in kwargs.items()}
            return model(batch.collect("x"), batch.collect("edge_index"), **rest)

        explanation = self._explain(data, index, as_pyg_calls)
        assert isinstance(explanation, TypedExplanation)
        result = explanation.to_pyg()
        for kind in explanation.edge_types:
            result[kind].edge_mask = _edge_mask(explanation[kind].scores, explanation[kind].kept)
        _certify(result, explanation)
        return result


def _certify(result: PygExplanation | HeteroExplanation, explanation: Explanation) -> None:
    result.divergence, result.flips, result.faithful = explanation.divergence, explanation.flips, explanation.faithful
    if explanation.unrepaired is not None:
        result.unrepaired = explanation.unrepaired
    if explanation.unseen:
        result.unseen = explanation.unseen


def _edge_mask(scores: Tensor, kept: Tensor) -> Tensor:
    """[E] highest score over the sites that keep an edge; 0 where none does, which is how PyG tells what is left."""
    kept = scores.clamp_min(torch.finfo(scores.dtype).tiny) * kept
    return kept.max(0).values if len(kept) else kept.sum(0)
