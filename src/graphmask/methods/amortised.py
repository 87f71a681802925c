"""What the soft amortised methods share: a network per site trained over a data set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphmask import bars
from graphmask.errors import GraphMaskError
from graphmask.explaining.method import Method
from graphmask.gates.networks import SiteSpec
from graphmask.gates.probe import Probe
from graphmask.graphs import batches
from graphmask.tapping import gradients
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject


class Amortised(Method):
    """A gate network per site, trained by `loss` on every batch.

    Args:
        steps: at least, in whole epochs.
        learning_rate: of Adam.
        hidden: width of the networks.
    """

    seeded = True

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        steps: int = 1000,
        learning_rate: float = 3e-3,
        hidden: int = 32,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, **kwargs)
        self.steps, self.learning_rate, self.hidden = steps, learning_rate, hidden
        self.probe: Probe | None = None

    def fit(
        self,
        loader: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        progress: bool = True,
    ) -> None:
        """Train on batches of graphs; ``validation`` is not needed."""
        loader = self.subject.take_all(loader)
        with self.subject.frozen():
            count = batches.scan(loader, "the loader")
            epochs = epochs or -(-self.steps // count)
            torch.manual_seed(self.seed)
            probe, subject, output = self._discover(loader)
            self.divergence.resolve(output)
            self.prepare(probe, subject, loader)
            optimiser = torch.optim.Adam(probe.gates.parameters(), lr=self.learning_rate)
            subject.freeze(training=True)
            with gradients.needed(), bars.bar(enabled=progress) as bar:
                task = bar.add_task(self.name, total=epochs * count)
                step = 0
                for _ in range(epochs):
                    for batch in loader:
                        with torch.enable_grad():  # the caller may have switched it off
                            loss = self.loss(probe, subject, batch, step / (epochs * count))
                        if not bool(torch.isfinite(loss)):
                            raise GraphMaskError(
                                "Expected finite model outputs, got NaN or infinity on a batch of the loader. "
                                "Check the model on this data without GraphMask."
                            )
                        optimiser.zero_grad()
                        if loss.requires_grad:
                            loss.backward()
                            optimiser.step()
                        step += 1
                        bar.update(task, advance=1)
        self.probe, self.subject = probe, subject

    def _discover(self, loader: Iterable[Any]) -> tuple[Probe, Subject, Tensor]:
        """Networks for the sites of a first batch, the model with these sites, and its output."""
        (batch,), types = batches.first_few(loader, 1)
        probe, output = Probe.discover(self.subject, batch, self.hidden, self.seed, self.sees)
        return probe, replace(self.subject, sites=probe.sites, types=types), output

    def sees(self, spec: SiteSpec) -> SiteSpec:
        """What the networks may look at; by default all that GraphMask's gates see."""
        return spec

    @abstractmethod
    def prepare(self, probe: Probe, subject: Subject, loader: Iterable[Any]) -> None:
        """Take from the data what training needs."""

    @abstractmethod
    def loss(self, probe: Probe, subject: Subject, batch: Any, progress: float) -> Tensor:
        """One batch's loss; ``progress`` goes from 0 to 1."""

    def look(self, messages: Messages) -> Tensor:
        assert self.probe is not None
        return self.probe.gate(messages.site)(messages)

    def check_ready(self, allow_infeasible: bool) -> None:
        if self.probe is None:
            raise GraphMaskError(f"Expected a fitted {type(self).__name__}. Call fit(loader) first.")
