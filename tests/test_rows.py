"""Why this row? Only its output counts, and only what can reach it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from graphmask import Explanation, GraphMask, GraphMaskError, masked
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.explaining.rows import rows_of
from graphmask.graphs.retained_paths import passed_on
from graphmask.graphs.sites import Site
from methods.common import NAMES, OF_ATTENTION, quick
from reference.small import Small, graph


class Nodes(Small):
    """One row per node."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        for send, keep in zip(self.sends, self.keeps, strict=True):
            x = torch.tanh(send(x, edge_index) + x @ keep.t())
        return x @ self.read.t()


class Jumping(Nodes):
    """Reads all layers, and its second layer sends against the edges."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__(layers=layers)
        self.sends[1].flow = "target_to_source"

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        seen = x
        for send, keep in zip(self.sends, self.keeps, strict=True):
            x = torch.tanh(send(x, edge_index) + x @ keep.t())
            seen = seen + x
        return seen @ self.read.t()


class Links(Nodes):
    """One row per candidate edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        h = super().forward(x, edge_index)
        return h[edge_label_index[0]] * h[edge_label_index[1]]


class Half(Method):
    """Keeps every other gate that it may."""

    name = "half"

    def choose(self, case: Case) -> Choice:
        return case.cut(case.uniform(3), 0.5)


class Everything(Half):
    def choose(self, case: Case) -> Choice:
        return case.cut(torch.ones_like(case.trace.values), 0.5)


def literal_field(explanation: Explanation, carried: Tensor, nodes: set[int]) -> list[list[bool]]:
    """Site by site and edge by edge, from the last."""
    edges = explanation.edge_index.t().tolist()
    found = [[False] * len(edges) for _ in explanation.structure]
    for site in reversed(range(len(found))):
        more = set()
        for number, (u, v) in enumerate(edges):
            sender, receiver = (v, u) if explanation.structure[site].reverse else (u, v)
            if bool(carried[site, number]) and receiver in nodes:
                found[site][number] = True
                more.add(sender)
        nodes = nodes | more
    return found


def row_of(model: nn.Module, data: Data, explanation: Explanation, kept: Tensor, **fields: Any) -> Tensor:
    with masked(model, replace(explanation, kept=kept)), torch.no_grad():
        return model(data.x, data.edge_index, **fields)


@pytest.mark.parametrize("model", [Nodes(layers=2), Jumping()], ids=["plain", "jumping"])
@settings(max_examples=5)
@given(seed=st.integers(0, 2**20), node=st.integers(0, 6))
def test_exactly_what_can_reach_the_node(model: Nodes, seed: int, node: int) -> None:
    data = graph(seed, nodes=7, edges=9)
    whole = Everything(model).explain(data)
    explanation = Everything(model).explain(data, index=node)
    assert explanation.carried.tolist() == literal_field(whole, whole.carried, {node})
    assert torch.equal(explanation.kept, explanation.carried)
    for site in range(len(whole.structure)):
        for edge in range(data.num_edges):
            kept = whole.carried.clone()
            kept[site, edge] = False
            moved = row_of(model, data, whole, kept)[node] - whole.original[node]
            # What is in the field moves the row, and nothing else does. (A message may happen to be tiny.)
            assert (float(moved.abs().max()) > 1e-15) == bool(explanation.carried[site, edge])


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_passed_on_by_enumeration(reverse: bool) -> None:
    torch.manual_seed(1)
    edges = torch.randint(6, (2, 18))
    values, read = torch.rand(3, 18), torch.tensor([False, False, False, True, True, False])
    structure = [Site(name, name, (0,), reverse=reverse and name == "b") for name in "abc"]

    def ends(site: int, edge: int) -> list[int]:
        return edges[:, edge].tolist()[:: -1 if structure[site].reverse else 1]

    def onward(site: int, node: int) -> float:
        """The most that is left of a message that waits at ``node`` before ``site``."""
        if site == 3:
            return float(read[node])
        ways = [e for e in range(18) if ends(site, e)[0] == node]
        on = [float(values[site, e]) * onward(site + 1, ends(site, e)[1]) for e in ways]
        return max([onward(site + 1, node), *on])

    passed = passed_on(edges, values, structure, read)
    for site in range(3):
        for e in range(18):
            wanted = float(values[site, e]) * onward(site + 1, ends(site, e)[1])
            assert float(passed[site, e]) == pytest.approx(wanted, abs=1e-6)


