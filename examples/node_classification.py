"""Which neighbours does a node classifier listen to? A notebook as a script.

A graph of a thousand people in three groups. Everybody has an opinion, a noisy sign of the group; half of the people
are bots, whose opinion says nothing, and a mark tells so. A network guesses the group from what the neighbours say. It
should listen to people and not to bots: GraphMask shows that it does, and for one node through which edges.

    python examples/node_classification.py [DIR]        # some twenty seconds; writes DIR/node.html
"""

# %% The data: one graph
from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import k_hop_subgraph

from graphmask import GraphMask

GROUPS, NODES, EDGES = 3, 1000, 8000


def people(seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(GROUPS, (NODES,), generator=generator)
    bot = torch.rand(NODES, generator=generator) < 0.5
    said = torch.where(bot, torch.randint(GROUPS, (NODES,), generator=generator), group)
    opinion = nn.functional.one_hot(said, GROUPS).float() + 0.3 * torch.randn(NODES, GROUPS, generator=generator)
    # Four of five edges stay within a group.
    source, target = torch.randint(NODES, (2, 4 * EDGES), generator=generator)
    wanted = (group[source] == group[target]) | (torch.rand(4 * EDGES, generator=generator) < 0.12)
    edge_index = torch.stack([source, target])[:, wanted][:, :EDGES]
    return Data(x=torch.cat([opinion, bot[:, None].float()], 1), edge_index=edge_index, y=group, bot=bot)


# %% The model: what a node says itself is left out, so that it has to listen
class Listener(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(GROUPS + 1, size), nn.ReLU())
        self.conv = SAGEConv(size, size, root_weight=False)
        self.out = nn.Linear(size, GROUPS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(self.conv(self.first(x), edge_index).relu())


def train(data: Data, steps: int = 200) -> Listener:
    model = Listener()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.x, data.edge_index), data.y).backward()
        optimiser.step()
    return model.eval()


# %% Fit once, then ask: who is listened to?
def main(out: Path, seed: int = 0, epochs: int | None = None) -> dict[str, float]:
    torch.manual_seed(seed)
    data = people(seed)
    model = train(data)
    explainer = GraphMask(model, tolerance=0.05, seed=seed)
    explainer.fit([data], epochs=epochs)
    explanation = explainer.explain(data)
    from_bot = data.bot[data.edge_index[0]]
    found = {
        "right": float((explanation.original.argmax(1) == data.y).float().mean()),
        "kept from people": float(explanation.kept[0, ~from_bot].float().mean()),
        "kept from bots": float(explanation.kept[0, from_bot].float().mean()),
        "divergence": explanation.divergence,
        "changed": explanation.flips,
    }
    for name, value in found.items():
        print(f"{name:18} {value:.3f}")
    show(explainer, data, 0, out / "node.html")
    return found


# %% One node, and what it heard
def show(explainer: GraphMask, data: Data, node: int, path: Path) -> None:
    nodes, edge_index, at, _ = k_hop_subgraph(node, 1, data.edge_index, relabel_nodes=True, num_nodes=NODES)
    part = Data(x=data.x[nodes], edge_index=edge_index)
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = [f"{'bot' if data.bot[n] else 'person'} {n}" for n in nodes.tolist()]
    labels[int(at)] += " (asked)"
    explainer.explain(part).to_html(path, title=f"What node {node} heard", node_labels=labels)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples"))
