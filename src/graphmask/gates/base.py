"""What gate networks share: the sizes of a site's inputs, their standardisation, and the calibrated shift."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphmask.ops.kernels import ALL
from graphmask.ops.moments import Moments
from graphmask.tapping.messages import Messages

#: c: gates start open.
INITIAL_LOCATION = 2.0


@dataclass
class SiteSpec:
    """Sizes of a gate's inputs at its site; 0 or None for what the layer does not have."""

    message: int
    source: int
    target: int
    features: dict[str, int]
    categories: dict[str, int]
    pieces: int
    lifted: bool = False  #: the message is a node's row times a number
    matrix: bool = False
    relations: int = 1
    heads: int = 0  #: of attention

    @classmethod
    def of(cls, pieces: list[Messages]) -> SiteSpec:
        """From the messages of all calls of a site on a first batch."""
        first = pieces[0]
        if first.attended is not None:
            seen = first.attended
            message, source, target = seen.sizes()
            return cls(message, source, target, {}, {}, 1, matrix=True, relations=seen.relations, heads=seen.heads)
        if first.matrix is not None:
            call = first.matrix
            size = call.nodes.shape[-1]
            return cls(call.messages.shape[-1], size, size, {}, {}, 1, matrix=True, relations=call.adjacency.shape[1])
        categories = {}
        for key in first.categories:
            largest = max((int(m.categories[key].max()) for m in pieces if m.categories[key].numel()), default=0)
            # Relations that a first batch does not show share the rows of a table with some room.
            categories[key] = max(first.num_relations, largest + 1, 64)
        return cls(
            message=first.flat().shape[1],
            source=0 if first.source_states is None else first.source_states.shape[1],
            target=0 if first.target_states is None else first.target_states.shape[1],
            features={key: value.shape[1] for key, value in first.features.items()},
            categories=categories,
            pieces=len(pieces),
            lifted=all(m.is_lifted() for m in pieces),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def widened(self, other: SiteSpec) -> SiteSpec:
        """The larger of these sizes and those of another batch."""
        room = {key: max(count, other.categories.get(key, 0)) for key, count in self.categories.items()}
        return replace(self, categories=room, lifted=self.lifted and other.lifted)


class Gate(nn.Module):
    """What edge-list and matrix gates share: standardised inputs, and the calibrated shift of the location."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(()))

    def standardise(self, pieces: list[Messages]) -> None:
        """Take the mean and spread of every input from a first batch."""
        self.take({key: [moments] for key, moments in self.moments(pieces).items()})

    def moments(self, pieces: list[Messages]) -> dict[str, Moments]:
        """The moments of every input, by name, on one batch."""
        raise NotImplementedError

    @torch.no_grad()
    def take(self, moments: dict[str, list[Moments]]) -> None:
        """Set the standardisation to the moments of one or more batches."""
        for key, parts in moments.items():
            union = Moments.union(parts)
            self.get_buffer(f"mean:{key}").copy_(union.mean)
            self.get_buffer(f"scale:{key}").copy_(inverse_scale(union.deviation))

    def start_at(self, location: float) -> None:
        """Give all edges the same location: their differences are learned, not drawn."""
        raise NotImplementedError

    def next_rows(self, messages: Messages) -> slice:
        """The edges whose gates receive gradients in the next step of training."""
        return ALL

    def raw(self, messages: Messages, rows: slice = ALL) -> Tensor:
        """[E'] locations before the shift, with gradients from ``rows``."""
        raise NotImplementedError

    def forward(self, messages: Messages, rows: slice = ALL) -> Tensor:
        """[E'] calibrated locations of the Hard Concrete gates, in full precision whatever precision the model uses."""
        shift = self.shift
        kind = shift.device.type
        if not torch.is_autocast_enabled(kind):
            return self.raw(messages, rows) - shift
        with torch.autocast(kind, enabled=False):
            return self.raw(messages, rows) - shift


def linear(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    bound = columns**-0.5
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound, generator=generator))


def inverse_scale(deviation: Tensor) -> Tensor:
    """[d] the factor of each input: about one over its deviation, and bounded for inputs that hardly vary.

    Words that occur once would otherwise outweigh all others and identify single nodes. A feature that never varies
    carries no information: it is left out, because only its rounding errors would be scaled up.
    """
    common = (deviation**2).mean()
    return torch.where(deviation > 1e-5, (2 / (deviation**2 + common).clamp_min(1e-30)).sqrt(), 0.0)
