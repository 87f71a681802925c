"""Numbers at their limits: NaN, infinities, denormals, half precision, one edge, 10^7 edges, threads, batches.

Gates and baselines that are not finite are in `test_storage.py`, graphs in `test_bad_input.py`, outputs and rows in
half precision in `test_divergence.py` and `test_rows.py`; other layers are in `laws/test_symmetry.py` and
`attention/test_laws.py`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from graphmask import Explanation, GraphMask, GraphMaskError, masked
from graphmask.fitting.recipe import Recipe
from reference.hasty import halve

pytestmark = pytest.mark.filterwarnings("ignore:GraphMask")
FEATURES, CLASSES = 4, 3
#: The smallest number that float32 holds with all its digits; below, numbers are denormal.
SMALLEST = torch.finfo(torch.float).tiny


class Net(nn.Module):
    """Two layers; rows are nodes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(FEATURES, width), GCNConv(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


def graph(nodes: int = 30, edges: int = 90, seed: int = 0, dtype: torch.dtype = torch.float) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, FEATURES, generator=generator).to(dtype),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_weight=(torch.rand(edges, generator=generator) + 0.5).to(dtype),
    )


def fitted(model: nn.Module, *graphs: Data, steps: int = 40) -> GraphMask:
    explainer = GraphMask(model, divergence="kl", tolerance=0.05, recipe=Recipe(steps=steps))
    explainer.fit(list(graphs), progress=False)
    return explainer


@functools.cache
def explainer() -> GraphMask:
    return fitted(Net(), *(graph(seed=seed) for seed in range(3)))


def assert_same(one: Explanation, other: Explanation, within: float = 1e-6) -> None:
    assert torch.equal(one.kept, other.kept)
    for name in ("scores", "original", "masked"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=within, atol=within)
    assert abs(one.divergence - other.divergence) <= within


# NaN, infinities, denormals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["x", "edge_weight"])
def test_inputs_that_are_not_finite(name: str, value: float) -> None:
    spoilt = graph()
    spoilt[name].view(-1)[5] = value
    expected = f"finite numbers in '{name}' of .*, got 1 that are NaN or infinite"
    with pytest.raises(GraphMaskError, match=expected):
        fitted(Net(), graph(), spoilt)
    with pytest.raises(GraphMaskError, match=expected):
        explainer().explain(spoilt)


def test_numbers_that_float32_holds_and_their_squares_not() -> None:
    """The graph and the outputs are finite, the gates' norm is not: it is not their weights' fault."""
    large = graph()
    large.x[:8] = 3e38
    assert torch.isinf(large.x.sum())
    with torch.no_grad():
        assert bool(torch.isfinite(Net()(large.x, large.edge_index, large.edge_weight)).all())
    with pytest.raises(GraphMaskError, match=r"finite numbers from the gates.*messages here are too large"):
        explainer().explain(large)


@pytest.mark.filterwarnings("ignore:The model's weights have changed")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["first.lin.weight", "second.lin.weight", "second.bias"])
def test_weights_that_are_not_finite(name: str, value: float) -> None:
    model, known = Net(), copy.deepcopy(explainer())
    for net in (model, known.model):
        net.get_parameter(name).data.view(-1)[0] = value
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    expected = r"finite model outputs|output.*NaN or infin"
    with pytest.raises(GraphMaskError, match=expected):
        fitted(model, graph())
    with pytest.raises(GraphMaskError, match=expected):
        known.explain(graph())
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0, equal_nan=True)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_minus_infinity_that_a_relu_makes_zero() -> None:
    """A feature that is shut for good: outputs are finite, and the model is explained."""
    model = Net()
    model.first.bias.data[0] = -float("inf")
    known = fitted(model, graph(), graph(seed=1))
    found = known.explain(graph(seed=2), allow_infeasible=True)
    assert bool(torch.isfinite(found.scores).all())
    with masked(model, found), torch.no_grad():
        assert torch.equal(model(*(graph(seed=2)[key] for key in ("x", "edge_index", "edge_weight"))), found.masked)


@pytest.mark.parametrize("place", ["inputs", "weights", "edge weights", "all"])
def test_denormal_numbers(place: str) -> None:
    """Sums of messages below the smallest normal number: nothing divides by them."""
    model, data = Net(), [graph(seed=seed) for seed in range(3)]
    for one in data:
        if place in ("inputs", "all"):
            one.x *= SMALLEST / 64
        if place in ("edge weights", "all"):
            one.edge_weight *= SMALLEST / 64
    if place in ("weights", "all"):
        for parameter in model.parameters():
            parameter.data *= SMALLEST / 64
    known = fitted(model, *data, steps=20)
    for one in data:
        found = known.explain(one, allow_infeasible=True)
        assert found.faithful
        assert bool(((found.scores >= 0) & (found.scores <= 1)).all())
        assert bool(torch.isfinite(found.masked).all())
        with masked(known.model, found), torch.no_grad():
            assert torch.equal(known.model(one.x, one.edge_index, one.edge_weight), found.masked)


def test_denormal_weights_of_gates_are_as_good_as_zero() -> None:
    tiny, zero = copy.deepcopy(explainer()), copy.deepcopy(explainer())
    for known, factor in ((tiny, SMALLEST / 64), (zero, 0.0)):
        assert known.probe is not None
        for name, parameter in known.probe.named_parameters():
            if ".weights." in name:
                parameter.data *= factor
    assert_same(tiny.explain(graph(seed=9), repair=False), zero.explain(graph(seed=9), repair=False))


