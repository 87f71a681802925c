"""Non-amortised GraphMask against a loop over one graph at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch

from graphmask.explaining.case import Case
from graphmask.methods.unamortised import Unamortised
from reference import methods as literal
from reference.small import WIDTH, Small, answer, constant, graph

from .common import case_of, gates

GRAPHS = [graph(seed, nodes=4, edges=5 + seed % 3) for seed in range(5)]


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("steps", [0, 60])
def test_every_graph_as_if_alone(free: bool, steps: int) -> None:
    model, tolerance = Small(), 0.02
    method = Unamortised(model, tolerance=tolerance, steps=steps, learning_rate=0.2, free_baselines=free)
    batch = Batch.from_data_list(GRAPHS)
    start = 2 + 0.1 * case_of(model, batch).normal(method.seed)
    first, kept = 0, 0
    for data, found in zip(GRAPHS, method.explain_all([batch], repair=False), strict=True):
        mine = start[:, first : first + data.num_edges]
        first += data.num_edges
        original = answer(model, data, constant(data, 1.0))

        def kl(output: Tensor, original: Tensor = original) -> Tensor:
            return F.kl_div(output.log_softmax(0), original.softmax(0), reduction="sum")

        zeros = [torch.zeros(WIDTH, dtype=torch.double, requires_grad=free) for _ in range(2)]
        expected, scores, baselines = literal.unamortised(
            lambda z, b, d=data: answer(model, d, z, b), kl, mine, zeros, tolerance, steps, 0.2
        )
        assert torch.equal(found.kept, gates(expected, found.kept))
        assert torch.allclose(found.scores, scores, atol=1e-6)
        for a, b in zip(found.baselines, baselines, strict=True):
            assert torch.allclose(a, b, atol=1e-6)
        assert found.divergence == pytest.approx(float(kl(answer(model, data, found.kept.double(), baselines))))
        assert found.faithful
        kept += len(expected)
    assert 0 < kept < start.numel()


def test_with_a_baseline_of_its_own_a_graph_needs_less() -> None:
    model = Small()
    kept = [
        sum(int(e.kept.sum()) for e in method.explain_all([Batch.from_data_list(GRAPHS)], repair=False))
        for method in (Unamortised(model, steps=100), Unamortised(model, steps=100, free_baselines=True))
    ]
    assert kept[1] < kept[0]


def test_gates_are_exactly_hard_while_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where (1 + s) - s need not be 1."""
    model = Small().float()
    data = GRAPHS[0].clone()
    data.x = data.x.float()
    seen: set[float] = set()
    run = Case.run

    def spy(self: Case, gates: Tensor, *rest: list[Tensor]) -> Tensor:
        seen.update(gates.detach().float().flatten().tolist())
        return run(self, gates, *rest)

    monkeypatch.setattr(Case, "run", spy)
    Unamortised(model, steps=40).explain(data, repair=False)
    assert seen == {0.0, 1.0}
