"""Which bonds make a molecule look dangerous? A notebook as a script.

Mutagenicity (TU collection): molecules, and whether they damage DNA. Chemists know that nitro (NO2) and amino (NH2)
groups often do. A two-layer network is trained on the molecules alone; GraphMask tells which bonds it uses, and how
often those are bonds of such groups.

    python examples/molecules.py [DIR]          # a minute; writes DIR/molecules.html

The folder with the collection's text files is looked for in $GRAPHMASK_DATA/mutagenicity.
"""

# %% The data
from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GraphConv, global_add_pool

from graphmask import GraphMask
from graphmask.experiments import mutagenicity
from graphmask.report.build import write_report


# %% The model
class Chemist(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.first = GraphConv(len(mutagenicity.ATOMS), size)
        self.second = GraphConv(size, size)
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        h = self.second(h, edge_index).relu()
        return self.out(global_add_pool(h, batch))


def train(loader: DataLoader, epochs: int) -> Chemist:
    model = Chemist()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
            optimiser.step()
    return model.eval()


# %% Fit, explain, compare with what chemists know
def main(out: Path, seed: int = 0, molecules: int = 2500, epochs: int | None = None) -> dict[str, float]:
    torch.manual_seed(seed)
    found = mutagenicity.read()
    found = [found[i] for i in torch.randperm(len(found)).tolist()[:molecules]]
    known, unseen = found[: -len(found) // 5], found[-len(found) // 5 :]
    loader = DataLoader(known, batch_size=64, shuffle=True)
    model = train(loader, epochs=20)
    explainer = GraphMask(model, seed=seed)
    explainer.fit(loader, epochs=epochs)
    explanations = list(explainer.explain_all(DataLoader(unseen, batch_size=64)))
    used = torch.cat([e.kept.any(0) for e in explanations])
    group = torch.cat([data.gold for data in unseen])
    figures = {
        "right": sum(bool(e.original.argmax() == d.y) for e, d in zip(explanations, unseen, strict=True)) / len(unseen),
        "within tolerance": sum(e.faithful for e in explanations) / len(explanations),
        "bonds used": float(used.float().mean()),
        "NO2 and NH2 bonds used": float(used[group].float().mean()),
        "other bonds used": float(used[~group].float().mean()),
    }
    for name, value in figures.items():
        print(f"{name:24} {value:6.1%}")
    show(explainer, unseen, out / "molecules.html")
    return figures


# %% The page: a dozen mutagens
def show(explainer: GraphMask, molecules: list[Data], path: Path) -> None:
    chosen = [m for m in molecules if int(m.y) == mutagenicity.MUTAGEN and bool(m.gold.any()) and m.num_nodes < 30][:12]
    explanations = [explainer.explain(molecule) for molecule in chosen]
    for explanation, molecule in zip(explanations, chosen, strict=True):
        explanation.info = {
            "node_labels": [mutagenicity.ATOMS[atom] for atom in molecule.x.argmax(1).tolist()],
            "label": int(molecule.y),
            "classes": ["mutagen", "harmless"],
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(path, explanations, title="Which bonds make a molecule look dangerous?")
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples"))