# Half precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "digits"), [(torch.half, 5e-3), (torch.bfloat16, 4e-2)])
def test_models_of_half_precision(dtype: torch.dtype, digits: float) -> None:
    """Gates read messages of few digits; what they answer, and the certificate, is in float32."""
    data = [graph(seed=seed, dtype=dtype) for seed in range(3)]
    model = Net().to(dtype).eval()
    known = fitted(model, *data)
    for one in data:
        with torch.no_grad():
            plain = model(one.x, one.edge_index, one.edge_weight)
        found = known.explain(one, allow_infeasible=True)
        assert torch.equal(found.original, plain)
        assert found.scores.dtype == torch.float
        with masked(model, found), torch.no_grad():
            assert torch.equal(model(one.x, one.edge_index, one.edge_weight), found.masked)
        p, q = (value.double().log_softmax(-1) for value in (found.original, found.masked))
        expected = float((p.exp() * (p - q)).sum(-1).mean())
        assert found.divergence == pytest.approx(max(expected, 0.0), rel=1e-4, abs=1e-6)
    # The same gates on the same weights with all digits: as far apart as the messages' digits.
    whole = GraphMask(copy.deepcopy(model).float(), divergence="kl", tolerance=0.05, recipe=Recipe(steps=2))
    whole.fit([graph(seed=seed) for seed in range(3)], progress=False)
    assert whole.probe is not None
    assert known.probe is not None
    whole.probe.load_state_dict({name: value.float() for name, value in known.probe.state_dict().items()})
    exact = graph(seed=1, dtype=dtype)
    exact.x, exact.edge_weight = exact.x.float(), exact.edge_weight.float()
    here, there = (
        each.explain(one, repair=False, allow_infeasible=True) for each, one in ((known, data[1]), (whole, exact))
    )
    assert float((here.scores - there.scores).abs().max()) <= digits


# One edge, 10^7 edges ------------------------------------------------------------------------------------------


def test_one_edge() -> None:
    one = Data(x=torch.eye(2, FEATURES), edge_index=torch.tensor([[0], [1]]), edge_weight=torch.ones(1))
    for known in (explainer(), fitted(Net(), one)):
        found = known.explain(one, allow_infeasible=True)
        assert found.kept.shape == found.scores.shape == (2, 1)
        assert found.divergence <= 0.05
        with masked(known.model, found), torch.no_grad():
            assert torch.equal(known.model(one.x, one.edge_index, one.edge_weight), found.masked)


def test_no_edge() -> None:
    none = Data(x=torch.eye(2, FEATURES), edge_index=torch.zeros(2, 0).long(), edge_weight=torch.ones(0))
    found = explainer().explain(none)
    assert found.kept.shape == (2, 0)
    assert torch.equal(found.original, found.masked)


def copies(small: Data, count: int) -> Data:
    """The graph so many times in one, as one graph."""
    steps = (torch.arange(count) * small.num_nodes).repeat_interleave(small.num_edges)
    return Data(
        x=small.x.repeat(count, 1),
        edge_index=small.edge_index.repeat(1, count) + steps,
        edge_weight=small.edge_weight.repeat(count),
    )


def test_ten_million_edges() -> None:
    """A thousand copies of 10^4 edges: each is told what one alone is told, and sums and shares are those of one."""
    count, small = 1000, graph(nodes=1_000, edges=10_000, seed=5)
    known = fitted(Net(width=4), small, steps=5)
    halve(known, [small])
    one, all_of_them = (
        known.explain(each, repair=False, allow_infeasible=True) for each in (small, copies(small, count))
    )
    assert all_of_them.edge_index.shape == (2, 10_000_000)
    assert 0 < int(one.kept.sum()) < one.kept.numel()
    sites = len(one.kept)
    scores = all_of_them.scores.view(sites, count, -1)
    assert float((scores - one.scores[:, None]).abs().amax()) <= 1e-6
    kept = all_of_them.kept.view(sites, count, -1)
    assert bool((kept == one.kept[:, None]).all())
    assert all_of_them.retained_per_site == one.retained_per_site
    assert all_of_them.retained == one.retained
    assert all_of_them.divergence == pytest.approx(one.divergence, rel=1e-6, abs=0)
    assert all_of_them.flips == pytest.approx(one.flips, rel=1e-6, abs=0)


# Threads, batches ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_changes_no_explanation(two_threads: None) -> None:
    """Of a graph that is large enough for PyTorch to share the work."""
    large, known = graph(nodes=30_000, edges=100_000, seed=7), explainer()
    found = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        found.append(known.explain(large, repair=False, allow_infeasible=True))
    assert_same(*found)


def test_the_number_of_threads_changes_no_fit(two_threads: None) -> None:
    large, found = graph(nodes=4_000, edges=12_000, seed=7), []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        found.append(fitted(Net(width=16), large, steps=6).explain(graph(seed=3), repair=False, allow_infeasible=True))
    assert_same(*found)


def test_the_composition_of_batches_changes_no_explanation() -> None:
    """Alone, with small graphs, with large ones, in another order: within 1e-6."""
    graphs = [graph(nodes=10 + 40 * (seed % 5), edges=30 + 100 * (seed % 5), seed=seed) for seed in range(20)]
    known = explainer()
    alone = [known.explain(one, repair=False) for one in graphs]
    for order in (range(20), range(19, -1, -1), [*range(0, 20, 2), *range(1, 20, 2)]):
        for size in (20, 7, 3):
            numbers = list(order)
            loader = [
                Batch.from_data_list([graphs[number] for number in numbers[at : at + size]])
                for at in range(0, 20, size)
            ]
            for number, found in zip(numbers, known.explain_all(loader, repair=False), strict=True):
                assert_same(alone[number], found)
