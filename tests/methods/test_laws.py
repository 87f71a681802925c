"""The laws that hold for every method: the model untouched, batching, the certificate, the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import graphmask
from graphmask import Explanation, GraphMaskError
from graphmask.explaining.method import Method
from graphmask.graphs.batches import default_forward
from graphmask.methods import get
from laws.cases import BY_NAME, Case, random_graph
from laws.support import columns, run, same
from laws.test_untouched import Diary, Stops
from laws.untouched import assert_same, snapshot, unsettle

from .common import OF_ATTENTION, QUICK, case_of, quick

ATTENTIVE = ["GAT", "FA"]
CASES = ["GCN", "GAT", "RGCN", "MessageTap", "AdjacencyTap dense"]


def applies(name: str, cases: Sequence[str]) -> Sequence[str]:
    """Those of the models that a method can say something about; of attention, others.

    (Rollout is of transformers: its laws are in tests/attention/test_methods.py.)
    """
    if name in OF_ATTENTION:
        return [] if name == "attention_rollout" else ATTENTIVE
    return [case for case in cases if name != "grad_cam" or not case.startswith("AdjacencyTap")]


def table(*cases: str) -> pytest.MarkDecorator:
    """Every method on every model that it applies to."""
    rows = [pytest.param(name, BY_NAME[case], id=f"{name} {case}") for name in QUICK for case in applies(name, cases)]
    return pytest.mark.parametrize(("name", "case"), rows)


every_row, some_rows = table(*CASES), table("GAT", "AdjacencyTap dense")


def build(name: str, case: Case, forward: Any = None, **options: Any) -> Method:
    """A method on a model of strong opinions, which it gets from its messages."""
    model = case.model()
    known = case_of(model, case.loader(1)[0])
    with torch.no_grad():
        model.get_parameter("head.weight").mul_(50 if case.name.startswith("Adjacency") else 10)
        silent = known.run(torch.zeros_like(known.trace.carried), known.zeros())
        model.get_parameter("head.bias").sub_(silent.mean(0))
    return quick(name, model, forward, **options)


def graphs(name: str, case: Case) -> list[Data]:
    """Of different sizes, some with few edges; for erasure search no edge twice, as ties may be broken either way."""
    found = []
    for seed, edges in enumerate((100, 3, 8, 2)):
        graph = case.graph(1040 + seed)
        edges = min(edges, graph.num_edges - 2 if name == "erasure_search" else graph.num_edges)
        cut = {key: graph[key][:edges] for key in ("edge_type", "edge_attr", "edge_weight") if key in graph}
        found.append(Data(x=graph.x, edge_index=graph.edge_index[:, :edges], **cut))
    return found


@cache
def fitted(name: str, case_name: str) -> Method:
    """With a threshold such that about half is kept, where few steps have not moved the scores across theirs."""
    case = BY_NAME[case_name]
    method = build(name, case)
    method.fit(case.loader(), progress=False)
    if name in {"information_bottleneck", "gnn_explainer", "pg_explainer", "gate_scores", "attention_weights"}:
        bare = [method.explain(case.one(graph), repair=False) for graph in graphs(name, case)]
        scores = torch.cat([explanation.scores.flatten() for explanation in bare])
        ordered = scores.sort().values[len(scores) // 4 : -len(scores) // 4]
        gap = int(ordered.diff().argmax())
        method.threshold = float(ordered[gap : gap + 2].mean())
        method.cuts = torch.full((2, 1), method.threshold)  # of gate_scores
    return method


@cache
def explained(name: str, case_name: str) -> list[Explanation]:
    """All graphs in one batch."""
    case = BY_NAME[case_name]
    return list(fitted(name, case_name).explain_all([case.batch(graphs(name, case))], repair=False))


# The model is untouched ------------------------------------------------------------------------------------


@every_row
def test_a_model_in_use(name: str, case: Case) -> None:
    """After every call, and between two explanations."""
    method = build(name, case)
    unsettle(method.model)
    before = snapshot(method.model)
    loader = case.loader(2, 2)
    method.fit(loader, validation=loader, progress=False)
    assert_same(before, snapshot(method.model))
    method.explain(case.one(graphs(name, case)[1]), repair=True)
    assert_same(before, snapshot(method.model))
    count = 0
    for _ in method.explain_all([case.batch(graphs(name, case)[2:])]):
        assert_same(before, snapshot(method.model))
        count += 1
    assert count == 2


@pytest.mark.parametrize("name", [name for name in QUICK if name not in OF_ATTENTION])
def test_a_model_that_writes_to_itself(name: str) -> None:
    model = Diary().eval()
    before = snapshot(model)
    method = quick(name, model)
    method.fit([random_graph(0), random_graph(1)], progress=False)
    assert_same(before, snapshot(model))
    method.explain(random_graph(2), repair=True)
    assert_same(before, snapshot(model))


def fails_after(calls: int) -> tuple[Callable[[nn.Module, Any], Tensor], list[int]]:
    left = [calls]

    def forward(model: nn.Module, batch: Any) -> Tensor:
        left[0] -= 1
        output = default_forward(model, batch)
        if left[0] < 0:
            raise ZeroDivisionError
        return output

    return forward, left


@some_rows
def test_exception_in_forward(name: str, case: Case) -> None:
    """In the first run of the model, the last, and two between."""

    def work(method: Method) -> None:
        method.fit(case.loader(2, 2), progress=False)
        method.explain(case.one(graphs(name, case)[1]), repair=True)

    forward, left = fails_after(10**6)
    work(build(name, case, forward))
    total = 10**6 - left[0]
    assert total >= 2
    for calls in sorted({0, total // 3, 2 * total // 3, total - 1}):
        method = build(name, case, fails_after(calls)[0])
        unsettle(method.model)
        before = snapshot(method.model)
        with pytest.raises(ZeroDivisionError):
            work(method)
        assert_same(before, snapshot(method.model))


@every_row
def test_exception_inside_the_model_while_explaining(name: str, case: Case) -> None:
    """When hooks are in place and half of a run is done; at the second run, where a method searches."""
    method = fitted(name, case.name)
    runs = [0]

    def stop(*_: Any) -> None:
        runs[0] += 1
        if runs[0] == 2:
            raise ZeroDivisionError

    handle = method.model.get_submodule("head").register_forward_pre_hook(stop)
    before = snapshot(method.model)
    with pytest.raises(ZeroDivisionError):
        method.explain(case.one(graphs(name, case)[0]))
    assert runs[0] == 2
    assert_same(before, snapshot(method.model))
    handle.remove()


@every_row
def test_a_bad_batch_after_a_good_one(name: str, case: Case) -> None:
    method = fitted(name, case.name)
    before = snapshot(method.model)
    good, bad = case.batch(graphs(name, case)[:1]), case.batch(case.graphs(2))
    (bad["x"] if isinstance(bad, dict) else bad.x)[0, 0] = torch.nan
    found = method.explain_all([good, bad])
    next(found)
    with pytest.raises(GraphMaskError, match="'x' of batch 1"):
        next(found)
    assert_same(before, snapshot(method.model))
    with pytest.raises(GraphMaskError, match="'x' of batch 1"):
        method.fit([good, bad], progress=False)
    assert_same(before, snapshot(method.model))


@pytest.mark.parametrize("name", ["information_bottleneck", "pg_explainer", "gate_scores", "occlusion"])
@pytest.mark.parametrize("passes", range(4))
def test_interrupted_in_the_loader(name: str, passes: int) -> None:
    case = BY_NAME["GAT"]
    method = build(name, case)
    unsettle(method.model)
    before = snapshot(method.model)
    loader = Stops(case.loader(2, 2), passes, KeyboardInterrupt())
    # Each method passes through the data as often as it needs to.
    if passes >= {"occlusion": 1, "gate_scores": 3}.get(name, 9):
        method.fit(loader, progress=False)
    else:
        with pytest.raises(KeyboardInterrupt):
            method.fit(loader, progress=False)
    assert_same(before, snapshot(method.model))


# Batching --------------------------------------------------------------------------------------------------


def assert_agree(a: Explanation, b: Explanation, case: Case, graph: Data) -> None:
    at, bt = columns(a, case, graph), columns(b, case, graph)
    assert torch.equal(a.kept[:, at], b.kept[:, bt])
    assert float((a.scores[:, at] - b.scores[:, bt]).abs().max()) <= 1e-4
    assert abs(a.divergence - b.divergence) <= 1e-4
    assert a.flips == b.flips
    for x, y in zip(a.baselines, b.baselines, strict=True):
        assert torch.allclose(x, y, atol=1e-4)


@every_row
def test_batching_changes_no_explanation(name: str, case: Case) -> None:
    method = fitted(name, case.name)
    some = graphs(name, case)
    together = explained(name, case.name)
    kept = 0
    for graph, explanation in zip(some, together, strict=True):
        alone = method.explain(case.one(graph), repair=False)
        assert_agree(alone, explanation, case, graph)
        kept += int(alone.kept.sum())
    assert kept < sum(int(explanation.carried.sum()) for explanation in together)
    if name != "unamortised, free baselines":  # there a baseline may say it all
        assert kept > 0


@pytest.mark.parametrize("name", [name for name in QUICK if get(QUICK[name][0]).soft and name not in OF_ATTENTION])
def test_a_share_is_of_each_graph_by_itself(name: str) -> None:
    method = fitted(name, "GCN")
    case, some = BY_NAME["GCN"], graphs(name, BY_NAME["GCN"])
    method.fraction = 0.3
    try:
        together = list(method.explain_all([case.batch(some)], repair=False))
        alone = [method.explain(case.one(graph), repair=False) for graph in some]
    finally:
        method.fraction = None
    for graph, a, b in zip(some, alone, together, strict=True):
        assert_agree(a, b, case, graph)
        assert int(b.kept.sum()) == math.ceil(0.3 * int(b.carried.sum()) - 1e-9)
        assert b.scores[b.kept].min() >= b.scores[b.carried & ~b.kept].max()


@every_row
def test_graphs_without_edges(name: str, case: Case) -> None:
    """Alone, as in a batch: nothing to choose, and nothing to tell."""
    method = fitted(name, case.name)
    whole = case.graph(1000)
    none = {key: whole[key][:0] for key in ("edge_type", "edge_attr", "edge_weight") if key in whole}
    empty = Data(x=whole.x, edge_index=whole.edge_index[:, :0], **none)
    alone = method.explain(case.one(empty), repair=True)
    first, among, last = method.explain_all([case.batch([whole, empty, whole])], repair=False)
    for explanation in (alone, among):
        assert explanation.kept.shape == (2, 0)
        assert (explanation.divergence, explanation.retained) == (0.0, 0.0)
        assert explanation.faithful
    assert torch.equal(first.kept, last.kept)
    assert first.kept.shape[1] == whole.num_edges


# The certificate -------------------------------------------------------------------------------------------


@every_row
def test_the_user_gets_what_the_explanation_says(name: str, case: Case) -> None:
    method = fitted(name, case.name)
    some, total = graphs(name, case), 0.0
    for graph, explanation in zip(some, explained(name, case.name), strict=True):
        data = case.one(graph)
        with graphmask.masked(method.model, explanation) as model:
            output = run(model, data)
        measured = float(graphmask.divergence.kl(run(method.model, data), output).mean())
        assert explanation.divergence == pytest.approx(measured, abs=1e-5)
        assert explanation.faithful == (explanation.divergence <= explanation.tolerance)
        assert torch.allclose(explanation.masked, output, atol=1e-4)
        assert bool((explanation.carried | ~explanation.kept).all())
        assert explanation.method == QUICK[name][0]
        total += measured
    assert total > 1e-3


def test_every_graph_has_its_own_baselines() -> None:
    found = explained("unamortised, free baselines", "GCN")
    for a, b in pairwise(found):
        assert float((a.baselines[1] - b.baselines[1]).abs().max()) > 0.01
    assert any(explanation.divergence > 1e-4 for explanation in found)


@some_rows
def test_repair_makes_every_explanation_faithful(name: str, case: Case) -> None:
    method = fitted(name, case.name)
    tolerance, method.tolerance = method.tolerance, 1e-4
    some = graphs(name, case)
    try:
        plain = list(method.explain_all([case.batch(some)], repair=False))
        repaired = list(method.explain_all([case.batch(some)], repair=True))
    finally:
        method.tolerance = tolerance
    for graph, before, after in zip(some, plain, repaired, strict=True):
        assert after.faithful
        assert after.reopened == int(after.kept.sum() - before.kept.sum())
        assert (after.reopened == 0) == before.faithful
        with graphmask.masked(method.model, after) as model:
            output = run(model, case.one(graph))
        assert float(graphmask.divergence.kl(after.original, output).mean()) <= 1.1e-4
    if not name.startswith("unamortised"):  # it stays within tolerance by itself
        assert any(not explanation.faithful for explanation in plain)


# The seed --------------------------------------------------------------------------------------------------


@table("GAT", "AdjacencyTap dense", "norm and dropout")
def test_same_seed_same_explanation(name: str, case: Case) -> None:
    found = []
    for state in (98, 99):  # nothing reads the global state
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state)
            method = build(name, case)
            method.fit(case.loader(), progress=False)
            found.append(list(method.explain_all([case.batch(graphs(name, case))])))
    for a, b in zip(*found, strict=True):
        assert same(a, b)


@pytest.mark.parametrize("name", ["random", "gnn_explainer", "unamortised", "information_bottleneck", "pg_explainer"])
def test_another_seed_another_explanation(name: str) -> None:
    case = BY_NAME["GCN"]
    scores = []
    for seed in (0, 1):
        method = build(name, case, seed=seed)
        method.fit(case.loader(), progress=False)
        found = method.explain_all([case.batch(graphs(name, case))], repair=False)
        scores.append(torch.cat([e.scores for e in found], 1))
    assert float((scores[0] - scores[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["information_bottleneck", "pg_explainer", "gnn_explainer", "unamortised"])
def test_where_gradients_are_switched_off(name: str) -> None:
    case, found = BY_NAME["GCN"], []
    for enabled in (True, False):
        method = build(name, case)
        with torch.set_grad_enabled(enabled):
            method.fit(case.loader(), progress=False)
            found.append(method.explain(graphs(name, case)[0]))
    assert same(*found)


# Sites -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["erasure_search", "occlusion", "integrated_gradients", "random"])
def test_a_graph_without_edges_does_not_tell_how_many_hops_there_are(name: str) -> None:
    """Two hops without edges look like two relations, which together are one site."""
    case = BY_NAME["TAG"]
    whole = case.graph(1000)
    empty = Data(x=whole.x, edge_index=whole.edge_index[:, :0], edge_weight=whole.edge_weight[:0])
    method = build(name, case)
    method.explain(empty)
    assert method.explain(whole).sites == case.sites
