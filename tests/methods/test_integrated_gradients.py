"""Integrated gradients against quadrature by hand, and against what they must add up to."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch

from graphmask.methods.integrated_gradients import IntegratedGradients
from reference import methods as literal
from reference.small import Small, answer, constant, graph

from .common import case_of

GRAPHS = [graph(seed, nodes=4 + seed % 2, edges=5 + seed % 3) for seed in range(4)]


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_quadrature_by_hand(steps: int) -> None:
    model = Small()
    batch = Batch.from_data_list(GRAPHS)
    case = case_of(model, batch)
    method = IntegratedGradients(model, steps=steps)
    method.subject = case.subject
    found = method.attributions(case)
    expected = []
    for data in GRAPHS:
        column = int(answer(model, data, constant(data, 1.0)).argmax())
        expected.append(
            literal.integrated_gradients(lambda z, d=data: answer(model, d, z), column, 2, data.num_edges, steps)
        )
    assert torch.allclose(found, torch.cat(expected, 1), rtol=1e-5, atol=1e-6)
    assert float(found.abs().max()) > 0.1
    explanations = IntegratedGradients(model, steps=steps).explain_all([batch], repair=False)
    scores = torch.cat([e.scores for e in explanations], 1)
    relative = torch.cat([e.abs() / e.abs().max() for e in expected], 1)
    assert torch.allclose(scores, relative, rtol=1e-5, atol=1e-6)


def test_attributions_add_up_to_what_all_messages_together_do() -> None:
    model = Small()
    for data in GRAPHS:
        case = case_of(model, data)
        method = IntegratedGradients(model, steps=40)
        method.subject = case.subject
        whole, nothing = (answer(model, data, constant(data, value)) for value in (1.0, 0.0))
        column = int(whole.argmax())
        difference = float(whole[column] - nothing[column])
        assert abs(difference) > 0.01
        assert float(method.attributions(case).sum()) == pytest.approx(difference, abs=1e-3)


def test_the_largest_of_every_graph_is_one_and_a_tenth_is_kept() -> None:
    model = Small()
    dropped = 0
    for explanation in IntegratedGradients(model).explain_all([Batch.from_data_list(GRAPHS)], repair=False):
        assert float(explanation.scores.max()) == pytest.approx(1)
        assert float(explanation.scores.min()) >= 0
        assert torch.equal(explanation.kept, explanation.scores > 0.1)
        dropped += int((~explanation.kept).sum())
    assert dropped > 0


def test_of_a_regression_the_output_itself_is_explained() -> None:
    model = Small(outputs=1)
    for data in GRAPHS:
        explanation = IntegratedGradients(model, divergence="mse", steps=10).explain(data, repair=False)
        expected = literal.integrated_gradients(lambda z, d=data: answer(model, d, z), 0, 2, data.num_edges, 10).abs()
        assert torch.allclose(explanation.scores, expected / expected.max(), rtol=1e-5, atol=1e-6)


def test_where_gradients_are_switched_off() -> None:
    data, method = GRAPHS[0], IntegratedGradients(Small(), steps=5)
    plain = method.explain(data, repair=False)
    with torch.no_grad():
        assert torch.equal(method.explain(data, repair=False).scores, plain.scores)
