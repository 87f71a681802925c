"""`masked` and the equation it rests on: z m + (1 - z) b."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import graphmask
from graphmask import GraphMask, GraphMaskError
from graphmask.fitting.training import Recipe
from graphmask.tapping.masking import by_user_edges
from graphmask.tapping.messages import Messages, replace


def messages(value: Tensor, edge_dim: int = 0, edges: list[int] | None = None) -> Messages:
    count = torch.zeros(value.shape[edge_dim], dtype=torch.long)
    return Messages(0, 0, count, count, None if edges is None else torch.tensor(edges), value, edge_dim)


@pytest.mark.parametrize(("shape", "edge_dim"), [((5,), 0), ((5, 4), 0), ((5, 2, 3), 0), ((2, 5, 3), 1)])
def test_blending(shape: tuple[int, ...], edge_dim: int) -> None:
    """Against the equation, edge by edge, in double precision."""
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(shape, generator=generator, dtype=torch.double)
    m = messages(value, edge_dim)
    size = value.numel() // 5
    baseline = torch.randn(size, generator=generator, dtype=torch.double)
    gate = torch.tensor([0.0, 1.0, 0.3, 0.5, 0.9], dtype=torch.double)
    rows = value.movedim(edge_dim, 0).reshape(5, size)
    expected = gate[:, None] * rows + (1 - gate)[:, None] * baseline
    blended = replace(m, gate, baseline).movedim(edge_dim, 0).reshape(5, size)
    assert torch.allclose(blended, expected, atol=1e-15)
    assert torch.equal(blended[0], baseline)
    assert torch.equal(blended[1], rows[1])
    hard = replace(m, gate > 0.4, baseline).movedim(edge_dim, 0).reshape(5, size)
    assert torch.equal(hard, torch.where((gate > 0.4)[:, None], rows, baseline))
    own = torch.randn(5, size, generator=generator, dtype=torch.double)  # a baseline per edge
    blended = replace(m, gate, own).movedim(edge_dim, 0).reshape(5, size)
    assert torch.allclose(blended, gate[:, None] * rows + (1 - gate)[:, None] * own, atol=1e-15)


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 2)])
def test_gradients_of_blending(shape: tuple[int, ...]) -> None:
    value = torch.randn(shape, dtype=torch.double, requires_grad=True)
    gate = torch.tensor([0.0, 1.0, 0.3, 0.5], dtype=torch.double, requires_grad=True)
    baseline = torch.randn(value[0].numel(), dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, z, b: replace(messages(v), z, b), (value, gate, baseline))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_models_precision_is_kept(dtype: torch.dtype) -> None:
    value = torch.randn(3, 2, dtype=dtype)
    for gate in (torch.ones(3), torch.ones(3, dtype=torch.bool)):
        out = replace(messages(value), gate, torch.zeros(2))
        assert out.dtype == dtype
        assert torch.equal(out, value)


def test_gates_in_terms_of_the_users_edges() -> None:
    gates = torch.tensor([[False, True, False]])
    m = messages(torch.randn(5, 2), edges=[2, -1, 1, 0, -1])
    baseline = torch.zeros(2)
    gate, found = by_user_edges(gates, [baseline]).at(m)  # type: ignore[misc]
    assert gate.tolist() == [False, True, True, False, True]
    assert found is baseline
    gate, _ = by_user_edges(gates.float(), [baseline]).at(m)  # type: ignore[misc]
    assert gate.tolist() == [0, 1, 1, 0, 1]
    only_own = messages(torch.randn(2, 2), edges=[-1, -1])
    gate, _ = by_user_edges(torch.zeros(1, 0, dtype=torch.bool), [baseline]).at(only_own)  # type: ignore[misc]
    assert gate.tolist() == [True, True]


def fitted() -> tuple[nn.Module, Data, GraphMask]:
    torch.manual_seed(0)
    model = pyg.GCN(4, 8, 2, 3)
    data = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    explainer = GraphMask(model, recipe=Recipe(steps=4))
    explainer.fit([data], progress=False)
    return model, data, explainer


def test_the_users_own_hypothesis() -> None:
    """An explanation may be edited and tried: here, by hand, the last edge of the last layer is dropped."""
    model, data, explainer = fitted()
    model.eval()
    explanation = explainer.explain(data, allow_infeasible=True)
    explanation.kept[:] = True
    with torch.no_grad():
        plain = model(data.x, data.edge_index)
        with graphmask.masked(model, explanation):
            assert torch.equal(model(data.x, data.edge_index), plain)
        explanation.kept[1, 3] = False
        with graphmask.masked(model, explanation):
            changed = model(data.x, data.edge_index)
    assert torch.equal(changed[:4], plain[:4])
    assert float((changed[4] - plain[4]).abs().max()) > 1e-3


def test_another_model() -> None:
    _, data, explainer = fitted()
    explanation = explainer.explain(data, allow_infeasible=True)
    other = pyg.Sequential("x, edge_index", [(pyg.SAGEConv(4, 4), "x, edge_index -> x")])
    with pytest.raises(GraphMaskError, match=r"module 'convs\.0'"), graphmask.masked(other, explanation):
        pass
    with pytest.raises(GraphMaskError, match="message passing"), graphmask.masked(nn.Linear(2, 2), explanation):
        pass


def test_another_graph() -> None:
    """An explanation is about one graph; on another the masked model refuses rather than guesses."""
    model, data, explainer = fitted()
    explanation = explainer.explain(data, allow_infeasible=True)
    with graphmask.masked(model, explanation), pytest.raises(GraphMaskError, match="the graph that was passed in"):
        model(data.x, torch.tensor([[0, 4], [2, 1]]))
