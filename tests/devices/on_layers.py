"""Fit, explain and repair on a device, layer type by layer type, heterogeneous and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attention.models import BY_NAME as ATTENTION
from attention.models import batch as sentences
from graphmask import GraphMask
from hetero.support import BY_NAME as HETERO
from hetero.support import batch as hetero_batch
from laws.cases import BY_NAME

from .support import DEVICE, QUICK, assert_same, moved, on_both

#: One of each kind. Without sparse adjacency: the stand-in holds dense tensors only.
LAYERS = [
    "GCN",
    "GINE",
    "GAT",
    "RGCN",
    "GEN",
    "norm and dropout",
    "MessageTap",
    "AdjacencyTap dense",
]


def test_the_device_refuses_what_cuda_refuses() -> None:
    here, there = torch.ones(3), torch.ones(3, device=DEVICE)
    assert (there + there).sum().item() == 6
    assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)  # a number may come from the CPU
    for wrong in (
        lambda: here + there,
        lambda: torch.cat([here, there]),
        lambda: there.index_add(0, torch.ones(1).long(), here[:1]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    with pytest.raises(RuntimeError, match="for generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    drawn = torch.rand(3, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(3))
    assert torch.equal(drawn.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("name", LAYERS)
def test_fit_and_explain(name: str) -> None:
    case = BY_NAME[name]

    def run(device: torch.device) -> list[Any]:
        explainer = GraphMask(moved(case.model(), device), recipe=QUICK)
        loader = case.loader(2, 2)  # on the CPU: batches are moved to the model
        explainer.fit(loader, loader, progress=False)
        held_out = [case.one(graph) for graph in case.graphs(2)]
        bare = list(explainer.explain_all(held_out, repair=False, allow_infeasible=True))
        return bare + list(explainer.explain_all(held_out, allow_infeasible=True))

    assert_same(*on_both(run))


@pytest.mark.parametrize("name", ["sage", "gat", "hgt"])
def test_heterogeneous(name: str) -> None:
    case = HETERO[name]

    def run(device: torch.device) -> list[Any]:
        explainer = GraphMask(moved(case.model(), device), case.forward, recipe=QUICK)
        explainer.fit([hetero_batch(0, 1, 2)], progress=False)
        return list(explainer.explain_all([hetero_batch(5, 6)], allow_infeasible=True))

    assert_same(*on_both(run))


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("bert", "together"),
        ("albert", "each"),
        ("gpt2", "each"),
        ("llama", "each"),
        ("handwritten", "each"),
        ("torch", "each"),
    ],
)
def test_transformers(name: str, heads: str) -> None:
    model = ATTENTION[name].make()

    def run(device: torch.device) -> list[Any]:
        explainer = GraphMask(moved(model, device), recipe=QUICK, heads=heads)
        explainer.fit([sentences(0)], progress=False)
        return list(explainer.explain_all([sentences(1)], allow_infeasible=True))

    assert_same(*on_both(run))
