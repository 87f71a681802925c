"""Attention and gate scores: what the model itself multiplies its messages with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from graphmask import batches
from graphmask.capture import Messages
from graphmask.case import Case, Choice
from graphmask.errors import GraphMaskError
from graphmask.guest import freeze, guest
from graphmask.method import Method
from graphmask.trace import record


class GateScores(Method):
    """The model's own attention weights or scalar gates, mean over heads, as if they were explanations.

    A message is dropped when its score is more than one standard deviation below the mean of its site, taken over the
    data set (section 6 of the paper, where this heuristic is shown not to be faithful).
    """

    name = "gate_scores"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cuts: Tensor | None = None  #: [L, 1] mean less one standard deviation

    def look(self, messages: Messages) -> Tensor:
        if messages.attention is None:
            raise GraphMaskError(
                f"Expected attention weights or message gates at site {messages.site}, found none: gate_scores applies "
                "to layers such as GATConv, or to a MessageTap that is told the gate (tap(..., gate=...))."
            )
        return messages.attention.flatten(1).mean(1)

    def fit(self, loader: Iterable[Any], validation: Iterable[Any] | None = None, *, progress: bool = True) -> None:
        """Take mean and standard deviation of every site's scores over the data."""
        with guest(self.model):
            freeze(self.model, training=False)
            batches.check_loader(loader, "the loader")
            for first in loader:  # a model without scores must say so before the whole loader is read
                record(self.model, self.forward, first, self.sites, self.look)
                break
            batches.scan(loader, "the loader")
            moments: Tensor | None = None
            for batch in loader:
                trace = record(self.model, self.forward, batch, self.sites, self.look)
                self.sites = trace.sites
                value = trace.values.double().where(trace.carried, 0.0)
                now = torch.stack([trace.carried.sum(1), value.sum(1), value.square().sum(1)])
                moments = now if moments is None else moments + now
        assert moments is not None
        count, total, squares = moments
        mean = total / count.clamp_min(1)
        self.cuts = (mean - (squares / count.clamp_min(1) - mean**2).clamp_min(0).sqrt())[:, None].float()

    def check_ready(self, allow_infeasible: bool) -> None:
        if self.cuts is None:
            raise GraphMaskError("Expected the mean and spread of the scores. Call fit(loader) first.")

    def choose(self, case: Case) -> Choice:
        assert self.cuts is not None
        scores = case.trace.values.where(case.trace.carried, torch.zeros(()))
        return Choice(scores, case.trace.carried & (scores >= self.cuts), case.zeros())
