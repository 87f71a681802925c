"""What is wrong with heterogeneous data, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData

from graphmask import GraphMask, GraphMaskError, methods
from graphmask.graphs import batches

from .support import BY_NAME, CITES, WRITES, fitted, graph


def changed(change: Callable[[HeteroData], Any]) -> HeteroData:
    data = graph(1)
    change(data)
    return data


def edges(data: HeteroData, kind: Any, value: Any) -> None:
    data[kind].edge_index = value


BAD = {
    "target": (
        lambda data: edges(data, WRITES, torch.tensor([[0, 3], [1, 7]])),
        r"the target row of edge_index of edge type \('author', 'writes', 'paper'\) of the data to name nodes "
        r"0 to 6 of type 'paper', got 1 to 7",
    ),
    "source": (
        lambda data: edges(data, WRITES, torch.tensor([[0, 4], [1, 6]])),
        r"source row of edge_index of edge type \('author', 'writes', 'paper'\) .* 0 to 3 of type 'author', got 0 to 4",
    ),
    "negative": (lambda data: edges(data, CITES, torch.tensor([[-1], [1]])), r"\('paper', 'cites', 'paper'\).*got -1"),
    "float": (
        lambda data: edges(data, CITES, torch.zeros(2, 3)),
        r"edge type \('paper', 'cites', 'paper'\) of the data to be int64 of shape \[2, E\], got torch.float32",
    ),
    "shape": (lambda data: edges(data, CITES, torch.zeros(3, 2).long()), r"'cites'.* of shape \(3, 2\)"),
    "node type": (
        lambda data: edges(data, ("venue", "prints", "paper"), torch.tensor([[0], [1]])),
        r"node type 'venue', which edge type \('venue', 'prints', 'paper'\) of the data names, to have x or num_nodes",
    ),
    "nan": (lambda data: data["author"].x.__setitem__((0, 0), torch.nan), r"finite numbers in 'author\.x' of the data"),
    "inf": (
        lambda data: data[CITES].edge_attr.__setitem__((0, 0), torch.inf),
        r"finite numbers in 'paper__cites__paper\.edge_attr' of the data, got 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_named(name: str) -> None:
    change, message = BAD[name]
    model, explainer = fitted("sage")
    for method in (explainer, methods.get("random")(model)):
        with pytest.raises(GraphMaskError, match=message):
            method.explain(changed(change), allow_infeasible=True)
    with pytest.raises(GraphMaskError, match=message.replace("the data", "batch 1 of the loader")):
        GraphMask(model).fit([graph(0), changed(change)])


def test_other_types_than_fitted_on() -> None:
    _, explainer = fitted("sage")

    def review(data: HeteroData) -> None:
        data["paper", "reviews", "paper"].edge_index = torch.tensor([[0], [1]])

    with pytest.raises(GraphMaskError, match=r"edge types of the data among .* got \('paper', 'reviews', 'paper'\)"):
        explainer.explain(changed(review), allow_infeasible=True)
    with pytest.raises(GraphMaskError, match=r"node types of batch 0 among 'author', 'paper', .* got 'venue'"):
        list(
            explainer.explain_all([changed(lambda data: setattr(data["venue"], "num_nodes", 2))], allow_infeasible=True)
        )
    with pytest.raises(GraphMaskError, match="Expected the data to be HeteroData, as when the sites were found"):
        explainer.explain(allow_infeasible=True, data=Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0], [1]])))
    model = pyg.GCN(5, 4, 2)
    plain = methods.get("random")(model)
    plain.fit([Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0], [1]]))], progress=False)
    with pytest.raises(GraphMaskError, match=r"Expected the data to be a homogeneous graph, .* got HeteroData"):
        plain.explain(graph(0))


def test_a_dictionary_is_no_output() -> None:
    model = BY_NAME["to_hetero"].model()
    message = r"got dict\. Pick the output to explain, of 'author', 'paper': .* model\(\.\.\.\)\['author'\]\)\."
    with pytest.raises(GraphMaskError, match=message):
        GraphMask(model).fit([graph(0)], progress=False)


def test_a_loader_is_no_graph() -> None:
    with pytest.raises(GraphMaskError, match=r"an iterable of batches .* got HeteroData\. For one graph pass \[data\]"):
        fitted("sage")[1].fit(graph(0))


def test_what_the_model_asks_for_is_not_there() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(7, 3)

        def forward(self, x_dict: dict[str, Tensor], time_dict: dict[str, Tensor]) -> Tensor:
            raise AssertionError

    message = "have 'time_dict', which Asks.forward asks for, found HeteroData with edge_attr, edge_index, x"
    with pytest.raises(GraphMaskError, match=message):
        methods.get("random")(Asks()).explain(graph(0))


class Rows(nn.Module):
    """So many rows per batch."""

    def __init__(self, rows: Callable[[HeteroData], int]) -> None:
        super().__init__()
        self.conv, self.rows = pyg.SAGEConv(7, 2), rows

    def forward(self, data: HeteroData) -> Tensor:
        state = self.conv(data["paper"].x, data[CITES].edge_index)
        return state.mean() + torch.zeros(self.rows(data), 2)


def test_which_row_is_whose() -> None:
    """Graphs, nodes of a type, candidate edges, edges of a type; never a guess."""
    seeds = (0, 1, 2)  # 6, 7 and 8 papers; 4 authors, 8 and 7 edges each
    whole = Batch.from_data_list([graph(seed) for seed in seeds])

    def rows(count: int, data: HeteroData = whole) -> list[int]:
        return [len(e.original) for e in methods.get("random")(Rows(lambda _: count)).explain_all([data])]

    assert rows(3) == [1, 1, 1]
    assert rows(12) == [4, 4, 4]
    assert rows(24) == [8, 8, 8]  # edges of two types, which lie alike
    candidates = whole.clone()
    candidates[WRITES].edge_label_index = torch.tensor([[0] * 10 + [4] * 10 + [8], [0] * 21])
    with pytest.raises(GraphMaskError, match="21 rows, which may be nodes of type 'paper' or candidate edges"):
        rows(21, candidates)
    assert rows(21) == [6, 7, 8]
    candidates[WRITES].edge_label_index = torch.tensor([[11, 0, 1, 5, 6], [20, 0, 0, 6, 6]])
    assert rows(5, candidates) == [2, 2, 1]
    with pytest.raises(GraphMaskError, match=r"one of the graphs \(3\), nodes of type 'author' \(12\), .* got 22 rows"):
        rows(22)
    same = Batch.from_data_list([graph(0, authors=7), graph(1, authors=6)])
    with pytest.raises(GraphMaskError, match="13 rows, which may be nodes of type 'author' or nodes of type 'paper'"):
        rows(13, same)
    assert methods.get("random")(Rows(lambda _: 13)).explain(graph(0)).original.shape == (13, 2)  # one graph: no doubt


def test_an_explanation_is_asked_for_what_it_has() -> None:
    explanation = fitted("sage")[1].explain(graph(0), allow_infeasible=True)
    with pytest.raises(GraphMaskError, match=r"edge type among \('author', 'writes', 'paper'\).*got \('a', 'b', 'c'\)"):
        explanation["a", "b", "c"]
    with pytest.raises(GraphMaskError, match="node type among author, paper, got 'venue'"):
        explanation.paths(("venue", 0))
    with pytest.raises(GraphMaskError, match="a node from 0 to 5 of type 'paper', got 6"):
        explanation.paths(("paper", 6))
    with pytest.raises(GraphMaskError, match="a node from 0 to 9, got 10"):
        explanation.node(10)


def test_a_layer_of_types_that_the_batch_does_not_have() -> None:
    case = BY_NAME["han"]
    model = case.model()

    def forward(model: nn.Module, data: HeteroData) -> Tensor:
        return model(data.x_dict, {kind: graph(0)[kind].edge_index for kind in (WRITES, CITES)})

    data = graph(0)
    del data[CITES]
    with pytest.raises(GraphMaskError, match=r"module 'first' to send along edge types .* got \('paper', 'cites'"):
        methods.get("random")(model, forward).explain(data)


def test_a_model_that_skips_a_layer() -> None:
    case = BY_NAME["sage"]
    model = case.model()
    method = methods.get("random")(model)
    method.fit([graph(0)], progress=False)
    kept = dict(model.second.convs.items())
    del model.second.convs[CITES]
    with pytest.raises(GraphMaskError, match=r"<paper___cites___paper>' to send along edge type \('paper', 'cites'"):
        method.explain(graph(0))
    model.second.convs[CITES] = kept[CITES]
    assert batches.default_forward(model, graph(0)).shape == (6, 3)
