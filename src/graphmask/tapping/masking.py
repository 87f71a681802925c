"""`with masked(model, explanation)`: the user's model, with what the explanation dropped replaced by the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graphmask import devices
from graphmask.errors import GraphMaskError
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.sites import Site
from graphmask.tapping import compiled
from graphmask.tapping.capture import check_model, tap
from graphmask.tapping.features import ExplainedFeatures, masked_input
from graphmask.tapping.messages import Mask
from graphmask.tapping.restore import restored
from graphmask.tapping.subject import Subject


class Explained(Protocol):
    """The part of an `Explanation` that `masked` needs; the class itself is in a layer above."""

    @property
    def kept(self) -> Tensor: ...
    @property
    def baselines(self) -> tuple[Tensor, ...]: ...
    @property
    def structure(self) -> tuple[Site, ...]: ...
    @property
    def features(self) -> ExplainedFeatures | None: ...
    def edge_map(self) -> EdgeMap: ...


def by_user_edges(
    gates: Tensor,
    baselines: Sequence[Tensor],
    graph_of_edge: Tensor | None = None,
    exchange: torch.Generator | None = None,
    count: int | None = None,
) -> Mask:
    """A mask with gates ``[L, E]`` (bool or float) for the user's edges.

    A site's baseline is ``[D]``, or ``[G, D]``, one per graph, where ``graph_of_edge`` [E] is the graph of each edge.
    The first ``count`` gates are those of edges, by default all.
    """

    @cache
    def padded() -> Tensor:
        """The gates with one more column, open, which -1 selects: the layer's own self-loops are never gated."""
        return torch.cat([gates, gates.new_ones(len(gates), 1)], 1)

    def answer(site: int, edges: Tensor | None) -> tuple[Tensor, Tensor]:
        baseline = baselines[site]
        if edges is None and count is not None and count < gates.shape[1]:
            edges = torch.arange(count, device=gates.device)
        if graph_of_edge is not None and baseline.dim() > 1:
            baseline = baseline[graph_of_edge if edges is None else graph_of_edge[edges]]
        return gates[site] if edges is None else padded()[site].take(edges), baseline

    return Mask(lambda call: answer(call.site, call.edges), lambda site: answer(site, None), exchange=exchange)


def run(
    subject: Subject,
    batch: Any,
    edges: Tensor | EdgeMap,
    gates: Tensor,
    baselines: Sequence[Tensor],
    *,
    graph_of_edge: Tensor | None = None,
    exchange: torch.Generator | None = None,
) -> Tensor:
    """The masked model's output on a batch; see `Mask` for ``exchange``."""
    count = edges.count if isinstance(edges, EdgeMap) else None
    with subject.tap(by_user_edges(gates, baselines, graph_of_edge, exchange, count), edges) as state:
        output = subject(batch)
        state.check_complete()
    return output


@contextmanager
def masked(model: nn.Module, explanation: Explained) -> Iterator[nn.Module]:
    """Inside, ``model`` runs on the explained graph with every dropped message replaced by its site's baseline.

    Input features that were dropped are replaced where the model is called.

    What an explanation claims can be checked by hand::

        with graphmask.masked(model, explanation):
            output = model(data.x, data.edge_index)     # == explanation.masked

    The model is used in evaluation mode, and is left exactly as it was found. An explanation that was read from a file
    is on the CPU; a copy on the model's device is used.
    """
    given, model = model, compiled.original(model)
    check_model(model)
    explanation = devices.placed(explanation, devices.device_of(model))
    names = {name or "model" for name, _ in model.named_modules()}
    for site in explanation.structure:
        if site.module not in names:
            raise GraphMaskError(
                f"Expected the model that was explained, with a module {site.module!r}, got a "
                f"{type(model).__name__} without it."
            )
    mask = by_user_edges(explanation.kept, explanation.baselines)
    with compiled.eager([given]), restored(model):
        model.eval()
        features = explanation.features
        before = nullcontext() if features is None else masked_input(model, features)
        with before, tap(model, mask, explanation.edge_map(), explanation.structure):
            yield given
