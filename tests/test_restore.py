"""Whatever happens inside `with restored(model)`, the model leaves as it came."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from graphmask.tapping.restore import freeze, restored


class Writer(nn.Module):
    """Everything a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("absent", None)
        self.memory = torch.ones(3)
        self.notes = [1, [2]]
        self.table = {"a": {"b": 1}}
        self.seen = {1, 2}
        self.pair = (torch.zeros(1), [0])


def test_attributes() -> None:
    model = Writer()
    linear, notes, memory = model.linear, model.notes, model.memory
    with restored(model):
        model.linear = nn.Linear(2, 3)
        model.extra = nn.Linear(1, 1)
        model.notes.append(3)
        model.notes[1].append(3)  # type: ignore[attr-defined]
        model.table["a"]["b"] = 2
        model.table["c"] = {}
        model.seen.add(3)
        model.memory += 1
        model.pair[0].add_(5)
        model.pair[1].append(1)
        model.count += 1
        model.absent = torch.ones(1)
        model.new = 1
        del model.dropout
        model.register_forward_hook(lambda *_: None)
    assert model.linear is linear
    assert model.notes is notes
    assert model.notes == [1, [2]]
    assert model.table == {"a": {"b": 1}}
    assert model.seen == {1, 2}
    assert model.memory is memory
    assert model.memory.tolist() == [1, 1, 1]
    assert model.pair[0].tolist() == [0]
    assert model.pair[1] == [0]
    assert model.count.tolist() == [0, 0]
    assert model.absent is None
    assert not hasattr(model, "new")
    assert set(dict(model.named_children())) == {"linear", "norm", "dropout"}
    assert len(model._forward_hooks) == 0


@pytest.mark.parametrize("change", ["nothing", "one more", "one less"])
def test_the_order_of_a_set_and_of_a_dictionary(change: str) -> None:
    module = nn.Module()
    module.types = {7}
    module.types.add(15)  # both want one slot, so filled anew from [15, 7] the set would come out as [7, 15]
    module.names = {"first": 1, "second": 2}
    assert list(module.types) == [15, 7]
    with restored(module):
        if change == "one more":
            module.types.add(3)
            module.names["third"] = 3
        elif change == "one less":
            module.names.pop("first")
            module.types.discard(15)
    assert list(module.types) == [15, 7]
    assert list(module.names.items()) == [("first", 1), ("second", 2)]


def test_statistics_gradients_and_modes() -> None:
    model = Writer().train()
    model.norm.eval()
    model.linear.weight.requires_grad_(False)
    model.linear.bias.grad = gradient = torch.ones(2)
    with restored(model):
        freeze(model, training=True)
        assert model.dropout.training
        assert not model.norm.training
        assert not any(p.requires_grad for p in model.parameters())
        model.requires_grad_(True)
        model.norm.train()
        model.norm(model.linear(torch.randn(4, 2))).sum().backward()
        assert float(model.norm.running_mean.abs().sum()) > 0
    assert model.training
    assert not model.norm.training
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert model.linear.weight.grad is None
    assert model.linear.bias.grad is gradient
    assert model.norm.running_mean.tolist() == [0, 0]
    assert int(model.norm.num_batches_tracked) == 0


def test_random_states() -> None:
    model = Writer()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    expected = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002

    def interrupted() -> None:
        with restored(model):
            random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected  # noqa: NPY002


def test_what_the_guest_learns_on_purpose_is_not_undone() -> None:
    """Parameters' values are the owner's to change inside, too: nothing here touches them."""
    model = Writer()
    with restored(model), torch.no_grad():
        model.linear.weight.fill_(2)
    assert model.linear.weight.tolist() == [[2, 2], [2, 2]]


def test_frozen_for_judging() -> None:
    model = Writer().train()
    freeze(model, training=False)
    assert not any(module.training for module in model.modules())
