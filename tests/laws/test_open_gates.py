"""Law 1: all gates open = the original output; and with gates shut, exactly the messages are replaced."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .cases import CASES, Case
from .slow import SlowCall, run_replaced
from .support import discover, drawn, run, run_masked

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    return float((a - b).abs().max()) <= tolerance * max(float(b.abs().max()), 1.0)


@every_case
def test_sites_are_those_of_the_table(case: Case) -> None:
    state, seen = discover(case.model(), case.loader()[0])
    assert tuple(site.name for site in state.sites) == case.sites
    assert {len(site.calls) for site in state.sites} == {case.pieces}
    assert tuple(site.name for site in state.sites if site.reverse) == case.reverse
    own = any(m.edges is not None and bool((m.edges < 0).any()) for m in seen)
    assert own == case.added_loops


@every_case
def test_every_user_edge_is_carried_once_at_every_site(case: Case) -> None:
    state, seen = discover(case.model(), case.loader()[0])
    edge_index = state.edge_map.edge_index
    assert edge_index is not None
    carried = torch.zeros(len(state.sites), edge_index.shape[1], dtype=torch.long)
    for messages in seen:
        positions = torch.arange(edge_index.shape[1]) if messages.edges is None else messages.edges
        mine = positions >= 0
        carried[messages.site, positions[mine]] += 1
        source, target = edge_index.flip(0) if state.sites[messages.site].reverse else edge_index
        assert torch.equal(source[positions[mine]], messages.source[mine])
        assert torch.equal(target[positions[mine]], messages.target[mine])
        assert torch.equal(messages.source[~mine], messages.target[~mine])
    assert torch.equal(carried, torch.ones_like(carried))


@every_case
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=["hard", "soft"])
def test_open_gates_give_the_original(case: Case, dtype: torch.dtype) -> None:
    model = case.model()
    for batch in case.loader(2):
        state, _ = discover(model, batch)
        original = run(model, batch)
        masked = run_masked(model, batch, state, torch.ones(len(state.sites), state.edge_map.count, dtype=dtype))
        if case.exact:
            assert torch.equal(masked, original)
        else:
            assert close(masked, original)


@every_case
@pytest.mark.parametrize("share", [0.0, 0.5], ids=["all shut", "half shut"])
def test_shut_gates_replace_their_messages_and_nothing_else(case: Case, share: float) -> None:
    model = case.model()
    batch = case.loader()[0]
    state, seen = discover(model, batch)
    generator = torch.Generator().manual_seed(0)
    baselines = drawn(state, generator)
    # Edges between the same nodes share a gate: the slow implementation knows edges by their endpoints.
    edge_index = state.edge_map.edge_index
    assert edge_index is not None
    by_pair = torch.rand(len(state.sites), int(edge_index.max()) + 1, int(edge_index.max()) + 1, generator=generator)
    gates = by_pair[:, edge_index[0], edge_index[1]] < share
    original, masked = run(model, batch), run_masked(model, batch, state, gates, baselines)
    assert not close(masked, original, 1e-3)
    assert close(run_masked(model, batch, state, gates.float(), baselines), masked)
    calls = [SlowCall(state.sites[m.site], by_pair[m.site] < share, baselines[m.site]) for m in seen]
    assert close(masked, run_replaced(case, batch, edge_index, calls))
