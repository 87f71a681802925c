"""A transformer whose needed attention is known by construction: default settings find exactly that."""

from __future__ import annotations

import pytest
import torch

from graphmask import GraphMask
from graphmask.experiments.two_hops import COLOURS, HEADS, TOKENS, TwoHops, draw
from graphmask.tapping import capture, masking
from graphmask.tapping.subject import Subject


def test_the_answer_needs_the_gold_messages_and_no_others() -> None:
    model, test = TwoHops().eval(), draw(100, 1)
    original = model(test.states)
    assert torch.equal(original.argmax(1), test.answers)
    assert test.answers.bincount(minlength=COLOURS).min() >= 15
    gold = torch.cat([test.gold(number) for number in range(100)], 1)
    assert gold.sum(1).tolist() == [100, 100]
    with torch.no_grad(), capture.tap(model, lambda _: None) as state:
        model(test.states)
    nothing = [site.stand_in.left_out(torch.zeros(())) for site in state.sites]

    def run(kept: torch.Tensor) -> torch.Tensor:
        given = {"states": test.states}
        return masking.run(Subject(model, sites=tuple(state.sites)), given, state.edge_map, kept, nothing)

    assert (run(gold) - original).abs().max() < 1e-2  # sufficient
    for layer in range(2):  # each necessary
        without = torch.ones_like(gold)
        without[layer] &= ~gold[layer]
        answered = run(without).argmax(1) == test.answers
        assert answered.float().mean() < 0.6


@pytest.mark.parametrize("seed", [0])
def test_default_settings_find_them(seed: int) -> None:
    model, train, test = TwoHops().eval(), draw(2048, 0), draw(200, 1)
    explainer = GraphMask(model, seed=seed)
    history = explainer.fit(train.batches(), progress=False)
    assert history.feasible
    for repair in (False, True):
        counts = torch.zeros(3, 2)  # right, too many, missed, by layer
        found = explainer.explain_all(test.batches(), repair=repair)
        for number, explanation in enumerate(found):
            gold = test.gold(number)
            assert explanation.kept.shape == (2, HEADS * TOKENS**2)
            kept = explanation.kept
            counts += torch.stack([(kept & gold).sum(1), (kept & ~gold).sum(1), (~kept & gold).sum(1)])
        right, many, missed = counts
        assert (2 * right / (2 * right + many + missed)).min() >= 0.99
