"""Networks that provably ignore input features: that they do, that the rest counts, and how fits are judged by that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphmask.errors import GraphMaskError
from graphmask.experiments.bench import ignored
from graphmask.graphs.batches import default_forward

PAIRS = [(box, kind) for box in ignored.BOXES for kind in ignored.KINDS]
every_pair = pytest.mark.parametrize(("box", "kind"), PAIRS)


def arranged(kind: str, data: Data) -> tuple[str, Tensor]:
    """The attribute that is gated, and bool of its shape: what of it is used."""
    name, used = ("edge_attr" if kind == "edges" else "x"), ignored.used(kind, data)
    return name, used if kind == "each" else used[:, None].expand_as(data[name])


@every_pair
def test_what_is_ignored_may_be_anything(box: str, kind: str) -> None:
    """As long as it keeps the flag that says so, or takes one below it."""
    model, batch = ignored.BOXES[box](kind).eval(), Batch.from_data_list(ignored.draw(5, 1))
    name, used = arranged(kind, batch)
    other = batch.clone()
    other[name] = torch.where(used, batch[name], 3 * torch.rand(batch[name].shape) - 1.5)
    if kind != "each":
        other[name][:, 0] = torch.where(used[:, 0], batch[name][:, 0], -torch.rand(len(used)))
    assert not torch.equal(other[name], batch[name])
    assert torch.equal(default_forward(model, other), default_forward(model, batch))


@every_pair
@torch.no_grad()
def test_what_is_used_counts(box: str, kind: str) -> None:
    """Each part by itself, replaced by zero: what was moved is more than ten times the tolerance."""
    model = ignored.BOXES[box](kind).eval()
    smallest = torch.inf
    for data in ignored.draw(5, 2):
        batch = Batch.from_data_list([data])
        name, _ = arranged(kind, data)
        before = default_forward(model, batch)
        for place in ignored.used(kind, data).nonzero():
            other = batch.clone()
            other[name] = batch[name].clone()
            other[name][tuple(place)] = 0.0
            moved = (default_forward(model, other) - before).square().mean(-1)
            smallest = min(smallest, float(moved.max()))
    assert smallest > 0.3


def test_fits_are_judged_and_kept(tmp_path: Path) -> None:
    """After an epoch nothing is dropped yet: all that is ignored is still there."""
    found = ignored.measure(["gcn"], ["nodes"], 1, tmp_path, epochs=1, progress=False)
    (one,) = found["gcn"]["nodes"]
    assert (one.ignored_kept, one.used_dropped, one.exact) == (1.0, 0.0, False)
    (file,) = tmp_path.iterdir()
    file.write_text('{"ignored_kept": 0.0, "used_dropped": 0.0, "divergence": 0.01}')
    again = ignored.measure(["gcn"], ["nodes"], 1, tmp_path, epochs=1, progress=False)
    assert again["gcn"]["nodes"][0].exact
    header, rows = ignored.rows({"gcn": {"nodes": [one, again["gcn"]["nodes"][0]]}})
    assert len(header) == len(rows[0])
    assert rows == [["gcn", "nodes", "1 of 2", "100.0", "0.0", f"{max(one.divergence, 0.01):.3f}"]]
    with pytest.raises(GraphMaskError, match="Expected networks among gcn"):
        ignored.measure(["gat"], ["nodes"], 1, tmp_path, progress=False)
