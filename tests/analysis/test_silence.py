"""Silence and deletion: what is heard of dropped edges, and what becomes of a model without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import scatter, softmax

from graphmask import GraphMaskError, analysis
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from laws.cases import random_graph
from reference.divergence import kl
from reference.small import Small, answer, graph

from .support import Fixed


class Half(Method):
    """Keeps every second message; constants stand in for the others."""

    name = "half"

    def choose(self, case: Case) -> Choice:
        scores = case.uniform(3)
        return Choice(scores, case.trace.carried & (scores > 0.5), [b + 0.5 * (b == 0) for b in case.zeros()])


class Attention(pyg.MessagePassing):
    """An attention layer of a user's own; ``known`` says whether its softmax is PyTorch Geometric's."""

    def __init__(self, known: bool) -> None:
        super().__init__(aggr="add")
        self.known, self.lin = known, nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor, x_i: Tensor, index: Tensor, size_i: int | None) -> Tensor:
        logits = (x_i * x_j).sum(-1)
        if self.known:
            return softmax(logits, index, num_nodes=size_i)[:, None] * x_j
        mass = logits.exp()
        return (mass / scatter(mass, index, dim_size=size_i)[index])[:, None] * x_j


class Net(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = conv, nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> Tensor:
        given = (edge_type,) if isinstance(self.conv, pyg.RGCNConv) else ()
        return self.out(pyg.global_mean_pool(self.conv(x, edge_index, *given).tanh(), batch))


LOADER = [Batch.from_data_list([random_graph(seed) for seed in (1, 2, 3)]), random_graph(4)]


@pytest.mark.parametrize("conv", [lambda: pyg.GATConv(8, 8), lambda: pyg.RGCNConv(8, 8, 3), lambda: Attention(True)])
def test_nothing_is_heard(conv: Any) -> None:
    frame = analysis.silence(Half(Net(conv()).eval()), LOADER, draws=2)
    assert frame["exchange"].to_list() == [0, 1]
    for column in ("divergence", "largest", "flips", "moved"):
        assert frame[column].max() <= 1e-6


def test_a_softmax_that_is_not_known_is_heard() -> None:
    frame = analysis.silence(Half(Net(Attention(False)).eval()), LOADER)
    assert frame["moved"].min() > 1e-4
    assert 0 < frame["divergence"].mean() <= frame["largest"].max()


def test_deletion_by_running_the_model_on_smaller_graphs() -> None:
    graphs = [graph(seed, nodes=4, edges=3 + seed) for seed in range(4)]
    method = Fixed(Small(), divergence="kl")
    frame = analysis.deletion(method, [Batch.from_data_list(graphs[:3]), graphs[3]], draws=20)
    assert frame["deleted"].to_list() == ["never kept", "random", "kept"]
    for row, name in ((0, "never"), (2, "kept")):
        divergence, flips, gone, edges = [], [], 0, 0
        for data in graphs:
            kept = method.explain(data, repair=False).kept.any(0)
            left = kept if name == "never" else ~kept
            smaller = data.edge_subgraph(left)
            original = answer(Small(), data, torch.ones(2, data.num_edges))
            output = answer(Small(), smaller, torch.ones(2, int(left.sum())))
            divergence.append(kl(original.tolist(), output.tolist()))
            flips.append(float(original.argmax() != output.argmax()))
            gone, edges = gone + int((~left).sum()), edges + data.num_edges
        assert frame["edges"][row] == pytest.approx(gone / edges)
        assert frame["divergence"][row] == pytest.approx(sum(divergence) / 4, abs=1e-9)
        assert frame["flips"][row] == pytest.approx(sum(flips) / 4)
    assert frame["edges"][1] == pytest.approx(frame["edges"][0])  # as many of every graph


def test_deletion_of_everything_at_random_is_deletion_of_everything() -> None:
    class Nothing(Half):
        def choose(self, case: Case) -> Choice:
            return case.cut(torch.zeros_like(case.trace.values), 0.5)

    frame = analysis.deletion(Nothing(Net(pyg.SAGEConv(8, 8)).eval()), LOADER)
    assert frame["edges"].to_list() == pytest.approx([1.0, 1.0, 0.0])
    assert frame["divergence"][0] == pytest.approx(frame["divergence"][1])
    assert frame["divergence"][2] == 0


def test_deletion_from_heterogeneous_graphs_and_dictionaries() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.eye(3), torch.ones(2, 3)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    data["b", "to", "a"].edge_index = torch.tensor([[0, 1], [0, 2]])

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = data.edge_types
            self.conv = pyg.HeteroConv({kind: pyg.SimpleConv("sum") for kind in kinds})

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            return self.conv(x_dict, edge_index_dict)["b"]

    class First(Half):
        """Keeps the first edge of each type."""

        def choose(self, case: Case) -> Choice:
            kept = torch.zeros_like(case.trace.carried)
            kept[:, [0, 3]] = case.trace.carried[:, [0, 3]]
            return Choice(kept.float(), kept, case.zeros())

    frame = analysis.deletion(First(Sums(), divergence="mse"), [data])
    assert frame["edges"].to_list() == pytest.approx([0.6, 0.6, 0.4])
    # Row 0 of b loses node 1's one, row 1 loses node 2's: each a change of 1 in one of three numbers.
    assert frame["divergence"][0] == pytest.approx(1 / 3)
    one = random_graph(4)
    batch = {"x": one.x, "edge_index": one.edge_index, "edge_type": one.edge_type, "batch": torch.zeros(10).long()}
    batch["batch"] = batch["batch"][: len(one.x)]
    model = Net(pyg.RGCNConv(8, 8, 3)).eval()
    assert analysis.deletion(Half(model), [batch]).equals(analysis.deletion(Half(model), [one]))


def test_adjacency_matrices_are_refused() -> None:
    from laws.cases import BY_NAME

    case = BY_NAME["AdjacencyTap dense"]
    with pytest.raises(GraphMaskError, match="edge_index"):
        analysis.deletion(Half(case.model()), case.loader())
    assert analysis.silence(Half(case.model()), case.loader())["moved"].max() <= 1e-6


def test_data_are_left_as_they_were() -> None:
    data = random_graph(4)
    before = {key: value.clone() for key, value in data if isinstance(value, Tensor)}
    analysis.deletion(Half(Net(pyg.SAGEConv(8, 8)).eval()), [data])
    assert isinstance(data, Data)
    assert all(torch.equal(data[key], value) for key, value in before.items())
