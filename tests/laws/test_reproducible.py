"""Law 6: same seed, same explanation; save then load, same explanation; bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import graphmask
from graphmask import Explanation, GraphMask

from .cases import BY_NAME, CASES, Case
from .support import QUICK, fit, fitted, run, same

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_same_seed_same_explanation(case: Case) -> None:
    first = fitted(case.name)
    torch.manual_seed(99)  # nothing reads the global state
    again = fit(case)
    for graph in case.graphs(2):
        data = case.one(graph)
        assert same(first.explain(data), again.explain(data))
        with first.strict(), again.strict():
            assert same(first.explain(data, repair=True), again.explain(data, repair=True))


@every_case
def test_saved_and_loaded(case: Case, tmp_path: Path) -> None:
    known = fitted(case.name)
    known.explainer.save(tmp_path / "x.graphmask")
    model = case.model()
    model.load_state_dict(known.model.state_dict())  # some layers have parameters that they forget to initialise
    loaded = graphmask.load(tmp_path / "x.graphmask", model)
    for graph in case.graphs(2):
        data = case.one(graph)
        explanation = known.explain(data, repair=True)
        assert same(explanation, loaded.explain(data, allow_infeasible=True))
        explanation.save(tmp_path / "explanation")
        copy = Explanation.load(tmp_path / "explanation")
        assert same(explanation, copy)
        assert copy.structure == explanation.structure
        with graphmask.masked(known.model, copy):
            assert torch.equal(run(known.model, data), explanation.masked)


@pytest.mark.parametrize("name", ["SAGE", "RGCN", "AdjacencyTap dense"])
def test_another_seed_another_gate(name: str) -> None:
    case = BY_NAME[name]
    data = case.one(case.graphs(1)[0])
    other = GraphMask(case.model(), recipe=QUICK, seed=1)
    other.fit(case.loader(), progress=False)
    explanation = other.explain(data, allow_infeasible=True)
    assert not torch.equal(explanation.scores, fitted(name).explain(data).scores)


@pytest.mark.parametrize("moment", [5, 7], ids=["training", "the last verdict"])
@pytest.mark.parametrize("name", ["GAT", "norm and dropout", "RGCN"])
def test_interrupted_and_resumed_is_the_same(name: str, moment: int, tmp_path: Path) -> None:
    case = BY_NAME[name]
    path = tmp_path / "state"
    loader = case.loader(2)

    class Interrupted:
        passes = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Interrupted.passes += 1
            yield loader[0]
            if Interrupted.passes == moment:
                raise KeyboardInterrupt
            yield loader[1]

    whole = GraphMask(case.model(), recipe=QUICK)
    whole.fit(loader, progress=False, epochs=4)
    parts = GraphMask(case.model(), recipe=QUICK)
    with pytest.raises(KeyboardInterrupt):
        parts.fit(Interrupted(), progress=False, epochs=4, checkpoint=path)
    assert path.exists()
    parts.fit(loader, progress=False, epochs=4, checkpoint=path)
    done = GraphMask(case.model(), recipe=QUICK)
    done.fit(loader, progress=False, epochs=4, checkpoint=path)  # as if interrupted after the last step
    data = case.one(case.graphs(1)[0])
    found = whole.explain(data, allow_infeasible=True)
    assert same(found, parts.explain(data, allow_infeasible=True))
    assert same(found, done.explain(data, allow_infeasible=True))
