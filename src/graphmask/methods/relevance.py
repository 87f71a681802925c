"""Layer-wise relevance propagation (Bach et al. 2015; Schnake et al. 2021 for graphs) down to messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.dense import Linear as PygLinear

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case
from graphmask.methods.gradient_message import GradientMessage

EPS = 1e-9


class Relevance(GradientMessage):
    r"""LRP with the :math:`\gamma` rule: what the output is made of is divided among messages, layer by layer.

    A linear map passes the relevance :math:`R_k` of what it makes on to what it is given, positive weights first:

    .. math:: R_j = \sum_k \frac{h_j (w_{jk} + \gamma w_{jk}^+)}{\sum_{j'} h_{j'} (w_{j'k} + \gamma w_{j'k}^+)} R_k

    with biases among the :math:`h_{j'}`. It is computed as gradient x message of a model whose linear layers
    (`nn.Linear`, and PyG's) have that rule in place of their gradient; where there is none of these, as with weights
    that a layer multiplies by itself, and in sums, normalisations and attention, the plain gradient is followed. With
    :math:`\gamma = 0`, for a network of linear maps and ReLUs, it is gradient x message.

    Args:
        gamma: .25 as in captum and zennit; the authors of GNN-LRP take larger ones near the input.
    """

    name = "lrp"

    def __init__(self, model: nn.Module, *args: Any, gamma: float = 0.25, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if not 0 <= gamma < float("inf"):
            raise GraphMaskError(f"Expected a finite gamma of at least 0, got {gamma!r}.")
        self.gamma = gamma

    def attributions(self, case: Case) -> Tensor:
        with gamma_rule(case.model, self.gamma):
            return super().attributions(case)


@contextmanager
def gamma_rule(model: nn.Module, gamma: float) -> Iterator[None]:
    """Inside, linear layers return what they did before, with another gradient; no hook is left."""
    handles = [
        module.register_forward_hook(_rule(gamma))
        for module in model.modules()
        if isinstance(module, nn.Linear | PygLinear)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rule(gamma: float) -> Any:
    def rule(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        bias = layer.bias
        weight = layer.weight + gamma * layer.weight.clamp_min(0)
        share = F.linear(inputs[0], weight, None if bias is None else bias + gamma * bias.clamp_min(0))
        safe = torch.where(share.abs() < EPS, torch.where(share < 0, -EPS, EPS).to(share), share)
        # The value is the layer's own. What the gradient sees is the share of each input, scaled to that value.
        return output.detach() + (share - share.detach()) * (output / safe).detach()

    return rule
