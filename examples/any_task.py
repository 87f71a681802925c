"""One script explains a graph classifier, a node classifier, a link predictor, a regressor and a heterogeneous model.

`explain` below is all of it, and nothing in it knows the task. The rest of this file makes small tasks to try it on:
nodes have one of four colours, and every answer depends on edges from nodes of colour 0 alone.

    python examples/any_task.py
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GraphConv, HeteroConv, global_add_pool

import graphmask
from graphmask.graphs.batches import default_forward


def explain(model: nn.Module, loader: Any, data: Any, index: int | None = None, **settings: Any) -> dict[str, Any]:
    """Fit once, explain one prediction, check it, and say which edges were used at which layer."""
    explainer = graphmask.GraphMask(model, **settings)
    explainer.fit(loader, epochs=-(-STEPS // len(loader)), progress=False)
    explanation = explainer.explain(data, index=index, allow_infeasible=True)
    with graphmask.masked(model, explanation), torch.no_grad():
        output = explainer.forward(model, data)
    check = output if index is None else output[[index]]
    print(explanation)
    for site, kept in zip(explanation.sites, explanation.kept, strict=True):
        print(f"  {site} uses", explanation.edge_index[:, kept].t().tolist()[:8])
    return {"explanation": explanation, "difference": float((check - explanation.masked).abs().max())}


# Tasks -----------------------------------------------------------------------------------------------------------

COLOURS, WIDTH, STEPS = 4, 16, 600


class Nodes(nn.Module):
    """A row per node."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embed, self.conv = nn.Linear(COLOURS, WIDTH), GraphConv(WIDTH, WIDTH)
        self.read = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))

    def states(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.embed(x).relu(), edge_index).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.read(self.states(x, edge_index))


class Graphs(Nodes):
    """A row per graph."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        return self.read(global_add_pool(self.states(x, edge_index), batch))


class Links(Nodes):
    """A row per candidate edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        h = self.states(x, edge_index)
        return self.read(h[edge_label_index[0]] + h[edge_label_index[1]])


KINDS = (("book", "read by", "reader"), ("reader", "knows", "reader"), ("reader", "wrote", "book"))


class Readers(Nodes):
    """Two types of nodes, three of edges; a row per reader."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.conv = HeteroConv({kind: GraphConv((WIDTH, WIDTH), WIDTH) for kind in KINDS})  # type: ignore[assignment]

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:  # type: ignore[override]
        h = {kind: self.embed(x).relu() for kind, x in x_dict.items()}
        return self.read(self.conv(h, edge_index_dict)["reader"].relu())


def library(seed: int, nodes: int, edges: int) -> HeteroData:
    """What counts are the books of colour 0 that somebody has read."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind in ("book", "reader"):
        data[kind].x = F.one_hot(torch.randint(COLOURS, (nodes,), generator=generator), COLOURS).float()
    for kind in KINDS:
        data[kind].edge_index = torch.randint(nodes, (2, edges), generator=generator)
    book, reader = data[KINDS[0]].edge_index
    data["reader"].seen = torch.bincount(reader[data["book"].x[book, 0] == 1], minlength=nodes)
    return data


def graph(seed: int, nodes: int, edges: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    colour = torch.randint(COLOURS, (nodes,), generator=generator)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    data = Data(x=F.one_hot(colour, COLOURS).float(), edge_index=edge_index)
    data.seen = torch.bincount(edge_index[1, colour[edge_index[0]] == 0], minlength=nodes)  # neighbours of colour 0
    return data


def tasks() -> dict[str, tuple[nn.Module, Any, Any, dict[str, Any]]]:
    """Name -> trained model, batches to fit on, graph to explain, and settings (what to ask, how to measure)."""
    torch.manual_seed(0)
    large, small = graph(0, 100, 200), [graph(seed, 8, 14) for seed in range(1, 65)]
    batches = [Batch.from_data_list(small[start : start + 16]) for start in range(0, 64, 16)]
    large.edge_label_index = torch.randint(100, (2, 200))

    def seen_in(batch: Any) -> Tensor:
        return torch.bincount(batch.batch, batch.seen, batch.num_graphs)

    def ends(data: Any) -> Tensor:
        return (data.seen[data.edge_label_index] > 0).all(0)

    def many(outputs: int, labels: Any, **settings: Any) -> tuple[nn.Module, Any, Any, dict[str, Any]]:
        return train(Graphs(outputs), batches, labels), batches, small[0], settings

    def one(model: nn.Module, labels: Any, data: Any = large) -> tuple[nn.Module, Any, Any, dict[str, Any]]:
        index = int(labels(data).argmax())  # the first whose answer is yes
        return train(model, [data], labels), [data], data, {"index": index}

    return {
        "graph classifier": many(2, lambda b: (seen_in(b) > 3).long()),
        "node classifier": one(Nodes(2), lambda d: (d.seen > 0).long()),
        "link predictor": one(Links(2), lambda d: ends(d).long()),
        "regressor": many(1, lambda b: seen_in(b).float()[:, None], divergence="mse", tolerance=0.1),
        "heterogeneous model": one(Readers(2), lambda d: (d["reader"].seen > 0).long(), library(0, 100, 200)),
    }


def train(model: nn.Module, batches: list[Any], labels: Any) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(-(-STEPS // len(batches))):
        for batch in batches:
            output, wanted = default_forward(model, batch), labels(batch)
            loss = F.mse_loss(output, wanted) if wanted.is_floating_point() else F.cross_entropy(output, wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def main() -> dict[str, dict[str, Any]]:
    results = {}
    for name, (model, loader, data, settings) in tasks().items():
        print(f"\n{name}")
        results[name] = explain(model, loader, data, **settings)
    return results


if __name__ == "__main__":
    main()
