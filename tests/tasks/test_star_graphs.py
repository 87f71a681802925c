"""Star graphs: the data against a literal recount, the layer against its formula, the model's accuracy."""

import pytest
import torch
from torch_geometric.data import Batch

from graphmask.experiments import star_graphs
from graphmask.experiments.common import first_nodes, margins
from graphmask.experiments.star_graphs import RelationalConv, StarConfig, StarModel, accuracy, generate
from reference.trained import trained as trained_once


@pytest.fixture(scope="module")
def data() -> list[Batch]:
    return generate(1_000, seed=3, batch_size=64)


@pytest.fixture(scope="module")
def trained() -> tuple[StarModel, float]:
    return trained_once("star")


def test_batches_hold_all_graphs(data: list[Batch]) -> None:
    assert [batch.num_graphs for batch in data] == [64] * 15 + [40]
    for batch in data:
        assert batch.x.shape == (batch.num_nodes, 12)
        assert batch.gold.shape == (batch.num_edges, 1)
        assert batch.gold.dtype == torch.bool
        assert batch.y.dtype == torch.long
        assert batch.ptr.tolist() == [0, *torch.bincount(batch.batch).cumsum(0).tolist()]
        assert (batch.batch.diff() >= 0).all()
        assert (batch.batch[batch.edge_index[1]].diff() >= 0).all()


def test_labels_and_gold_equal_a_literal_recount(data: list[Batch]) -> None:
    for batch in data:
        for graph in range(batch.num_graphs):
            low, high = batch.ptr[graph : graph + 2].tolist()
            queries = {tuple(row) for row in batch.x[low:high].long().tolist()}
            assert len(queries) == 1
            query = queries.pop()
            assert (sum(query[:6]), sum(query[6:])) == (1, 1)
            more, less = query[:6].index(1), query[6:].index(1)
            assert more != less

            edges = [e for e, v in enumerate(batch.edge_index[1].tolist()) if v == low]
            assert 6 <= len(edges) <= 12
            assert batch.edge_index[0, edges].tolist() == list(range(low + 1, high))
            colours = batch.edge_type[edges].tolist()
            assert batch.y[graph].item() == int(colours.count(more) > colours.count(less))
            assert batch.gold[edges, 0].tolist() == [colour in (more, less) for colour in colours]


def test_distribution() -> None:
    (batch,) = generate(50_000, seed=0, batch_size=50_000)
    leaves = batch.ptr.diff() - 1
    torch.testing.assert_close(leaves.bincount()[6:] / 50_000, torch.full((7,), 1 / 7), atol=0.01, rtol=0)
    torch.testing.assert_close(batch.edge_type.bincount() / batch.num_edges, torch.full((6,), 1 / 6), atol=0.01, rtol=0)
    assert batch.gold.float().mean().item() == pytest.approx(1 / 3, abs=0.01)
    assert batch.y.float().mean().item() == pytest.approx(0.38, abs=0.01)

    query = batch.x[batch.ptr[:-1]].view(-1, 2, 6).argmax(-1)
    pairs = (6 * query[:, 0] + query[:, 1]).bincount(minlength=36).view(6, 6) / 50_000
    torch.testing.assert_close(pairs, (1 - torch.eye(6)) / 30, atol=0.005, rtol=0)

    owner = batch.batch[batch.edge_index[0]]
    sign = (batch.edge_type == query[owner, 0]).long() - (batch.edge_type == query[owner, 1]).long()
    surplus = torch.zeros(50_000, dtype=torch.long).index_add(0, owner, sign)
    assert (surplus == 0).float().mean().item() == pytest.approx(0.24, abs=0.01)
    assert (surplus.abs() <= 1).float().mean().item() == pytest.approx(0.64, abs=0.02)


def test_share_of_queried_edges_is_a_setting() -> None:
    (batch,) = generate(20_000, seed=0, batch_size=20_000, config=StarConfig(colours=9, queried=0.7))
    assert batch.gold.float().mean().item() == pytest.approx(0.7, abs=0.01)
    assert batch.edge_type.unique().tolist() == list(range(9))


