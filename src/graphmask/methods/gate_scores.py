"""Attention and gate scores: what the model itself multiplies its messages with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.devices import double
from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method, found_on
from graphmask.explanation import Explanation
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import record


class GateScores(Method):
    """The model's own attention weights or scalar gates, mean over heads, as if they were explanations.

    A message is dropped when its score is more than one standard deviation below the mean of its site, taken over the
    data set (section 6 of the paper, where this heuristic is shown not to be faithful).
    """

    name = "gate_scores"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cuts: Tensor | None = None  #: [L, 1] mean less one standard deviation

    @classmethod
    def why_not(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> str | None:
        site = first_site(model, batch, forward, lacks_attention)
        if site is None:
            return None
        return (
            f"Expected attention weights or message gates at every site, found none at {site!r}. "
            "gate_scores applies to layers such as GATConv, and to a MessageTap that is told: tap(..., gate=...)."
        )

    def look(self, messages: Messages) -> Tensor:
        assert messages.attention is not None
        scores = messages.attention.float()
        return scores.flatten(1).mean(1) if scores.dim() > 1 else scores

    def fit(self, loader: Iterable[Any], validation: Iterable[Any] | None = None, *, progress: bool = True) -> None:
        """Take mean and standard deviation of every site's scores over the data."""
        loader = self.subject.take_all(loader)
        with self.subject.frozen():
            batches.check_loader(loader, "the loader")
            for first in loader:  # a model without scores must say so before the whole loader is read
                batches.check(first, "batch 0 of the loader")
                reason = self.why_not(self.model, first, self.forward)
                if reason:
                    raise GraphMaskError(reason)
                break
            batches.scan(loader, "the loader")
            subject = found_on(self.subject, [first])
            moments: Tensor | None = None
            for batch in loader:
                trace = record(subject, batch, self.look)
                value = double(trace.values.where(trace.carried, 0.0))
                now = torch.stack([trace.carried.sum(1).to(value), value.sum(1), value.square().sum(1)])
                moments = now if moments is None else moments + now
        assert moments is not None
        count, total, squares = moments
        mean = total / count.clamp_min(1)
        self.cuts = (
            (mean - (squares / count.clamp_min(1) - mean**2).clamp_min(0).sqrt())[:, None]
            .float()
            .to(trace.carried.device)
        )
        self.subject = subject

    def explain(self, data: Any, **options: Any) -> Explanation:
        """As `Method.explain`. A model without scores is refused first, because advice to fit would not help."""
        if self.cuts is None and (reason := self.why_not(self.model, data, self.forward)):
            raise GraphMaskError(reason)
        return super().explain(data, **options)

    def check_ready(self, allow_infeasible: bool) -> None:
        if self.cuts is None:
            raise GraphMaskError("Expected the mean and spread of the scores. Call fit(loader) first.")

    def choose(self, case: Case) -> Choice:
        assert self.cuts is not None
        scores = case.trace.values.where(case.trace.carried, torch.zeros(()))
        return Choice(scores, case.trace.carried & (scores >= self.cuts), case.zeros())


def first_site(model: nn.Module, batch: Any, forward: Forward | None, lacks: Callable[[Messages], bool]) -> str | None:
    """The name of the first site where the test holds for some messages; None if there is none."""
    without: list[int] = []

    def look(messages: Messages) -> Tensor:
        if lacks(messages):
            without.append(messages.site)
        return messages.source.new_zeros(messages.source.shape, dtype=torch.float)

    subject = Subject(model, forward or batches.default_forward)
    with subject.frozen():
        sites = record(subject, subject.take(batch), look).sites
    return sites[without[0]].name if without else None


def lacks_attention(messages: Messages) -> bool:
    """Whether these messages are weighted neither by attention nor by gates."""
    return messages.attention is None
