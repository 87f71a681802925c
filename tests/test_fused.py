"""The gates' inner loop in C: the same numbers as PyTorch's, in single precision, for every shape it takes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmask.errors import GraphMaskError
from graphmask.ops import fused, kernels
from graphmask.ops.kernels import Rows, Top
from test_gates import Largest

pytestmark = pytest.mark.skipif(fused._fused is None, reason="installed without a compiler: PyTorch does it all")


def centred(weight: Tensor) -> Tensor:
    """[h, d] without its mean over h, as `head` wants it."""
    return weight - weight.mean(0)


def parts(edges: int, width: int, seed: int = 0, dtype: torch.dtype = torch.double) -> tuple[list[Rows], Any, Top]:
    """Two rows of one table, one of them weighted, one of another table, and a column."""
    g = torch.Generator().manual_seed(seed)

    def rand(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.double).to(dtype)

    def table(rows: int) -> Tensor:
        return centred(rand(width, rows)).t().contiguous().requires_grad_()

    pairs, single = table(14), table(5)
    source, target, kind = (torch.randint(n, (edges,), generator=g) for n in (7, 7, 5))
    rows = [Rows(pairs, source, rand(edges), 2, 0), Rows(pairs, target, None, 2, 1), Rows(single, kind)]
    columns = [(rand(edges, 3), centred(rand(width, 3)).requires_grad_())]
    gamma, beta, out = (rand(width) for _ in range(3))
    top = Top(gamma, beta, 2 * out / width**0.5, rand(1)[0])  # one edge in a few is beyond the limit
    return rows, columns, Top(*(value.requires_grad_() for value in top))


def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_fused", None)


@pytest.mark.parametrize("width", [8, 32, 40, 64, 1024])
@pytest.mark.parametrize("edges", [0, 1, 17, 333])
def test_the_same_numbers_as_in_double_precision(width: int, edges: int) -> None:
    rows, columns, top = parts(edges, width, dtype=torch.float)
    assert fused.fits(rows, top)
    exact, exact_columns, exact_top = parts(edges, width)
    assert not fused.fits(exact, exact_top)
    with torch.no_grad():
        found = kernels.head(rows, columns, top)
        expected = kernels.head(exact, exact_columns, exact_top)
        alone = kernels.head(rows[:2], [], Top(None, *top[1:]))
        alone_exact = kernels.head(exact[:2], [], Top(None, *exact_top[1:]))
    assert found.dtype == torch.float
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=2e-4)
    assert torch.allclose(alone.double(), alone_exact, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("trained", [kernels.ALL, slice(2, None, 5)])
def test_the_same_gradients(trained: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients() -> list[Tensor]:
        rows, columns, top = parts(333, 32, dtype=torch.float)
        location = kernels.head(rows, columns, top, trained)
        leaves = [rows[0].table, rows[2].table, columns[0][1], *top]
        upstream = torch.randn(333, generator=torch.Generator().manual_seed(1))
        return [location.detach(), *torch.autograd.grad(location, leaves, upstream)]

    found = gradients()
    in_torch(monkeypatch)
    beyond = int((found[0].abs() == kernels.LIMIT).sum())
    assert 10 < beyond < 200
    for mine, theirs in zip(found, gradients(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4)
        assert float(theirs.abs().max()) > 0.1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 200), st.integers(0, 10_000))
def test_an_edge_is_the_same_in_any_company(edges: int, seed: int) -> None:
    """Bit for bit, so that batching and order change no explanation."""
    rows, _, top = parts(edges + 1, 32, seed, torch.float)
    with torch.no_grad():
        whole = kernels.head(rows, [], top)
        one = kernels.head([part.some(slice(edges, None)) for part in rows], [], top)
    assert torch.equal(whole[edges:], one)


def test_columns_are_projected_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns, top = parts(333, 32, dtype=torch.float)
    columns = [*columns, *parts(333, 32, 5, torch.float)[1]]
    with torch.no_grad():
        whole = kernels.head(rows, columns, top)
        monkeypatch.setattr(fused, "block", lambda: 50)
        assert torch.allclose(kernels.head(rows, columns, top), whole, rtol=1e-5, atol=1e-5)
        with Largest() as largest:
            kernels.head(rows, columns, top)
    assert largest.numel < 333 * 32
    rows[0].table.grad = None
    location = kernels.head(rows, columns, top)
    assert torch.allclose(location, whole, rtol=1e-5, atol=1e-5)
    location.sum().backward()
    assert rows[0].table.grad is not None


def test_threads_divide_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns, top = parts(333, 32, dtype=torch.float)
    with torch.no_grad():
        whole = kernels.head(rows, columns, top)
        monkeypatch.setattr(fused, "PER_THREAD", 50)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
        assert torch.equal(kernels.head(rows, columns, top), whole)


def test_an_index_beyond_the_table_is_an_error() -> None:
    """Of a table of 14 rows in pairs, 7 is one too far; nothing is read from there."""
    rows, _, top = parts(9, 32, dtype=torch.float)
    for wrong in (7, -1, 1 << 40):
        rows[1].index[4] = wrong
        with pytest.raises(GraphMaskError, match=f"index {wrong} at edge 4, where there are 7 rows"), torch.no_grad():
            kernels.head(rows, [], top)


def test_what_does_not_fit_is_left_to_torch() -> None:
    rows, columns, top = parts(17, 12, dtype=torch.float)
    assert not fused.fits(rows, top)
    with torch.no_grad():
        assert kernels.head(rows, columns, top).shape == (17,)
    rows, _, top = parts(17, 32, dtype=torch.float)
    assert not fused.fits(rows * 6, top)
    assert not fused.fits([], top)


@pytest.mark.parametrize("width", [1, 8, 13, 64])
@pytest.mark.parametrize("picked", [False, True])
def test_what_goes_back_from_a_blend(width: int, picked: bool) -> None:
    """A thousand edges, so that sums are made of several parts; against the equation in double precision."""
    g = torch.Generator().manual_seed(width)
    nodes, source = torch.randn(9, width, generator=g), torch.randint(9, (1000,), generator=g)
    gate, baseline = torch.rand(1000, generator=g), torch.randn(width, generator=g)
    upstream = torch.randn(1000, width, generator=g)
    leaves = [value.requires_grad_() for value in (nodes, gate, baseline)]
    rows, messages = slice(3, None, 10), nodes[source]
    blended = kernels.blend(messages, gate, baseline, rows, picked=(nodes, source) if picked else None)
    found = torch.autograd.grad(blended, leaves, upstream)
    exact = [value.detach().double().requires_grad_() for value in leaves]
    z = exact[1][:, None]
    equation = z * exact[0][source] + (1 - z) * exact[2]
    assert torch.allclose(blended.double(), equation, rtol=1e-5, atol=1e-6)
    expected = list(torch.autograd.grad(equation, exact, upstream.double()))
    expected[1] = torch.zeros_like(expected[1]).index_copy(0, torch.arange(1000)[rows], expected[1][rows])
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine.double(), theirs, rtol=1e-4, atol=1e-4)
        assert float(theirs.abs().max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float, torch.double, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 4), (9, 2, 3), (0, 4)])
def test_hard_gates_overwrite_what_is_shut(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    messages = torch.randn(shape, generator=g).to(dtype)
    is_open = torch.rand(shape[0], generator=g) < 0.5
    baseline = torch.randn(torch.Size(shape[1:]).numel(), generator=g).to(dtype)
    expected = torch.where(is_open.view(-1, *[1] * (len(shape) - 1)), messages, baseline.view(shape[1:]))
    assert fused.overwrite(messages, is_open, baseline)
    assert torch.equal(messages, expected)
    assert not fused.overwrite(messages, is_open.float(), baseline)
    assert not fused.overwrite(messages.transpose(0, -1), is_open, baseline)
    assert not fused.overwrite(messages, is_open[1:], baseline) or not len(messages)
    assert not fused.overwrite(messages, is_open, baseline[1:]) or not len(messages)


@pytest.mark.parametrize("width", [1, 8, 13, 64])
def test_a_blend_in_place_keeps_what_goes_back(width: int) -> None:
    """Open and shut gates are exact, and the gates that are trained remember the messages that were overwritten."""
    g = torch.Generator().manual_seed(width)
    messages, baseline = torch.randn(50, width, generator=g), torch.randn(width, generator=g)
    gate = torch.rand(50, generator=g)
    gate[::3], gate[1::3] = 0, 1
    before = messages.clone()
    gate.requires_grad_()
    blended = kernels.blend(messages, gate, baseline, slice(2, None, 4), in_place=True)
    assert blended.data_ptr() == messages.data_ptr()
    assert torch.equal(blended[::3], baseline.expand(17, width))
    assert torch.equal(blended[1::3], before[1::3])
    upstream = torch.randn(50, width, generator=g)
    (found,) = torch.autograd.grad(blended, gate, upstream)
    expected = (upstream.double() * (before - baseline).double()).sum(1)
    assert torch.allclose(found[2::4].double(), expected[2::4], rtol=1e-4, atol=1e-5)
    assert int(found.count_nonzero()) == 12


def test_what_is_not_a_number_stays_so() -> None:
    """Clamping must not make a plausible gate of it."""
    rows, _, top = parts(9, 32, dtype=torch.float)
    with torch.no_grad():
        rows[2].table[3] = torch.nan
        location = kernels.head(rows, [], top)
    assert torch.equal(location.isnan(), rows[2].index == 3)
    assert bool(location.isnan().any())


def test_what_is_kept_is_the_same_in_blocks_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third edge, from the second on, wherever blocks and threads begin."""
    rows, columns, top = parts(333, 32, dtype=torch.float)
    values, weights = [value for value, _ in columns], [weight for _, weight in columns]

    def kept() -> list[Tensor]:
        """Locations of all edges; of those that are kept LayerNorm's result, its divisor, and the raw location."""
        with torch.no_grad():
            location, found = fused.locations(rows, values, weights, top.joined(), slice(1, None, 3))
        assert found is not None
        normal, *rest = found.split([111 * 32, 111, 111])
        return [location, normal.view(111, 32), *rest]

    whole = kept()
    assert float((whole[1].square().mean(1) - 1).abs().max()) < 1e-3  # LayerNorm's results
    assert torch.equal(whole[0][1::3], whole[3].clamp(-kernels.LIMIT, kernels.LIMIT))
    monkeypatch.setattr(fused, "PER_THREAD", 50)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    in_threads = kept()
    monkeypatch.setattr(fused, "block", lambda: 70)
    for mine, also, theirs in zip(in_threads, kept(), whole, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-5)
        assert torch.allclose(also, theirs, rtol=1e-5, atol=1e-5)