def test_same_seed_same_graphs_and_global_state_untouched() -> None:
    before = torch.random.get_rng_state()
    one, two, other = (generate(10, seed=seed)[0] for seed in (5, 5, 6))
    assert torch.equal(before, torch.random.get_rng_state())
    for key in ("x", "edge_index", "edge_type", "batch", "ptr", "y", "gold"):
        assert torch.equal(one[key], two[key])
    assert not torch.equal(one.edge_type[:40], other.edge_type[:40])


def test_layer_is_its_formula() -> None:
    rng = torch.Generator().manual_seed(0)
    conv = RelationalConv(4, 3)
    x = torch.randn(5, 4, generator=rng)
    edge_index = torch.tensor([[1, 2, 3, 4, 4], [0, 0, 0, 2, 0]])
    edge_type = torch.tensor([0, 2, 2, 1, 0])
    weight, bias = conv.linear.weight.view(3, 4, 4), conv.linear.bias.view(3, 4)
    expected = torch.zeros(5, 4)
    for (u, v), c in zip(edge_index.t().tolist(), edge_type.tolist(), strict=True):
        expected[v] += (weight[c] @ x[u] + bias[c]).relu()
    torch.testing.assert_close(conv(x, edge_index, edge_type), expected)


def test_first_nodes() -> None:
    assert first_nodes(torch.tensor([0, 0, 1, 2, 2, 2])).tolist() == [0, 2, 3]
    assert first_nodes(torch.tensor([1, 0, 0, 1])).tolist() == [1, 0]


def test_only_the_centroid_is_read_and_graphs_do_not_mix() -> None:
    model = StarModel().eval()
    (together,) = generate(8, seed=1)
    alone = generate(8, seed=1, batch_size=1)
    logits = model(together.x, together.edge_index, together.edge_type, together.batch)
    single = torch.cat([model(b.x, b.edge_index, b.edge_type, b.batch) for b in alone])
    assert logits.shape == (8, 2)
    torch.testing.assert_close(logits, single)


def test_accuracy_counts_right_answers() -> None:
    data = generate(100, seed=2)
    model = StarModel()
    right = 0
    for batch in data:
        guess = model(batch.x, batch.edge_index, batch.edge_type, batch.batch).argmax(1)
        right += int((guess == batch.y).sum())
    assert accuracy(model, data) == right / 100
    assert star_graphs.accuracy is accuracy


def test_trained_model_is_perfect(trained: tuple[StarModel, float]) -> None:
    model, score = trained
    assert score == 1.0
    assert not model.training
    margin = margins(model, generate(20_000, seed=1_000, batch_size=1_000))
    assert margin.min().item() > 1.0


def test_gold_is_sufficient_and_necessary(trained: tuple[StarModel, float]) -> None:
    """Without any other edge every answer stays; without one gold edge the margin moves, without one other not."""
    model, _ = trained
    (batch,) = generate(500, seed=7, batch_size=500)
    gold, graph = batch.gold[:, 0], batch.batch[batch.edge_index[0]]

    @torch.no_grad()
    def difference(keep: torch.Tensor) -> torch.Tensor:
        logits = model(batch.x, batch.edge_index[:, keep], batch.edge_type[keep], batch.batch)
        return logits[:, 1] - logits[:, 0]

    original = difference(torch.ones_like(gold))
    assert torch.equal(original > 0, difference(gold) > 0)

    position = torch.arange(len(graph)) - torch.searchsorted(graph, torch.arange(500))[graph]
    change = torch.zeros(len(graph))
    for turn in range(12):  # The edge with this number leaves every graph at once.
        out = position == turn
        change[out] = (difference(~out) - original).abs()[graph[out]]
    assert change[gold].median() > 4
    assert change[gold].min() > 1
    assert change[~gold].median() < 1
