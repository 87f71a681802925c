"""How a batch meets a model's signature, and where its graphs lie."""

import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from graphmask import GraphMaskError
from graphmask.graphs import batches
from graphmask.graphs.batches import default_forward, split

X, EDGES = torch.arange(8.0).view(4, 2), torch.tensor([[0, 1, 2], [1, 2, 3]])


class Recorder(nn.Module):
    """Returns what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}


class Plain(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.seen = {"x": x, "edge_index": edge_index}
        return x


class Optional(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, alpha: float = 0.5) -> Tensor:
        self.seen = {"x": x, "edge_index": edge_index, "edge_attr": edge_attr, "alpha": alpha}
        return x


class Keywords(Recorder):
    def forward(self, x: Tensor, *, edge_index: Tensor, **rest: Any) -> Tensor:
        self.seen = {"x": x, "edge_index": edge_index, **rest}
        return x


class Whole(Recorder):
    def forward(self, data: Any) -> Tensor:
        self.seen = {"data": data}
        return data.x


class WholeNamedBatch(Recorder):
    def forward(self, batch: Any) -> Tensor:
        self.seen = {"batch": batch}
        return batch.x


class Pooled(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        self.seen = {"x": x, "edge_index": edge_index, "batch": batch}
        return x


def same(seen: dict[str, Any], expected: dict[str, Any]) -> bool:
    return seen.keys() == expected.keys() and all(
        torch.equal(seen[k], v) if isinstance(v, Tensor) else seen[k] is v or seen[k] == v for k, v in expected.items()
    )


DATA = Data(x=X, edge_index=EDGES, edge_attr=torch.ones(3, 1), y=torch.tensor(1))
NAMED = namedtuple("NAMED", ["x", "edge_index", "edge_attr"])


@pytest.mark.parametrize(
    "batch",
    [DATA, DATA.to_dict(), NAMED(X, EDGES, torch.ones(3, 1)), Batch.from_data_list([DATA])],
    ids=["data", "dict", "namedtuple", "batch"],
)
def test_arguments_are_matched_by_name(batch: Any) -> None:
    for model, names in ((Plain(), ("x", "edge_index")), (Keywords(), ("x", "edge_index"))):
        assert default_forward(model, batch) is model.seen["x"]
        assert same(model.seen, {name: {"x": X, "edge_index": EDGES}[name] for name in names})
    model = Optional()
    default_forward(model, batch)
    expected = {"x": X, "edge_index": EDGES, "edge_attr": torch.ones(3, 1), "alpha": 0.5}
    assert same(model.seen, expected)


def test_what_the_batch_lacks_keeps_its_default() -> None:
    model = Optional()
    default_forward(model, Data(x=X, edge_index=EDGES, edge_attr=None))
    assert same(model.seen, {"x": X, "edge_index": EDGES, "edge_attr": None, "alpha": 0.5})


def test_tuples_are_positional() -> None:
    model = Optional()
    default_forward(model, (X, EDGES))
    assert same(model.seen, {"x": X, "edge_index": EDGES, "edge_attr": None, "alpha": 0.5})


@pytest.mark.parametrize("kind", [Whole, WholeNamedBatch])
def test_a_model_of_one_argument_gets_the_batch(kind: type[Recorder]) -> None:
    for batch in (DATA, Batch.from_data_list([DATA, DATA])):
        model = kind()
        default_forward(model, batch)
        assert next(iter(model.seen.values())) is batch


def test_one_graph_is_a_batch_of_one() -> None:
    model = Pooled()
    default_forward(model, DATA)
    assert same(model.seen, {"x": X, "edge_index": EDGES, "batch": torch.zeros(4, dtype=torch.long)})
    default_forward(model, Batch.from_data_list([DATA, DATA]))
    assert model.seen["batch"].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("batch", [Data(x=X), {"x": X}, NAMED(X, None, None)], ids=["data", "dict", "namedtuple"])
def test_a_missing_argument_is_named(batch: Any) -> None:
    with pytest.raises(GraphMaskError, match=r"'edge_index', which Plain.forward asks for, found .*forward=lambda"):
        default_forward(Plain(), batch)


def test_missing_argument_says_what_is_there() -> None:
    with pytest.raises(GraphMaskError, match="found Data with colour, x"):
        default_forward(Plain(), Data(x=X, colour=torch.ones(4)))
    with pytest.raises(GraphMaskError, match="found a mapping with x, colour"):
        default_forward(Plain(), {"x": X, "colour": X})


def test_edge_index_of_every_kind_of_batch() -> None:
    for batch in (DATA, DATA.to_dict(), NAMED(X, EDGES, None), (X, EDGES), (EDGES, X)):
        found = batches.edge_index_of(batch)
        assert found is not None
        assert torch.equal(found, EDGES)
    assert batches.edge_index_of((X,)) is None
    assert batches.edge_index_of({"adjacency": X}) is None


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_adj_t_is_read_as_receivers_by_senders() -> None:
    adj_t = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(3), (4, 4)).coalesce()
    found = batches.edge_index_of(Data(x=X, adj_t=adj_t))
    assert found is not None
    assert sorted(found.t().tolist()) == EDGES.t().tolist()


# Where the graphs lie ----------------------------------------------------------------------------------------


def three() -> Batch:
    """Graphs of 2, 4 and 3 nodes with 1, 5 and 2 edges."""

    def one(nodes: int, edges: list[tuple[int, int]], candidates: int) -> Data:
        pairs = torch.tensor([[0] * candidates, [1] * candidates])
        return Data(x=torch.zeros(nodes, 2), edge_index=torch.tensor(edges).t(), edge_label_index=pairs)

    return Batch.from_data_list(
        [
            one(2, [(0, 1)], 3),
            one(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 1),
            one(3, [(1, 0), (2, 0)], 2),
        ]
    )


EDGE_GRAPH = [0] + [1] * 5 + [2] * 2


@pytest.mark.parametrize(
    ("rows", "row_graph"),
    [
        (3, [0, 1, 2]),  # graphs
        (9, [0] * 2 + [1] * 4 + [2] * 3),  # nodes
        (6, [0] * 3 + [1] + [2] * 2),  # candidate edges
        (8, EDGE_GRAPH),  # edges
    ],
)
def test_split_tells_rows_by_their_number(rows: int, row_graph: list[int]) -> None:
    batch = three()
    found = split(batch, batch.edge_index, rows, None, None)
    assert found.count == 3
    assert found.row_graph.tolist() == row_graph
    assert found.edge_graph.tolist() == EDGE_GRAPH
    assert found.first_node.tolist() == [0, 2, 6]


@pytest.mark.parametrize("rows", [1, 2, 4, 7, 10, 18])
def test_split_refuses_rows_it_cannot_assign(rows: int) -> None:
    batch = three()
    with pytest.raises(
        GraphMaskError, match=rf"graphs \(3\), nodes, edges or candidate edges, got {rows} rows.*one graph"
    ):
        split(batch, batch.edge_index, rows, None, None)


def test_split_of_one_graph_takes_any_rows() -> None:
    found = split(DATA, EDGES, 7, None, None)
    assert (found.count, found.edge_graph.tolist(), found.row_graph.tolist()) == (1, [0] * 3, [0] * 7)


def test_split_counts_trailing_graphs_without_nodes() -> None:
    batch = Batch.from_data_list(
        [DATA, Data(x=X[:0], edge_index=EDGES[:, :0], edge_attr=torch.ones(0, 1), y=torch.tensor(0))]
    )
    found = split(batch, batch.edge_index, 2, None, None)
    assert (found.count, found.row_graph.tolist(), found.edge_graph.tolist()) == (2, [0, 1], [0] * 3)


def test_split_by_what_adjacency_matrices_know() -> None:
    owner = torch.tensor([0, 0, 1])
    found = split({}, EDGES, 6, owner, 2)
    assert (found.row_graph.tolist(), found.first_node.tolist(), found.count) == ([0, 0, 0, 1, 1, 1], [0, 0], 2)
    with pytest.raises(GraphMaskError, match=r"graphs \(2\).*got 5 rows"):
        split({}, EDGES, 5, owner, 2)


# Checks ------------------------------------------------------------------------------------------------------


def test_good_batches_pass() -> None:
    good: list[Any] = [DATA, DATA.to_dict(), (X, EDGES), three(), Data(x=X, edge_index=EDGES[:, :0]), object()]
    good.append(Data(x=(X, X[:2]), edge_index=torch.tensor([[3], [1]])))
    for batch in good:
        batches.check(batch)
    assert batches.scan(good, "the loader") == len(good)


@pytest.mark.parametrize("name", ["x", "edge_attr", "weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_named(name: str, value: float) -> None:
    tensor = torch.ones(4, 2)
    tensor[1, 1] = tensor[3, 0] = value
    for batch in (Data(**{"edge_index": EDGES, name: tensor}), {"edge_index": EDGES, name: tensor}):
        with pytest.raises(GraphMaskError, match=rf"finite numbers in '{name}' of batch 7, got 2 that are NaN"):
            batches.check(batch, "batch 7")
    with pytest.raises(GraphMaskError, match=r"finite numbers in 'element 0'"):
        batches.check((tensor, EDGES))


BAD_EDGES = {
    "too high": (torch.tensor([[0, 4], [1, 2]]), r"name nodes 0 to 3, got 0 to 4"),
    "negative": (torch.tensor([[0, -1], [1, 2]]), r"name nodes 0 to 3, got -1 to 2"),
    "float": (EDGES.float(), r"int64 of shape \[2, E\], got torch.float32 of shape \(2, 3\)"),
    "bool": (EDGES.bool(), r"int64 of shape \[2, E\], got torch.bool"),
    "transposed": (EDGES.t(), r"int64 of shape \[2, E\], got torch.int64 of shape \(3, 2\)"),
    "flat": (EDGES[0], r"int64 of shape \[2, E\], got torch.int64 of shape \(3,\)"),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_bad_edges(case: str) -> None:
    edge_index, message = BAD_EDGES[case]
    data = Data(x=X, edge_index=edge_index)
    for batch in (data, {"x": X, "edge_index": edge_index}):
        with pytest.raises(GraphMaskError, match=message):
            batches.check(batch)


@pytest.mark.parametrize("case", ["too high", "negative"])
def test_bad_edges_in_a_tuple(case: str) -> None:
    edge_index, message = BAD_EDGES[case]
    with pytest.raises(GraphMaskError, match=message):
        batches.check((X, edge_index))


@pytest.mark.parametrize("loader", [DATA, {"x": X}, X, 3, None, "graphs.pt"], ids=lambda value: type(value).__name__)
def test_what_is_no_loader(loader: Any) -> None:
    with pytest.raises(GraphMaskError, match=r"the loader to be an iterable of batches .*, got .*pass \[data\]"):
        batches.scan(loader, "the loader")


def test_empty_and_spent_loaders() -> None:
    for loader in ([], iter([])):
        with pytest.raises(GraphMaskError, match=r"the loader to hold at least one batch, found none. Is it a spent"):
            batches.scan(loader, "the loader")
    for once in (iter([DATA]), (data for data in [DATA])):
        with pytest.raises(GraphMaskError, match=r"iterable again and again, got an iterator.*DataLoader or a list"):
            batches.scan(once, "the loader")


def test_a_bad_batch_is_named_by_its_number() -> None:
    with pytest.raises(GraphMaskError, match="edge_index of batch 1 of the validation loader"):
        batches.scan([DATA, Data(x=X, edge_index=EDGES + 1)], "the validation loader")


class Returns(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((X, X), r"one tensor, got tuple\. Pick the output"),
        ({"logits": X}, r"one tensor, got dict\. Pick"),
        (None, r"one tensor, got NoneType\. Pick"),
        (3.0, r"one tensor, got float\. Pick"),
        (EDGES, r"floating point output with one row per example, got torch.int64 of shape \(2, 3\)"),
        (torch.tensor(1.0), r"one row per example, got torch.float32 of shape \(\)"),
    ],
)
def test_outputs_that_are_no_rows_of_numbers(value: Any, message: str) -> None:
    with pytest.raises(GraphMaskError, match=message):
        batches.call(default_forward, Returns(value), Data(x=X))


def test_one_place_tells_kinds_of_batches_apart() -> None:
    """Whoever asks what is in a batch asks its adapter, and does not look at the batch's class."""
    sources = {path: path.read_text() for path in Path(batches.__file__).parents[1].rglob("*.py")}
    question = re.compile(r"(?:isinstance|issubclass)\([^()]*\bHeteroData\b")
    asking = [path.name for path, text in sources.items() if question.search(text)]
    assert asking == ["reading.py"]
    assert batches.adapter(HeteroData()).by_type
    assert not any(batches.adapter(batch).by_type for batch in (Data(), {}, (X, EDGES)))
