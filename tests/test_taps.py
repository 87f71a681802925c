"""Replacing messages: z m + (1 - z) b, edge by edge, and its matrix form."""

import pytest
import torch
from torch import Tensor

from graphmask import AdjacencyTap, GraphMaskError, MessageTap
from graphmask.tapping.messages import Messages, replace
from graphmask.tapping.taps import MatrixCall
from reference import masking as literal

SHAPES = {"E": ((9,), 0), "EC": ((9, 3), 0), "EHC": ((9, 2, 3), 0), "SEC": ((2, 9, 3), 1), "SEC-": ((4, 9, 2), 1)}


def messages_of(shape: str, dtype: torch.dtype = torch.double) -> Messages:
    size, edge_dim = SHAPES[shape]
    value = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    edge = torch.zeros(9, dtype=torch.long)
    return Messages(0, 0, edge, edge, None, value, edge_dim)


def literally(messages: Messages, gate: Tensor, baseline: Tensor) -> list[list[float]]:
    """[E][D] with heads and stacks one after the other; the baseline per component, or per edge and component."""
    result = []
    for edge in range(9):
        message = messages.value.select(messages.edge_dim, edge).flatten().tolist()
        row = baseline[edge] if baseline.dim() == 2 else baseline
        pairs = zip(message, row.tolist(), strict=True)
        result.append([literal.replaced(m, float(gate[edge]), b) for m, b in pairs])
    return result


def rows(messages: Messages, value: Tensor) -> list[list[float]]:
    return [value.select(messages.edge_dim, edge).flatten().tolist() for edge in range(9)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("per_edge", [False, True])
def test_replace_is_equation_3(shape: str, per_edge: bool) -> None:
    messages = messages_of(shape)
    width = messages.flat().shape[1]
    g = torch.Generator().manual_seed(1)
    baseline = torch.randn((9, width) if per_edge else (width,), generator=g, dtype=torch.double)
    gate = torch.rand(9, generator=g, dtype=torch.double)
    gate[:3] = torch.tensor([0.0, 1.0, 0.5])
    found = rows(messages, replace(messages, gate, baseline))
    for row, expected in zip(found, literally(messages, gate, baseline), strict=True):
        assert row == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_shut_and_open_gates_are_exact(shape: str, dtype: torch.dtype) -> None:
    """Not to rounding: bit for bit. Sizes far apart make a sum of products fail."""
    messages = messages_of(shape, torch.float32)
    messages.value = messages.value * 1e-4
    baseline = torch.full((messages.flat().shape[1],), 12345.678)
    gate = torch.arange(9) % 2 == 0
    found = rows(messages, replace(messages, gate.to(dtype), baseline))
    for edge in range(9):
        expected = messages.value.select(messages.edge_dim, edge).flatten() if gate[edge] else baseline
        assert found[edge] == expected.tolist()


def test_flat_and_baseline_are_inverse() -> None:
    for shape in SHAPES:
        messages = messages_of(shape)
        assert torch.equal(messages.baseline(messages.flat()), messages.value)


@pytest.mark.parametrize("shape", SHAPES)
def test_replace_gradients(shape: str) -> None:
    """d/dz = m - b, d/dm = z, d/db = sum of (1 - z)."""
    messages = messages_of(shape)
    messages.value.requires_grad_()
    g = torch.Generator().manual_seed(2)
    width = messages.flat().shape[1]
    gate = torch.linspace(0, 1, 9, dtype=torch.double, requires_grad=True)
    baseline = torch.randn(width, generator=g, dtype=torch.double, requires_grad=True)
    upstream = torch.randn(9, width, generator=g, dtype=torch.double)
    replaced = replace(messages, gate, baseline)
    d_gate, d_baseline, d_message = torch.autograd.grad(
        replaced, (gate, baseline, messages.value), messages.baseline(upstream)
    )
    with torch.no_grad():
        assert torch.allclose(d_gate, ((messages.flat() - baseline) * upstream).sum(1))
        assert torch.allclose(d_baseline, (1 - gate) @ upstream)
        assert torch.allclose(d_message, messages.baseline(gate[:, None] * upstream))


def test_message_tap_is_the_identity() -> None:
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    messages = torch.randn(3, 4)
    assert MessageTap()(messages, edge_index, nodes=torch.randn(3, 2), edge_type=torch.zeros(3)) is messages
    assert len(list(MessageTap().parameters())) == len(MessageTap().state_dict()) == 0


@pytest.mark.parametrize(
    ("messages", "edge_index"),
    [
        (torch.zeros(3, 4), torch.zeros(2, 5, dtype=torch.long)),
        (torch.zeros(3, 4), torch.zeros(3, 2, dtype=torch.long)),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)),
    ],
)
def test_message_tap_refuses_other_shapes(messages: Tensor, edge_index: Tensor) -> None:
    with pytest.raises(GraphMaskError, match=r"Expected messages \[E, ...\] and edge_index \[2, E\], got"):
        MessageTap()(messages, edge_index)


