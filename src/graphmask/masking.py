"""`with masked(model, explanation)`: the user's model, with what the explanation dropped replaced by the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from graphmask.capture import Messages, Visit, check_model, tap
from graphmask.errors import GraphMaskError
from graphmask.guest import guest

if TYPE_CHECKING:
    from graphmask.explanation import Explanation


def by_user_edges(gates: Tensor, baselines: Sequence[Tensor]) -> Visit:
    """Mask with gates ``[L, E]`` (bool or float) told in terms of the user's edges."""

    def visit(messages: Messages) -> tuple[Tensor, Tensor]:
        gate = gates[messages.site]
        if messages.edges is not None:
            own = messages.edges < 0  # the layer's own self-loops are never gated
            if gate.numel() == 0:
                return own, baselines[messages.site]
            gate = gate[messages.edges.clamp_min(0)]
            gate = gate | own if gate.dtype == torch.bool else torch.where(own, torch.ones_like(gate), gate)
        return gate, baselines[messages.site]

    return visit


@contextmanager
def masked(model: nn.Module, explanation: Explanation) -> Iterator[nn.Module]:
    """Inside, ``model`` runs on the explained graph with every dropped message replaced by its site's baseline.

    What an explanation claims can be checked by hand::

        with graphmask.masked(model, explanation):
            output = model(data.x, data.edge_index)     # == explanation.masked

    The model is used in evaluation mode, and is left exactly as it was found.
    """
    check_model(model)
    names = {name or "model" for name, _ in model.named_modules()}
    for site in explanation.structure:
        if site.module not in names:
            raise GraphMaskError(
                f"Expected the model that was explained, with a module {site.module!r}, got a "
                f"{type(model).__name__} without it."
            )
    visit = by_user_edges(explanation.kept, explanation.baselines)
    with guest(model):
        model.eval()
        with tap(model, visit, explanation.edge_index, explanation.structure):
            yield model
