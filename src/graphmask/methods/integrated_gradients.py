"""Integrated gradients over message scales (Sundararajan et al. 2017; appendix F of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method


class IntegratedGradients(Method):
    r"""Every message is scaled by a number that goes from 0 to 1; its gradients are summed up on the way.

    .. math:: \mathrm{IG}^{(k)}_{u,v} = \int_0^1 \partial_{z^{(k)}_{u,v}} f(\alpha z) \, d\alpha

    of the output for the predicted class, by captum. Attributions are divided by the largest of their graph and their
    sign is dropped.

    Args:
        steps: points of the integral.
    """

    name = "integrated_gradients"
    soft = True
    threshold = 0.1

    def __init__(self, model: nn.Module, *args: Any, steps: int = 50, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if steps < 1:
            raise GraphMaskError(f"Expected at least one step, got {steps}.")
        self.steps = steps

    def attributions(self, case: Case) -> Tensor:
        """[L, E] with sign, before any normalisation."""
        try:
            from captum.attr import IntegratedGradients as Captum
        except ImportError:
            raise GraphMaskError("Expected captum to be installed. Try: pip install graphmask[methods]") from None

        def support(gates: Tensor) -> Tensor:
            output = case.run(gates[0], case.zeros())
            # The second term is zero: captum wants a gradient also of a model that makes no use of its messages.
            return self.divergence.support(case.trace.output, output).sum().view(1) + 0 * gates.sum()

        whole = case.trace.carried.to(case.trace.output.dtype)[None]
        with torch.enable_grad():
            attributions = Captum(support).attribute(whole, 0 * whole, n_steps=self.steps, internal_batch_size=1)
        return attributions[0].detach()

    def choose(self, case: Case) -> Choice:
        return case.cut(case.normalised(self.attributions(case).abs()), self.threshold)
