"""Sites have names that people recognise, beside the exact ones, wherever people look."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from graphmask import Explanation, GraphMask, MessageTap, load
from graphmask.graphs.sites import Site, titles
from hetero import support as hetero
from reference.hasty import HASTY


def site(name: str, kind: str = "", module: str | None = None, **rest: object) -> Site:
    return Site(name, module or name, (0,), kind=kind, **rest)  # type: ignore[arg-type]


def test_the_class_of_the_module_stands_behind_its_name() -> None:
    assert titles([site("conv1", "GCNConv"), site("conv2", "GATConv")]) == ("conv1 (GCNConv)", "conv2 (GATConv)")
    assert titles([site("conv1"), site("conv2")]) == ("conv1", "conv2")  # of files that do not say it


def test_a_repeated_call_is_counted() -> None:
    found = titles([site("conv", "GCNConv"), site("conv#1", "GCNConv", "conv")])
    assert found == ("conv (GCNConv)", "conv, call 2 (GCNConv)")


def test_long_names_lose_what_they_share() -> None:
    long = [site(f"bert.encoder.layer.{n}.attention.self", "BertSelfAttention") for n in range(2)]
    assert titles(long) == ("layer.0 (BertSelfAttention)", "layer.1 (BertSelfAttention)")
    assert titles(long[:1]) == ("bert.encoder.layer.0.attention.self (BertSelfAttention)",)
    nested = [site("encoder.message_passing.block", "A"), site("encoder.message_passing.block.inner", "B")]
    assert titles(nested) == ("block (A)", "block.inner (B)")
    assert titles([site("gnn.conv1", "A"), site("gnn.conv2", "A")]) == ("gnn.conv1 (A)", "gnn.conv2 (A)")


def test_two_that_would_be_alike_keep_their_exact_names() -> None:
    kinds = ((("a", "to", "b"),),)
    one, other = (site(f"first.{n}", "SAGEConv", layer="first", types=kinds) for n in "xy")
    assert titles([one, other]) == ("first.x", "first.y")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tap = MessageTap()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        messages = self.tap(x[edge_index[0]], edge_index, nodes=x)
        return torch.zeros_like(x).index_add(0, edge_index[1], messages)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2, self.own = GCNConv(4, 4), GATConv(4, 4), Layer()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(self.conv1(x, edge_index).relu(), edge_index)
        return self.own(self.conv2(x, edge_index), edge_index)


TITLES = ("conv1 (GCNConv)", "conv1, call 2 (GCNConv)", "conv2 (GATConv)", "own.tap (Layer)")


def test_of_a_model_in_history_explanation_tables_and_files(tmp_path: object) -> None:
    generator = torch.Generator().manual_seed(0)
    data = Data(x=torch.randn(6, 4, generator=generator), edge_index=torch.randint(6, (2, 12), generator=generator))
    explainer = GraphMask(Mixed().eval(), recipe=HASTY)
    history = explainer.fit([data], progress=False)
    found = explainer.explain(data, allow_infeasible=True)
    assert found.sites == ("conv1", "conv1#1", "conv2", "own.tap")
    assert found.site_titles == history.titles == TITLES
    assert history.sites == found.sites
    assert all(name in str(history) for name in TITLES)
    assert all(f"{name} " in repr(found) for name in TITLES)
    frame = found.to_pandas()
    assert tuple(frame["site_name"].unique()) == TITLES
    assert tuple(frame["site"].unique()) == found.sites
    card = found._repr_html_()
    assert all(name in card for name in TITLES)
    path = f"{tmp_path}/found"
    found.save(path)
    assert Explanation.load(path).site_titles == TITLES
    explainer.save(path)
    assert load(path, Mixed().eval()).history.titles == TITLES
    page = found.to_html(f"{tmp_path}/page.html").read_text()
    assert 'title="conv1#1">conv1, call 2 (GCNConv)</button>' in page
    ax = found.plot(layer="conv2 (GATConv)")
    assert "messages kept at conv2 (GATConv)" in ax.get_title()


@pytest.mark.parametrize("name", ["sage", "to_hetero"])
def test_of_heterogeneous_models_the_edge_type(name: str) -> None:
    _, explainer = hetero.fitted(name)
    found = explainer.explain(hetero.graph(0), allow_infeasible=True)
    layer = "first" if name == "sage" else "convs.0"
    assert found.site_titles[0] == f"{layer}: author writes paper (SAGEConv)"
    assert found.by_layer().site_titles[0] == f"{layer} (SAGEConv)"