class Drawn(GraphMask):
    """Every gate is as likely open as shut, whatever was fitted."""

    def choose(self, case: Case) -> Choice:
        generator = torch.Generator().manual_seed(case.trace.values.numel())
        values = 3 * torch.randn(case.trace.values.shape, generator=generator)
        trace = replace(case.trace, values=values.masked_fill(~case.trace.carried, -torch.inf))
        return super().choose(replace(case, trace=trace))


@pytest.mark.filterwarnings("ignore:GraphMask")
@pytest.mark.parametrize("model", [Nodes(layers=3), Jumping()], ids=["plain", "jumping"])
def test_kept_messages_that_are_not_passed_on_to_the_row_are_dropped(model: Nodes) -> None:
    explainer, dropped = Drawn(model, divergence="kl"), 0
    explainer.fit([graph(seed, nodes=8, edges=16) for seed in range(4)], epochs=3, progress=False)
    for seed in range(6):
        data, node = graph(seed, nodes=8, edges=16), seed % 8
        whole = explainer.explain(data, repair=False, allow_infeasible=True)
        explanation = explainer.explain(data, index=node, repair=False, allow_infeasible=True)
        assert not bool((explanation.kept & ~whole.kept).any())
        assert bool((explanation.scores <= whole.scores).all())
        assert torch.allclose(explanation.masked, whole.masked[[node]], atol=1e-12)
        dropped += int((whole.kept & explanation.carried & ~explanation.kept).sum())
        for site, edge in explanation.kept.nonzero().tolist():  # each of the others has an influence
            fewer = explanation.kept.clone()
            fewer[site, edge] = False
            row = row_of(model, data, explanation, fewer)[[node]]
            assert float((row - explanation.masked).abs().max()) > 1e-15
    assert dropped > 0


@settings(max_examples=15)
@given(seed=st.integers(0, 2**20), rows=st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True))
def test_the_certificate_is_of_these_rows(seed: int, rows: list[int]) -> None:
    model, data = Nodes(), graph(seed, nodes=8, edges=16)
    explanation = Half(model, divergence="kl", tolerance=0.01).explain(data, index=rows)
    assert explanation.index == tuple(rows)
    with torch.no_grad():
        original = model(data.x, data.edge_index)
    assert torch.equal(explanation.original, original[rows])
    assert not bool((explanation.kept & ~explanation.carried).any())
    assert not bool((explanation.scores * ~explanation.carried).any())
    output = row_of(model, data, explanation, explanation.kept)[rows]
    assert torch.equal(output, explanation.masked)
    p, q = original[rows].log_softmax(1), output.log_softmax(1)
    assert explanation.divergence == pytest.approx(float((p.exp() * (p - q)).sum(1).mean()), abs=1e-12)
    assert explanation.flips == pytest.approx(float((p.argmax(1) != q.argmax(1)).double().mean()))
    assert explanation.faithful == (explanation.divergence <= 0.01)
    assert explanation.num_nodes == 8


def test_repair_reopens_for_the_row_alone() -> None:
    model, reopened = Nodes(), 0
    for seed in range(8):
        data = graph(seed, nodes=8, edges=16)
        explanation = Half(model, divergence="kl", tolerance=0.001).explain(data, index=seed % 8, repair=True)
        assert explanation.faithful
        reopened += explanation.reopened
        assert not bool((explanation.kept & ~explanation.carried).any())
        output = row_of(model, data, explanation, explanation.kept)
        assert torch.equal(output[[seed % 8]], explanation.masked)
    assert reopened > 0


def test_rows_of_candidate_edges_start_from_both_ends() -> None:
    model, data = Links(), graph(5, nodes=9, edges=14)
    data.edge_label_index = torch.tensor([[0, 3, 5, 2], [1, 4, 5, 8]])
    whole = Everything(model).explain(data)
    for row in range(4):
        explanation = Everything(model).explain(data, index=row)
        ends = set(data.edge_label_index[:, row].tolist())
        assert explanation.carried.tolist() == literal_field(whole, whole.carried, ends)
        output = row_of(model, data, explanation, explanation.kept, edge_label_index=data.edge_label_index)
        assert torch.allclose(output[[row]], whole.original[[row]], atol=1e-12)


