"""Networks with weights set by hand, so that the needed messages are known by construction.

A message is *needed* if leaving it out changes the output, by at least one where the tolerance is .03 squared units;
with all other messages replaced by zero the output stays the same. Whether a message is needed can be told from
its two ends, so that gates without look-ahead can know. Node 0 of every graph is the root, whose state is the output.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv, RGCNConv

from graphmask.experiments.bench.battery import learning
from graphmask.experiments.bench.battery.entry import Prepared
from graphmask.experiments.common import first_nodes

#: Feature columns.
ROOT, MID, FLAG, A, B, C = range(6)
COLUMNS = 6
TRAIN, VALIDATION, TEST, BATCH = 2_000, 200, 200, 50
#: More than any count of messages: shuts a ReLU.
SHUT = 100.0


def _colours(nodes: int, rng: torch.Generator) -> Tensor:
    """[nodes, 6] one of the three colours each."""
    drawn = torch.multinomial(torch.tensor([0.35, 0.25, 0.4]), nodes, True, generator=rng)
    x = torch.zeros(nodes, COLUMNS)
    x[torch.arange(nodes), A + drawn] = 1
    return x


def _distinct(source: Tensor, target: Tensor) -> Tensor:
    """[2, E] every pair once, in an order that says nothing, without self-loops."""
    pairs = torch.stack([source, target])[:, source != target]
    return pairs.unique(dim=1)


def _random(count: int, sources: Tensor, targets: Tensor, rng: torch.Generator) -> Tensor:
    some = [ends[torch.randint(len(ends), (count,), generator=rng)] for ends in (sources, targets)]
    return torch.stack(some)


# Counting: layer 1 counts the root's neighbours of colour A, layer 2 those of colour B -----------------------


class Count(nn.Module):
    """Output: neighbours of colour A plus neighbours of colour B, the first counted by layer 1, the others by 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GraphConv(COLUMNS, COLUMNS + 1, aggr="add", bias=False)
        self.second = GraphConv(COLUMNS + 1, 1, aggr="add", bias=False)
        with torch.no_grad():
            for conv in (self.first, self.second):
                conv.lin_rel.weight.zero_()
                conv.lin_root.weight.zero_()
            self.first.lin_root.weight[:COLUMNS] = torch.eye(COLUMNS)  # states keep the features
            self.first.lin_rel.weight[COLUMNS, A] = 1.0  # and count arriving As
            self.second.lin_root.weight[0, COLUMNS] = 1.0
            self.second.lin_rel.weight[0, B] = 1.0

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index), edge_index)[first_nodes(batch), 0]


def count_graph(rng: torch.Generator) -> Data:
    """A root with eight edges from others, and twenty edges among the others and from the root."""
    x = _colours(14, rng)
    x[0] = 0
    x[0, ROOT] = 1
    others = torch.arange(1, 14)
    into = torch.stack([others[torch.randperm(13, generator=rng)[:8]], torch.zeros(8, dtype=torch.long)])
    rest = _random(20, torch.arange(14), others, rng)
    edge_index = _distinct(*torch.cat([into, rest], 1))
    source, target = edge_index
    gold = torch.stack([(x[source, colour] > 0) & (target == 0) for colour in (A, B)], 1)
    return Data(x=x, edge_index=edge_index, gold=gold)


# Two hops: leaves of colour A report to mids, flagged mids to the root ---------------------------------------


