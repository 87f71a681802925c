"""Hooks that are set once for several runs of a model, and what is left of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from graphmask import GraphMaskError, methods
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
DATA = Data(x=torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), edge_index=EDGES)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = GCNConv(4, 4), GCNConv(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def hooks_of(model: nn.Module) -> list[Any]:
    """Every hook, of every kind, in order."""
    kinds = [value for module in model.modules() for key, value in vars(module).items() if key.endswith("_hooks")]
    return [hook for kind in kinds for hook in kind.values()]


def test_one_set_of_hooks_for_all_runs() -> None:
    subject, seen = Subject(Two().eval()), list[str]()

    def run(name: str) -> list[Any]:
        with subject.tap(lambda messages: seen.append(f"{name} {messages.site}")):
            subject(DATA)
            return hooks_of(subject.model)

    with subject.frozen():
        assert hooks_of(subject.model) == []
        first = run("first")
        subject(DATA)  # nobody is connected: nobody is told
        assert len(first) == 9
        assert run("second") == first == hooks_of(subject.model)
    assert hooks_of(subject.model) == []
    assert seen == ["first 0", "first 1", "second 0", "second 1"]
    run("third")
    assert hooks_of(subject.model) == []


def test_the_inner_of_two_removes_its_own() -> None:
    subject = Subject(Two().eval())

    def visit(_: Messages) -> None: ...

    with subject.frozen():
        with subject.frozen():
            with subject.tap(visit):
                subject(DATA)
            assert len(hooks_of(subject.model)) == 9
        assert hooks_of(subject.model) == []
        with subject.tap(visit):
            subject(DATA)
        mine = hooks_of(subject.model)
        with subject.frozen(), subject.tap(visit):
            assert hooks_of(subject.model) == mine
        assert hooks_of(subject.model) == mine
    assert hooks_of(subject.model) == []


def test_a_tap_inside_of_another_has_hooks_of_its_own() -> None:
    subject, seen = Subject(Two().eval()), list[str]()
    with subject.frozen(), subject.tap(lambda messages: seen.append(f"outer {messages.site}")):
        with subject.tap(lambda messages: seen.append(f"inner {messages.site}")):
            subject(DATA)
        assert len(hooks_of(subject.model)) == 9
    assert seen == ["outer 0", "inner 0", "outer 1", "inner 1"]


def test_an_exception_on_the_way() -> None:
    subject = Subject(Two().eval())

    def fail(_: Messages) -> None:
        raise KeyboardInterrupt

    with subject.frozen():
        with pytest.raises(KeyboardInterrupt), subject.tap(fail):
            subject(DATA)
        assert subject(DATA).shape == (3, 2)
        seen: list[int] = []
        with subject.tap(lambda messages: seen.append(messages.site)):
            subject(DATA)
        assert seen == [0, 1]
    assert hooks_of(subject.model) == []


def test_a_layer_that_was_exchanged_between_two_calls() -> None:
    model = Two().eval()
    explainer = methods.get("occlusion")(model, divergence="kl")
    before = explainer.explain(DATA, repair=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # other weights than the first ones, whatever was drawn before
        model.first = GCNConv(4, 4)
    after = explainer.explain(DATA, repair=False)
    assert torch.equal(after.original, model(DATA.x, DATA.edge_index).detach())
    assert not torch.equal(before.original, after.original)
    model.first = nn.Linear(4, 4)  # type: ignore[assignment]
    with pytest.raises((GraphMaskError, TypeError)):
        explainer.explain(DATA)
    assert hooks_of(model) == []
