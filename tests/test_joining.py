"""A layer that sends relation after relation asks its gate network once: what comes out is what each call gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import FiLMConv, RGCNConv

from graphmask import GraphMask
from graphmask.fitting.recipe import Recipe
from graphmask.gates import joining
from graphmask.gates.joining import Joined, Joining
from graphmask.gates.passes import Passes
from graphmask.ops.kernels import ALL
from graphmask.tapping.restore import freeze

RELATIONS = 3


class Relational(nn.Module):
    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = make(4, 6), make(6, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)


def graph(seed: int) -> Data:
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randint(RELATIONS, (50,), generator=g)
    x = torch.randn(12, 4, generator=g, dtype=torch.double)
    return Data(x=x, edge_index=torch.randint(12, (2, 50), generator=g), edge_type=kinds)


def step(passes: Passes, data: Data) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The masked output, the gates per site, and the gradients of gate networks and baselines."""
    _, masked, gates = passes.both(data, lambda location, _: torch.sigmoid(location), train_gates=True)
    parameters = [*passes.probe.gates.parameters(), *passes.probe.learned]
    for parameter in parameters:
        parameter.requires_grad_(True)
        parameter.grad = None
    loss = (masked**2).sum() + sum(gate.mean(gate.value) for gate in gates)
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return masked.detach(), [gate.value.detach() for gate in gates], grads


LAYERS = {
    "RGCNConv": lambda a, b: RGCNConv(a, b, RELATIONS),
    "RGCNConv, summed": lambda a, b: RGCNConv(a, b, RELATIONS, aggr="sum"),
    "FiLMConv": lambda a, b: FiLMConv(a, b, RELATIONS),
}


def probed(make: Callable[[int, int], nn.Module]) -> Passes:
    model = Relational(make).double()
    explainer = GraphMask(model, seed=0, recipe=Recipe(steps=1, drawn=True, initial_location=None))
    explainer.fit([graph(0)], progress=False)
    freeze(model, training=True)
    explainer.probe.double()
    return Passes(explainer.probe, explainer.subject)


@pytest.mark.parametrize("layer", LAYERS)
def test_joined_calls_are_gated_as_single_ones(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, seen = probed(LAYERS[layer]), []

    def watched(calls: list[Any]) -> list[Any]:
        found = joined(calls)
        seen.append(len(found))
        return found

    joined = joining.joined
    monkeypatch.setattr(joining, "joined", watched)
    data = graph(1)
    # The third time, messages come from the original run that is kept.
    together = [step(passes, data) for _ in range(3)]
    monkeypatch.setattr(joining, "joined", lambda calls: calls)
    passes.forget()
    apart = [step(passes, data) for _ in range(3)]
    for one, other in zip(together, apart, strict=True):
        assert torch.allclose(one[0], other[0], atol=1e-12)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(one[1], other[1], strict=True))
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(one[2], other[2], strict=True))
    assert max(float(grad.abs().max()) for grad in together[0][2]) > 1e-3
    if layer.startswith("RGCNConv"):
        assert set(seen) == {1}  # they were joined: otherwise there is nothing to compare


def test_calls_of_sites_in_turns_are_joined_site_by_site() -> None:
    passes, calls, found = probed(LAYERS["RGCNConv"]), [], []
    with torch.no_grad(), passes.subject.tap(calls.append, passes.subject.edge_map(graph(1))):
        passes.subject(graph(1))
    visit = Joining(passes.probe.specs, found.append)
    for call in sorted(calls, key=lambda call: (call.piece, call.site)):
        visit(call)
    assert [one.site for one in found] == [0, 1]
    for one in found:
        assert isinstance(one, Joined)
        parts = [call for call in calls if call.site == one.site]
        assert one.edges.tolist() == [edge for call in parts for edge in call.edges.tolist()]
        assert one.number.tolist() == [call.piece for call in parts for _ in call.source]


def test_parts_have_the_rows_of_the_whole() -> None:
    passes, found = probed(LAYERS["RGCNConv"]), []
    joined = Joining(passes.probe.specs, found.append)
    with torch.no_grad(), passes.subject.tap(joined, passes.subject.edge_map(graph(1))):
        passes.subject(graph(1))
    whole = found[0]
    per_edge = torch.arange(len(whole.source))
    for rows in (ALL, *(slice(start, None, 7) for start in range(7))):
        parts = [part[some] for _, part, some in whole.divided(per_edge, rows)]
        assert torch.cat(parts).tolist() == per_edge[rows].tolist()
