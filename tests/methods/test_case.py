"""What methods do with gates of a batch, against loops over graphs; many masked runs at once, against single ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphmask.explaining import case
from graphmask.explaining.case import rank_within
from graphmask.graphs import batches
from laws.cases import BY_NAME
from reference.small import WIDTH, Small, answer, graph

from .common import case_of

# Random batches --------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    graphs: list[Data]
    sites: int
    seed: int

    def case(self) -> case.Case:
        return case_of(Small(layers=self.sites), Batch.from_data_list(self.graphs))

    def random(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def gates(self) -> Tensor:
        """bool [L, E]; now and then none, or all."""
        share = self.seed % 5 / 4
        edges = sum(data.num_edges for data in self.graphs)
        return torch.rand(self.sites, edges, generator=self.random()) < share

    def values(self) -> Tensor:
        """[L, E] with many ties."""
        return torch.randint(4, self.gates().shape, generator=self.random()).double()

    def of_graph(self) -> list[list[tuple[int, int]]]:
        """[G][...] the gates of each graph, site after site."""
        found, first = [], 0
        for data in self.graphs:
            edges = range(first, first + data.num_edges)
            found.append([(site, edge) for site in range(self.sites) for edge in edges])
            first += data.num_edges
        return found


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Graphs with edges that repeat, and without any."""
    graphs = []
    for seed in range(draw(st.integers(1, 4))):
        nodes = draw(st.integers(1, 4))
        node = st.integers(0, nodes - 1)
        pairs = draw(st.lists(st.tuples(node, node), max_size=6))
        data = graph(seed, nodes=nodes, edges=0)
        data.edge_index = torch.tensor(pairs, dtype=torch.long).view(-1, 2).t().contiguous()
        graphs.append(data)
    return Drawn(graphs, draw(st.integers(1, 3)), draw(st.integers(0, 1000)))


quickly = settings(max_examples=25)


@given(drawn())
@quickly
def test_gates_are_counted_within_their_graph(batch: Drawn) -> None:
    gates = batch.gates()
    expected = torch.full(gates.shape, -1)
    for mine in batch.of_graph():
        for number, place in enumerate(place for place in mine if gates[place]):
            expected[place] = number
    assert torch.equal(batch.case().gate_rank(gates), expected)


@given(drawn())
@quickly
def test_gates_are_ordered_within_their_graph(batch: Drawn) -> None:
    gates, values = batch.gates(), batch.values()
    expected = torch.full(gates.shape, gates.numel())
    for mine in batch.of_graph():
        for number, place in enumerate(sorted((p for p in mine if gates[p]), key=lambda p: (float(values[p]), p))):
            expected[place] = number
    assert torch.equal(batch.case().gate_order(values, gates), expected)


@given(drawn())
@quickly
def test_sums_and_counts(batch: Drawn) -> None:
    gates, values, known = batch.gates(), batch.values(), batch.case()
    assert known.sum_per_graph(values).tolist() == [sum(float(values[p]) for p in mine) for mine in batch.of_graph()]
    assert known.gates_per_graph(gates).tolist() == [sum(bool(gates[p]) for p in mine) for mine in batch.of_graph()]


@given(drawn())
@quickly
def test_normalised_by_the_largest(batch: Drawn) -> None:
    values = batch.values()
    found = batch.case().normalised(values)
    for mine in batch.of_graph():
        largest = max((float(values[p]) for p in mine), default=0.0)
        for place in mine:
            assert float(found[place]) == pytest.approx(float(values[place]) / (largest or 1.0))


@given(drawn(), st.sampled_from([0.0, 0.5, 1.0, 2.5]))
@quickly
def test_cut(batch: Drawn, threshold: float) -> None:
    known, values = batch.case(), batch.values()
    known.trace.carried = batch.gates()
    choice = known.cut(values, threshold)
    for mine in batch.of_graph():
        for place in mine:
            carried = bool(known.trace.carried[place])
            assert float(choice.scores[place]) == (float(values[place]) if carried else 0.0)
            assert bool(choice.kept[place]) == (carried and float(values[place]) > threshold)
    assert [baseline.tolist() for baseline in choice.baselines] == [[0.0] * WIDTH] * batch.sites


@given(drawn())
@quickly
def test_ranks_of_edges(batch: Drawn) -> None:
    expected = [number for data in batch.graphs for number in range(data.num_edges)]
    assert batch.case().rank.tolist() == expected


@given(st.lists(st.integers(0, 5)))
@quickly
def test_rank_within(groups: list[int]) -> None:
    expected = [groups[:at].count(group) for at, group in enumerate(groups)]
    assert rank_within(torch.tensor(groups, dtype=torch.long), 6).tolist() == expected


