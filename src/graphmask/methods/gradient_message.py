"""Gradient x message: how the output would change with the scale of a message, to first order."""

from __future__ import annotations

import torch
from torch import Tensor

from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method


class GradientMessage(Method):
    r"""The gradient of the predicted class's output in the direction of a message (Simonyan et al. 2014, of messages).

    .. math:: s^{(k)}_{u,v} = \big| \langle \partial f / \partial m^{(k)}_{u,v}, \, m^{(k)}_{u,v} \rangle \big|
        = \big| \partial_{z^{(k)}_{u,v}} f(z) \big|_{z = 1}

    One forward and one backward pass. Divided by the largest of the graph. It is integrated gradients with the last
    point of the path alone: where the output is saturated, gradients vanish though messages matter.
    """

    name = "gradient_message"
    soft = True
    threshold = 0.1

    def attributions(self, case: Case) -> Tensor:
        """[L, E] with sign, before any normalisation."""
        gates = case.trace.carried.to(case.trace.output.dtype).requires_grad_()
        with torch.enable_grad():
            output = case.run(gates, case.zeros())
            support = self.divergence.support(case.trace.output, output).sum()
            if not support.requires_grad:  # the model makes no use of its messages
                return torch.zeros_like(gates)
            (gradient,) = torch.autograd.grad(support, gates, allow_unused=True)
        return torch.zeros_like(gates) if gradient is None else gradient * case.trace.carried

    def choose(self, case: Case) -> Choice:
        return case.cut(case.normalised(self.attributions(case).detach().abs()), self.threshold)
