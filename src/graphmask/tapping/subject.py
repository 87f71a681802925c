"""The model under explanation: how it is called, where its messages flow, and how its outputs are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import devices
from graphmask.divergence import Divergence
from graphmask.graphs import batches
from graphmask.graphs.batches import Forward
from graphmask.graphs.edges import EdgeMap
from graphmask.graphs.layout import Types
from graphmask.graphs.sites import Site
from graphmask.graphs.wrapped_batches import graph_in, taken
from graphmask.tapping import capture, restore
from graphmask.tapping.features import FeatureTap
from graphmask.tapping.hooked import Hooks
from graphmask.tapping.messages import Mask, Visit
from graphmask.tapping.tapped import Tap
from graphmask.tapping.unseen import unseen


@dataclass(frozen=True)
class Rows:
    """The output rows that are asked about."""

    rows: tuple[int, ...]
    count: int  #: rows of the whole output
    nodes: tuple[int, ...] = ()  #: the nodes that these rows are, or the ends of the candidate edges that they are

    def of(self, output: Tensor) -> Tensor:
        """The output cut to these rows. It may be the output of several copies of the batch, one after the other."""
        copies = output.shape[0] // self.count
        if copies * self.count != output.shape[0]:
            return output
        first = self.count * torch.arange(copies, device=output.device)[:, None]
        return output[(first + torch.tensor(self.rows, device=output.device)).flatten()]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and everything about it that is the same for all batches. `tap` and `frozen` restore the model."""

    model: nn.Module
    forward: Forward = batches.default_forward
    divergence: Divergence = field(default_factory=lambda: Divergence("auto"))
    sites: tuple[Site, ...] | None = None  #: None until they are found, by a run of the model
    types: Types | None = None  #: node and edge types of heterogeneous data, known with the sites
    precision: str | None = None  #: "bf16" runs the model under autocast
    heads: str = "each"  #: how attention is gated; see `attention.HEADS`
    leaky_keys: bool = False  #: of attention: nothing stands in for the logit of a dropped pair
    rows: Rows | None = None  #: the rows of the output that are asked about; None for all
    features: FeatureTap | None = None  #: input features that are gated too
    hooks: Hooks = field(default_factory=Hooks)  #: on the model, while it is frozen

    def at(self, sites: tuple[Site, ...]) -> Subject:
        """The same subject with these sites."""
        return self if sites is self.sites else replace(self, sites=sites)

    @property
    def device(self) -> torch.device | None:
        """The model's device; None for a model without parameters, which takes batches on any device."""
        return devices.device_of(self.model)

    def take(self, batch: Any) -> Any:
        """The batch as the model gets it: without other values (see `wrapped_batches`), on the model's device."""
        return devices.placed(graph_in(batch) if self.forward is batches.default_forward else batch, self.device)

    def take_all(self, loader: Iterable[Any]) -> Iterable[Any]:
        """A loader whose batches are passed through `take` as they come."""
        return taken(loader, self.take)

    def __call__(self, batch: Any) -> Tensor:
        """The model's output on a batch, checked."""
        if self.features is not None:
            batch = self.features(batch)
        output = batches.call(batches.in_precision(self.forward, self.precision), self.model, batch)
        return output if self.rows is None else self.rows.of(output)

    def edge_map(self, batch: Any) -> EdgeMap:
        """An object that matches the edges of a layer's call to the user's edges, and counts all gates."""
        edge_map = batches.edge_map_of(batch)
        if self.features is not None:
            self.features.read(batch)
            assert edge_map.edge_index is not None
            edge_map.more = self.features.ends(batch, edge_map.edge_index)
        return edge_map

    def tap(
        self, visit: Visit | Mask, edges: Tensor | EdgeMap | None = None, *, recompute: bool = False
    ) -> AbstractContextManager[Tap]:
        """Inside, messages are seen or replaced; see `capture.tap`."""
        options: dict[str, Any] = {"recompute": recompute, "heads": self.heads, "leaky_keys": self.leaky_keys}
        options |= {"features": self.features, "hooks": self.hooks}
        return capture.tap(self.model, visit, edges, self.sites, **options)

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Modules that can mix nodes in other ways than by the gated messages."""
        return unseen(self.model)

    # The model is the user's ---------------------------------------------------------------------------------

    @contextmanager
    def frozen(self, *, training: bool = False) -> Iterator[None]:
        """A context in which the model is frozen by `freeze`; afterwards it is as before, also after an error.

        Hooks that a tap sets inside stay for the next one.
        """
        with restore.restored(self.model) as modules, self.hooks.kept():
            restore.freeze(self.model, training=training, modules=modules)
            yield

    def freeze(self, *, training: bool = False) -> None:
        """Fix all parameters; ``training`` keeps dropout on. Only inside `frozen`, which restores the model."""
        restore.freeze(self.model, training=training)