def test_a_graph_of_a_batch() -> None:
    model, graphs = Small(), [graph(seed, nodes=4 + seed) for seed in range(3)]
    batch = Batch.from_data_list(graphs)
    alone = Half(model).explain(graphs[1])
    explanation = Half(model).explain(batch, index=1)
    assert explanation.edge_index.shape[1] == batch.num_edges
    assert explanation.num_nodes == batch.num_nodes
    mine = batch.batch[batch.edge_index[0]] == 1
    assert torch.equal(explanation.carried, mine.expand(2, -1))
    assert torch.allclose(explanation.original, alone.original)
    both = Half(model).explain(batch, index=torch.tensor([True, False, True]))
    assert both.index == (0, 2)
    assert torch.equal(both.carried, ~mine.expand(2, -1))


def test_a_model_that_connects_nodes_by_other_ways_is_told_of() -> None:
    class Mixed(Nodes):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
            h = super().forward(x, edge_index)
            return h + h.mean(0)

    model, data = Mixed(), graph(1, nodes=7, edges=9)
    with pytest.warns(UserWarning, match="by other ways than its layers' edges"):
        explanation = Everything(model).explain(data, index=2)
    assert bool(explanation.carried.all())
    assert explanation.divergence == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ATTENTION])
def test_every_method_answers_for_a_row(name: str) -> None:
    model, data = Nodes(), graph(3, nodes=7, edges=12)
    method = quick(name, model, divergence="kl")
    method.fit([data], progress=False)
    field = Everything(model).explain(data, index=4).carried
    explanation = method.explain(data, index=4, allow_infeasible=True)
    assert torch.equal(explanation.carried, field)
    assert not bool((explanation.kept & ~field).any())
    output = row_of(model, data, explanation, explanation.kept)
    assert torch.allclose(output[[4]], explanation.masked, atol=1e-9)
    if name in {"pg_explainer", "information_bottleneck"}:  # scored once for all rows
        whole = method.explain(data, allow_infeasible=True)
        assert torch.allclose(explanation.scores, whole.scores * field)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ATTENTION])
def test_a_node_that_receives_nothing(name: str) -> None:
    model, data = Nodes(), graph(3, nodes=7, edges=12)
    data.edge_index[1][data.edge_index[1] == 4] = 5
    method = quick(name, model, divergence="kl")
    method.fit([data], progress=False)
    explanation = method.explain(data, index=4, repair=True, allow_infeasible=True)
    assert not bool(explanation.carried.any())
    assert not bool(explanation.kept.any())
    assert (explanation.divergence, explanation.retained, explanation.reopened) == (0, 0, 0)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (7, "output rows 0 to 6, got 7"),
        (-1, "output rows 0 to 6, got -1"),
        ([2, 99], "got 99"),
        ([], "at least one output row"),
        (1.5, "integers"),
        ("first", "got 'first'"),
        (torch.ones(3, dtype=torch.bool), "mask over the 7 output rows"),
        (torch.zeros(7, dtype=torch.bool), "at least one output row"),
    ],
)
def test_bad_index(index: Any, message: str) -> None:
    with pytest.raises(GraphMaskError, match=message):
        Half(Nodes()).explain(graph(0, nodes=7, edges=9), index=index)


def test_forms_of_an_index() -> None:
    for index in (3, [3], (3,), torch.tensor(3), torch.tensor([3]), torch.arange(7) == 3):
        assert rows_of(index, 7) == (3,)


def test_index_survives_a_file(tmp_path: Path) -> None:
    method, data = Half(Nodes(), divergence="kl"), graph(0, nodes=7, edges=9)
    made = [method.explain(data, index=[4, 2]), method.explain(data)]
    for number, explanation in enumerate(made):
        explanation.save(tmp_path / f"{number}.graphmask")
        assert Explanation.load(tmp_path / f"{number}.graphmask").index == explanation.index


@pytest.mark.filterwarnings("ignore:GraphMask")
def test_many_rows_of_half_precision_are_counted_exactly() -> None:
    """A sum in bfloat16 stands still at 256."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(4, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    torch.manual_seed(0)
    data = Data(x=torch.randn(1000, 4).bfloat16(), edge_index=torch.randint(1000, (2, 3000)))
    explainer = GraphMask(Net().bfloat16().eval(), divergence="kl")
    explainer.fit([data], epochs=1, progress=False)
    with explainer.subject.frozen():
        case = explainer.case(data)
        output = torch.where(torch.arange(1000).view(-1, 1) < 700, -case.trace.output, case.trace.output)
        assert float(case.flips(output)) == pytest.approx(0.7)
        rows = case.divergence(case.trace.output, output)
        assert float(case.distance(output)) == pytest.approx(float(rows.double().mean()), rel=1e-6)
