"""Memory of the bilinear gates of adjacency-matrix models: a gate per entry, never a message per entry."""

from __future__ import annotations

from typing import Any

import torch

from graphmask.experiments.bench.memory import peak_bytes
from graphmask.gates.networks import Gate, SiteSpec, build
from graphmask.tapping.messages import Messages
from graphmask.tapping.taps import MatrixCall

GRAPHS, RELATIONS, CHANNELS, HIDDEN = 2, 4, 64, 32
NODES = (50, 100, 200, 400)


def gate(nodes: int, seed: int = 0) -> tuple[Gate, Messages]:
    """A gate, and a full graph for it to look at."""
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.rand(GRAPHS, RELATIONS, nodes, nodes, generator=generator) + 0.1
    messages = torch.randn(GRAPHS, RELATIONS, nodes, CHANNELS, generator=generator)
    states = torch.randn(GRAPHS, nodes, CHANNELS, generator=generator)
    entries = adjacency.nonzero().t()
    call = MatrixCall(adjacency, messages, states, entries, adjacency[tuple(entries)])
    sender, receiver = call.edge_index()
    seen = Messages(0, 0, sender, receiver, None, messages, 0, matrix=call)
    new_gate = build(SiteSpec.of([seen]), HIDDEN, generator)
    new_gate.standardise([seen])
    return new_gate, seen


def cost(nodes: int) -> dict[str, Any]:
    """Peak bytes of a call of the gate, and of a call with its gradients, beside what is there to be counted."""
    new_gate, seen = gate(nodes)
    entries, states = RELATIONS * nodes * nodes, RELATIONS * nodes * CHANNELS
    with torch.no_grad():
        call = peak_bytes(lambda: new_gate(seen))
    step = peak_bytes(lambda: new_gate(seen).sum().backward())
    bound = 4 * GRAPHS * (entries + states)
    return {
        "nodes": nodes,
        "call": call,
        "step": step,
        "over_bound": call / bound,
        "step_over_bound": step / bound,
        "over_naive": call / (4 * GRAPHS * entries * CHANNELS),
    }


def measure() -> list[dict[str, Any]]:
    return [cost(nodes) for nodes in NODES]