# Adjacency -----------------------------------------------------------------------------------------------------


def system(leading: int, *, shared: bool, sparse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """adjacency, messages, nodes with 2 (N N), 3 (R N N) or 4 (B R N N) dimensions."""
    g = torch.Generator().manual_seed(leading)
    batch, relations, count, size = 2, 3, 5, 4
    adjacency = torch.randn(batch, relations, count, count, generator=g, dtype=torch.double)
    adjacency = adjacency * (torch.rand(adjacency.shape, generator=g) < 0.5)
    messages = torch.randn(batch, relations, count, size, generator=g, dtype=torch.double)
    nodes = torch.randn(batch, count, 3, generator=g, dtype=torch.double)
    if leading <= 3:
        adjacency, messages, nodes = adjacency[0], messages[0], nodes[0]
    if leading == 2:
        adjacency, messages = adjacency[0], messages[0]
    if shared and leading >= 3:
        messages = messages.select(leading - 3, 0)
    return adjacency.to_sparse() if sparse else adjacency, messages, nodes


def four(value: Tensor, messages: bool = False, relations: int = 1) -> Tensor:
    """[B, R, N, *] of anything the tap was given."""
    while value.dim() < 4 - messages:
        value = value.unsqueeze(0)
    return value.unsqueeze(1).expand(-1, relations, -1, -1) if messages and value.dim() == 3 else value


CASES = [(leading, shared) for leading in (2, 3, 4) for shared in (False, True) if not (leading == 2 and shared)]


@pytest.mark.parametrize(("leading", "shared"), CASES)
@pytest.mark.parametrize("sparse", [False, True])
def test_adjacency_tap_without_gates_is_the_product(leading: int, shared: bool, sparse: bool) -> None:
    adjacency, messages, nodes = system(leading, shared=shared, sparse=sparse)
    dense = adjacency.to_dense() if sparse else adjacency
    expected = dense @ (messages.unsqueeze(leading - 3) if shared else messages)
    assert torch.allclose(AdjacencyTap()(adjacency, messages, nodes), expected, atol=1e-12)
    tapped = AdjacencyTap()
    tapped.handler = lambda call: None
    out = tapped(adjacency, messages, nodes)
    assert torch.equal(out, AdjacencyTap()(adjacency, messages, nodes))


@pytest.mark.parametrize(("leading", "shared"), CASES)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_masked_adjacency_is_the_papers_with_equal_shares(leading: int, shared: bool, sparse: bool, hard: bool) -> None:
    adjacency, messages, nodes = system(leading, shared=shared, sparse=sparse)
    dense = adjacency.to_dense() if sparse else adjacency
    g = torch.Generator().manual_seed(5)
    z = torch.rand(dense.shape, generator=g, dtype=torch.double)
    z = (z < 0.5).double() if hard else z
    baseline = torch.randn(4, generator=g, dtype=torch.double)

    def handler(call: MatrixCall) -> tuple[Tensor, Tensor]:
        assert call.adjacency.shape == four(dense).shape
        gate = four(z)[tuple(call.entries)]
        return (gate.bool() if hard else gate), baseline

    tap = AdjacencyTap()
    tap.handler = handler
    found = tap(adjacency, messages, nodes)
    assert found.shape[:-1] == dense.shape[:-1]
    found = four(found)
    a, gates = four(dense), four(z)
    m = messages if messages.dim() == 4 else four(messages, messages=shared or leading == 2, relations=a.shape[1])
    m = m if m.dim() == 4 else m.unsqueeze(0)
    for b in range(a.shape[0]):
        for r in range(a.shape[1]):
            expected = literal.masked_aggregation(
                gates[b, r].tolist(),
                a[b, r].tolist(),
                m[b, r].tolist(),
                baseline.tolist(),
                [sum(bool(weight) for relation in a[b] for weight in relation[i]) for i in range(a.shape[2])],
            )
            for row, wanted in zip(found[b, r].tolist(), expected, strict=True):
                assert row == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
def test_all_gates_open_is_the_original(sparse: bool) -> None:
    adjacency, messages, nodes = system(4, shared=False, sparse=sparse)
    tap = AdjacencyTap()
    tap.handler = lambda call: (torch.ones(call.entries.shape[1], dtype=torch.bool), torch.full((4,), 1e6))
    assert torch.equal(tap(adjacency, messages, nodes), AdjacencyTap()(adjacency, messages, nodes))


def test_edges_of_a_matrix_lie_side_by_side() -> None:
    adjacency = torch.zeros(2, 1, 3, 3)
    adjacency[0, 0, 2, 1] = 5.0  # node 1 sends to node 2
    adjacency[1, 0, 0, 2] = 7.0
    seen: list[MatrixCall] = []
    tap = AdjacencyTap()
    tap.handler = lambda call: seen.append(call)
    tap(adjacency, torch.zeros(2, 3, 4), torch.zeros(2, 3, 2))
    assert seen[0].edge_index().tolist() == [[1, 5], [2, 3]]
    assert seen[0].weights.tolist() == [5.0, 7.0]


@pytest.mark.parametrize(
    ("adjacency", "messages", "nodes"),
    [
        (torch.zeros(3), torch.zeros(3, 2), torch.zeros(3, 2)),
        (torch.zeros(3, 4), torch.zeros(4, 2), torch.zeros(4, 2)),
        (torch.zeros(1, 1, 1, 3, 3), torch.zeros(3, 2), torch.zeros(3, 2)),
        (torch.zeros(2, 1, 3, 3), torch.zeros(2, 4, 2), torch.zeros(2, 3, 2)),
        (torch.zeros(2, 2, 3, 3), torch.zeros(2, 3, 3, 2), torch.zeros(2, 3, 2)),
        (torch.zeros(2, 2, 3, 3), torch.zeros(3, 2, 3, 2), torch.zeros(2, 3, 2)),
        (torch.zeros(2, 2, 3, 3), torch.zeros(2, 3, 2), torch.zeros(3, 2)),
        (torch.zeros(2, 2, 3, 3), torch.zeros(2, 3, 2), torch.zeros(2, 4, 2)),
        (torch.zeros(3, 3), torch.zeros(3, 2), torch.zeros(1, 3, 2)),
    ],
)
def test_adjacency_tap_refuses_other_shapes(adjacency: Tensor, messages: Tensor, nodes: Tensor) -> None:
    with pytest.raises(GraphMaskError, match=r"Expected .*\[.*\].*, got \(\d"):
        AdjacencyTap()(adjacency, messages, nodes)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_adjacency_tap_refuses_other_layouts() -> None:
    with pytest.raises(GraphMaskError, match=r"sparse COO adjacency, got torch.sparse_csr. Convert it"):
        AdjacencyTap()(torch.eye(3).to_sparse_csr(), torch.zeros(3, 2), torch.zeros(3, 2))
