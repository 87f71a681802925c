"""Networks that provably ignore some input features: are exactly these dropped by gates on the input?

Three kinds of networks with weights set by hand, each in three forms: one ignores columns of ``x``, one all features of
some nodes, one the attributes of some edges. What is not ignored moves the output by more than any tolerance in use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINConv, GINEConv, GraphConv, global_add_pool

from graphmask.bars import steps
from graphmask.errors import GraphMaskError
from graphmask.experiments import runner
from graphmask.experiments.bench.battery import learning
from graphmask.explainer import GraphMask
from graphmask.files import read_json, write_bytes

#: Columns of ``x``: is the node looked at, the two numbers that are read, and what no network reads.
FLAG, READ, COLUMNS = 0, (1, 2), 6
#: Columns of ``edge_attr``: is the edge looked at, the number that is read, and what no network reads.
EDGE_FLAG, EDGE_READ, EDGE_COLUMNS = 0, 1, 3
#: More than any number: shuts a ReLU.
SHUT = 10.0
KINDS = ("nodes", "each", "edges")
TRAIN, VALIDATION, TEST, SIZE = 160, 200, 50, 32


def let_through(value: Tensor, flag: Tensor) -> Tensor:
    """The value where the flag is 1, and 0 where it is 0, by two ReLUs: what a trained network could do."""
    shut = SHUT * (1 - flag)
    return (value - shut).relu() - (-value - shut).relu()


class Box(nn.Module):
    """Reads what ``kind`` leaves of the input, and hands it to layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def states(self, x: Tensor) -> Tensor:
        """[N, 2] the two columns that are read; of nodes with a flag where nodes are gated."""
        read = x[:, list(READ)]
        return let_through(read, x[:, [FLAG]]) if self.kind == "nodes" else read

    def weights(self, edge_attr: Tensor) -> Tensor:
        """[E] the number of every edge; of edges with a flag where edges are gated."""
        read = edge_attr[:, EDGE_READ]
        return let_through(read, edge_attr[:, EDGE_FLAG]) if self.kind == "edges" else read


def _set(linear: Any, rows: Sequence[Sequence[float]]) -> None:
    with torch.no_grad():
        linear.weight.copy_(torch.tensor(rows))


