"""The laws, for models over HeteroData."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import HeteroData

import graphmask
from graphmask import Explanation, GraphMask, HeteroExplanation
from graphmask.graphs import batches
from graphmask.graphs.sites import Site, StandIn, layers_of
from graphmask.tapping import capture
from graphmask.tapping.masking import by_user_edges
from graphmask.tapping.messages import Messages
from laws.support import same
from laws.untouched import assert_same, snapshot, unsettle
from reference.hasty import halve

from .support import BY_NAME, CASES, CITES, QUICK, TYPES, WRITES, WRITTEN, Case, batch, fitted, graph

#: Fits take a second each: one model of each kind.
AGAIN = [BY_NAME[name] for name in ("sage", "to_hetero", "hgt", "han")]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def explain(case: Case, data: HeteroData, *, repair: bool = True) -> HeteroExplanation:
    found = fitted(case.name)[1].explain(data, repair=repair, allow_infeasible=True)
    assert isinstance(found, HeteroExplanation)
    return found


def shuffled(data: HeteroData, seed: int) -> tuple[HeteroData, dict[str, torch.Tensor], torch.Tensor]:
    """Every type's nodes and edges in another order; where each node went, and whence each edge came."""
    generator = torch.Generator().manual_seed(seed)
    other, renamed, order, start = HeteroData(), {}, [], 0
    for kind in data.node_types:
        nodes = torch.randperm(len(data[kind].x), generator=generator)
        other[kind].x, renamed[kind] = data[kind].x[nodes], nodes.argsort()
    for kind in data.edge_types:
        edges = data[kind].edge_index
        here = torch.randperm(edges.shape[1], generator=generator)
        ends = [renamed[name][row] for name, row in zip((kind[0], kind[2]), edges[:, here], strict=True)]
        other[kind].edge_index, other[kind].edge_attr = torch.stack(ends), data[kind].edge_attr[here]
        order.append(here + start)
        start += edges.shape[1]
    return other, renamed, torch.cat(order)


@every_case
def test_all_gates_open_is_the_original(case: Case) -> None:
    model, data = case.model(), graph(3)
    with torch.no_grad(), capture.tap(model, lambda _: None, batches.edge_map_of(data)) as state:
        case.run(model, data)
    gates = torch.ones(len(state.sites), state.edge_map.count, dtype=torch.bool)
    baselines = [torch.full((s.stand_in.message + s.stand_in.others,), 7.0) for s in state.sites]
    with capture.tap(model, by_user_edges(gates, baselines), batches.edge_map_of(data), tuple(state.sites)):
        assert torch.equal(case.run(model, data), case.run(case.model(), data))
    with capture.tap(model, by_user_edges(~gates, baselines), batches.edge_map_of(data), tuple(state.sites)):
        assert not torch.allclose(case.run(model, data), case.run(case.model(), data), atol=0.01)


@pytest.mark.parametrize("case", AGAIN, ids=lambda case: case.name)
def test_the_model_is_left_as_it_was(case: Case) -> None:
    model = case.model()
    unsettle(model)
    before = snapshot(model)
    explainer = GraphMask(model, case.forward, recipe=QUICK)
    explainer.fit([batch(0, 1)], progress=False)
    explanation = explainer.explain(graph(2), allow_infeasible=True)
    with graphmask.masked(model, explanation):
        case.run(model, graph(2))
    assert_same(before, snapshot(model))


@every_case
def test_the_certificate_is_what_masked_gives(case: Case) -> None:
    model, _ = fitted(case.name)
    dropped = 0
    for seed in range(5, 8):
        explanation = explain(case, graph(seed))
        with graphmask.masked(model, explanation):
            output = case.run(model, graph(seed))  # other tensors with the same content
            again = case.run(model, graph(seed))
        assert torch.equal(output, explanation.masked)
        assert torch.equal(again, explanation.masked)
        assert torch.equal(case.run(model, graph(seed)), explanation.original)
        p, q = explanation.original.log_softmax(-1), output.log_softmax(-1)
        assert explanation.divergence == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), abs=1e-7)
        dropped += int((explanation.carried & ~explanation.kept).sum())
    assert dropped > 0


@every_case
def test_permuting_nodes_and_edges_permutes_the_explanation(case: Case) -> None:
    data = graph(6)
    other, _, order = shuffled(data, 1)
    a, b = explain(case, data), explain(case, other)
    assert torch.equal(a.kept[:, order], b.kept)
    assert torch.equal(a.carried[:, order], b.carried)
    assert float((a.scores[:, order] - b.scores).abs().max()) <= 1e-5
    assert a.divergence == pytest.approx(b.divergence, abs=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if not case.alone], ids=lambda case: case.name)
def test_batching_changes_no_explanation(case: Case) -> None:
    _, explainer = fitted(case.name)
    together = list(explainer.explain_all([batch(5, 6, 7)], allow_infeasible=True))
    assert len(together) == 3
    for seed, found in zip((5, 6, 7), together, strict=True):
        alone = explain(case, graph(seed))
        assert torch.equal(found.edge_index, alone.edge_index)
        assert torch.equal(found.edge_type, alone.edge_type)
        assert torch.equal(found.kept, alone.kept)
        assert torch.equal(found.carried, alone.carried)
        assert found.info == alone.info
        assert found.num_nodes == alone.num_nodes
        assert float((found.scores - alone.scores).abs().max()) <= 1e-5
        assert float((found.masked - alone.masked).abs().max()) <= 1e-5
        assert found.divergence == pytest.approx(alone.divergence, abs=1e-6)


