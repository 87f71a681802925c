"""Many sentences are explained some at a time, which takes less memory and changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphmask import Explanation, GraphMask
from graphmask.experiments.bench.memory import peak_bytes
from graphmask.explaining import pieces as module
from graphmask.explaining.pieces import Alike, pieces
from graphmask.fitting.recipe import Recipe
from graphmask.methods import get

from .models import BY_NAME, HEADS, LAYERS, batch_of, sentences

LENGTHS = (5, 9, 3, 9, 7, 9, 5, 4)
GIVEN = batch_of(sentences(*LENGTHS))
WHOLE, ALONE = 1 << 40, 1


def explainer(name: str, **options: Any) -> GraphMask:
    found = GraphMask(BY_NAME[name].make(), recipe=Recipe(steps=6), tolerance=0.5, seed=1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found.fit([batch_of(sentences(*LENGTHS, seed=2))], epochs=6, progress=False)
    return found


def at_once(monkeypatch: pytest.MonkeyPatch, limit: int, ask: Callable[[], Any]) -> Any:
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", limit)
    return ask()


def assert_alike(one: list[Explanation], other: list[Explanation]) -> None:
    assert len(one) == len(other) == len(LENGTHS)
    for first, second in zip(one, other, strict=True):
        for name in ("edge_index", "edge_type", "kept", "carried"):
            mine, its = getattr(first, name), getattr(second, name)
            assert (mine is None and its is None) or torch.equal(mine, its)  # heads together have no types
        for name in ("scores", "original", "masked"):
            torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=1e-5, atol=1e-6)
        assert first.divergence == pytest.approx(second.divergence, rel=1e-4, abs=1e-6)
        assert (first.num_nodes, first.flips, first.reopened) == (second.num_nodes, second.flips, second.reopened)


@pytest.mark.parametrize("name", ["bert", "gpt2", "handwritten"])
@pytest.mark.parametrize("heads", ["each", "together"])
def test_explanations_are_the_same(name: str, heads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = explainer(name, heads=heads)

    def ask() -> list[Explanation]:
        return list(ours.explain_all([GIVEN], allow_infeasible=True, counterfactual=True))

    whole, alone = (at_once(monkeypatch, limit, ask) for limit in (WHOLE, ALONE))
    assert_alike(whole, alone)
    for first, second in zip(whole, alone, strict=True):
        assert (first.counterfactual is None) == (second.counterfactual is None)
        if first.counterfactual is not None:
            assert torch.equal(first.counterfactual, second.counterfactual)


@pytest.mark.parametrize(
    ("name", "options"), [("random", {}), ("attention_weights", {}), ("integrated_gradients", {"steps": 3})]
)
def test_those_of_other_methods_too(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = BY_NAME["bert"].make()

    def ask() -> list[Explanation]:
        method = get(name)(model, **options)
        first, *_ = method.explain_all([GIVEN])  # sites are known from the second batch of a call on
        found = list(method.explain_all([GIVEN, GIVEN]))
        assert torch.equal(first.kept, found[0].kept)
        return found[len(LENGTHS) :]

    assert_alike(*(at_once(monkeypatch, limit, ask) for limit in (WHOLE, ALONE)))


def test_what_is_divided_and_into_what(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = explainer("bert").subject
    size = max(LENGTHS) ** 2 * HEADS * LAYERS  # pairs of a sentence, with those of padding

    def sizes(given: Any, limit: int, which: Any = subject) -> list[int]:
        return at_once(monkeypatch, limit, lambda: [len(one["input_ids"]) for one in pieces(which, given)])

    assert sizes(GIVEN, 8 * size) == [8]
    assert sizes(GIVEN, 8 * size - 1) == [4, 4]
    assert sizes(GIVEN, 3 * size) == [3, 3, 2]
    assert sizes(GIVEN, 1) == [1] * 8
    again = at_once(monkeypatch, 3 * size, lambda: pieces(subject, GIVEN))
    for key, value in GIVEN.items():
        assert torch.equal(torch.cat([one[key] for one in again]), value)
    # What cannot be told to be one row per sentence stays whole.
    assert sizes(GIVEN | {"position_ids": torch.arange(9)[None]}, 1) == [8]
    assert sizes(GIVEN | {"texts": ["..."] * 8}, 1) == [8]
    own = GraphMask(BY_NAME["bert"].make(), lambda model, given: model(**given).logits)
    assert sizes(GIVEN, 1, own.subject) == [8]  # not fitted: sites are not known
    own.fit([GIVEN], epochs=1, progress=False)
    assert sizes(GIVEN, 1, own.subject) == [8]  # a forward of the user's own may compare sentences
    with_ids = {"x": GIVEN["input_ids"]}
    assert at_once(monkeypatch, 1, lambda: pieces(subject, with_ids)) == [with_ids]


def test_pairs_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = explainer("bert")
    found = at_once(monkeypatch, ALONE, lambda: list(ours.explain_all([GIVEN], allow_infeasible=True)))
    for name in ("edge_index", "edge_type", "carried"):
        places = {one.num_nodes: getattr(one, name).untyped_storage().data_ptr() for one in found}
        assert len(set(places.values())) == len(set(LENGTHS))
        for one in found:
            mine = getattr(one, name)
            assert mine.untyped_storage().data_ptr() == places[one.num_nodes]
            assert mine.untyped_storage().nbytes() == mine.nbytes


def test_tensors_that_are_not_equal_are_not_alike() -> None:
    alike = Alike()
    one, other = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert alike(one) is alike(one.clone())
    assert torch.equal(alike(other), other)
    assert alike(one) is not alike(other)
    assert alike(one).dtype is not alike(one.int()).dtype
    assert alike(torch.ones(2, 3)).shape != alike(torch.ones(3, 2)).shape
    one[0] = 7
    assert alike(torch.tensor([1, 2, 3]))[0] == 1  # it was a copy


def test_memory_is_that_of_the_model_and_of_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the proportions of MiniLM (32 sentences of 64 tokens): 1.4 runs of the eager model, all explanations held."""
    from graphmask.experiments.bench import transformer

    monkeypatch.setattr(transformer, "WORDS", 100)
    model, given = transformer.make()
    ours = GraphMask(model, recipe=Recipe(steps=1, start="zero"))
    some = {key: value[:2] for key, value in given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ours.fit([some], epochs=1, progress=False)
    needed = peak_bytes(lambda: list(ours.explain_all([given], repair=False, allow_infeasible=True)))
    assert needed <= 1.5 * peak_bytes(lambda: _forward(model, given))


def _forward(model: nn.Module, given: Any) -> None:
    with torch.no_grad():
        model(**given)
