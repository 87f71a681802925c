"""Law 5: what an explanation claims is what the user gets by running the masked model themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import graphmask
from graphmask import Explanation

from .cases import CASES, Case
from .support import STRICT, fitted, run

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_the_user_gets_what_the_explanation_says(case: Case) -> None:
    known = fitted(case.name)
    for graph in case.graphs(2):
        data = case.one(graph)
        explanation = known.explain(data)
        plain = run(known.model, data)
        assert torch.allclose(explanation.original, plain, atol=1e-6)
        with graphmask.masked(known.model, explanation) as model:
            first, second = run(model, data), run(known.model, data)
        assert torch.equal(first, second)
        assert torch.equal(first, explanation.masked)
        assert torch.equal(run(known.model, data), plain)
        rows = graphmask.divergence.kl(explanation.original, first)
        assert explanation.divergence == pytest.approx(float(rows.mean()), abs=1e-6)
        assert explanation.faithful == (explanation.divergence <= explanation.tolerance)
        changed = explanation.original.argmax(-1) != first.argmax(-1)
        assert explanation.flips == pytest.approx(float(changed.float().mean()))
        assert explanation.retained == pytest.approx(float(explanation.kept.sum() / explanation.carried.sum()))
        assert torch.equal(explanation.kept, explanation.scores > 0.5)
        assert bool((explanation.carried | ~explanation.kept).all())


@pytest.mark.parametrize("case", [case for case in CASES if case.batchable], ids=lambda case: case.name)
def test_an_explanation_from_a_batch_holds_for_its_graph_alone(case: Case) -> None:
    known = fitted(case.name)
    graphs = case.graphs(3)
    for graph, explanation in zip(graphs, known.explain_all([case.batch(graphs)]), strict=True):
        with graphmask.masked(known.model, explanation):
            alone = run(known.model, case.one(graph))
        assert float((alone - explanation.masked).abs().max()) <= 1e-5


@pytest.mark.parametrize("name", ["SAGE", "RGCN", "GAT", "one layer three times", "AdjacencyTap dense"])
def test_after_an_exception_inside_the_with_the_next_run_counts_from_zero(name: str) -> None:
    known = fitted(name)
    data = known.case.one(known.case.graphs(1)[0])
    explanation = known.explain(data)
    fails = [True]

    def once(*_: object) -> None:
        if fails.pop() if fails else False:
            raise ZeroDivisionError

    with graphmask.masked(known.model, explanation) as model:
        handle = model.get_submodule(explanation.structure[-1].module).register_forward_pre_hook(once)
        with pytest.raises(ZeroDivisionError):
            run(model, data)
        assert torch.equal(run(model, data), explanation.masked)
        handle.remove()


@every_case
def test_every_explanation_that_is_returned_holds(case: Case) -> None:
    """By default, and the user finds it so."""
    known = fitted(case.name)
    with known.strict():
        for graph in case.graphs(3):
            data = case.one(graph)
            explanation = known.explainer.explain(data, allow_infeasible=True)
            with graphmask.masked(known.model, explanation):
                output = run(known.model, data)
            assert torch.equal(output, explanation.masked)
            assert float(graphmask.divergence.kl(explanation.original, output).mean()) <= STRICT
            assert torch.equal(output.argmax(-1), explanation.original.argmax(-1))
            assert explanation.faithful
            assert explanation.same_prediction
            assert explanation.unrepaired is None


@pytest.mark.parametrize("name", ["GCN", "RGCN", "GAT", "MessageTap", "AdjacencyTap dense", "SAGE"])
def test_repair_reopens_until_faithful(name: str) -> None:
    known = fitted(name)
    with known.strict(1e-5):
        for graph in known.case.graphs(2):
            data = known.case.one(graph)
            plain = known.explain(data)
            repaired = known.explain(data, repair=True)
            assert repaired.faithful
            assert repaired.same_prediction
            assert bool((repaired.kept | ~plain.kept).all())
            assert repaired.reopened == int(repaired.kept.sum() - plain.kept.sum())
            with graphmask.masked(known.model, repaired):
                assert torch.equal(run(known.model, data), repaired.masked)
            rows = graphmask.divergence.kl(repaired.original, repaired.masked)
            # Where next to nothing is left of it, rounding in single precision makes it a little less than zero.
            assert repaired.divergence == pytest.approx(max(float(rows.mean()), 0.0), abs=1e-7)
            assert repaired.reopened <= one_by_one(known.model, data, plain, 1e-5)


def one_by_one(model: nn.Module, data: Any, plain: Explanation, tolerance: float) -> int:
    """How many gates must be reopened if the best scores come back first, one after the other."""
    kept = plain.kept.clone()
    order = sorted((plain.carried & ~kept).nonzero().tolist(), key=lambda at: -float(plain.scores[at[0], at[1]]))
    for number, (site, edge) in enumerate([*order, (0, 0)]):
        with graphmask.masked(model, replace(plain, kept=kept)):
            output = run(model, data)
        near = float(graphmask.divergence.kl(plain.original, output).mean()) <= tolerance
        if near and bool((output.argmax(-1) == plain.original.argmax(-1)).all()):
            return number
        kept[site, edge] = True
    raise AssertionError("all gates open, and still another output")
