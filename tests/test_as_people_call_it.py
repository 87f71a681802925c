"""Input as training loops have it: accepted where its meaning is plain, else refused with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAE, GCN, GATConv, GCNConv, global_mean_pool

from graphmask import GraphMask, GraphMaskError, methods
from graphmask.graphs.loaders import KHopLoader
from graphmask.graphs.wrapped_batches import graph_in
from reference.hasty import HASTY


class Model(nn.Module):
    def __init__(self, outputs: int = 2, *, cached: bool = False, pool: bool = True, squeeze: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = GCNConv(3, 8, cached=cached), nn.Linear(8, outputs)
        self.pool, self.squeeze = pool, squeeze
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        hidden = self.conv(x, edge_index).relu()
        found = self.out(global_mean_pool(hidden, batch) if self.pool else hidden)
        return found.squeeze() if self.squeeze else found


def graph(seed: int, nodes: int = 6, edges: int = 12) -> Data:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    return Data(x=torch.randn(nodes, 3, generator=generator), edge_index=ends, y=torch.tensor([seed % 2]))


GRAPHS = [graph(seed) for seed in range(8)]
LOADER = DataLoader(GRAPHS, batch_size=4)


def fitted(loader: Any = LOADER, model: nn.Module | None = None, **options: Any) -> GraphMask:
    explainer = GraphMask(model or Model(), recipe=HASTY, **options)
    explainer.fit(loader, progress=False)
    return explainer


# Accepted ------------------------------------------------------------------------------------------------------

WRAPPED = {
    "pairs": lambda batch: (batch, batch.y),
    "lists": lambda batch: [batch, batch.y],
    "weights too": lambda batch: (batch, batch.y, torch.ones(4)),
    "dictionaries": lambda batch: {"data": batch, "label": batch.y},
}


@pytest.mark.parametrize("form", WRAPPED)
def test_company_makes_no_difference(form: str, tmp_path: Path) -> None:
    alone = fitted().explain_all(LOADER, allow_infeasible=True)
    loader = [WRAPPED[form](batch) for batch in LOADER]
    explainer = fitted(loader)
    found = list(explainer.explain_all(loader, allow_infeasible=True))
    assert [e.scores.tolist() for e in found] == [e.scores.tolist() for e in alone]
    one = explainer.explain(WRAPPED[form](GRAPHS[0]), allow_infeasible=True)
    assert one.scores[0].tolist() == pytest.approx(found[0].scores[0].tolist(), abs=1e-5)
    if form == "pairs":
        stored = explainer.explain_all(loader, out=tmp_path, progress=False, allow_infeasible=True)
        assert [e.scores.tolist() for e in stored] == [e.scores.tolist() for e in found]


def test_pairs_from_a_loader_that_collates_them() -> None:
    loader = DataLoader([(data, data.y) for data in GRAPHS], batch_size=4)  # type: ignore[arg-type]
    assert len(list(fitted(loader).explain_all(loader, allow_infeasible=True))) == 8
    explainer = methods.get("pg_explainer")(Model(), steps=2)
    explainer.fit(loader, progress=False)
    assert explainer.explain(GRAPHS[0]).kept.shape == (1, 12)


def test_what_is_not_plain_is_left_alone() -> None:
    tensors = (GRAPHS[0].x, GRAPHS[0].edge_index)
    assert graph_in(tensors) is tensors
    both = (GRAPHS[0], GRAPHS[1])
    assert graph_in(both) is both
    plain = {"x": GRAPHS[0].x, "edge_index": GRAPHS[0].edge_index, "template": GRAPHS[1]}
    assert graph_in(plain) is plain


def test_a_forward_of_ones_own_gets_what_the_loader_gives() -> None:
    seen: list[type] = []

    def forward(model: nn.Module, batch: Any) -> Tensor:
        seen.append(type(batch))
        return model(batch[0].x, batch[0].edge_index, batch[0].batch)

    loader = [(batch, batch.y) for batch in LOADER]
    explainer = GraphMask(Model(), forward=forward, recipe=HASTY)
    explainer.fit(loader, progress=False)
    assert set(seen) == {tuple}


# Refused -------------------------------------------------------------------------------------------------------


def test_a_graph_without_nodes() -> None:
    empty = Data(x=torch.zeros(0, 3), edge_index=torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(GraphMaskError, match=r"batch 1 of the loader to have nodes.*if data.num_nodes\]"):
        fitted([GRAPHS[0], empty])
    with pytest.raises(GraphMaskError, match="Expected the data to have nodes"):
        fitted().explain(empty, allow_infeasible=True)


def test_heterogeneous_data_for_a_homogeneous_model() -> None:
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.randn(4, 3), torch.randn(3, 3)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    with pytest.raises(GraphMaskError, match=r"Model, which does not take x, edge_index.*data.to_homogeneous\(\)"):
        fitted([data])


def test_wrappers_for_several_devices() -> None:
    with pytest.raises(GraphMaskError, match=r"wrapped in DataParallel.*Pass model.module"):
        GraphMask(nn.DataParallel(Model()))


def test_a_module_that_cannot_be_called() -> None:
    with pytest.raises(GraphMaskError, match=r"ModuleList, which has no forward\(\)"):
        GraphMask(nn.ModuleList([GCNConv(3, 3)]))
    explainer = GraphMask(nn.ModuleList([GCNConv(3, 3)]), forward=lambda m, b: m[0](b.x, b.edge_index), recipe=HASTY)
    explainer.fit(GRAPHS[:2], progress=False)


def test_layers_that_remember_their_first_graph() -> None:
    data = graph(0, 60, 200)
    parts = KHopLoader(data, hops=1, batch_size=20)
    model = Model(cached=True, pool=False)
    with pytest.raises(GraphMaskError, match=r"cached=True at 'conv'.*model.conv.cached = False"):
        fitted(parts, model)
    fitted([data], Model(cached=True, pool=False))  # one graph, always the same: nothing is wrong with that
    model.conv.cached = False
    fitted(parts, model)


def test_gate_scores_of_a_model_without_gates_does_not_send_people_to_fit() -> None:
    with pytest.raises(GraphMaskError, match="applies to layers such as GATConv"):
        methods.get("gate_scores")(Model()).explain((GRAPHS[0], GRAPHS[0].y))

    class Attention(Model):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(3, 8)  # type: ignore[assignment]

    with pytest.raises(GraphMaskError, match=r"Call fit\(loader\) first"):
        methods.get("gate_scores")(Attention().eval()).explain(GRAPHS[0])


def test_a_regression_that_squeezes_its_only_row_away() -> None:
    explainer = fitted(model=Model(1, squeeze=True), divergence="mse")
    with pytest.raises(GraphMaskError, match=r"shape \(\): a squeeze\(\) has taken.*squeeze\(-1\)"):
        explainer.explain(GRAPHS[0], allow_infeasible=True)


# Hints: the line to write, which runs as it stands ---------------------------------------------------------------


class Links(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(3, 3)

    def encode(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.conv(x, edge_index, edge_weight)

    def decode(self, z: Tensor, edge_label_index: Tensor) -> Tensor:
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class Trained(nn.Module):
    """As Lightning's modules are written: steps, a loss, and the network in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = Model(), nn.CrossEntropyLoss()

    def training_step(self, batch: Data, number: int) -> Tensor:
        return self.loss(self.net(batch.x, batch.edge_index, batch.batch), batch.y)


