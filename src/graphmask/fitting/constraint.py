"""Minimise the expected share of open gates subject to divergence <= tolerance.

Both classes answer one question per step: given the divergence, how much does it weigh against sparsity?
"""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    tolerance: float

    @property
    def multiplier(self) -> float: ...

    def loss(self, penalty: Tensor, divergence: Tensor, of_step: float) -> Tensor:
        """The Lagrangian to minimise over the probe, linear in the penalty and the divergence of a part of the step.

        ``of_step`` is the divergence of all parts together.
        """
        ...

    def update(self, divergence: float) -> None:
        """Move the multiplier after a step."""
        ...

    def state(self) -> dict[str, float]: ...

    def load_state(self, state: dict[str, float]) -> None: ...


class MultiplicativeConstraint:
    r"""The default: a proportional-integral controller on :math:`\log \lambda`.

    With the relative violation :math:`e = \mathrm{clip}((D - \beta) / \beta, -1, 3)` and its moving average
    :math:`\bar e`, :math:`\log \lambda \mathrel{+}= k_i e + k_p \Delta \bar e`. Unlike a rectified multiplier it
    falls as readily as it rises, and :math:`(L_0 + \lambda D') / (1 + \lambda)` keeps the step size independent of it.
    :math:`D' = c \log(1 + D / c)` with the divergence in units in which the fit's tolerance is 0.03: a divergence in
    other units, such as a squared error, leads to the same course with a tolerance in those units. Only far above the
    tolerance (:math:`c` is a hundred times it) is its slope less than that of the divergence: Adam remembers the first
    steps' gradients for as long as a fit takes, and after huge ones gates would hardly move.
    """

    usual, far = 0.03, 3.0
    integral, proportional, smoothing = 0.02, 0.3, 0.9
    low, high = math.log(0.01), math.log(100.0)

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.scale = self.usual / tolerance
        self.log_multiplier = 0.0
        self.average = 0.0

    @property
    def multiplier(self) -> float:
        return math.exp(self.log_multiplier)

    def loss(self, penalty: Tensor, divergence: Tensor, of_step: float) -> Tensor:
        slope = self.scale / (1 + self.scale * max(of_step, 0.0) / self.far)  # rounding may leave -1e-11
        return (penalty + self.multiplier * slope * divergence) / (1 + self.multiplier)

    def update(self, divergence: float) -> None:
        error = min(max((divergence - self.tolerance) / self.tolerance, -1.0), 3.0)
        average = self.smoothing * self.average + (1 - self.smoothing) * error
        moved = self.log_multiplier + self.integral * error + self.proportional * (average - self.average)
        self.log_multiplier = min(max(moved, self.low), self.high)
        self.average = average

    def state(self) -> dict[str, float]:
        return {"log_multiplier": self.log_multiplier, "average": self.average}

    def load_state(self, state: dict[str, float]) -> None:
        self.log_multiplier, self.average = state["log_multiplier"], state["average"]


class SoftplusConstraint:
    r"""The authors': :math:`\max_\alpha \min L_0 + \mathrm{softplus}(\alpha)\, v` with the violation :math:`v`.

    Centred RMSprop at 1e-2 moves :math:`\alpha`, which starts at 0.55 and stays in [-2, 30].
    """

    low, high = -2.0, 30.0
    rate, decay, epsilon = 1e-2, 0.99, 1e-8  # of RMSprop

    def __init__(self) -> None:
        self.tolerance = 0.0  # violations come as they are
        self.alpha, self.square, self.mean = 0.55, 0.0, 0.0

    @property
    def multiplier(self) -> float:
        return math.log1p(math.exp(self.alpha))

    def loss(self, penalty: Tensor, divergence: Tensor, of_step: float) -> Tensor:
        return penalty + self.multiplier * divergence

    def update(self, divergence: float) -> None:
        slope = divergence / (1 + math.exp(-self.alpha))
        self.square = self.decay * self.square + (1 - self.decay) * slope**2
        self.mean = self.decay * self.mean + (1 - self.decay) * slope
        spread = math.sqrt(max(self.square - self.mean**2, 0.0)) + self.epsilon
        self.alpha = min(max(self.alpha + self.rate * slope / spread, self.low), self.high)

    def state(self) -> dict[str, float]:
        return {"alpha": self.alpha, "square": self.square, "mean": self.mean}

    def load_state(self, state: dict[str, float]) -> None:
        self.alpha, self.square, self.mean = state["alpha"], state["square"], state["mean"]
