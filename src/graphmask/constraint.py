"""Minimise the expected share of open gates subject to divergence <= tolerance.

Both classes answer one question per step: given the divergence, how much does it weigh against sparsity?
"""

from __future__ import annotations

import math
from typing import Protocol

import cooper
import torch
from torch import Tensor


class Constraint(Protocol):
    tolerance: float

    @property
    def multiplier(self) -> float: ...

    def loss(self, penalty: Tensor, divergence: Tensor) -> Tensor:
        """The Lagrangian to minimise over the probe."""
        ...

    def weights(self) -> tuple[float, float]:
        """Of penalty and divergence in it."""
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
    falls as readily as it rises, and :math:`(L_0 + \lambda D) / (1 + \lambda)` keeps the step size independent of it.
    """

    integral, proportional, smoothing = 0.02, 0.3, 0.9
    low, high = math.log(0.01), math.log(100.0)

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.log_multiplier = 0.0
        self.average = 0.0

    @property
    def multiplier(self) -> float:
        return math.exp(self.log_multiplier)

    def loss(self, penalty: Tensor, divergence: Tensor) -> Tensor:
        return (penalty + self.multiplier * divergence) / (1 + self.multiplier)

    def weights(self) -> tuple[float, float]:
        return 1 / (1 + self.multiplier), self.multiplier / (1 + self.multiplier)

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


class LagrangianConstraint:
    r"""The paper's: :math:`\max_{\lambda \ge 0} \min L_0 + \lambda (D - \beta)`, RMSprop at 1e-2 on :math:`\lambda`."""

    def __init__(self, tolerance: float, learning_rate: float = 1e-2) -> None:
        self.tolerance = tolerance
        self.dual = cooper.multipliers.DenseMultiplier(init=torch.ones(1))
        self.constraint = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            multiplier=self.dual,
            formulation_type=cooper.formulations.Lagrangian,
        )
        self.optimiser = torch.optim.RMSprop(self.dual.parameters(), lr=learning_rate, maximize=True)

    @property
    def multiplier(self) -> float:
        return float(self.dual.weight.detach())

    def loss(self, penalty: Tensor, divergence: Tensor) -> Tensor:
        return penalty + self.multiplier * (divergence - self.tolerance)

    def weights(self) -> tuple[float, float]:
        return 1.0, self.multiplier

    def update(self, divergence: float) -> None:
        state = cooper.CMPState(
            loss=None,
            observed_constraints={
                self.constraint: cooper.ConstraintState(violation=torch.tensor([divergence - self.tolerance]))
            },
        )
        self.optimiser.zero_grad()
        state.compute_dual_lagrangian().backward()
        self.optimiser.step()
        self.dual.post_step_()

    def state(self) -> dict[str, float]:
        entry = self.optimiser.state.get(self.dual.weight, {})
        square = entry.get("square_avg")
        return {
            "multiplier": self.multiplier,
            "square": float(square) if square is not None else 0.0,
            "steps": float(entry.get("step", 0.0)),
        }

    def load_state(self, state: dict[str, float]) -> None:
        with torch.no_grad():
            self.dual.weight.fill_(state["multiplier"])
        if state["steps"]:
            self.optimiser.state[self.dual.weight] = {
                "step": torch.tensor(state["steps"]),
                "square_avg": torch.tensor([state["square"]]),
            }
