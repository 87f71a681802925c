"""Fit, explain and repair on a device, layer type by layer type, heterogeneous and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attention.models import BY_NAME as ATTENTION
from attention.models import batch as sentences
from graphmask import GraphMask
from graphmask.devices import placed
from graphmask.fitting.recipe import Recipe
from graphmask.graphs.batches import default_forward
from hetero.support import BY_NAME as HETERO
from hetero.support import batch as hetero_batch
from laws.cases import BY_NAME

from .support import DEVICE, QUICK, assert_same, moved, on_both

#: What the stand-in cannot do without this library: sparse tensors, one subclass of tensors within another, and GRU
#: cells, for which PyTorch has kernels of its own per device.
LACKING = [
    *(name for name in BY_NAME if name.startswith("adj_t ")),
    "AdjacencyTap sparse",
    "sorted EdgeIndex",
    "GatedGraph",
]
#: One of each kind, on which more is tried than on all the others.
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


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in LAYERS + LACKING])
def test_every_other_layer(name: str) -> None:
    case = BY_NAME[name]

    def run(device: torch.device) -> list[Any]:
        explainer = GraphMask(moved(case.model(), device), recipe=Recipe(steps=4))
        explainer.fit(case.loader(1, 2), progress=False)
        return list(explainer.explain_all([case.one(case.graphs(1)[0])], allow_infeasible=True))

    assert_same(*on_both(run))


@pytest.mark.parametrize("name", LACKING)
def test_what_is_left_out_fails_without_this_library(name: str) -> None:
    case = BY_NAME[name]
    model, (batch,) = case.model(), case.loader(1, 1)
    default_forward(model, batch)
    with pytest.raises((RuntimeError, ValueError)):
        default_forward(moved(model, DEVICE), placed(batch, DEVICE))


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
