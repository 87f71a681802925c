"""The models on which methods are compared: none of them was chosen by what any explainer finds on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_geometric.data import Batch

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


def first_graphs(data: Sequence[Any], count: int) -> list[Any]:
    """The first so many graphs of some batches, batched as before. One large graph stays as it is."""
    batches: list[Any] = []
    for batch in data:
        if not isinstance(batch, Batch):
            return list(data)
        graphs = batch.to_data_list()[: count - sum(part.num_graphs for part in batches)]
        if graphs:
            batches.append(Batch.from_data_list(graphs))
    return batches


def _all() -> list[Model]:
    """In the order in which they are measured: plain models of one training seed after those of another."""
    frozen = ("ba_shapes", "tree_grid", "tree_cycles", "ba_2motifs", "mutagenicity")
    plain = ("mutagenicity_gin", "mutagenicity_gcn", "ba2motifs_gin", "ba2motifs_gcn")
    return [
        *(Model(f"frozen_{name}", 0, OTHERS) for name in frozen),
        *(Model(f"white_{name}", 0, WHITE) for name in ("count", "two_hops", "relations")),
        *(Model(name, seed, PLAIN) for seed in TRAINING_SEEDS for name in plain),
    ]


MODELS: dict[str, Model] = {model.name: model for model in _all()}
