"""Law 1: all gates open = the original output; and with gates shut, exactly the messages are replaced."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse

from graphmask import AdjacencyTap, MessageTap

from .cases import CASES, Case
from .support import discover, run, run_masked

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
    sizes = {m.site: m.value.shape[-1] if m.matrix is not None else m.flat().shape[1] for m in seen}
    baselines = [torch.randn(sizes[site], generator=generator) for site in range(len(state.sites))]
    # Edges between the same nodes share a gate: the slow implementation knows edges by their endpoints.
    edge_index = state.edge_map.edge_index
    assert edge_index is not None
    by_pair = torch.rand(len(state.sites), int(edge_index.max()) + 1, int(edge_index.max()) + 1, generator=generator)
    gates = by_pair[:, edge_index[0], edge_index[1]] < share
    original, masked = run(model, batch), run_masked(model, batch, state, gates, baselines)
    assert not close(masked, original, 1e-3)
    assert close(run_masked(model, batch, state, gates.float(), baselines), masked)
    calls = [(by_pair[m.site] < share, baselines[m.site]) for m in seen]
    assert close(masked, run_replaced(case, batch, edge_index, calls))


def run_replaced(case: Case, batch: Any, edge_index: Tensor, calls: list[tuple[Tensor, Tensor]]) -> Tensor:
    """A second, slow implementation: PyTorch Geometric's hooks, edge by edge, nothing of this library's.

    ``calls``: gates [N, N] and baseline of every call, in the order in which messages are sent.
    """
    model = case.model()
    queue = iter(calls)
    pairs = Counter((u, v) for u, v in edge_index.t().tolist())
    effective: list[list[int]] = []
    against = {f"{name}." for name in case.reverse if name.endswith("conv_out")}

    def propagate(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        edges = inputs[0].as_tensor() if isinstance(inputs[0], EdgeIndex) else inputs[0]
        effective[:] = edges.to_dense().nonzero().flip(1).tolist() if is_sparse(edges) else edges.t().tolist()

    def message(module: MessagePassing, _: tuple[Any, ...], out: Tensor, *, turned: bool) -> Tensor:
        gates, baseline = next(queue)
        dim = module.node_dim if module.node_dim >= 0 else out.dim() + module.node_dim
        out = out.movedim(dim, 0).clone()
        loops = Counter(pairs)
        for edge, (u, v) in enumerate(effective):
            pair = (v, u) if turned else (u, v)
            loops[pair] -= u == v
            own = loops[pair] < 0  # a self-loop that the graph does not have (so often)
            if not own and not gates[pair]:
                out[edge] = baseline.view(out.shape[1:])
        return out.movedim(0, dim)

    def tapped(messages: Tensor, edge_index: Tensor, *_: Any, **__: Any) -> Tensor:
        gates, baseline = next(queue)
        return torch.stack([m if gates[u, v] else baseline for m, (u, v) in zip(messages, edge_index.t(), strict=True)])

    def multiplied(adjacency: Tensor, messages: Tensor, _: Tensor) -> Tensor:
        gates, baseline = next(queue)
        adjacency = adjacency.to_dense()
        graphs, _, nodes, _ = adjacency.shape
        z = torch.zeros_like(adjacency)
        for b in range(graphs):
            own = slice(b * nodes, (b + 1) * nodes)
            part = gates[own, own].t().to(z.dtype)
            z[b, :, : part.shape[0], : part.shape[1]] = part
        return (z * adjacency) @ messages + ((1 - z) * adjacency) @ baseline.expand_as(messages)

    for name, module in model.named_modules():
        if isinstance(module, MessagePassing):
            module.fuse, module._decomposed_layers = False, 1
            module.register_propagate_forward_pre_hook(propagate)
            module.register_message_forward_hook(partial(message, turned=f"{name}." in against))
        elif isinstance(module, (MessageTap, AdjacencyTap)):
            module.forward = tapped if isinstance(module, MessageTap) else multiplied
    output = run(model, batch)
    assert next(queue, None) is None
    return output