# Random numbers --------------------------------------------------------------------------------------------


@given(drawn())
@quickly
def test_random_numbers_do_not_depend_on_the_batch(batch: Drawn) -> None:
    together = batch.case()
    alone = [case_of(together.subject.model, data) for data in batch.graphs]
    for draw in ("uniform", "normal"):
        numbers = getattr(together, draw)(batch.seed)
        assert torch.equal(numbers, torch.cat([getattr(one, draw)(batch.seed) for one in alone], 1))


@pytest.fixture(scope="module")
def many() -> case.Case:
    """6,000 gates."""
    return case_of(Small(), Batch.from_data_list([graph(seed, nodes=5, edges=10) for seed in range(300)]))


def test_uniform_numbers_are_uniform(many: case.Case) -> None:
    for seed in (0, 1, 12345):
        numbers = many.uniform(seed)
        assert 0 < float(numbers.min()) < float(numbers.max()) < 1
        for site in range(2):
            counts = torch.histc(numbers[site], 20, 0, 1)
            assert float(((counts - 150) ** 2 / 150).sum()) < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
        assert len(numbers.flatten().unique()) == numbers.numel()


def test_numbers_of_sites_seeds_and_neighbours_are_independent(many: case.Case) -> None:
    a, b = many.uniform(0), many.uniform(1)
    rows = [a[0], a[1], b[0], b[1], a[0].roll(1), a[1].roll(1), a[0].roll(10)]  # an edge, and a graph, further
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows), dtype=torch.double)
    assert float(correlation.abs().max()) < 0.07


def test_normal_numbers_are_normal(many: case.Case) -> None:
    uniform, normal = many.uniform(3), many.normal(3)
    expected = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in normal.flatten().tolist()]
    assert uniform.flatten().tolist() == pytest.approx(expected, abs=1e-9)
    assert float(normal.mean()) == pytest.approx(0, abs=0.05)
    assert float(normal.std()) == pytest.approx(1, abs=0.04)
    assert float((normal**3).mean()) == pytest.approx(0, abs=0.15)
    assert float((normal**4).mean()) == pytest.approx(3, abs=0.4)


def test_relations_draw_numbers_of_their_own() -> None:
    case_, data = BY_NAME["RGCN"], BY_NAME["RGCN"].graphs(1)[0]
    other = data.clone()
    other.edge_type = (other.edge_type + 1) % 3
    a, b = (case_of(case_.model(), one).uniform(0) for one in (data, other))
    assert float((a - b).abs().min()) > 0


# Many masked runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [256, 4, 1])
@pytest.mark.parametrize("edges", [0, 1, 7])
def test_many_runs_of_one_graph(at_once: int, edges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "MOST_COPIES", at_once)
    model, data = Small(), graph(5, edges=edges)
    known = case_of(model, data)
    gates = torch.rand(11, 2, edges, generator=torch.Generator().manual_seed(0)) < 0.5
    found = list(known.run_many(gates, known.zeros()))
    assert (known._copies is None) == (at_once == 1)
    assert len(found) == 11
    for some, output in zip(gates, found, strict=True):
        assert torch.allclose(output[0], answer(model, data, some.double()))


