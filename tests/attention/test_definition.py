"""Masked attention against a second implementation, pair by pair in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphmask.graphs.sites import ABSENT
from graphmask.ops.kernels import LIMIT
from graphmask.tapping.attention import Attended, Attention, Inputs, Pairs
from reference.attention import masked_attention

from .test_laws import fitted

BATCH, HEADS, COUNT, WIDTH = 2, 3, 5, 4


def given(seed: int, *, kind: str, groups: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Inputs, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    heads = HEADS * groups

    def draw(n: int) -> Tensor:
        return torch.randn(BATCH, n, COUNT, WIDTH, generator=generator).to(dtype)

    allowed = torch.ones(BATCH, COUNT, COUNT, dtype=torch.bool)
    if kind == "causal":
        allowed = allowed.tril()
    if kind == "padding":
        allowed[0, :, 3:] = False
    mask = None if kind == "none" else allowed[:, None]
    if kind == "padding":
        mask = torch.zeros(BATCH, 1, COUNT, COUNT, dtype=dtype).masked_fill(~allowed[:, None], torch.finfo(dtype).min)
    return Inputs(draw(heads), draw(HEADS), draw(HEADS), mask), allowed


def expected(what: Inputs, allowed: Tensor, gate: Tensor, baseline: Tensor, constant: Tensor) -> Tensor:
    groups = what.query.shape[1] // what.key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (what.key, what.value))
    rows = zip(what.query, key, value, allowed, gate.expand(BATCH, what.query.shape[1], -1, -1), strict=True)
    return torch.stack([masked_attention(*row, baseline, constant) for row in rows])


@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_masked_attention_is_what_the_definition_says(kind: str, groups: int, shared: bool, soft: bool) -> None:
    what, allowed = given(0, kind=kind, groups=groups)
    generator = torch.Generator().manual_seed(1)
    heads = HEADS * groups
    gate = torch.rand(BATCH, 1 if shared else heads, COUNT, COUNT, generator=generator, dtype=torch.float64)
    gate = gate if soft else gate < 0.5
    baseline = torch.randn(heads, WIDTH, generator=generator, dtype=torch.float64)
    constant = torch.randn(heads, generator=generator, dtype=torch.float64)
    found = Attention(what).masked(gate, baseline, constant)
    assert torch.allclose(found, expected(what, allowed, gate, baseline, constant), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
def test_open_gates_change_no_bit(kind: str) -> None:
    attention = Attention(given(0, kind=kind, dtype=torch.float32)[0])
    ones, some = torch.ones(BATCH, HEADS, COUNT, COUNT), torch.randn(HEADS, WIDTH)
    for gate in (ones, ones.bool()):
        assert torch.equal(attention.masked(gate, some, torch.randn(HEADS)), attention.plain())


def test_absent_pairs_leave_the_softmax_to_the_others() -> None:
    what, _ = given(0, kind="none")
    gate = torch.ones(BATCH, HEADS, COUNT, COUNT)
    gate[..., 2] = 0
    absent, zero = torch.full((HEADS,), ABSENT, dtype=torch.float64), torch.zeros(HEADS, WIDTH, dtype=torch.float64)
    mask = torch.ones(BATCH, 1, COUNT, COUNT, dtype=torch.bool)
    mask[..., 2] = False
    without = Attention(Inputs(what.query, what.key, what.value, mask)).plain()
    for kind in (gate, gate.bool()):
        assert torch.allclose(Attention(what).masked(kind, zero, absent), without, rtol=1e-12, atol=1e-12)
    nothing = Attention(what).masked(0 * gate, zero, absent)
    assert torch.equal(nothing, torch.zeros_like(nothing))


def test_gradients_are_those_of_the_definition() -> None:
    what, _ = given(0, kind="causal")
    attention = Attention(what)
    generator = torch.Generator().manual_seed(2)

    def leaf(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    parts = leaf(BATCH, HEADS, COUNT, COUNT), leaf(HEADS, WIDTH), leaf(HEADS)
    assert torch.autograd.gradcheck(attention.masked, parts)


def test_positions_that_nobody_attends_to_are_no_nodes() -> None:
    allowed = torch.ones(2, 3, 3, dtype=torch.bool)
    allowed[0, :, 0] = False  # padded on the left
    pairs = Pairs(allowed, 2)
    assert pairs.sizes.tolist() == [2, 3]
    assert pairs.edge_graph.tolist() == [0] * 8 + [1] * 18
    assert pairs.edge_type.tolist() == [0] * 4 + [1] * 4 + [0] * 9 + [1] * 9
    assert pairs.edge_index[:, :4].tolist() == [[0, 1, 0, 1], [0, 0, 1, 1]]
    assert pairs.edge_index[:, 8:11].tolist() == [[2, 3, 4], [2, 2, 2]]
    gates = torch.arange(26.0)
    assert torch.equal(pairs.gather(pairs.spread(gates)), gates)
    assert pairs.spread(gates)[0, 0].tolist() == [[1, 1, 1], [1, 0, 1], [1, 2, 3]]


def test_gates_take_memory_for_numbers_not_vectors() -> None:
    """[B, H, N, N] at most: a tensor with a vector per pair would be D times as much."""
    from graphmask.experiments.bench.memory import peak_bytes

    count, width, heads = 96, 64, 2
    torch.manual_seed(0)
    parts = [torch.randn(1, heads, count, width) for _ in range(3)]
    attention = Attention(Inputs(*parts))
    gate, baseline, constant = torch.rand(1, heads, count, count) < 0.5, torch.randn(heads, width), torch.randn(heads)
    number = 4 * heads * count**2
    assert peak_bytes(lambda: attention.masked(gate, baseline, constant)) < 6 * number
    explainer = fitted("bert")
    assert explainer.probe is not None
    from graphmask.gates import SiteSpec
    from graphmask.gates.attention import AttentionGate
    from graphmask.tapping.messages import Messages

    pairs = attention.pairs(heads)
    attended = Attended(attention, pairs, attention.weights(attention.logits()))
    messages = Messages(0, 0, pairs.edge_index[0], pairs.edge_index[1], None, attention.value, 0, attended=attended)
    with torch.no_grad():
        gates = AttentionGate(SiteSpec.of([messages]), 32, torch.Generator().manual_seed(0))
        assert peak_bytes(lambda: gates(messages)) < 8 * number


@pytest.mark.parametrize("heads", [3, 1])
def test_locations_are_what_the_formula_says(heads: int) -> None:
    from graphmask.gates import SiteSpec
    from graphmask.gates.attention import FAINT, AttentionGate
    from graphmask.tapping.messages import Messages

    torch.manual_seed(0)
    what, allowed = given(3, kind="padding", dtype=torch.float32)
    attention = Attention(what)
    pairs = attention.pairs(heads)
    attended = Attended(attention, pairs, attention.weights(attention.logits()))
    messages = Messages(0, 0, pairs.edge_index[0], pairs.edge_index[1], None, attention.value, 0, attended=attended)
    gate = AttentionGate(SiteSpec.of([messages]), 6, torch.Generator().manual_seed(0))
    gate.requires_grad_(False).standardise([messages])
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
        found = iter(gate(messages).tolist())
    rows = {
        "source": [torch.cat([what.key[b, :, n].flatten(), what.value[b, :, n].flatten()]) for b, n in _nodes(allowed)],
        "target": [what.query[b, :, n].flatten() for b, n in _nodes(allowed)],
    }
    states: dict[str, dict[tuple[int, int], Tensor]] = {}
    for key, vectors in rows.items():
        table = torch.stack(vectors).double()
        spread = table.std(0, unbiased=False)
        scale = (2 / (spread**2 + (spread**2).mean())).sqrt()
        table = (table - table.mean(0)) * scale
        hidden = table @ gate.weights[key].double().t() + gate.biases[key].double()
        norm = gate.norms[key]
        hidden = (hidden - hidden.mean(1, keepdim=True)) / (hidden.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        hidden = (hidden * norm.weight.double() + norm.bias.double()).clamp_min(0)
        states[key] = dict(zip(_nodes(allowed), hidden, strict=True))
    logs = attended.weights.double().log().clamp_min(FAINT)
    seen = torch.stack(
        [logs[b, :, i, j] for b, i in _nodes(allowed) for _, j in _nodes(allowed) if allowed[b, i, j] and _ == b]
    )
    spread = seen.std(0, unbiased=False)
    scale, mean = (2 / (spread**2 + (spread**2).mean())).sqrt(), seen.mean(0)
    for b in range(BATCH):
        for r in range(heads):
            for i in (n for own, n in _nodes(allowed) if own == b):
                for j in (n for own, n in _nodes(allowed) if own == b):
                    x, y = states["target"][b, i], states["source"][b, j]
                    location = x @ gate.bilinear[r].double() @ y + gate.out_bias[r].double()
                    location += gate.alone["target"][r].double() @ x + gate.alone["source"][r].double() @ y
                    of = [r] if heads > 1 else range(HEADS)
                    for at, h in enumerate(of):
                        location += gate.attention[r, at].double() * (logs[b, h, i, j] - mean[h]) * scale[h]
                    assert abs(next(found) - min(max(float(location), -LIMIT), LIMIT)) < 1e-3
    assert next(found, None) is None


def _nodes(allowed: Tensor) -> list[tuple[int, int]]:
    return [(b, n) for b in range(BATCH) for n in range(COUNT) if bool(allowed[b, :, n].any())]
