"""Relay graphs: the data against a literal recount, the layer against its formula, the model and its gold."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.experiments.common import margins
from graphmask.experiments.relay import (
    LEAF_TO_MID,
    MID_TO_ROOT,
    RelayConfig,
    RelayConv,
    RelayModel,
    accuracy,
    generate,
)
from reference.trained import trained as trained_once

CONFIG = RelayConfig()
M, C = CONFIG.mid_colours, CONFIG.leaf_colours


@pytest.fixture(scope="module")
def data() -> list[Batch]:
    return generate(500, seed=3, batch_size=64)


@pytest.fixture(scope="module")
def trained() -> tuple[RelayModel, float]:
    return trained_once("relay")


def test_batches_hold_all_graphs(data: list[Batch]) -> None:
    assert [batch.num_graphs for batch in data] == [64] * 7 + [52]
    for batch in data:
        assert batch.x.shape == (batch.num_nodes, CONFIG.inputs)
        assert batch.gold.shape == (batch.num_edges, 2)
        assert batch.gold.dtype == torch.bool
        assert batch.y.dtype == torch.long
        assert batch.ptr.tolist() == [0, *torch.bincount(batch.batch).cumsum(0).tolist()]
        assert (batch.batch.diff() >= 0).all()
        assert (batch.batch[batch.edge_index[0]].diff() >= 0).all()
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])


def test_labels_and_gold_equal_a_literal_recount(data: list[Batch]) -> None:
    for batch in data:
        edges = list(enumerate(batch.edge_index.t().tolist()))
        types, gold = batch.edge_type.tolist(), batch.gold.tolist()
        rows = batch.x.long().tolist()
        kind = [row[2 * C + M :] for row in rows]
        assert all(sum(row) == 1 for row in kind)
        for graph in range(batch.num_graphs):
            root, end = batch.ptr[graph : graph + 2].tolist()
            queries = {tuple(row[: 2 * C + M]) for row in rows[root:end]}
            assert len(queries) == 1
            query = queries.pop()
            assert sum(query) == 3
            more, less, asked = query[:C].index(1), query[C : 2 * C].index(1), query[2 * C :].index(1)
            assert more != less
            assert kind[root][0] == 1

            reports = [(e, u) for e, (u, v) in edges if v == root]
            assert 2 <= len(reports) <= 6
            total, seen = 0, 1 + len(reports)
            for report, mid in reports:
                assert types[report] == MID_TO_ROOT
                queried = kind[mid].index(1) - 1 == asked
                assert 1 <= kind[mid].index(1) <= M
                leaves = [(e, u) for e, (u, v) in edges if v == mid]
                assert 1 <= len(leaves) <= 5
                seen += len(leaves)
                colours = [kind[leaf].index(1) - 1 - M for _, leaf in leaves]
                assert all(0 <= colour < C for colour in colours)
                surplus = colours.count(more) - colours.count(less)
                total += surplus if queried else 0
                for (e, _), colour in zip(leaves, colours, strict=True):
                    assert types[e] == LEAF_TO_MID
                    assert gold[e] == [queried and colour in (more, less), False]
                assert gold[report] == [False, queried and surplus != 0]
            assert seen == end - root
            assert batch.y[graph].item() == int(total > 0)


def test_distribution() -> None:
    (batch,) = generate(20_000, seed=0, batch_size=20_000)
    source, target = batch.edge_index
    graph = batch.batch[source]
    root = batch.x[batch.ptr[:-1]]
    more, less = root[:, :C].argmax(1), root[:, C : 2 * C].argmax(1)
    asked = root[:, 2 * C : 2 * C + M].argmax(1)
    kind = batch.x[:, 2 * C + M :].argmax(1) - 1

    pairs = (C * more + less).bincount(minlength=C * C).view(C, C) / 20_000
    torch.testing.assert_close(pairs, (1 - torch.eye(C)) / (C * (C - 1)), atol=0.01, rtol=0)
    torch.testing.assert_close(asked.bincount() / 20_000, torch.full((M,), 1 / M), atol=0.015, rtol=0)

    from_mid = batch.edge_type == MID_TO_ROOT
    mids = graph[from_mid].bincount()
    torch.testing.assert_close(mids.bincount()[2:] / 20_000, torch.full((5,), 1 / 5), atol=0.015, rtol=0)
    leaves = target[~from_mid].bincount(minlength=batch.num_nodes)[source[from_mid]]
    torch.testing.assert_close(leaves.bincount()[1:] / len(leaves), torch.full((5,), 1 / 5), atol=0.015, rtol=0)

    # Mid colours relative to the queried one: half are it, the other three share the rest.
    relative = ((kind[source] - asked[graph]) % M)[from_mid].bincount() / from_mid.sum()
    torch.testing.assert_close(relative, torch.tensor([3, 1, 1, 1]) / 6, atol=0.01, rtol=0)
    leaf = kind[source] - M
    share = [(leaf == colour[graph])[~from_mid].float().mean().item() for colour in (more, less)]
    assert share == pytest.approx([0.25, 0.25], abs=0.01)
    neutral = (leaf != more[graph]) & (leaf != less[graph]) & ~from_mid
    torch.testing.assert_close(leaf[neutral].bincount() / neutral.sum(), torch.full((C,), 1 / C), atol=0.01, rtol=0)

    assert batch.y.float().mean().item() == pytest.approx(0.35, abs=0.03)
    queried = torch.zeros(20_000).index_add(0, graph, (from_mid & (kind[source] == asked[graph])).float())
    assert (queried >= 2).float().mean().item() > 0.6


def test_same_seed_same_graphs_and_global_state_untouched() -> None:
    before = torch.random.get_rng_state()
    one, two, other = (generate(10, seed=seed)[0] for seed in (5, 5, 6))
    assert torch.equal(before, torch.random.get_rng_state())
    for key in ("x", "edge_index", "edge_type", "batch", "ptr", "y", "gold"):
        assert torch.equal(one[key], two[key])
    assert not torch.equal(one.x[:40], other.x[:40])


def test_layer_is_its_formula() -> None:
    rng = torch.Generator().manual_seed(0)
    conv = RelayConv(4, 2)
    x = torch.randn(5, 4, generator=rng)
    edge_index = torch.tensor([[1, 2, 3, 4], [0, 0, 1, 1]])
    edge_type = torch.tensor([1, 1, 0, 0])
    expected = x @ conv.own.weight.t() + conv.own.bias
    for (u, v), c in zip(edge_index.t().tolist(), edge_type.tolist(), strict=True):
        expected[v] += (conv.source.weight @ x[u] + conv.target.weight @ x[v] + conv.relation.weight[c]).relu()
    torch.testing.assert_close(conv(x, edge_index, edge_type), expected.relu())


def test_graphs_do_not_mix() -> None:
    model = RelayModel().eval()
    (together,) = generate(8, seed=1)
    alone = generate(8, seed=1, batch_size=1)
    logits = model(together.x, together.edge_index, together.edge_type, together.batch)
    single = torch.cat([model(b.x, b.edge_index, b.edge_type, b.batch) for b in alone])
    assert logits.shape == (8, 2)
    torch.testing.assert_close(logits, single)


def test_trained_model_is_accurate(trained: tuple[RelayModel, float]) -> None:
    model, score = trained
    assert score >= 0.999
    assert not model.training
    data = generate(20_000, seed=1_000, batch_size=1_000)
    assert accuracy(model, data) >= 0.999
    assert accuracy(model, data) == (margins(model, data) > 0).double().mean().item()


@torch.no_grad()
def difference(model: RelayModel, batch: Batch, drop: Tensor) -> Tensor:
    """Logit difference `[B]` when the messages marked in `drop` `[E, 2]` are zero in their layer."""
    hooks = [
        conv.register_message_forward_hook(lambda *call, k=k: call[-1].masked_fill(drop[:, k, None], 0.0))
        for k, conv in enumerate((model.conv1, model.conv2))
    ]
    logits = model(batch.x, batch.edge_index, batch.edge_type, batch.batch)
    for hook in hooks:
        hook.remove()
    return logits[:, 1] - logits[:, 0]


def test_gold_is_sufficient(trained: tuple[RelayModel, float]) -> None:
    """Zero every message that is not gold, in both layers: the answers stay."""
    (batch,) = generate(5_000, seed=8, batch_size=5_000)
    original = difference(trained[0], batch, torch.zeros_like(batch.gold))
    assert ((original > 0) != (difference(trained[0], batch, ~batch.gold) > 0)).double().mean().item() <= 0.02


def test_gold_is_necessary(trained: tuple[RelayModel, float]) -> None:
    """Zero one message: if it is gold the logit difference moves by much, otherwise by little."""
    (batch,) = generate(300, seed=7, batch_size=300)
    graph = batch.batch[batch.edge_index[0]]
    position = torch.arange(len(graph)) - torch.searchsorted(graph, torch.arange(300))[graph]
    original = difference(trained[0], batch, torch.zeros_like(batch.gold))
    for k in range(2):
        change = torch.zeros(len(graph))
        for turn in range(int(position.max()) + 1):  # The edge with this number leaves every graph at once.
            drop = torch.zeros_like(batch.gold)
            drop[:, k] = position == turn
            change[drop[:, k]] = (difference(trained[0], batch, drop) - original).abs()[graph[drop[:, k]]]
        gold = batch.gold[:, k]
        assert change[gold].median() > 8
        assert change[gold].min() > 0.5
        assert change[~gold].median() < 1
        assert change[gold].quantile(0.05) > change[~gold].quantile(0.95)