def test_many_runs_with_baselines() -> None:
    model, data = Small(), graph(5, edges=6)
    known = case_of(model, data)
    baselines = [torch.tensor([0.5, -1.0, 2.0]).double(), torch.tensor([-0.3, 0.2, 0.1]).double()]
    gates = torch.rand(5, 2, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    for some, output in zip(gates, known.run_many(gates, baselines), strict=True):
        assert torch.allclose(output[0], answer(model, data, some.double(), baselines))


@pytest.mark.parametrize("name", ["GCN", "GAT", "RGCN", "MessageTap", "adj_t SAGE csr", "SAGE max", "GPS"])
def test_many_runs_of_every_kind_of_model(name: str) -> None:
    case_ = BY_NAME[name]
    known = case_of(case_.model(), case_.one(case_.graphs(1)[0]))
    assert known._copies is not None
    shape = 5, *known.trace.carried.shape
    gates = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    with torch.no_grad():
        for some, output in zip(gates, known.run_many(gates, known.zeros()), strict=True):
            assert torch.allclose(output, known.run(some, known.zeros()), atol=1e-5)


class Whole(nn.Module):
    """Takes everything it is given for one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.small = Small()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.small(x, edge_index, torch.zeros(len(x), dtype=torch.long))


class Crowd(Whole):
    """... and tells its nodes apart from those of other graphs by nothing."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + super().forward(x - x.mean(0) + 0.1 * len(x), edge_index)


@pytest.mark.parametrize("model", [Whole(), Crowd()])
def test_a_model_that_takes_copies_for_one_graph_runs_one_at_a_time(model: Whole) -> None:
    data = graph(5, edges=6)
    known = case_of(model, data)
    assert known._copies is None
    gates = torch.rand(4, 2, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    for some, output in zip(gates, known.run_many(gates, known.zeros()), strict=True):
        assert torch.equal(output, known.run(some, known.zeros()))


def test_one_baseline_per_graph() -> None:
    model, graphs = Small(), [graph(seed, edges=4 + seed) for seed in range(3)]
    known = case_of(model, Batch.from_data_list(graphs))
    generator = torch.Generator().manual_seed(0)
    baselines = [torch.randn(3, WIDTH, generator=generator, dtype=torch.double) for _ in range(2)]
    gates = torch.rand(known.trace.carried.shape, generator=generator, dtype=torch.double)
    found, first = known.run(gates, baselines), 0
    for number, data in enumerate(graphs):
        mine = gates[:, first : first + data.num_edges]
        first += data.num_edges
        assert torch.allclose(found[number], answer(model, data, mine, [b[number] for b in baselines]))


def test_a_baseline_for_a_graph_without_edges() -> None:
    """Of a layer that sends along loops of its own."""
    case_ = BY_NAME["GCN"]
    data = case_.graphs(1)[0]
    data = Data(x=data.x, edge_index=data.edge_index[:, :0], edge_weight=data.edge_weight[:0])
    known = case_of(case_.model(), data)
    with torch.no_grad():
        found = known.run(torch.ones(2, 0), [torch.ones_like(zero)[None] for zero in known.zeros()])
    assert torch.equal(found, known.trace.output)


def test_turns_count_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = case_of(Small(), graph(0, edges=5))
    monkeypatch.setattr(case, "GATES_AT_ONCE", 35)  # three times ten gates, and some
    turns = list(known.in_turns(10))
    assert [len(turn) for turn in turns] == [3, 3, 3, 1]
    assert torch.cat(turns).tolist() == list(range(10))
    assert list(known.in_turns(0)) == []


def test_outputs_by_graph() -> None:
    """Node rows: the mean over a graph's own."""
    case_ = BY_NAME["SAGE max"]
    graphs = case_.graphs(3)
    model = case_.model()
    known = case_of(model, Batch.from_data_list(graphs))
    masked = known.trace.output + torch.randn(known.trace.output.shape, generator=torch.Generator().manual_seed(0))
    sizes = [data.num_nodes for data in graphs]
    parts = zip(known.trace.output.split(sizes), masked.split(sizes), strict=True)
    for number, (a, b) in enumerate(parts):
        rows = [known.divergence(a[row : row + 1], b[row : row + 1]).item() for row in range(len(a))]
        assert float(known.distance(masked)[number]) == pytest.approx(sum(rows) / len(rows), rel=1e-5)
        flips = [int(a[row].argmax()) != int(b[row].argmax()) for row in range(len(a))]
        assert float(known.flips(masked)[number]) == pytest.approx(sum(flips) / len(flips))
    assert 0 < float(known.flips(masked).mean()) < 1


# Copies of a graph -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True])
def test_repeat(wrapped: bool) -> None:
    data = graph(4, nodes=4, edges=5)
    data.edge_type = torch.arange(5)
    data.edge_label_index = torch.tensor([[0, 1], [3, 2]])
    data.y = torch.tensor([7.0])
    found = batches.repeat(Batch.from_data_list([data]) if wrapped else data, 3)
    assert found is not None
    assert found.num_graphs == 3
    for number in range(3):
        assert torch.equal(found.x[4 * number : 4 * number + 4], data.x)
        assert torch.equal(found.edge_index[:, 5 * number : 5 * number + 5], data.edge_index + 4 * number)
        assert torch.equal(found.edge_label_index[:, 2 * number : 2 * number + 2], data.edge_label_index + 4 * number)
        assert found.edge_type[5 * number : 5 * number + 5].tolist() == [0, 1, 2, 3, 4]
    assert found.batch.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.y.tolist() == [7.0] * 3
    assert found.edge_index.shape == (2, 15)


def test_repeat_leaves_the_graph_alone() -> None:
    data = Batch.from_data_list([graph(4, nodes=4, edges=5)])
    before = {key: value.clone() for key, value in data.to_dict().items()}
    batches.repeat(data, 3)
    assert sorted(data.to_dict()) == sorted(before)
    assert all(torch.equal(data[key], value) for key, value in before.items())
