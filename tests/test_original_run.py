"""One graph that comes again at every step: the original model runs twice, then is known by heart, or is it?"""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from graphmask import GraphMask
from graphmask.fitting.step import take_step
from graphmask.fitting.training import Recipe, Training
from graphmask.gates import originals
from graphmask.tapping.restore import freeze


class Net(nn.Module):
    """Two layers, counting its runs."""

    def __init__(self, dropout: float = 0.0, *, attention: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = GATConv(4, 4, heads=2, concat=False) if attention else GCNConv(4, 4)
        self.second = GCNConv(4, 3)
        self.dropout = nn.Dropout(dropout)
        self.runs = 0
        self.noise = lambda: 0.0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.runs += 1
        return self.second(self.dropout(self.first(x, edge_index).relu()), edge_index) + self.noise()


def graph(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(x=torch.randn(20, 4, generator=generator), edge_index=torch.randint(20, (2, 60), generator=generator))


def training(model: Net, data: Data) -> Training:
    explainer = GraphMask(model, seed=0, recipe=Recipe(steps=1))
    explainer.fit([data], progress=False)
    freeze(model, training=True)
    model.runs = 0
    recipe = Recipe()
    return Training(explainer.probe, explainer.subject, 0.03, recipe, 0, 100)


def runs(model: Net, loop: Training, *batches: Data) -> list[int]:
    """Runs of the model in each step."""
    found = []
    for batch in batches:
        before = model.runs
        take_step(loop, [batch])
        found.append(model.runs - before)
    return found


def test_the_third_step_on_a_graph_runs_the_masked_model_alone():
    model, data = Net(), graph()
    assert runs(model, training(model, data), *[data] * 5) == [2, 2, 1, 1, 1]


def test_steps_are_those_of_running_anew(monkeypatch):
    found = []
    for again in (False, True):
        model, data = Net(), graph()
        loop = training(model, data)
        steps = []
        for _ in range(12):
            steps.append(take_step(loop, [data]))
            if again:
                loop.passes.forget()
        found.append((steps, [parameter.detach().clone() for parameter in loop.probe.parameters()]))
        assert model.runs == (24 if again else 14)
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_dropout_is_drawn_anew():
    model, data = Net(dropout=0.5), graph()
    assert runs(model, training(model, data), *[data] * 4) == [2, 2, 2, 2]


def test_randomness_that_is_not_torchs_is_noticed_by_the_second_run():
    model, data = Net(), graph()
    loop = training(model, data)
    model.noise = random.random
    assert runs(model, loop, *[data] * 4) == [2, 2, 2, 2]


def test_messages_that_are_more_than_a_node_are_not_kept():
    model, data = Net(attention=True), graph()
    assert runs(model, training(model, data), *[data] * 4) == [2, 2, 2, 2]


def test_other_batches_in_between():
    model, data, other = Net(), graph(), graph(1)
    found = runs(model, training(model, data), data, data, data, other, data, other, data, other)
    assert found == [2, 2, 1, 2, 1, 2, 1, 1]


def test_without_room_the_last_batch_alone_is_known(monkeypatch):
    monkeypatch.setattr(originals, "ROOM", 0)
    model, data, other = Net(), graph(), graph(1)
    assert runs(model, training(model, data), data, data, data, other, data, data, data) == [2, 2, 1, 2, 2, 2, 1]


def test_batches_that_are_made_anew_are_not_kept():
    model, data = Net(), graph()
    loop = training(model, data)
    for _ in range(3):
        assert runs(model, loop, data.clone()) == [2]
    assert len(loop.passes.originals.runs) == 1


@pytest.mark.parametrize("writes", [False, True])
def test_states_that_a_model_writes_to_are_not_kept(writes):
    model, data = Net(), graph()
    loop = training(model, data)
    model.second.register_forward_hook(lambda _, given, __: None if not writes else (given[0].add_(1), None)[1])
    with torch.no_grad():
        found = [loop.passes.originals.trace(data, lambda m: loop.probe.gate(m.site)(m)) for _ in range(4)]
    assert model.runs == (4 if writes else 2)
    assert all(torch.equal(one.values, found[0].values) for one in found)


def test_verdicts_share_the_runs_of_steps(monkeypatch):
    """And say the same as those that run anew."""
    found = []
    for again in (False, True):
        model, data = Net(), [graph(seed) for seed in range(4)]
        loop = training(model, data[0])
        freeze(model, training=False)
        for batch in data * 2:
            take_step(loop, [batch])
        before, verdicts = model.runs, []
        for _ in range(2):
            if again:
                loop.passes.forget()
            verdicts.append(loop.judge(data[:3], [data[3:]], 500).verdict([0.5, 0.5]))
        found.append(verdicts)
        assert model.runs - before == (16 if again else 8)
    assert found[0] == found[1]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_changed_batch_runs_anew(overwrite):
    model, data = Net(), graph()
    loop = training(model, data)
    assert runs(model, loop, *[data] * 3) == [2, 2, 1]
    if overwrite:
        data.x.mul_(2)
    else:
        data.x = data.x * 2
    assert runs(model, loop, *[data] * 3) == [2, 2, 1]


def test_a_batch_with_lists_inside_cannot_be_compared_and_runs_anew():
    model, data = Net(), graph()
    loop = training(model, data)
    data.names = ["a", "b"]
    assert runs(model, loop, *[data] * 4) == [2, 2, 2, 2]


def test_nothing_of_the_batch_is_held_after_fit():
    model, data = Net(), graph()
    explainer = GraphMask(model, seed=0, recipe=Recipe(steps=4))
    explainer.fit([data], progress=False)
    held = weakref.ref(data)
    del data
    gc.collect()
    assert held() is None
