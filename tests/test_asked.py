"""Several questions about the same graph share its original run; whatever changed in between, it is run anew."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from graphmask import Explanation, GraphMask
from graphmask.fitting.recipe import Recipe

#: One entry per run of the model: what a model notes on itself is taken back after every call.
RUNS: list[int] = []


class Net(nn.Module):
    """One row per node."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(4, 8), GCNConv(8, 3)
        self.register_buffer("shift", torch.zeros(3), persistent=False)
        self.settings = {"scale": 1.0}
        self.draw: Callable[[], float] = float

    def forward(self, x: Tensor, edge_index: Tensor, factor: float = 1.0) -> Tensor:
        RUNS.append(1)
        h = self.first(x, edge_index).relu() * self.settings["scale"] * factor
        return self.second(h, edge_index) + self.shift + self.draw()


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(20, (2, 40), generator=generator)
    return Data(x=torch.randn(20, 4, generator=generator), edge_index=edge_index, factor=1.0)


def fitted(model: nn.Module, data: Data) -> GraphMask:
    explainer = GraphMask(model, seed=0, recipe=Recipe(steps=5))
    explainer.fit([data], progress=False)
    return explainer


def ask(explainer: GraphMask, data: Data, row: int) -> tuple[Explanation, int]:
    """The explanation, and how many runs of the model it took."""
    before = len(RUNS)
    found = explainer.explain(data, index=row, repair=False, allow_infeasible=True)
    return found, len(RUNS) - before


def same(one: Explanation, other: Explanation) -> bool:
    names = ("kept", "scores", "carried", "original", "masked", "edge_index")
    equal = all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)
    return equal and (one.divergence, one.flips, one.index) == (other.divergence, other.flips, other.index)


@pytest.fixture
def model() -> Net:
    return Net()


@pytest.fixture
def data() -> Data:
    return graph()


@pytest.fixture
def explainer(model: Net, data: Data) -> GraphMask:
    return fitted(model, data)


def test_the_second_question_takes_one_run_less(explainer, data):
    first, runs = ask(explainer, data, 3)
    second, fewer = ask(explainer, data, 4)
    again, as_few = ask(explainer, data, 3)
    assert (runs, fewer, as_few) == (3, 2, 2)  # the original, its field alone, the masked one
    assert same(again, first)
    assert same(second, ask(copy.deepcopy(explainer), data, 4)[0])


def write_through_numpy(explainer: GraphMask, data: Data) -> None:
    data.x.numpy()[:] += 1  # the tensor does not notice


def write_to_data_of_a_weight(explainer: GraphMask, data: Data) -> None:
    explainer.model.first.lin.weight.data.mul_(2)  # nor does the weight


def step_of_a_fused_optimiser(explainer: GraphMask, data: Data) -> None:
    optimiser = torch.optim.SGD(explainer.model.parameters(), lr=0.5, fused=True)
    explainer.model(data.x, data.edge_index).sum().backward()
    optimiser.step()


CHANGES: list[Callable[[GraphMask, Data], object]] = [
    write_through_numpy,
    write_to_data_of_a_weight,
    step_of_a_fused_optimiser,
    lambda explainer, data: setattr(data, "x", data.x * 2),
    lambda explainer, data: setattr(data, "edge_index", data.edge_index[:, :-1]),
    lambda explainer, data: setattr(data, "factor", 2.0),
    lambda explainer, data: explainer.model.shift.add_(torch.arange(3)),
    lambda explainer, data: explainer.model.settings.update(scale=2.0),
    lambda explainer, data: explainer.model.second.register_forward_hook(lambda *given: 2 * given[2]),
    lambda explainer, data: explainer.probe.gate(0).shift.add_(0.1),
]


@pytest.mark.filterwarnings("ignore:The model's weights have changed")
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_run_anew(explainer, data, change):
    before = ask(explainer, data, 3)[0]
    change(explainer, data)
    after, runs = ask(explainer, data, 3)
    assert runs == 3
    assert not same(after, before)
    assert same(after, ask(copy.deepcopy(explainer), data, 3)[0])


def test_another_graph_with_the_same_contents_is_run_anew(explainer, data):
    ask(explainer, data, 3)
    assert ask(explainer, data.clone(), 3)[1] == 3


@pytest.mark.filterwarnings("ignore:Rows .* change when messages are dropped")
@pytest.mark.parametrize("draw", [random.random, lambda: float(torch.rand(()))])
def test_nothing_is_kept_of_what_is_drawn(explainer, data, draw):
    explainer.model.draw = draw
    assert [ask(explainer, data, 3)[1] for _ in range(2)] == [3, 3]


def test_a_forward_of_the_users_own_is_called_for_every_question(model, data):
    explainer = GraphMask(model, lambda model, batch: model(batch.x, batch.edge_index), recipe=Recipe(steps=5))
    explainer.fit([data], progress=False)
    assert [ask(explainer, data, 3)[1] for _ in range(2)] == [3, 3]


def test_what_was_handed_out_is_the_users(explainer, data):
    first = ask(explainer, data, 3)[0]
    expected = copy.deepcopy(first)
    for row in (3, 4):
        found = ask(explainer, data, row)[0]
        for value in (found.original, found.scores, found.carried, found.kept):
            value.zero_()
    assert same(ask(explainer, data, 3)[0], expected)


def test_nothing_is_held_of_a_graph_that_is_gone(explainer):
    data = graph()
    ask(explainer, data, 3)
    held = weakref.ref(data.x)
    del data
    gc.collect()
    assert held() is None
    assert explainer.asked._known is None
