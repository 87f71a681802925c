"""Law 3: a gate at site k does not change when anything above site k changes."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from graphmask.graphs import batches
from graphmask.tapping import capture
from graphmask.tapping.messages import Messages
from graphmask.tapping.subject import Subject

from .cases import CASES, Case
from .support import fitted, run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gates_do_not_see_what_comes_later(case: Case) -> None:
    known = fitted(case.name)
    probe = known.explainer.probe
    assert probe is not None
    batch = case.loader(1, start=200)[0]
    original = probe.original(Subject(known.model), batch)
    later = called_after(known.model, batch)
    assert len(later) == len(case.sites)
    for site, names in enumerate(later):
        changed = perturbed(known.model, names)
        again = probe.original(Subject(changed), batch)
        assert float((again.output - original.output).abs().max()) > 1e-3
        assert torch.equal(again.values[: site + 1], original.values[: site + 1])
    # The law is not empty: gates do see what comes before them.
    x = batch["x_src"] if "x_src" in batch else batch["x"]
    x *= -1
    again = probe.original(Subject(known.model), batch)
    assert not (again.values == original.values).all(1).any()


def called_after(model: nn.Module, batch: Any) -> list[set[str]]:
    """Per site, the modules that are first called when its messages have been sent."""
    first: dict[str, int] = {}
    sent: dict[int, int] = {}
    clock = iter(range(1_000_000))

    def visit(messages: Messages) -> None:
        sent[messages.site] = next(clock)

    def enter(name: str, *_: Any) -> None:
        first.setdefault(name, next(clock))

    handles = [m.register_forward_pre_hook(partial(enter, name)) for name, m in model.named_modules()]
    with capture.tap(model, visit, batches.edge_index_of(batch)):
        run(model, batch)
    for handle in handles:
        handle.remove()
    return [{name for name, time in first.items() if time > sent[site]} for site in sorted(sent)]


def perturbed(model: nn.Module, names: set[str]) -> nn.Module:
    """A copy with other parameters in these modules."""
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    for name, module in changed.named_modules():
        if name in names:
            for parameter in module.parameters(recurse=False):
                parameter.data += torch.randn(parameter.shape, generator=generator)
    return changed