class NodeClasses(Box):
    """A GCN that tells nodes apart: logits of three classes for every node."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.conv = GCNConv(2, 3, bias=False, normalize=kind != "edges")
        _set(self.conv.lin, [[6.0, 0.0], [0.0, 6.0], [-4.0, -4.0]])

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        weights = self.weights(edge_attr) if self.kind == "edges" else None
        return self.conv(self.states(x), edge_index, weights)


class GraphClasses(Box):
    """A GIN with a sum over nodes: logits of two classes for every graph. Edges with attributes make it a GINE."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        mlp = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.conv = GINEConv(mlp, edge_dim=2) if kind == "edges" else GINConv(mlp)
        _set(mlp[0], [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # after GIN has drawn others
        _set(mlp[2], [[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])
        if kind == "edges":
            _set(self.conv.lin, [[1.0, 0.0], [0.0, 1.0]])
            nn.init.zeros_(self.conv.lin.bias)
        self.out = nn.Linear(2, 2, bias=False)
        _set(self.out, [[2.0, 1.0], [-1.0, 2.0]])

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        states = self.states(x)
        if self.kind == "edges":  # a GINE's message is cut off at 0
            number = self.weights(edge_attr).abs()
            states = self.conv(states.abs(), edge_index, torch.stack([number, 0 * number], 1))
        else:
            states = self.conv(states, edge_index)
        return self.out(global_add_pool(states, batch))


class Weighted(Box):
    """A GraphConv whose messages are weighed by the attributes of edges: one number for every graph."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.conv = GraphConv(2, 1, bias=False)
        _set(self.conv.lin_rel, [[2.0, 3.0]])
        _set(self.conv.lin_root, [[3.0, 2.0]])

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        states, weights = self.states(x), self.weights(edge_attr)
        if self.kind == "edges":  # the sign of what is gated is free; that of the other factor is not, lest sums be 0
            states = states.abs()
        else:
            weights = weights.abs()
        return global_add_pool(self.conv(states, edge_index, weights), batch)


BOXES: dict[str, type[Box]] = {"gcn": NodeClasses, "gin": GraphClasses, "graphconv": Weighted}


# Data ---------------------------------------------------------------------------------------------------------


def _numbers(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    """Of random sign, between 1 and 3 in size: near no constant are there many."""
    size = 1 + 2 * torch.rand(rows, columns, generator=rng)
    return size * (2 * torch.randint(2, (rows, columns), generator=rng) - 1)


def graph(rng: torch.Generator) -> Data:
    """Nine nodes, each of which sends to its successor and to another one; half of all flags are set."""
    nodes = 9
    x, order = _numbers(nodes, COLUMNS, rng), torch.randperm(nodes, generator=rng)
    jump = torch.randint(2, nodes, (nodes,), generator=rng)
    positions = torch.arange(nodes)
    ahead = torch.stack([order, order[(positions + 1) % nodes]])
    edge_index = torch.cat([ahead, torch.stack([order, order[(positions + jump) % nodes]])], 1)
    edge_attr = _numbers(edge_index.shape[1], EDGE_COLUMNS, rng)
    x[:, FLAG] = (torch.rand(nodes, generator=rng) < 0.5).float()
    edge_attr[:, EDGE_FLAG] = (torch.rand(len(edge_attr), generator=rng) < 0.5).float()
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr)


def draw(graphs: int, seed: int) -> list[Data]:
    rng = torch.Generator().manual_seed(seed)
    return [graph(rng) for _ in range(graphs)]


def used(kind: str, data: Data) -> Tensor:
    """bool [N], [N, F] or [E]: what the network does not ignore."""
    if kind == "edges":
        return data.edge_attr[:, EDGE_FLAG] > 0
    if kind == "nodes":
        return data.x[:, FLAG] > 0
    columns = torch.zeros(data.x.shape, dtype=torch.bool)
    columns[:, list(READ)] = True
    return columns


# Measuring ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What one fit keeps of the test graphs."""

    ignored_kept: float  #: share of what the network ignores
    used_dropped: float  #: share of what it does not
    divergence: float

    @property
    def exact(self) -> bool:
        return self.ignored_kept == 0 and self.used_dropped == 0


def fit(box: str, kind: str, seed: int, epochs: int | None = None) -> Found:
    """GraphMask with default settings, on graphs that are drawn anew for every seed."""
    model = BOXES[box](kind).eval()
    graphs = draw(TRAIN + VALIDATION + TEST, seed)
    train, validation, test = graphs[:TRAIN], graphs[TRAIN:-TEST], graphs[-TEST:]
    explainer = GraphMask(model, divergence="mse", seed=seed, features=kind)
    explainer.fit(learning.loader(train, SIZE), learning.loader(validation, SIZE), epochs=epochs, progress=False)
    explanations = list(explainer.explain_all([Batch.from_data_list(test)], repair=False, allow_infeasible=True))
    kept = torch.cat([_kept(one) for one in explanations])
    wanted = torch.cat([used(kind, data) for data in test])
    return Found(
        float((kept & ~wanted).sum() / (~wanted).sum()),
        float((~kept & wanted).sum() / wanted.sum()),
        sum(one.divergence for one in explanations) / len(explanations),
    )


def _kept(explanation: Any) -> Tensor:
    assert explanation.features is not None
    kept: Tensor = explanation.features.kept
    return kept


def measure(
    boxes: Sequence[str], kinds: Sequence[str], seeds: int, out: Path, *, epochs: int | None = None, progress: bool
) -> dict[str, dict[str, list[Found]]]:
    """By network and kind, one entry per seed. Fits that are in ``out`` already are not repeated."""
    for wanted, known, what in ((boxes, BOXES, "networks"), (kinds, KINDS, "features")):
        for name in wanted:
            if name not in known:
                raise GraphMaskError(f"Expected {what} among {', '.join(known)}, got {name!r}.")
    fits: dict[str, dict[str, list[Found]]] = {box: {kind: [] for kind in kinds} for box in boxes}
    with runner.one_thread(), steps(seeds * len(boxes) * len(kinds), enabled=progress) as step:
        for seed in range(seeds):
            for box in boxes:
                for kind in kinds:
                    step(f"{box}, {kind}, seed {seed}")
                    fits[box][kind].append(_one(box, kind, seed, out, epochs))
    return fits


def _one(box: str, kind: str, seed: int, out: Path, epochs: int | None) -> Found:
    path = out / f"{box}-{kind}-{seed}{'' if epochs is None else f'-{epochs}'}.json"
    try:
        return Found(**read_json(path))
    except (GraphMaskError, TypeError):
        result = fit(box, kind, seed, epochs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(result.__dict__, indent=1) + "\n").encode())
    return result


def rows(found: dict[str, dict[str, list[Found]]]) -> tuple[list[str], list[list[str]]]:
    """A table: seeds with exactly the right answer, and the worst seed's shares in per cent."""
    header = ["network", "features", "exact seeds", "ignored but kept, worst", "used but dropped, worst", "divergence"]
    lines = [
        [
            box,
            kind,
            f"{sum(one.exact for one in some)} of {len(some)}",
            f"{100 * max(one.ignored_kept for one in some):.1f}",
            f"{100 * max(one.used_dropped for one in some):.1f}",
            f"{max(one.divergence for one in some):.3f}",
        ]
        for box, by_kind in found.items()
        for kind, some in by_kind.items()
    ]
    return header, lines
