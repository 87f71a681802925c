"""Which state a fit ends with."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from graphmask import GraphMask, training
from graphmask.calibration import Verdict
from graphmask.training import Recipe, Training

TOLERANCE = 0.04
OPEN = Verdict(0.0, 0.0, (1.0, 1.0))
CLOSE = Verdict(0.03, 0.0, (0.2, 0.1))  # within the tolerance, not with half of it as a margin
GOOD = Verdict(0.01, 0.0, (0.5, 0.5))
FAR = Verdict(0.05, 0.0, (0.0, 0.0))


@pytest.fixture
def late() -> Training:
    """A training that is in its second half."""
    torch.manual_seed(0)
    model = GCN(4, 4, num_layers=2, out_channels=2).eval()
    graph = Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12)))
    explainer = GraphMask(model, tolerance=TOLERANCE, recipe=Recipe(steps=1))
    explainer.fit([graph], progress=False)
    assert explainer.probe is not None
    found = Training(
        explainer.probe, model, explainer.forward, explainer.divergence, TOLERANCE, Recipe(), seed=0, steps=100
    )
    found.step = 60
    return found


@pytest.mark.parametrize(
    ("seen", "best"),
    [
        ([OPEN], OPEN),
        ([OPEN, CLOSE], CLOSE),  # something that may be dropped beats a margin for nothing
        ([CLOSE, OPEN], CLOSE),
        ([CLOSE, GOOD], GOOD),  # a margin beats sparsity
        ([GOOD, CLOSE], GOOD),
        ([FAR, GOOD], GOOD),
        ([FAR], None),
    ],
)
def test_the_best_state(late: Training, seen: list[Verdict], best: Verdict | None) -> None:
    for verdict in seen:
        late.keep_best([0.0, 0.0], verdict)
    assert (None if late.best is None else late.best[2]) == best


def test_patience_is_for_those_who_have_found_something(late: Training) -> None:
    for _ in range(10):
        late.keep_best([0.0, 0.0], OPEN)
    assert late.stale == 0
    for _ in range(3):
        late.keep_best([0.0, 0.0], GOOD)
    assert late.stale == 2


def test_the_margin_gives_way_before_everything_stays_open(late: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Judge:
        def verdict(self, thresholds: list[float]) -> Verdict:
            return OPEN if thresholds[0] < 0 else CLOSE

    def calibrate(_: object, sites: int, budget: float, flips: float) -> list[float]:
        tried.append(budget)
        return [-4.0 if budget < CLOSE.divergence else 0.0] * sites

    monkeypatch.setattr(training, "calibrate", calibrate)
    assert late.calibrate(Judge()) == [0.0, 0.0]  # type: ignore[arg-type]
    assert tried == pytest.approx([0.5 * TOLERANCE, 0.75 * TOLERANCE])
