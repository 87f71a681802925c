"""`calibrate` and `at`: other thresholds, or other snapshots, of gates that are fitted."""

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
    found = list(explainer.explain_all(toy.loader(2, 32), allow_infeasible=True, repair=False))
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
        assert history.verdict.meets(tolerance)
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


def test_where_nothing_is_within_tolerance_nothing_changes(fitted: GraphMask) -> None:
    explainer = copy.deepcopy(fitted)
    probe, history = explainer.probe, explainer.history
    with pytest.raises(GraphMaskError, match=r"within tolerance 1e-09"):
        explainer.calibrate(toy.loader(6, 16), tolerance=1e-9)
    assert (explainer.probe, explainer.history, explainer.tolerance) == (probe, history, 0.02)


def test_the_frontier_falls_and_every_point_can_be_had(fitted: GraphMask) -> None:
    frontier = fitted.frontier
    assert len(frontier) >= 2
    shares = [sum(point.kept) / len(point.kept) for point in frontier]
    assert shares == sorted(shares, reverse=True)
    assert [point.tolerance for point in frontier] == sorted(point.tolerance for point in frontier)
    for point, share in zip(frontier, shares, strict=True):
        if share >= 0.99:
            continue
        other = fitted.at(point.tolerance * (1 + 1e-9))
        assert other.tolerance == pytest.approx(point.tolerance)
        assert other.history is not None
        assert other.history.verdict is not None
        assert other.history.verdict.share == pytest.approx(share)
        assert other.history.verdict.divergence == point.divergence
        # ... and it is what is measured on these data: all of the toy's graphs were judged
        assert measured(other) == pytest.approx(share, abs=1e-6)


def measured(explainer: GraphMask) -> float:
    found = list(explainer.explain_all(toy.loader(6, 16), allow_infeasible=True, repair=False))
    kept, carried = (sum(getattr(e, name).sum(1) for e in found) for name in ("kept", "carried"))
    return float((kept / carried).mean())


def test_another_point_leaves_the_fit_as_it_was(fitted: GraphMask) -> None:
    before = {name: value.clone() for name, value in fitted.probe.state_dict().items()}  # type: ignore[union-attr]
    other = fitted.at(3.0)
    assert (fitted.tolerance, other.tolerance) == (0.02, 3.0)
    assert retained(other) <= retained(fitted)
    assert all(torch.equal(before[name], value) for name, value in fitted.probe.state_dict().items())  # type: ignore[union-attr]


def test_a_tolerance_that_nothing_meets_is_refused(fitted: GraphMask) -> None:
    with pytest.raises(GraphMaskError, match=r"got 1e-12; the smallest is"):
        fitted.at(1e-12)


def test_the_frontier_is_saved(fitted: GraphMask, tmp_path) -> None:
    fitted.save(tmp_path / "x.graphmask")
    again = load(tmp_path / "x.graphmask", fitted.model)
    assert again.frontier == fitted.frontier
    for tolerance in (0.02, 0.2, 3.0):
        a, b = again.at(tolerance), fitted.at(tolerance)
        assert retained(a) == retained(b)
        assert a.history == b.history


def test_bad_input(fitted: GraphMask) -> None:
    with pytest.raises(GraphMaskError, match="fitted GraphMask"):
        GraphMask(toy.Toy()).calibrate(toy.loader(1, 4))
    with pytest.raises(GraphMaskError, match="finite tolerance above 0"):
        fitted.calibrate(toy.loader(1, 4), tolerance=0)
    with pytest.raises(GraphMaskError, match="spent after one pass"):
        fitted.calibrate(iter(toy.loader(1, 4)))
