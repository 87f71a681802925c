"""The model under explanation: how it is called, where its messages flow, how its outputs are compared."""

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
    """Some rows of the output, which alone are asked about."""

    rows: tuple[int, ...]
    count: int  #: rows of the whole output
    nodes: tuple[int, ...] = ()  #: the nodes that these rows are, or the ends of the candidate edges that they are

    def of(self, output: Tensor) -> Tensor:
        """The output cut to these rows. The batch may lie in it several times, one copy after the other."""
        copies = output.shape[0] // self.count
        if copies * self.count != output.shape[0]:
            return output
        first = self.count * torch.arange(copies, device=output.device)[:, None]
        return output[(first + torch.tensor(self.rows, device=output.device)).flatten()]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and all that does not change from batch to batch. `tap` and `frozen` leave the model as it came."""

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
        """With these sites."""
        return self if sites is self.sites else replace(self, sites=sites)

    @property
    def device(self) -> torch.device | None:
        """Where the model lies; None of a model without parameters, which takes batches where they are."""
        return devices.device_of(self.model)

    def take(self, batch: Any) -> Any:
        """A batch as the model is given it: without company (see `wrapped_batches`), and on the model's device."""
        return devices.placed(graph_in(batch) if self.forward is batches.default_forward else batch, self.device)

    def take_all(self, loader: Iterable[Any]) -> Iterable[Any]:
        """A loader whose batches are taken so, one by one as they come."""
        return taken(loader, self.take)

    def __call__(self, batch: Any) -> Tensor:
        """The model's output on a batch, checked."""
        if self.features is not None:
            batch = self.features(batch)
        output = batches.call(batches.in_precision(self.forward, self.precision), self.model, batch)
        return output if self.rows is None else self.rows.of(output)

    def edge_map(self, batch: Any) -> EdgeMap:
        """What tells whose edges a layer sends along, and what else has gates."""
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
        """Modules that can mix nodes by other ways than the messages that are gated."""
        return unseen(self.model)

    # The model is the user's ---------------------------------------------------------------------------------

    @contextmanager
    def frozen(self, *, training: bool = False) -> Iterator[None]:
        """Inside, the model is as `freeze` puts it; afterwards it is as it was, whatever happened.

        Hooks that a tap sets inside stay for the next one.
        """
        with restore.restored(self.model) as modules, self.hooks.kept():
            restore.freeze(self.model, training=training, modules=modules)
            yield

    def freeze(self, *, training: bool = False) -> None:
        """Fix all parameters; ``training`` keeps dropout on. Only inside `frozen`, which restores the model."""
        restore.freeze(self.model, training=training)
