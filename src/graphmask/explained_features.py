"""The part of an explanation that is about input features: which of them the model used, by node or by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.tapping.features import KINDS, FeatureTap, check_kind, put_baseline
from graphmask.words import first_of

if TYPE_CHECKING:
    import pandas

_TENSORS = ("kept", "scores", "carried", "baseline", "counterfactual")


@dataclass(eq=False)
class Features:
    """Which input features were kept: ``[N]`` of nodes, ``[N, F]`` of each number, ``[E]`` of edges."""

    kind: str  #: "nodes", "each" or "edges"
    kept: Tensor  #: bool
    scores: Tensor  #: float, of the same shape: the probability that the gate is non-zero
    carried: Tensor  #: bool, of the same shape; False where nothing of it can reach what `index` asked about
    baseline: Tensor  #: [F] what replaces the features of a node, or each its own number
    counterfactual: Tensor | None = None  #: bool, as `Explanation.counterfactual`

    @property
    def attribute(self) -> str:
        """The name of the attribute of the batch: ``x`` or ``edge_attr``."""
        return KINDS[self.kind][0]

    @property
    def retained(self) -> float:
        """Share of gates that are open."""
        return float(self.kept.sum()) / max(int(self.carried.sum()), 1)

    def masked(self, batch: Any) -> Any:
        """The batch with the baseline in place of dropped features, to run the model on yourself.

        Inside `graphmask.masked` the model's arguments are replaced anyway; replacing them twice changes nothing.
        """
        tap = FeatureTap(self.kind)
        tap.handler = lambda value: put_baseline(
            self.kind, value, self.kept.flatten().to(value.device), self.baseline.to(value.device)
        )
        return tap(batch)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per gate: ``node`` or ``edge``, ``column`` of single numbers, ``carried``, ``kept``, ``score``."""
        try:
            import pandas
        except ImportError:
            raise GraphMaskError("Expected pandas for to_pandas(). Try: pip install pandas.") from None
        return pandas.DataFrame(self.columns())

    def columns(self) -> dict[str, Any]:
        """The same as arrays by name."""
        positions = torch.ones_like(self.kept).nonzero().cpu().numpy()
        names = ("edge" if self.kind == "edges" else "node", "column")
        arrays = {name: positions[:, at] for at, name in enumerate(names[: self.kept.dim()])}
        arrays["carried"] = self.carried.flatten().cpu().numpy()
        arrays["kept"] = self.kept.flatten().cpu().numpy()
        arrays["score"] = self.scores.flatten().double().cpu().numpy()
        return arrays

    def __str__(self) -> str:
        """As part of a list of sites: ``x 3/10 nodes``."""
        of = {"nodes": "nodes", "each": "numbers", "edges": "edges"}[self.kind]
        return f"{self.attribute} {int(self.kept.sum())}/{int(self.carried.sum())} {of}"

    def in_words(self, names: Sequence[str] | None = None) -> str:
        """A sentence: how many were kept, and which; for gates of single numbers, in how many nodes each column was."""
        _, _, of = str(self).split(" ", 2)
        share = f"{self.attribute}: {int(self.kept.sum()):,} of {int(self.carried.sum()):,} {of} kept"
        if self.kind == "each":
            counts = self.kept.sum(0).tolist()
            which = [f"column {at} of {count:,} nodes" for at, count in enumerate(counts) if count]
        else:
            at = self.kept.nonzero().view(-1).tolist()
            which = [names[one] if names is not None and self.kind == "nodes" else str(one) for one in at]
        return f"{share}." if not which else f"{share}: {first_of(which, 20)}."

    # Files -------------------------------------------------------------------------------------------------

    def to_tensors(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in _TENSORS}
        return {f"features.{name}": value for name, value in tensors.items() if value is not None}

    @classmethod
    def from_tensors(cls, kind: str | None, tensors: dict[str, Tensor]) -> Features | None:
        """Build it from its entries in ``tensors``, which are removed there."""
        own = {name: tensors.pop(f"features.{name}") for name in _TENSORS if f"features.{name}" in tensors}
        if check_kind(kind) is None or kind is None:
            if own:
                raise TypeError("features of an unknown kind")
            return None
        features = cls(kind=kind, **own)
        shapes = {getattr(features, name).shape for name in ("kept", "scores", "carried")}
        if len(shapes) != 1 or features.kept.dim() != 1 + KINDS[kind][1]:
            raise TypeError(f"features of shapes {sorted(map(tuple, shapes))}")
        return features