#: Its forward raises, as `lightning.LightningModule`'s does.
Lightning = type(
    "LightningModule", (nn.Module,), {"forward": lambda self, *args: 1 / 0, "__module__": "lightning.pytorch.core"}
)


class TrainedByLightning(Lightning, Trained):  # type: ignore[misc, valid-type]
    pass


@pytest.mark.parametrize("kind", [Links, Trained, TrainedByLightning, lambda: GAE(GCN(3, 3, 1))])
def test_a_model_without_a_forward_is_told_the_line_to_write(kind: Any) -> None:
    model = kind()
    data = GRAPHS[0].clone()
    data.edge_label_index = data.edge_index[:, :4]
    data.batch = torch.zeros(data.num_nodes, dtype=torch.long)
    with pytest.raises(GraphMaskError) as caught:
        methods.get("random")(model, divergence="mse").explain(data)
    code = re.search(r"GraphMask\(model, (forward=lambda .*\))\)\.$", str(caught.value))
    assert code is not None, str(caught.value)
    forward = eval(code[1].removeprefix("forward="))
    found = methods.get("random")(model, forward, "mse").explain(data)
    rows = 1 if isinstance(model, Trained) else 4
    assert found.original.shape[0] == rows
    expected = forward(model.eval(), data)
    assert torch.equal(found.original, expected)
    if isinstance(model, Trained):
        assert "GraphMask(model.net)" in str(caught.value)


# What is printed -----------------------------------------------------------------------------------------------


def test_a_warning_names_the_line_that_called_the_library() -> None:
    single = Model(outputs=1)
    with pytest.warns(UserWarning, match="one value per row") as caught:
        explainer = fitted(model=single)  # through a helper of this file, and several layers of the library
    assert {one.filename for one in caught} == {__file__}
    with torch.no_grad():
        single.out.weight.add_(0.1)
    with pytest.warns(UserWarning, match="weights have changed") as caught:
        explainer.explain(GRAPHS[0], allow_infeasible=True)
    assert {one.filename for one in caught} == {__file__}
    with pytest.warns(UserWarning, match="weights have changed") as caught:
        list(explainer.explain_all(LOADER, allow_infeasible=True))
    assert {one.filename for one in caught} == {__file__}


def test_an_explainer_says_whose_it_is() -> None:
    assert repr(GraphMask(Model(), tolerance=0.05)) == "GraphMask(Model, tolerance=0.05)"
    assert repr(methods.get("random")(Model())) == "RandomChoice(Model, tolerance=0.03)"
