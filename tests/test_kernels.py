"""The definitions in plain PyTorch, which stand in for C on every other device and in every other precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphmask.experiments.bench.memory import peak_bytes
from graphmask.ops import fused, kernels

EDGES, WIDTH, NODES = 50, 6, 9
SOME = slice(2, None, 4)


@pytest.fixture(params=[torch.double, torch.float])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    monkeypatch.setattr(fused, "_fused", None)
    return request.param


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Nodes, the sender of each edge, gates of which a third is 0 and a third is 1, a baseline, and a gradient."""
    g = torch.Generator().manual_seed(0)
    nodes, source = torch.randn(NODES, WIDTH, generator=g), torch.randint(NODES, (EDGES,), generator=g)
    gate, baseline = torch.rand(EDGES, generator=g), torch.randn(WIDTH, generator=g)
    gate[::3], gate[1::3] = 0, 1
    upstream = torch.randn(EDGES, WIDTH, generator=g)
    leaves = [value.to(dtype).requires_grad_() for value in (nodes, gate, baseline)]
    return leaves[0], source, leaves[1], leaves[2], upstream.to(dtype)


@pytest.mark.parametrize("rows", [kernels.ALL, SOME])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("picked", [False, True])
def test_a_blend_is_the_equation(dtype: torch.dtype, rows: slice, in_place: bool, picked: bool) -> None:
    """Values and gradients, those of the gates from some rows alone; exact where a gate is 0 or 1."""
    nodes, source, gate, baseline, upstream = inputs(dtype)
    messages = nodes.index_select(0, source)
    before = messages.detach().clone()
    in_place = in_place and rows != kernels.ALL
    found = kernels.blend(messages, gate, baseline, rows, in_place=in_place, picked=(nodes, source) if picked else None)
    assert (found.data_ptr() == messages.data_ptr()) == in_place
    assert torch.equal(found[::3], baseline.detach().expand(17, WIDTH))
    assert torch.equal(found[1::3], before[1::3])
    exact = [value.detach().double().requires_grad_() for value in (nodes, gate, baseline)]
    z = exact[1][:, None]
    equation = z * exact[0][source] + (1 - z) * exact[2]
    assert torch.allclose(found.double(), equation, rtol=1e-6, atol=1e-6)
    expected = list(torch.autograd.grad(equation, exact, upstream.double()))
    trained = torch.zeros(EDGES, dtype=torch.bool)
    trained[rows] = True
    expected[1] = expected[1].masked_fill(~trained, 0)
    for mine, theirs in zip(torch.autograd.grad(found, [nodes, gate, baseline], upstream), expected, strict=True):
        assert torch.allclose(mine.double(), theirs, rtol=1e-5, atol=1e-5)
        assert float(theirs.abs().max()) > 0.1


def test_gates_that_learn_nothing_leave_the_baseline_its_gradient(dtype: torch.dtype) -> None:
    nodes, source, gate, baseline, upstream = inputs(dtype)
    found = kernels.blend(nodes.detach()[source], gate.detach(), baseline, SOME)
    (grad,) = torch.autograd.grad(found, baseline, upstream)
    assert torch.allclose(grad, ((1 - gate.detach())[:, None] * upstream).sum(0), rtol=1e-5, atol=1e-5)


def test_a_blend_keeps_the_messages_of_some_rows_alone(dtype: torch.dtype) -> None:
    """Forwards and backwards, nothing as large as two sets of messages is alive beside the gradient that comes in."""
    g = torch.Generator().manual_seed(0)
    edges, width = 4000, 64
    gate, baseline = torch.rand(edges, generator=g).to(dtype), torch.randn(width, generator=g).to(dtype)
    gate.requires_grad_(), baseline.requires_grad_()
    messages = torch.randn(edges, width, generator=g).to(dtype)
    upstream = torch.ones_like(messages)

    def step() -> None:
        kernels.blend(messages, gate, baseline, slice(3, None, 20), in_place=True).backward(upstream)

    assert peak_bytes(step) < 1.5 * messages.nbytes
    assert gate.grad is not None
    assert int(gate.grad.count_nonzero()) == 200