@pytest.mark.parametrize("case", AGAIN, ids=lambda case: case.name)
def test_same_seed_same_explanation_also_after_saving(case: Case, tmp_path: Path) -> None:
    model, explainer = fitted(case.name)
    again = GraphMask(model, case.forward, recipe=QUICK)
    again.fit([batch(0, 1, 2)], progress=False)
    halve(again, [batch(0, 1, 2)])
    explainer.save(tmp_path / "fit")
    loaded = graphmask.load(tmp_path / "fit", model, forward=case.forward)
    assert loaded.types == explainer.types
    expected = explain(case, graph(8))
    for method in (again, loaded):
        found = method.explain(graph(8), allow_infeasible=True)
        assert same(found, expected)
        assert found.info == expected.info
    expected.save(tmp_path / "explanation")
    read = Explanation.load(tmp_path / "explanation")
    assert isinstance(read, HeteroExplanation)
    assert same(read, expected)
    assert (read.edge_types, read.num_nodes_dict) == (expected.edge_types, expected.num_nodes_dict)
    with graphmask.masked(model, read):
        assert torch.equal(case.run(model, graph(8)), expected.masked)


@pytest.mark.filterwarnings("ignore:The model's weights have changed")
@pytest.mark.parametrize("name", ["sage", "hgt", "han", "to_hetero"])
def test_no_look_ahead(name: str) -> None:
    """The first layer's gates do not change with the second layer."""
    case = next(case for case in CASES if case.name == name)
    model, explainer = fitted(name)
    before = explain(case, graph(4), repair=False)
    first = [n for n, layer in enumerate(layers_of(before.structure)) if layer == 0]
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    upper = ("second", "out", "convs.1")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.startswith(upper):
                parameter.mul_(-2).add_(0.1)
    after = explainer.explain(graph(4), allow_infeasible=True, repair=False)
    model.load_state_dict(kept)
    assert 0 < len(first) < len(before.sites)
    assert not torch.equal(before.original, after.original)
    assert torch.equal(before.scores[first], after.scores[first])
    assert torch.equal(before.kept[first], after.kept[first])


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 5), st.tuples(*[st.integers(0, 9)] * 2), st.sampled_from(["sage", "hgt"]))
def test_any_graph(seed: int, authors: int, edges: tuple[int, int], name: str) -> None:
    """Certificate, shares and pieces fit together whatever the graph, types without edges among them."""
    case = next(case for case in CASES if case.name == name)
    writes, cites = edges
    data = graph(seed, authors, (max(writes, 2), max(cites, 3)))
    data[WRITES].edge_index, data[WRITTEN].edge_index = (data[kind].edge_index[:, :writes] for kind in TYPES[1][:2])
    data[CITES].edge_index = data[CITES].edge_index[:, :cites]
    model, _ = fitted(name)
    explanation = explain(case, data)
    assert explanation.edge_index.shape == (2, 2 * data[WRITES].num_edges + data[CITES].num_edges)
    for kind, edges in explanation.edge_index_dict.items():
        assert torch.equal(edges, data[kind].edge_index)
        assert bool(explanation[kind].carried.all())
    assert sum(int(kept.sum()) for kept in explanation.kept_dict.values()) == int(explanation.kept.sum())
    with graphmask.masked(model, explanation):
        assert torch.equal(case.run(model, data), explanation.masked)


@every_case
def test_dropped_edges_are_silent(case: Case) -> None:
    """They exchange what every layer sees of them, and nothing happens; with constants for messages alone it does."""
    model, data = case.model(), graph(3)
    seen: list[Messages] = []
    with torch.no_grad(), capture.tap(model, seen.append, batches.edge_map_of(data)) as state:
        case.run(model, data)
    generator = torch.Generator().manual_seed(0)
    gates = torch.rand(len(state.sites), state.edge_map.count, generator=generator) < 0.5
    widths = {messages.site: messages.flat().shape[1] for messages in seen}
    as_once = [replace(site, stand_in=StandIn(widths[number])) for number, site in enumerate(state.sites)]

    def heard(sites: list[Site]) -> float:
        baselines = [torch.ones(site.stand_in.message + site.stand_in.others) for site in sites]

        def masked(seed: int | None) -> Tensor:
            exchange = None if seed is None else torch.Generator().manual_seed(seed)
            mask = by_user_edges(gates, baselines, exchange=exchange)
            with torch.no_grad(), capture.tap(model, mask, batches.edge_map_of(data), tuple(sites)):
                return case.run(model, data)

        return float(torch.stack([masked(seed) - masked(None) for seed in range(3)]).abs().max())

    assert heard(state.sites) <= 1e-6
    if case.name in ("gat", "hgt", "han", "rgcn inside"):
        assert heard(as_once) > 1e-4
