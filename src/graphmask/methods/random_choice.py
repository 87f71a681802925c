"""Random choice, the control that other methods are compared with."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method


class RandomChoice(Method):
    """Keep each message with probability ``rate``, whatever it is."""

    name = "random"
    seeded = True

    def __init__(self, model: nn.Module, *args: Any, rate: float = 0.5, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if not 0 <= rate <= 1:
            raise GraphMaskError(f"Expected a rate from 0 to 1, got {rate!r}.")
        self.threshold = 1 - rate

    def choose(self, case: Case) -> Choice:
        return case.cut(case.uniform(self.seed), self.threshold)