class TwoHops(nn.Module):
    """Output: over all flagged mids, how many leaves of colour A they have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphConv(COLUMNS, 3, aggr="add"), GraphConv(3, 1, aggr="add", bias=False)
        with torch.no_grad():
            for conv in (self.first, self.second):
                conv.lin_rel.weight.zero_()
                conv.lin_root.weight.zero_()
            # Column 0 counts As at flagged nodes and is shut at all others; columns 1 and 2 keep what a node is.
            self.first.lin_rel.weight[0, A] = 1.0
            self.first.lin_root.weight[0, FLAG] = SHUT
            self.first.lin_rel.bias.copy_(torch.tensor([-SHUT, 0.0, 0.0]))
            self.first.lin_root.weight[1, ROOT] = 1.0
            self.first.lin_root.weight[2, MID] = 1.0
            self.second.lin_rel.weight[0, 0] = 1.0

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)[first_nodes(batch), 0]


MIDS, LEAVES = 5, 12


def _three_ranks(rng: torch.Generator, flagged: float) -> tuple[Tensor, Tensor, Tensor]:
    """Features of a root, five mids and twelve leaves; the numbers of mids and of leaves."""
    x = _colours(1 + MIDS + LEAVES, rng)
    mids, leaves = torch.arange(1, 1 + MIDS), torch.arange(1 + MIDS, 1 + MIDS + LEAVES)
    x[: 1 + MIDS] = 0
    x[0, ROOT] = 1
    x[mids, MID] = 1
    x[mids, FLAG] = (torch.rand(MIDS, generator=rng) < flagged).float()
    return x, mids, leaves


def two_hops_graph(rng: torch.Generator) -> Data:
    """Every mid sends to the root, leaves send to mids, the root and each other; the root and mids to leaves."""
    x, mids, leaves = _three_ranks(rng, 0.6)
    root = torch.zeros(1, dtype=torch.long)
    edges = [torch.stack([mids, root.expand(MIDS)]), _random(20, leaves, mids, rng), _random(3, leaves, root, rng)]
    edges += [_random(6, leaves, leaves, rng), _random(4, torch.arange(1 + MIDS), leaves, rng)]
    edge_index = _distinct(*torch.cat(edges, 1))
    source, target = edge_index
    reports = (x[source, A] > 0) & (x[target, FLAG] > 0)
    told = torch.zeros(len(x)).index_add(0, target, reports.float())
    return Data(x=x, edge_index=edge_index, gold=torch.stack([reports, (target == 0) & (told[source] > 0)], 1))


# Relations: the same path, told by relations instead of flags -------------------------------------------------

RELATIONS, REPORTS, ANSWERS = 4, 0, 1


class Relations(nn.Module):
    """Output: how many nodes of colour A send by relation 0 to a node that sends by relation 1 to the root."""

    def __init__(self) -> None:
        super().__init__()
        self.first = RGCNConv(COLUMNS, 3, RELATIONS, aggr="add", bias=False)
        self.second = RGCNConv(3, 1, RELATIONS, aggr="add", bias=False)
        with torch.no_grad():
            for conv in (self.first, self.second):
                conv.weight.zero_()
                conv.root.zero_()
            self.first.weight[REPORTS, A, 0] = 1.0
            self.first.root[ROOT, 1] = 1.0
            self.first.root[MID, 2] = 1.0
            self.second.weight[ANSWERS, 0, 0] = 1.0

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> Tensor:
        state = self.first(x, edge_index, edge_type)
        return self.second(state, edge_index, edge_type)[first_nodes(batch), 0]


def relations_graph(rng: torch.Generator) -> Data:
    """Every mid answers the root by relation 1; leaves send to mids, and all kinds to each other, by any relation.

    Relation 1 into the root comes from mids alone, and relation 0 from a leaf of colour A counts at mids alone.
    """
    x, mids, leaves = _three_ranks(rng, 0.0)
    root = torch.zeros(1, dtype=torch.long)
    answers = torch.stack([mids, root.expand(MIDS)])
    others = [_random(18, leaves, mids, rng), _random(8, leaves, leaves, rng), _random(4, torch.arange(6), leaves, rng)]
    drawn = _distinct(*torch.cat(others, 1))
    relation = torch.where(
        torch.rand(drawn.shape[1], generator=rng) < 0.5,
        REPORTS,
        torch.randint(RELATIONS, (drawn.shape[1],), generator=rng),
    )
    aside = _distinct(*torch.cat([_random(4, leaves, root, rng), _random(3, mids, root, rng)], 1))
    wrong = torch.where(torch.rand(aside.shape[1], generator=rng) < 0.5, 2, 3)
    edge_index = torch.cat([answers, drawn, aside], 1)
    edge_type = torch.cat([torch.full((MIDS,), ANSWERS), relation, wrong])
    order = torch.randperm(edge_index.shape[1], generator=rng)
    (source, target), edge_type = edge_index[:, order], edge_type[order]
    reports = (edge_type == REPORTS) & (x[source, A] > 0) & (x[target, MID] > 0)
    told = torch.zeros(len(x)).index_add(0, target, reports.float())
    passes = (edge_type == ANSWERS) & (target == 0) & (told[source] > 0)
    return Data(x=x, edge_index=edge_index[:, order], edge_type=edge_type, gold=torch.stack([reports, passes], 1))


BOXES: dict[str, tuple[type[nn.Module], Callable[[torch.Generator], Data]]] = {
    "count": (Count, count_graph),
    "two_hops": (TwoHops, two_hops_graph),
    "relations": (Relations, relations_graph),
}


def draw(name: str, graphs: int, seed: int) -> list[Data]:
    """Random graphs of a white box; ``gold`` [E, 2] marks the needed messages of both layers."""
    rng = torch.Generator().manual_seed(seed)
    return [BOXES[name][1](rng) for _ in range(graphs)]


def right_answers(name: str, batch: Batch) -> Tensor:
    """What the network is built to return, counted from the gold alone."""
    graph = batch.batch[batch.edge_index[0]]
    counted = batch.gold.sum(1) if name == "count" else batch.gold[:, 0].long()
    return torch.zeros(batch.num_graphs, dtype=torch.long).index_add(0, graph, counted).float()


def make(name: str, seed: int) -> Prepared:
    model = BOXES[name][0]().eval()
    graphs = draw(name, TRAIN + VALIDATION + TEST, seed)
    train, validation, test = graphs[:TRAIN], graphs[TRAIN : TRAIN + VALIDATION], graphs[TRAIN + VALIDATION :]
    asked = learning.loader(test, BATCH)

    @torch.no_grad()
    def judge() -> dict[str, float]:
        errors = [
            (model(**{k: batch[k] for k in ("x", "edge_index", "edge_type", "batch") if k in batch})) - wanted
            for batch, wanted in ((batch, right_answers(name, batch)) for batch in asked)
        ]
        return {"largest error": float(torch.cat(errors).abs().max())}

    return Prepared(
        model,
        learning.loader(train, BATCH),
        learning.loader(validation, BATCH),
        asked,
        judge,
        divergence="mse",
        gold=[graph.gold.t() for graph in test],
    )
