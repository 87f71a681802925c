"""Divergences against their definitions, and what `Divergence` decides from a first output."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from graphmask import GraphMaskError
from graphmask.divergence import NAMED, Divergence, gaussian, log_softmax
from reference import divergence as literal

LITERAL: dict[str, Callable[[literal.Row, literal.Row], float]] = {
    "kl": literal.kl,
    "js": literal.js,
    "cross_entropy": literal.cross_entropy,
    "bernoulli": literal.bernoulli,
    "mse": literal.mse,
}
numbers = st.floats(-20, 20)
pairs = st.integers(2, 5).flatmap(
    lambda n: st.tuples(st.lists(numbers, min_size=n, max_size=n), st.lists(numbers, min_size=n, max_size=n))
)


def logits(*size: int, seed: int = 0, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(scale * torch.randn(size, generator=g, dtype=torch.double) for _ in range(2))  # type: ignore[return-value]


def resolved(choice: str, output: Tensor) -> Divergence:
    divergence = Divergence(choice)
    divergence.resolve(output)
    return divergence


@pytest.mark.parametrize("name", LITERAL)
def test_named_divergences_are_their_definitions(name: str) -> None:
    original, masked = logits(20, 4)
    found = resolved(name, original)(original, masked).tolist()
    for row, a, b in zip(found, original.tolist(), masked.tolist(), strict=True):
        assert row == pytest.approx(LITERAL[name](a, b), rel=1e-9)


def test_named_divergences_are_torchs() -> None:
    original, masked = logits(20, 4)
    categorical = kl_divergence(Categorical(logits=original), Categorical(logits=masked))
    assert torch.allclose(NAMED["kl"](original, masked), categorical)
    bernoulli = kl_divergence(Bernoulli(logits=original), Bernoulli(logits=masked)).sum(1)
    assert torch.allclose(NAMED["bernoulli"](original, masked), bernoulli)
    normal = kl_divergence(Normal(original, 1.7), Normal(masked, 1.7)).mean(1)
    assert torch.allclose(gaussian(original, masked, 1.7**2), normal)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_between_an_output_and_itself(name: str, dtype: torch.dtype) -> None:
    original = logits(50, 3, scale=20)[0].to(dtype)
    assert resolved(name, original)(original, original.clone()).tolist() == pytest.approx([0] * 50, abs=1e-6)


@pytest.mark.parametrize("name", LITERAL)
@settings(max_examples=60, deadline=None)
@given(pair=pairs)
def test_never_negative_and_always_the_definition(name: str, pair: tuple[list[float], list[float]]) -> None:
    original, masked = torch.tensor([pair[0]], dtype=torch.double), torch.tensor([pair[1]], dtype=torch.double)
    value = float(NAMED[name](original, masked))
    assert value >= -1e-12
    assert value == pytest.approx(LITERAL[name](*pair), rel=1e-6, abs=1e-7)
    single = float(NAMED[name](original.float(), masked.float()))
    assert single >= -1e-5  # rounding of float32 only


@pytest.mark.parametrize("shape", [(1000, 2), (500, 8), (40, 9, 7), (1000, 16), (10, 3), (5,)])
def test_short_rows_are_worked_on_side_by_side(shape: tuple[int, ...]) -> None:
    logits = (5 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found, expected = log_softmax(logits), torch.log_softmax(logits.double(), -1)
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad(value, logits, upstream.to(value.dtype))[0] for value in (found, expected)]
    assert torch.allclose(*slopes, rtol=1e-4, atol=1e-4)
    assert float(slopes[0].abs().max()) > 0.1


def test_far_apart_outputs_stay_finite() -> None:
    original, masked = torch.tensor([[500.0, -500.0]]), torch.tensor([[-500.0, 500.0]])
    for name in ("kl", "js", "cross_entropy", "bernoulli"):
        leaf = masked.clone().requires_grad_()
        value = NAMED[name](original, leaf)
        value.sum().backward()
        assert leaf.grad is not None
        assert bool(torch.isfinite(leaf.grad).all())
        assert bool(torch.isfinite(value).all())
    assert float(NAMED["js"](original, masked)) == pytest.approx(math.log(2), rel=1e-5)  # its upper bound


@pytest.mark.parametrize("name", ["kl", "js", "cross_entropy", "mse"])
def test_a_sequence_of_outputs_is_one_example(name: str) -> None:
    original, masked = logits(5, 7, 3)
    found = resolved(name, original)(original, masked).tolist()
    for row, a, b in zip(found, original.tolist(), masked.tolist(), strict=True):
        steps = [LITERAL[name](x, y) for x, y in zip(a, b, strict=True)]
        assert row == pytest.approx(sum(steps) / 7)


def test_bernoulli_takes_one_value_per_row_or_many() -> None:
    original, masked = logits(6)
    found = resolved("bernoulli", original)(original, masked).tolist()
    assert found == pytest.approx([literal.bernoulli([a], [b]) for a, b in zip(original, masked, strict=True)])
    original, masked = logits(6, 4)
    found = resolved("bernoulli", original)(original, masked).tolist()
    pairs = zip(original.tolist(), masked.tolist(), strict=True)
    assert found == pytest.approx([literal.bernoulli(a, b) for a, b in pairs])


def test_labels_are_summed_and_positions_averaged() -> None:
    """However long a sequence of yes/no answers is, the same tolerance fits."""
    original, masked = logits(6, 5, 3)
    divergence = resolved("bernoulli", original)
    found, loss = divergence(original, masked).tolist(), divergence.own_loss(original, masked)
    for row in range(6):
        steps = [literal.bernoulli(original[row, t].tolist(), masked[row, t].tolist()) for t in range(5)]
        assert found[row] == pytest.approx(sum(steps) / 5)
        each = [divergence.own_loss(original[:, t], masked[:, t])[row] for t in range(5)]
        assert float(loss[row]) == pytest.approx(float(sum(each) / 5))
    assert torch.allclose(divergence(original.repeat(1, 7, 1), masked.repeat(1, 7, 1)), divergence(original, masked))
    changed = ((original > 0) != (masked > 0)).flatten(1).any(1)
    assert divergence.flips(original, masked).tolist() == changed.tolist()


def test_gaussian_takes_its_variance_from_the_first_output() -> None:
    first, (original, masked) = 10 * logits(40)[0], logits(6, seed=3)
    divergence = resolved("gaussian", first)
    mean = sum(first.tolist()) / 40
    variance = sum((v - mean) ** 2 for v in first.tolist()) / 39
    expected = [(a - b) ** 2 / (2 * variance) for a, b in zip(original.tolist(), masked.tolist(), strict=True)]
    assert divergence(original, masked).tolist() == pytest.approx(expected)
    divergence.resolve(original)  # a second time changes nothing
    assert divergence.variance == pytest.approx(variance)


# Probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kl", "js", "cross_entropy"])
def test_categorical_probabilities_give_what_their_logits_give(name: str) -> None:
    original, masked = logits(20, 4)
    p, q = original.softmax(-1), masked.softmax(-1)
    divergence = resolved(name, p)
    assert divergence.probabilities
    assert torch.allclose(divergence(p, q), NAMED[name](original, masked))
    assert not resolved(name, original).probabilities


def test_bernoulli_probabilities() -> None:
    original, masked = logits(20)
    p, q = original.sigmoid(), masked.sigmoid()
    divergence = resolved("bernoulli", p)
    assert divergence.probabilities
    assert torch.allclose(divergence(p, q), NAMED["bernoulli"](original, masked))
    assert divergence.flips(p, q).tolist() == [(a > 0.5) != (b > 0.5) for a, b in zip(p, q, strict=True)]


@pytest.mark.parametrize("name", ["kl", "js", "cross_entropy", "bernoulli"])
def test_probabilities_of_exactly_zero_and_one_stay_finite(name: str) -> None:
    p, q = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    value = resolved(name, p)(p, q)
    assert bool(torch.isfinite(value).all())
    assert float(value[0]) > 0.5
    assert float(value[1]) == pytest.approx(0, abs=1e-6)


def test_what_is_decided_once_holds_for_later_outputs() -> None:
    """A later batch that happens to lie in [0, 1] is not read as probabilities, nor the other way round."""
    divergence = resolved("bernoulli", torch.tensor([-3.0, 2.0]))
    a, b = torch.tensor([0.2, 0.9]), torch.tensor([0.1, 0.8])
    divergence.resolve(a)
    assert not divergence.probabilities
    assert torch.allclose(divergence(a, b), NAMED["bernoulli"](a, b))
    divergence = resolved("kl", torch.tensor([[0.25, 0.75]]))
    divergence.resolve(torch.tensor([[3.0, -3.0]]))
    assert divergence.probabilities


def test_rows_that_only_sum_to_one_are_no_probabilities() -> None:
    assert not resolved("kl", torch.tensor([[1.5, -0.5]])).probabilities
    assert not resolved("kl", torch.tensor([[0.5, 0.5], [0.5, 0.7]])).probabilities


# The same prediction -----------------------------------------------------------------------------------------


def test_flips() -> None:
    original = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    masked = torch.tensor([[1.1, 1.0], [4.0, 3.0], [0.0, 1.0]])
    for name in ("kl", "js", "cross_entropy"):
        assert resolved(name, original).flips(original, masked).tolist() == [False, True, True]
    for name in ("mse", "gaussian"):
        assert resolved(name, original).flips(original, masked).tolist() == [False, False, False]
    yes, no = torch.tensor([[0.5, -0.5], [0.1, 0.2]]), torch.tensor([[0.1, -9.0], [0.1, -0.2]])
    assert resolved("bernoulli", original - 9).flips(yes, no).tolist() == [False, True]


def test_a_sequence_flips_when_any_of_its_predictions_does() -> None:
    original = torch.zeros(2, 3, 2)
    original[..., 0] = 1.0
    masked = original.clone()
    masked[1, 2, 1] = 5.0
    assert resolved("kl", original).flips(original, masked).tolist() == [False, True]


# Choosing ----------------------------------------------------------------------------------------------------


def test_auto_takes_columns_for_classes() -> None:
    assert resolved("auto", logits(5, 3)[0]).name == "kl"
    assert resolved("auto", logits(5, 4, 3)[0]).name == "kl"


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_auto_says_so_when_it_takes_one_value_for_a_yes_or_no(shape: tuple[int, ...]) -> None:
    divergence = Divergence()
    with pytest.warns(UserWarning, match='divergence="mse"'):
        divergence.resolve(logits(*shape)[0])
    assert divergence.name == "bernoulli"
    divergence.resolve(logits(*shape)[0])  # once is enough: no second warning


def test_user_functions() -> None:
    divergence = Divergence(lambda original, masked: (original - masked).abs().amax(1))
    original, masked = logits(6, 3)
    divergence.resolve(original)
    rows = zip(original.tolist(), masked.tolist(), strict=True)
    expected = [max(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in rows]
    assert divergence(original, masked).tolist() == pytest.approx(expected)
    assert divergence.name == "custom"


@pytest.mark.parametrize(
    "function", [lambda a, b: (a - b).abs(), lambda a, b: (a - b).mean(), lambda a, b: 0.5, lambda a, b: None]
)
def test_user_functions_must_return_one_value_per_row(function: Callable[..., object]) -> None:
    original, masked = logits(6, 3)
    with pytest.raises(GraphMaskError, match=r"one value per output row, shape \(6,\), got"):
        Divergence(function)(original, masked)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["kl", "js", "cross_entropy"])
@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_classes_need_columns(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphMaskError, match=r"at least two columns .* got an output of shape .*\. Use"):
        Divergence(name).resolve(torch.zeros(shape))


@pytest.mark.parametrize("name", ["kullback", "", 3, None])
def test_unknown_names(name: object) -> None:
    with pytest.raises(GraphMaskError, match="Expected a divergence among auto, kl, js"):
        Divergence(name)  # type: ignore[arg-type]


def test_the_masked_output_must_have_the_originals_shape() -> None:
    with pytest.raises(GraphMaskError, match=r"shape \(4, 2\), got \(3, 2\)"):
        Divergence("mse")(torch.zeros(4, 2), torch.zeros(3, 2))


@pytest.mark.parametrize("name", NAMED)
def test_state_comes_back(name: str) -> None:
    first = logits(30, 3)[0].softmax(-1)
    divergence, again = resolved(name, first), Divergence(name)
    again.load_state(divergence.state())
    p, q = (x.softmax(-1) for x in logits(8, 3, seed=4))
    assert torch.equal(again(p, q), divergence(p, q))
    again.resolve(logits(8, 3)[0])
    assert again.state() == divergence.state()


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
@pytest.mark.parametrize("choice", ["kl", "js", "mse"])
def test_outputs_of_half_precision_are_compared_in_float32(choice: str, dtype: torch.dtype) -> None:
    original, masked = (10 * value.to(dtype) for value in logits(64, 5, scale=0.1))
    found = resolved(choice, original)(original, masked)
    expected = resolved(choice, original.double())(original.double(), masked.double())
    assert found.dtype == torch.float
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-7)
