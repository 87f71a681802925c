"""Grad-CAM for messages (Selvaraju et al. 2017; Pope et al. 2019 for graphs)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphmask.errors import GraphMaskError
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject
from graphmask.tapping.trace import record


class GradCAM(Method):
    r"""Channels of messages are weighed by their mean gradient; a message is scored by what its channels then sum to.

    .. math::
        \alpha^{(k)}_d = \frac{1}{|E|} \sum_{(u,v) \in E} \frac{\partial f}{\partial m^{(k)}_{u,v,d}}, \qquad
        s^{(k)}_{u,v} = \mathrm{ReLU}\Big( \sum_d \alpha^{(k)}_d \, m^{(k)}_{u,v,d} \Big)

    of the output for the predicted class, with the means of each graph and site. Divided by the largest of the graph.
    Published for states of nodes at the last layer, it is used here on what all layers send.
    """

    name = "grad_cam"
    soft = True
    threshold = 0.1

    @classmethod
    def why_not(cls, model: nn.Module, batch: Any, forward: Forward | None = None) -> str | None:
        without: list[str] = []

        def look(messages: Messages) -> Tensor:
            if messages.matrix is not None or messages.attended is not None:
                without.append("attention" if messages.matrix is None else "an adjacency matrix")
            return messages.source.new_zeros(messages.source.shape, dtype=torch.float)

        subject = Subject(model, forward or batches.default_forward)
        with subject.frozen():
            record(subject, subject.take(batch), look)
        return _refusal(without[0]) if without else None

    def attributions(self, case: Case) -> Tensor:
        """[L, E] before ReLU and normalisation."""
        seen: list[Messages] = []

        def visit(messages: Messages) -> None:
            if messages.matrix is not None or messages.attended is not None:
                raise GraphMaskError(_refusal("attention" if messages.matrix is None else "an adjacency matrix"))
            if not messages.value.requires_grad:
                messages.value.requires_grad_()  # nothing before it has a gradient: from here on there is one
            seen.append(messages)

        attributions = torch.zeros_like(case.trace.values, dtype=case.trace.output.dtype)
        with torch.enable_grad():
            with case.subject.tap(visit, case.trace.edge_map):
                output = case.subject(case.batch)
            support = self.divergence.support(case.trace.output, output).sum()
            values = [messages.value for messages in seen]
            if not values or not support.requires_grad:
                return attributions
            gradients = torch.autograd.grad(support, values, allow_unused=True)
        for site in range(len(case.trace.sites)):
            pairs = [(m, g) for m, g in zip(seen, gradients, strict=True) if m.site == site and g is not None]
            self._add_site(case, pairs, attributions[site])
        return attributions.where(case.trace.carried, 0.0)

    def _add_site(self, case: Case, pairs: list[tuple[Messages, Tensor]], scores: Tensor) -> None:
        """Add the scores [E] of a site; messages along a layer's own self-loops are not counted."""
        rows = []
        for messages, gradient in pairs:
            edges = messages.edges
            edges = torch.arange(len(scores), device=scores.device) if edges is None else edges
            own = edges >= 0
            slope = gradient.movedim(messages.edge_dim, 0).flatten(1) if gradient.dim() > 1 else gradient[:, None]
            rows.append((edges[own], messages.flat().detach()[own], slope[own]))
        if not rows:
            return
        owner, carried = case.split.edge_graph, case.trace.carried[pairs[0][0].site]
        count = torch.bincount(owner[carried], minlength=case.split.count).clamp_min(1)
        weights = rows[0][2].new_zeros(case.split.count, rows[0][2].shape[1])
        for edges, _, slope in rows:
            weights.index_add_(0, owner[edges], slope)
        weights /= count[:, None]
        for edges, message, _ in rows:
            scores[edges] = (weights[owner[edges]] * message).sum(1).to(scores.dtype)

    def choose(self, case: Case) -> Choice:
        return case.cut(case.normalised(self.attributions(case).detach().clamp_min(0)), self.threshold)


def _refusal(what: str) -> str:
    return (
        f"Expected messages along lists of edges, each with a vector of its own, got {what}, where no such vector is "
        "made. gradient_message does not need any."
    )
