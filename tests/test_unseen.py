"""What mixes nodes outside message passing is named: in the explanation, its files, and everything that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

from graphmask import Explanation, methods, store
from graphmask.tapping.unseen import unseen

WIDTH, NODES = 8, 6


def data(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(NODES, WIDTH, generator=generator), edge_index=torch.randint(NODES, (2, 14), generator=generator)
    )


class With(nn.Module):
    """A layer, a module, and a readout."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.conv, self.inner, self.out = pyg.GraphConv(WIDTH, WIDTH), module, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.out(pyg.global_add_pool(rows(self.inner, self.conv(x, edge_index).relu(), edge_index), batch))


def rows(module: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    """[N, d] what a module makes of nodes, each kind called as it wants to be."""
    if isinstance(module, pyg.GPSConv):
        return module(x, edge_index)
    if isinstance(module, nn.MultiheadAttention):
        return module(x, x, x)[0]
    if isinstance(module, nn.RNNBase):
        return module(x)[0]
    if isinstance(module, nn.RNNCellBase):
        return module(x)
    if isinstance(module, pyg.JumpingKnowledge):
        return module([x, x.sin()])
    if isinstance(module, (nn.TransformerEncoderLayer, pyg.attention.PerformerAttention)):
        return module(x[None])[0]
    if isinstance(module, nn.InstanceNorm1d) and type(module) is nn.InstanceNorm1d:
        return module(x.t()[None])[0].t()
    return module(x)


MIXING = {
    "attention": (nn.MultiheadAttention(WIDTH, 2), "inner (MultiheadAttention)"),
    "transformer": (
        nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True),
        "inner.self_attn (MultiheadAttention)",
    ),
    "performer": (pyg.attention.PerformerAttention(WIDTH, 2, head_channels=4), "inner (PerformerAttention)"),
    "gru": (nn.GRU(WIDTH, WIDTH), "inner (GRU)"),
    "lstm": (nn.Sequential(nn.Identity(), nn.LSTM(WIDTH, WIDTH)), "inner.1 (LSTM)"),
    "graph norm": (pyg.GraphNorm(WIDTH), "inner (GraphNorm)"),
    "pair norm": (pyg.PairNorm(), "inner (PairNorm)"),
    "instance norm": (pyg.InstanceNorm(WIDTH), "inner (InstanceNorm)"),
    "torch's instance norm": (nn.InstanceNorm1d(WIDTH), "inner (InstanceNorm1d)"),
    "mean subtraction": (pyg.MeanSubtractionNorm(), "inner (MeanSubtractionNorm)"),
    "layer norm of graphs": (pyg.LayerNorm(WIDTH, mode="graph"), "inner (LayerNorm)"),
    "batch norm without statistics": (
        nn.BatchNorm1d(WIDTH, track_running_stats=False),
        "inner (BatchNorm1d)",
    ),
}
BY_ITSELF = {
    "linear": nn.Linear(WIDTH, WIDTH),
    "batch norm": pyg.BatchNorm(WIDTH),
    "instance norm with statistics": pyg.InstanceNorm(WIDTH, track_running_stats=True),
    "layer norm": nn.LayerNorm(WIDTH),
    "layer norm of nodes": pyg.LayerNorm(WIDTH, mode="node"),
    "group norm": nn.GroupNorm(2, WIDTH),
    "gru cell": nn.GRUCell(WIDTH, WIDTH),
    "jumping knowledge": pyg.JumpingKnowledge("lstm", WIDTH, 2),
}


def acts_on_others(module: nn.Module) -> bool:
    """Does the row of one node change when that of another does? Measured, not told by the class."""
    x, edge_index = data().x, data().edge_index
    if isinstance(module, nn.Sequential):
        x, module = module[0](x), module[1]
    other = x.clone()
    other[0] += torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    return not torch.equal(rows(module, x, edge_index)[1:], rows(module, other, edge_index)[1:])


@pytest.mark.parametrize("name", MIXING)
def test_modules_that_mix_nodes_are_named(name: str) -> None:
    module, expected = MIXING[name]
    module.eval()
    assert acts_on_others(module)
    assert unseen(With(module)) == (expected,)


@pytest.mark.parametrize("name", BY_ITSELF)
def test_modules_that_treat_each_node_by_itself_are_not(name: str) -> None:
    module = BY_ITSELF[name].eval()
    assert not acts_on_others(module)
    assert unseen(With(module)) == ()


def test_pooling_and_aggregation_are_not() -> None:
    assert unseen(With(pyg.SAGEConv(WIDTH, WIDTH, aggr="lstm"))) == ()
    assert unseen(With(pyg.aggr.SetTransformerAggregation(WIDTH))) == ()
    assert unseen(With(pyg.aggr.Set2Set(WIDTH, 2))) == ()


def test_attention_that_is_gated_is_seen() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 8), 2, enable_nested_tensor=False)
    assert unseen(encoder) == ()
    assert unseen(nn.Sequential(encoder, nn.GRU(WIDTH, WIDTH))) == ("1 (GRU)",)


@pytest.fixture(scope="module")
def found() -> Explanation:
    torch.manual_seed(0)
    model = With(pyg.GPSConv(WIDTH, pyg.GINConv(nn.Linear(WIDTH, WIDTH)), heads=2)).eval()
    return methods.get("random")(model).explain(data())


NAMES = ("inner.attn (MultiheadAttention)",)


def test_the_certificate_says_what_it_is_about(found: Explanation) -> None:
    assert found.unseen == NAMES
    assert found.faithful
    assert "within tolerance for the messages that are seen: divergence" in repr(found)
    assert repr(found.unseen[0])[1:-1] in repr(found)


def test_without_such_modules_nothing_is_said() -> None:
    torch.manual_seed(0)
    found = methods.get("random")(With(nn.Linear(WIDTH, WIDTH)).eval()).explain(data())
    assert found.unseen == ()
    assert "seen" not in repr(found)
    assert found.info == {}


def test_pages_and_notebooks_show_it(found: Explanation, tmp_path: Path) -> None:
    page = found.to_html(tmp_path / "page.html").read_text()
    for shown in (page, found._repr_html_()):
        assert "within tolerance for the messages that are seen" in shown
        assert "inner.attn (MultiheadAttention)" in shown
    assert "about the messages" in page


def test_files_and_stores_keep_it(found: Explanation, tmp_path: Path) -> None:
    found.save(tmp_path / "one")
    assert Explanation.load(tmp_path / "one").unseen == NAMES
    torch.manual_seed(0)
    model = With(pyg.GPSConv(WIDTH, pyg.GINConv(nn.Linear(WIDTH, WIDTH)), heads=2)).eval()
    notes: Any = lambda batch: [{"id": number} for number in range(batch.num_graphs)]  # noqa: E731
    method = methods.get("random")(model)
    loader = [Batch.from_data_list([data(1), data(2)])]
    method.explain_all(loader, out=tmp_path / "store", metadata=notes, progress=False)
    kept = list(store.open(tmp_path / "store"))
    assert [e.unseen for e in kept] == [NAMES] * 2
    assert [e.info["id"] for e in kept] == [0, 1]
