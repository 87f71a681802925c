"""Tells whether a model has changed since gates were fitted to it."""

from __future__ import annotations

from torch import nn

from graphmask import files
from graphmask.tapping.restore import modules_of, parameters_of


class Weights:
    """A model's weights at one time. Version counters are compared first, and the numbers only if a counter changed."""

    def __init__(self, model: nn.Module) -> None:
        self.versions, self.fingerprint = _versions(model), files.fingerprint(model)

    def changed(self, model: nn.Module) -> bool:
        now = _versions(model)
        if now == self.versions:
            return False
        if files.fingerprint(model) != self.fingerprint:
            return True
        self.versions = now  # the same numbers, written anew
        return False


def _versions(model: nn.Module) -> tuple[list[int], list[int]]:
    parameters = parameters_of(modules_of(model))
    return [*map(id, parameters)], [parameter._version for parameter in parameters]
