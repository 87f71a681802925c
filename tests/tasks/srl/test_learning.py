"""Training, prediction and counting on a handful of sentences."""

from __future__ import annotations

import pytest
import torch

from graphmask import GraphMaskError
from graphmask.experiments.srl import learning, scorer
from graphmask.experiments.srl.learning import Loader, Schedule

from .test_examples import ALL
from .test_model import small

SCHEDULE = Schedule(epochs=30, learning_rate=1e-2, tokens=8)


def test_a_labeller_learns_a_handful_by_heart():
    model, examples = small(1)
    history, seconds = learning.train(model.float(), examples, examples, SCHEDULE, seed=0, progress=False)
    assert seconds > 0
    assert len(history) == 30
    assert history[-1]["loss"] < 0.1 < history[0]["loss"]
    assert learning.arguments(model, examples).f1 == 100.0
    assert not model.training


def test_counting_agrees_with_the_scorer():
    _, examples = small(0)
    guessed = [torch.randint(0, 3, (5,)), torch.tensor([0, 2, 0, 1, 0]), torch.tensor([1, 0])]
    sentences = learning.labelled(guessed, examples)
    # The auxiliary in the second sentence is no example: its arguments are left as they are, and right.
    expected = scorer.score(ALL, sentences)
    found = learning.count(guessed, examples)
    assert (found.correct + 1, found.predicted + 1, found.gold + 1) == (
        expected.correct,
        expected.predicted,
        expected.gold,
    )
    assert learning.count(guessed, examples, [2]).gold == 1
    assert learning.count(guessed, examples, []).f1 == 0.0


def test_predictions_come_in_the_order_of_the_examples():
    model, examples = small(1)
    model = model.float()
    for number, roles in enumerate(learning.predict(model, examples, tokens=5)):
        assert torch.equal(roles, learning.forward(model, examples.batch([number])).argmax(1))


def test_a_loader_gives_every_example_once_and_the_same_again():
    _, examples = small(0)
    loader = Loader(examples, 6)
    found = [[batch.example.tolist() for batch in loader] for _ in range(2)]
    assert found[0] == found[1]
    assert sorted(number for batch in found[0] for number in batch) == [0, 1, 2]
    assert [batch.example.tolist() for batch in Loader(examples, 6, only=[2])] == [[2]]


def test_a_training_that_was_cut_off_goes_on_alike(tmp_path):
    states = []
    for cut in (False, True):
        model, examples = small(1)
        model, path = model.float(), tmp_path / f"{cut}.safetensors"
        if cut:
            with pytest.raises(KeyboardInterrupt):
                learning.train(model, examples, _Stopping(examples, 4), SCHEDULE, seed=0, path=path, progress=False)
            model, _ = small(1)
            model = model.float()
        history, _ = learning.train(model, examples, examples, SCHEDULE, seed=0, path=path, progress=False)
        states.append((history, model.state_dict()))
    assert states[0][0] == states[1][0]
    assert all(torch.equal(states[0][1][key], states[1][1][key]) for key in states[0][1])


class _Stopping:
    """Development examples that interrupt the training when they are looked at for the n-th time."""

    def __init__(self, examples, times):
        self.examples, self.times = examples, times

    def __len__(self):
        return len(self.examples)

    def __getattr__(self, name):
        if name == "lengths":
            self.times -= 1
            if not self.times:
                raise KeyboardInterrupt
        return getattr(self.examples, name)


def test_another_training_at_the_same_place_is_refused(tmp_path):
    model, examples = small(0)
    path = tmp_path / "training.safetensors"
    learning.train(model.float(), examples, examples, Schedule(epochs=1), seed=0, path=path, progress=False)
    with pytest.raises(GraphMaskError, match=r"same settings at .*, found another"):
        learning.train(model, examples, examples, Schedule(epochs=1), seed=1, path=path, progress=False)
