"""`calibrate`: other thresholds for gates that are fitted."""

import copy

import pytest
import torch

from graphmask import GraphMask, GraphMaskError, load
from reference import toy


@pytest.fixture(scope="module")
def fitted() -> GraphMask:
    explainer = GraphMask(toy.Toy(), divergence="kl", tolerance=0.02)
    explainer.fit(toy.loader(6, 16), epochs=10, progress=False)
    return explainer


def retained(explainer: GraphMask) -> float:
    found = list(explainer.explain_all(toy.loader(2, 32), allow_infeasible=True))
    return sum(int(e.kept.sum()) for e in found) / sum(int(e.carried.sum()) for e in found)


def test_the_same_tolerance_changes_nothing_and_a_wider_one_keeps_no_more(fitted: GraphMask) -> None:
    explainer, loader = copy.deepcopy(fitted), toy.loader(6, 16)
    before = retained(explainer)
    assert explainer.probe is not None
    parameters = copy.deepcopy(dict(explainer.probe.named_parameters()))
    shares = []
    for tolerance in (0.02, 0.2, 3.0):
        history = explainer.calibrate(loader, tolerance=tolerance)
        assert history.verdict is not None
        assert history.verdict.within(tolerance, explainer.recipe.flips)
        assert explainer.tolerance == tolerance
        shares.append(retained(explainer))
    assert shares[0] == pytest.approx(before, abs=0.02)
    assert shares[0] >= shares[1] >= shares[2]
    assert shares[2] < shares[0]
    for name, value in explainer.probe.named_parameters():
        assert torch.equal(value, parameters[name])


def test_a_calibrated_explainer_is_saved_as_such(fitted: GraphMask, tmp_path) -> None:
    explainer = copy.deepcopy(fitted)
    explainer.calibrate(toy.loader(6, 16), tolerance=3.0)
    explainer.save(tmp_path / "x.graphmask")
    again = load(tmp_path / "x.graphmask", explainer.model)
    assert again.tolerance == 3.0
    assert retained(again) == retained(explainer)


def test_where_nothing_is_within_tolerance_nothing_changes(fitted: GraphMask, monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = copy.deepcopy(fitted)
    probe, history = explainer.probe, explainer.history
    monkeypatch.setattr("graphmask.training.calibrate", lambda *_: [10.0, 10.0])  # drops everything
    with pytest.raises(GraphMaskError, match=r"within tolerance 1e-09"):
        explainer.calibrate(toy.loader(6, 16), tolerance=1e-9)
    assert (explainer.probe, explainer.history, explainer.tolerance) == (probe, history, 0.02)


def test_bad_input(fitted: GraphMask) -> None:
    with pytest.raises(GraphMaskError, match="fitted GraphMask"):
        GraphMask(toy.Toy()).calibrate(toy.loader(1, 4))
    with pytest.raises(GraphMaskError, match="finite tolerance above 0"):
        fitted.calibrate(toy.loader(1, 4), tolerance=0)
    with pytest.raises(GraphMaskError, match="spent after one pass"):
        fitted.calibrate(iter(toy.loader(1, 4)))
