"""The leaky form of masking: a dropped token's key steers the softmax, which in the default it does not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphmask
from graphmask import GraphMask, GraphMaskError
from graphmask.analysis import silence
from graphmask.graphs.batches import default_forward
from graphmask.tapping.attention import Attention
from reference.attention import leaky_attention
from reference.hasty import HASTY, halve

from .models import BY_NAME, batch, batch_of, sentences
from .test_definition import BATCH, COUNT, HEADS, WIDTH, given


@cache
def fitted(leaky: bool) -> GraphMask:
    explainer = GraphMask(BY_NAME["bert"].model(), recipe=HASTY, leaky_keys=leaky)
    loader = [batch(), batch(1)]
    explainer.fit(loader, epochs=3, progress=False)
    halve(explainer, loader)
    return explainer


@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
@pytest.mark.parametrize("soft", [False, True])
def test_it_is_what_the_formula_says(kind: str, soft: bool) -> None:
    what, allowed = given(0, kind=kind)
    generator = torch.Generator().manual_seed(1)
    gate = torch.rand(BATCH, HEADS, COUNT, COUNT, generator=generator, dtype=torch.float64)
    gate = gate if soft else gate < 0.5
    baseline = torch.randn(HEADS, WIDTH, generator=generator, dtype=torch.float64)
    found = Attention(what).masked(gate, baseline, None)
    rows = zip(what.query, what.key, what.value, allowed, gate, strict=True)
    expected = torch.stack([leaky_attention(*row, baseline) for row in rows])
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def moved(constant: Tensor | None) -> float:
    """How far attention moves when the key and value of a token change that nobody receives from."""
    what, _ = given(0, kind="none")
    gate = torch.ones(BATCH, HEADS, COUNT, COUNT, dtype=torch.bool)
    gate[..., 2] = False
    baseline = torch.ones(HEADS, WIDTH, dtype=torch.float64)
    before = Attention(what).masked(gate, baseline, constant)
    what.key[:, :, 2] += 3 * what.query[:, :, 0]
    what.value[:, :, 2] += 5
    return float((Attention(what).masked(gate, baseline, constant) - before).abs().max())


def test_a_dropped_key_steers_only_in_the_leaky_form() -> None:
    assert moved(None) > 0.1
    assert moved(torch.zeros(HEADS, dtype=torch.float64)) == 0


def test_in_a_fitted_explainer_too() -> None:
    """`analysis.silence` exchanges what dropped pairs carry: the default does not move, the leaky form does."""
    assert silence(fitted(False), [batch()], allow_infeasible=True)["moved"].max() < 1e-5
    assert silence(fitted(True), [batch()], allow_infeasible=True)["moved"].max() > 1e-3


def test_the_certificate_and_files_hold_in_the_leaky_form(tmp_path: Path) -> None:
    explainer, text = fitted(True), batch_of(sentences(6), room=2)
    explanation = explainer.explain(text, repair=False, allow_infeasible=True)
    assert 0.1 < explanation.retained < 0.9
    explainer.save(tmp_path / "x.graphmask")
    explanation.save(tmp_path / "one.explanation")
    again = graphmask.load(tmp_path / "x.graphmask", explainer.model)
    assert again.subject.leaky_keys
    second = again.explain(text, repair=False, allow_infeasible=True)
    assert torch.equal(second.masked, explanation.masked)
    for one in (explanation, graphmask.Explanation.load(tmp_path / "one.explanation")):
        assert all(len(baseline) == 16 for baseline in one.baselines)  # and no constant beside it
        with graphmask.masked(explainer.model, one), torch.no_grad():
            assert torch.allclose(default_forward(explainer.model, text), explanation.masked, atol=1e-6)


def test_a_store_of_the_default_is_not_continued_in_the_leaky_form(tmp_path: Path) -> None:
    method = graphmask.methods.get("random")
    model = BY_NAME["bert"].model()
    method(model).explain_all([batch()], out=tmp_path, progress=False)
    with pytest.raises(GraphMaskError, match="leaky_keys"):
        method(model, leaky_keys=True).explain_all([batch()], out=tmp_path, progress=False)
