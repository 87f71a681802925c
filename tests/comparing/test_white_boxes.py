"""Which metrics rank the needed messages of networks with weights set by hand above random ones.

docs/compare.md says what is found here.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

import graphmask
from graphmask import Comparison
from graphmask.comparing.metrics import ALL, COLUMNS
from graphmask.experiments.bench.battery import white_boxes
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from graphmask.graphs.batches import default_forward
from graphmask.methods import get

from .support import AsMany, Known, white_box

#: These do not rank: how much is kept and what it costs say nothing of what is right, and a method that never looks at
#: the input, like a random one, is perfectly stable under noise.
NO_RANK = {"retained", "noise_kappa", "fit_seconds", "ms"}
#: By these, keeping everything is as good as keeping what is needed.
SPARED = {"divergence", "within", "flips", "complement", "complement_flips", "r_plus", "r_minus", "r_delta"}


class Everything(Method):
    """Keeps all messages, with random scores."""

    name = "everything"

    def choose(self, case: Case) -> Choice:
        return Choice(case.uniform(self.seed), case.trace.carried.clone(), case.zeros())


class Supporting(Method):
    """Of graphs with many, what is needed; of graphs with few nothing, for every message speaks against that."""

    name = "supporting"

    def choose(self, case: Case) -> Choice:
        many = case.trace.output.argmax(1)[case.split.edge_graph] == 1
        return case.cut((case.batch.gold.t() & many).to(case.trace.output.dtype), 0.5)


def classes(model: nn.Module, batch: Batch) -> Tensor:
    """Many or few?"""
    count = default_forward(model, batch).view(-1)
    return torch.stack([3.5 - count, count - 3.5], 1)


def compared(box: str, kind: str, **methods: type[Method]) -> Comparison:
    model, data = white_box(box)
    forward, divergence = (classes, "kl") if kind == "classes" else (None, "mse")
    quick = {
        "f_fidelity": {"steps": 5, "labels": False, "samples": 3, "sizes": (0.1, 0.3)},
        "r_fidelity": {"samples": 10},
    }
    return graphmask.compare(
        model,
        data,
        gold="gold",
        forward=forward,
        divergence=divergence,
        methods=methods,
        metrics={name: quick.get(name, {}) for name in ALL},
        seeds=2,
        progress=False,
    )


@pytest.mark.parametrize("kind", ["count", "classes"])
@pytest.mark.parametrize("box", white_boxes.BOXES)
def test_gold_is_ranked_above_random_masks(box: str, kind: str) -> None:
    """Of the same size, and of half of all messages."""
    found = compared(box, kind, known=Known, as_many=AsMany, half=get("random"))
    assert not found.not_applicable
    judged = 0
    for column in set(found.columns) - NO_RANK:
        right = found.figure("known", column)
        if right is None:
            assert (column, kind) in {("flips", "count"), ("complement_flips", "count")}
            continue
        for other in ("as_many", "half"):
            wrong = found.figure(other, column)
            assert wrong is not None
            assert COLUMNS[column].better * (right - wrong) > 0, (column, right, wrong)
        judged += 1
    assert judged == len(found.columns) - len(NO_RANK) - (2 if kind == "count" else 0)
    assert found.figure("as_many", "noise_kappa") == 1  # which is why that does not rank
    assert found.figure("known", "f1") == found.figure("known", "auc_graph") == 1


def test_what_keeping_everything_is_spared() -> None:
    found = compared("two_hops", "classes", known=Known, everything=Everything)
    for column in SPARED:
        assert found.figure("everything", column) == pytest.approx(found.figure("known", column), abs=1e-6), column
    for column in ("keep_area", "drop_area", "f_delta", "f1", "auc", "precision"):
        gap = COLUMNS[column].better * (found.figure("known", column) - found.figure("everything", column))
        assert gap > 0.05, column


def test_robust_fidelity_of_classes_prefers_what_speaks_for_the_prediction() -> None:
    """To what is needed for it: the probability rises when messages that speak against it are removed."""
    found = compared("two_hops", "classes", known=Known, supporting=Supporting)
    assert found.figure("supporting", "r_minus") < found.figure("known", "r_minus") == 0
    assert found.figure("supporting", "r_delta") > found.figure("known", "r_delta")
    assert found.figure("supporting", "recall") < 0.9
    assert found.figure("supporting", "divergence") > found.figure("known", "divergence") == pytest.approx(0, abs=1e-6)
