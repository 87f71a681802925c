"""The models on which methods are compared: none of them was chosen by what any explainer finds on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.bench.battery.models import ENTRIES

OTHERS, PLAIN, WHITE = "published by others", "plain, as anyone would train it", "white box"

#: Training seeds of the plain models.
TRAINING_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Model:
    """A model of the battery, trained with a seed."""

    entry: str  #: its name in the battery, which has the recipe that it is trained by
    seed: int
    kind: str

    @property
    def name(self) -> str:
        return f"{self.entry}_{self.seed}" if self.kind == PLAIN else self.entry

    def prepare(self, out: Path) -> Prepared:
        """The trained model and its data; weights are kept in ``out``."""
        return ENTRIES[self.entry].prepare(self.seed, out / "models" / f"{self.name}.safetensors")


def _all() -> list[Model]:
    frozen = ("ba_shapes", "tree_grid", "tree_cycles", "ba_2motifs", "mutagenicity")
    plain = ("mutagenicity_gin", "mutagenicity_gcn", "ba2motifs_gin", "ba2motifs_gcn")
    return [
        *(Model(f"frozen_{name}", 0, OTHERS) for name in frozen),
        *(Model(name, seed, PLAIN) for name in plain for seed in TRAINING_SEEDS),
        *(Model(f"white_{name}", 0, WHITE) for name in ("count", "two_hops", "relations")),
    ]


MODELS: dict[str, Model] = {model.name: model for model in _all()}
