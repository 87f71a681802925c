"""The scale of the noise: as large as wide open gates do not notice, whatever the units of the output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv, global_add_pool

from graphmask import GraphMask
from graphmask.fitting import starting
from graphmask.gates import hard_concrete
from graphmask.ops.kernels import LIMIT


class Summed(nn.Module):
    """One number per graph, times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.conv = GraphConv(2, 1, bias=False)
        with torch.no_grad():
            self.conv.lin_rel.weight.copy_(torch.tensor([[2.0, 3.0]]) * factor)
            self.conv.lin_root.weight.zero_()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(self.conv(x, edge_index), batch)


def graphs() -> list[Batch]:
    rng = torch.Generator().manual_seed(0)
    some = [
        Data(x=1 + torch.rand(6, 2, generator=rng), edge_index=torch.randint(6, (2, 12), generator=rng))
        for _ in range(40)
    ]
    return [Batch.from_data_list(some[:20]), Batch.from_data_list(some[20:])]


@pytest.mark.parametrize(("factor", "tolerance"), [(1.0, 0.03), (10.0, 3.0), (100.0, 0.03), (1e4, 0.03)])
def test_the_largest_scale_that_costs_a_hundredth_of_the_tolerance(factor: float, tolerance: float) -> None:
    """Against a run with every gate wide open, noise by noise, written out by hand."""
    model, loader = Summed(factor).eval(), graphs()
    explainer = GraphMask(model, divergence="mse", tolerance=tolerance)
    with explainer.subject.frozen():
        training = explainer.begin(loader, None, len(loader))
        probe, rng = training.probe, torch.Generator().manual_seed(0)
        originals = [probe.original(explainer.subject, batch) for batch in loader]
        uniform = [torch.rand(original.values.shape, generator=rng) for original in originals]
        costs = {}
        for scale in starting.SCALES:
            rows = []
            for batch, original, u in zip(loader, originals, uniform, strict=True):
                gates = (LIMIT / hard_concrete.WIDTH + scale * u.logit(1e-6)).sigmoid()
                masked = probe.masked(training.subject, batch, original.edge_map, gates)
                rows.append(((original.output - masked) ** 2).mean(-1))
            costs[scale] = float(torch.cat(rows).mean())
    quiet = [scale for scale in starting.SCALES if costs[scale] <= starting.UNNOTICED * tolerance]
    assert training.first_noise == max(quiet, default=starting.SCALES[-1])
    assert (training.first_noise == 1.0) == (factor < 100)
    assert training.noise == training.first_noise


class Half(Summed):
    """Senders whose first number is small are not heard."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x * (x[:, :1] > 1.5), edge_index, batch)


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_how_large_outputs_are_beside_the_tolerance_does_not_decide_what_is_kept(factor: float) -> None:
    """At first the divergence is up to a hundred thousand times the tolerance."""
    loader = graphs()
    explainer = GraphMask(Half(factor).eval(), divergence="mse", tolerance=0.03)
    assert explainer.fit(loader, progress=False).feasible
    kept = torch.cat([one.kept[0] for one in explainer.explain_all(loader, repair=False)])
    assert torch.equal(kept, torch.cat([batch.x[batch.edge_index[0], 0] > 1.5 for batch in loader]))
