"""Parts of a large graph: what they hold, and that seeds are predicted as in the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import GCN, GraphSAGE
from torch_geometric.utils import k_hop_subgraph

from graphmask import GraphMask, GraphMaskError
from graphmask.analysis import layers_dropped
from graphmask.graphs.batches import default_forward
from graphmask.graphs.loaders import KHopLoader
from graphmask.methods import get


def graph(seed: int = 0, nodes: int = 40, edges: int = 90) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, 5, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_weight=torch.rand(edges, generator=generator),
        y=torch.randint(3, (nodes,), generator=generator),
        name="a graph",
    )


@settings(max_examples=12)
@given(seed=st.integers(0, 2**20), hops=st.integers(0, 3), size=st.integers(1, 9))
def test_the_same_nodes_and_edges_as_pyg_finds(seed: int, hops: int, size: int) -> None:
    data = graph(seed, nodes=25, edges=45)
    seeds = torch.randperm(25, generator=torch.Generator().manual_seed(seed))[:12]
    done = 0
    for batch in KHopLoader(data, hops, seeds, size, margin=0):
        mine = seeds[done : done + size]
        done += len(mine)
        nodes, _, _, _ = k_hop_subgraph(mine, hops, data.edge_index, num_nodes=25)
        assert batch.batch_size == len(mine) == len(batch.input_id)
        assert torch.equal(batch.n_id[: len(mine)], mine)
        assert torch.equal(seeds[batch.input_id], mine)
        assert torch.equal(batch.n_id.sort().values, nodes)
        # Edges into all nodes that are less than so many hops away: those a model of so many layers uses.
        inner = k_hop_subgraph(mine, hops - 1, data.edge_index, num_nodes=25)[0] if hops else mine[:0]
        assert torch.equal(batch.e_id, torch.isin(data.edge_index[1], inner).nonzero().view(-1))
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert torch.equal(batch.edge_weight, data.edge_weight[batch.e_id])
        assert batch.name == "a graph"
        assert batch.num_nodes == len(batch.n_id)
    assert done == 12


@pytest.mark.parametrize("kind", [GCN, GraphSAGE])
def test_seeds_are_predicted_as_in_the_whole_graph(kind: Any) -> None:
    torch.manual_seed(0)
    data, model = graph(), kind(5, 8, num_layers=2, out_channels=3).eval()
    with torch.no_grad():
        whole = default_forward(model, data)
        for batch in KHopLoader(data, 2, batch_size=7):
            output = default_forward(model, batch)
            assert output.shape == (batch.batch_size, 3)  # of seeds alone
            assert torch.allclose(output, whole[batch.n_id[: batch.batch_size]], atol=1e-6)
        differs = [
            float((default_forward(model, batch) - whole[batch.n_id[: batch.batch_size]]).abs().max())
            for batch in KHopLoader(data, 2, batch_size=7, margin=0)
        ]
    # Degrees of the outermost nodes need one hop more; only GCN looks at them.
    assert (max(differs) > 1e-3) == (kind is GCN)


def test_fanout_draws_so_many_of_every_nodes_edges() -> None:
    data = graph(1, nodes=12, edges=120)
    drawn = torch.zeros(120)
    for seed in range(60):
        for batch in KHopLoader(data, 2, torch.arange(4), 2, fanout=3, seed=seed):
            incoming = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
            degree = torch.bincount(data.edge_index[1], minlength=12)[batch.n_id]
            expanded = incoming > 0
            assert torch.equal(incoming[expanded], degree.clamp_max(3)[expanded])
            assert bool(expanded[: batch.batch_size].all())
            assert len(batch.e_id.unique()) == len(batch.e_id)
            drawn[batch.e_id] += 1
    into_seed = data.edge_index[1] == 0
    share = drawn[into_seed] / drawn[into_seed].sum()
    assert float((share - share.mean()).abs().max()) < 0.5 * float(share.mean())  # evenly


def test_order_and_seeds() -> None:
    data = graph()

    def nodes(loader: KHopLoader) -> list[int]:
        return [int(node) for batch in loader for node in batch.n_id[: batch.batch_size]]

    fixed = KHopLoader(data, 1, batch_size=7, shuffle=True, seed=3)
    assert len(fixed) == 6
    assert nodes(fixed) == nodes(fixed) != list(range(40))
    assert sorted(nodes(fixed)) == list(range(40))
    free = KHopLoader(data, 1, batch_size=7, shuffle=True)
    torch.manual_seed(0)
    first, second = nodes(free), nodes(free)
    assert first != second
    torch.manual_seed(0)
    assert nodes(free) == first
    state = torch.get_rng_state()
    assert nodes(KHopLoader(data, 1, data.y == 2)) == (data.y == 2).nonzero().view(-1).tolist()
    assert torch.equal(torch.get_rng_state(), state)  # nothing drawn, nothing taken


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hops": -1}, "hops to be at least 0"),
        ({"hops": 1, "batch_size": 0}, "batch_size to be at least 1"),
        ({"hops": 1, "fanout": 0}, "fanout to be at least 1"),
        ({"hops": 1, "seeds": torch.tensor([40])}, "nodes 0 to 39"),
        ({"hops": 1, "seeds": torch.ones(3, dtype=torch.bool)}, "mask over 40 nodes"),
        ({"hops": 1, "seeds": torch.tensor([1, 1])}, "every seed once"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphMaskError, match=message):
        KHopLoader(graph(), **arguments)
    with pytest.raises(GraphMaskError, match="one graph"):
        KHopLoader([graph()], 1)  # type: ignore[arg-type]


def test_fit_and_explain_over_parts_count_seeds_only() -> None:
    torch.manual_seed(0)
    data, model = graph(), GraphSAGE(5, 8, num_layers=2, out_channels=3).eval()
    loader = KHopLoader(data, 2, batch_size=10)
    explainer = GraphMask(model, tolerance=0.05)
    explainer.fit(loader, epochs=3, progress=False)
    found = list(explainer.explain_all(loader, allow_infeasible=True))
    with torch.no_grad():
        whole = model(data.x, data.edge_index)
    assert torch.allclose(torch.cat([e.original for e in found]), whole, atol=1e-6)
    for explanation, batch in zip(found, loader, strict=True):
        p, q = explanation.original.log_softmax(1), explanation.masked.log_softmax(1)
        assert explanation.divergence == pytest.approx(float((p.exp() * (p - q)).sum(1).mean()), abs=1e-6)
        assert torch.equal(explanation.edge_index, batch.edge_index)
    # A seed of a part is explained as in the whole graph.
    part = next(iter(KHopLoader(data, 2, torch.tensor([17]), 1)))
    here = explainer.explain(part, index=0, allow_infeasible=True)
    there = explainer.explain(data, index=17, allow_infeasible=True)
    assert torch.equal(here.kept, there.kept[:, part.e_id])
    assert int(here.kept.sum()) == int(there.kept.sum())
    assert here.divergence == pytest.approx(there.divergence, abs=1e-6)


def test_labels_of_seeds_are_theirs() -> None:
    torch.manual_seed(0)
    data, model = graph(), GraphSAGE(5, 8, num_layers=2, out_channels=3).eval()
    method = get("random")(model, divergence="kl")
    frame = layers_dropped(method, KHopLoader(data, 2, batch_size=7))
    full = frame.filter(frame["layer"].is_null() & (frame["measure"] == "accuracy"))["value"].item()
    with torch.no_grad():
        right = default_forward(model, data).argmax(1) == data.y
    assert full == pytest.approx(float(right.double().mean()))


def test_parts_of_pygs_own_loader() -> None:
    torch.manual_seed(0)
    data, model = graph(), GCN(5, 8, num_layers=2, out_channels=3).eval()
    data.edge_weight = None
    loader = RandomNodeLoader(data, num_parts=2)
    explainer = GraphMask(model, tolerance=0.05)
    explainer.fit(loader, epochs=2, progress=False)
    rows = [e.original.shape[0] for e in explainer.explain_all(loader, allow_infeasible=True)]
    assert sum(rows) == 40
