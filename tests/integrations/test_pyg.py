"""PyG's Explainer with our methods inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, ModelConfig
from torch_geometric.nn import GCN, global_add_pool

from graphmask import GraphMask, GraphMaskError, masked, methods
from graphmask.explaining.method import Method
from graphmask.integrations.pyg import GraphMaskAlgorithm
from methods.common import NAMES, OF_ATTENTION, quick

MULTICLASS, BINARY, REGRESSION = "multiclass_classification", "binary_classification", "regression"


class Graphs(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.gnn, self.out = GCN(4, 8, num_layers=2), nn.Linear(8, outputs)

    def forward(self, h: Tensor, edges: Tensor, batch: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """Names that are not PyG's, and an option."""
        return scale * self.out(global_add_pool(self.gnn(h, edges), batch))


class Links(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gnn = GCN(4, 8, num_layers=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.gnn(x, edge_index)
        return (h[edge_label_index[0]] * h[edge_label_index[1]]).sum(-1)


def made(kind: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args, **kwargs).eval()


def graph(seed: int = 0, nodes: int = 12, edges: int = 30) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, 4, generator=generator), edge_index=torch.randint(nodes, (2, edges), generator=generator)
    )


def explainer_of(
    method: Method, mode: str = MULTICLASS, level: str = "node", returns: str = "raw", **options: Any
) -> Explainer:
    config = ModelConfig(mode=mode, task_level=level, return_type=returns)
    algorithm = GraphMaskAlgorithm(method, **options)
    return Explainer(method.model, algorithm, "model", config, edge_mask_type="object")


@pytest.fixture(scope="module")
def fitted() -> GraphMask:
    explainer = GraphMask(made(GCN, 4, 8, num_layers=2, out_channels=3), tolerance=0.05)
    explainer.fit([graph(seed) for seed in range(4)], epochs=6, progress=False)
    return explainer


def test_the_same_as_asking_us(fitted: GraphMask) -> None:
    data, explainer = graph(7), explainer_of(fitted, allow_infeasible=True)
    for index in (None, 5, torch.tensor([2, 9])):
        own = fitted.explain(data, index=index, allow_infeasible=True)
        found = explainer(data.x, data.edge_index, index=index)
        assert found.validate()
        assert found.sites == own.sites == ("convs.0", "convs.1")
        assert torch.equal(found.site_mask, own.scores.t())
        assert torch.equal(found.site_kept, own.kept.t())
        assert torch.equal(found.edge_mask > 0, own.kept.any(0))
        assert torch.equal(found.edge_mask, (own.scores * own.kept).amax(0))
        assert (found.divergence, found.flips, found.faithful) == (own.divergence, own.flips, own.faithful)
        assert torch.equal(found.masked, own.masked)
        assert torch.equal(found.prediction, fitted.model(data.x, data.edge_index))
        with masked(fitted.model, own), torch.no_grad():
            output = fitted.model(data.x, data.edge_index)
        assert torch.equal(output if index is None else output[torch.as_tensor(index).view(-1)], found.masked)


def test_thresholds_subgraphs_and_pictures(fitted: GraphMask, tmp_path: Path) -> None:
    data = graph(7)
    explanation = explainer_of(fitted, allow_infeasible=True, repair=True)(data.x, data.edge_index, index=5)
    kept = explanation.edge_mask > 0
    assert 0 < int(kept.sum()) < 30
    inside, outside = explanation.get_explanation_subgraph(), explanation.get_complement_subgraph()
    assert torch.equal(inside.edge_index, data.edge_index[:, kept])
    assert torch.equal(inside.site_kept, explanation.site_kept[kept])
    assert torch.equal(outside.site_mask, explanation.site_mask[~kept])
    assert inside.sites == explanation.sites
    assert torch.equal(explanation.threshold("hard", 0.5).edge_mask, (explanation.edge_mask > 0.5).float())
    top = explanation.threshold("topk_hard", 2).edge_mask
    assert top.sum() == 2
    assert bool((kept | (top == 0)).all())
    explanation.visualize_graph(str(tmp_path / "graph.png"), backend="networkx")
    assert (tmp_path / "graph.png").stat().st_size > 1000
    algorithm = explainer_of(fitted, allow_infeasible=True).algorithm
    config = ModelConfig(mode=MULTICLASS, task_level="node", return_type="raw")
    hard = Explainer(
        fitted.model, algorithm, "model", config, edge_mask_type="object", threshold_config=("topk_hard", 3)
    )
    assert hard(data.x, data.edge_index).edge_mask.sum() == 3
    with pytest.raises(ValueError, match="not a valid ThresholdType"):
        explanation.threshold("connected", 3)


def test_as_many_nodes_or_sites_as_edges(fitted: GraphMask) -> None:
    """Where sizes do not tell what is per edge, masks are still cut with the edges."""
    for nodes, edges in ((12, 12), (12, 2)):
        data = graph(3, nodes, edges)
        explanation = explainer_of(fitted, allow_infeasible=True)(data.x, data.edge_index)
        explanation.edge_mask = torch.arange(edges).float()
        cut = explanation.get_explanation_subgraph()
        assert torch.equal(cut.site_mask, explanation.site_mask[1:])
        assert cut.sites == explanation.sites


@pytest.mark.parametrize("mode", [MULTICLASS, BINARY, REGRESSION])
def test_graph_level_in_every_mode(mode: str) -> None:
    model = made(Graphs, 3 if mode == MULTICLASS else 1)
    divergence = "mse" if mode == REGRESSION else "auto"
    method = methods.get("occlusion")(model, divergence=divergence, tolerance=0.1)
    explainer, data = explainer_of(method, mode, "graph"), graph(1)
    explanation = explainer(data.x, data.edge_index, scale=0.5)
    with torch.no_grad():
        output = model(data.x, data.edge_index, scale=0.5)
    assert torch.equal(explanation.prediction, output)
    assert method.divergence.name == {MULTICLASS: "kl", BINARY: "bernoulli", REGRESSION: "mse"}[mode]
    expected = method.divergence(output, explanation.masked).mean()
    assert explanation.divergence == pytest.approx(float(expected), abs=1e-6)
    batch = Batch.from_data_list([graph(1), graph(2)])
    both = explainer(batch.x, batch.edge_index, batch=batch.batch)
    one = explainer(batch.x, batch.edge_index, batch=batch.batch, index=1)
    assert both.masked.shape[0] == 2
    assert both.num_nodes == 24
    mine = batch.batch[batch.edge_index[0]] == 1
    assert not bool(one.site_kept[~mine].any())
    assert bool(one.site_kept[mine].any())


def test_edge_level_and_probabilities() -> None:
    model, data = made(Links), graph(4)
    wanted = torch.tensor([[0, 3, 5], [1, 4, 6]])
    method = methods.get("erasure_search")(model, budget=16)
    explanation = explainer_of(method, BINARY, "edge")(data.x, data.edge_index, edge_label_index=wanted, index=1)
    own = method.explain(Data(**data.to_dict(), edge_label_index=wanted), index=1)
    assert torch.equal(explanation.site_kept, own.kept.t())
    assert explanation.target.shape == (3,)

    class Probabilities(Links):
        def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
            return super().forward(x, edge_index, edge_label_index).sigmoid()

    method = methods.get("occlusion")(made(Probabilities))
    explanation = explainer_of(method, BINARY, "edge", "probs")(data.x, data.edge_index, edge_label_index=wanted)
    p, q = explanation.prediction, explanation.masked
    expected = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    assert explanation.divergence == pytest.approx(float(expected.mean()), abs=1e-5)
    # Once read as probabilities, they are not read as logits.
    with pytest.raises(GraphMaskError, match="Expected outputs that are probabilities"):
        explainer_of(method, BINARY, "edge")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ATTENTION])
def test_every_method_is_an_algorithm(name: str) -> None:
    data, model = graph(2), made(GCN, 4, 8, num_layers=2, out_channels=3)
    method = quick(name, model)
    method.fit([data], progress=False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    explanation = explainer_of(method, allow_infeasible=True)(data.x, data.edge_index, index=3)
    own = method.explain(data, index=3, allow_infeasible=True)
    assert torch.equal(explanation.site_kept, own.kept.t())
    assert explanation.divergence == pytest.approx(own.divergence, abs=1e-7)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_fitted_on_the_way_with_a_warning() -> None:
    data, model = graph(2), made(GCN, 4, 8, num_layers=2, out_channels=3)
    explainer = explainer_of(quick("pg_explainer", model), fit_on=[graph(seed) for seed in range(4)])
    with pytest.warns(UserWarning, match="was not fitted yet and is fitted now"):
        first = explainer(data.x, data.edge_index)
    again = explainer(data.x, data.edge_index)  # without a warning: they are errors here
    assert torch.equal(first.site_mask, again.site_mask)


# What does not fit -----------------------------------------------------------------------------------------------


def test_unfitted_without_data() -> None:
    data, model = graph(), made(GCN, 4, 8, num_layers=2, out_channels=3)
    with pytest.raises(GraphMaskError, match=r"Expected a fitted GraphMask.*fit_on=loader"):
        explainer_of(GraphMask(model))(data.x, data.edge_index)


def test_settings_that_do_not_fit() -> None:
    model = made(GCN, 4, 8, num_layers=2, out_channels=3)
    method = methods.get("occlusion")(model, divergence="kl")
    config = ModelConfig(mode=MULTICLASS, task_level="node", return_type="raw")
    algorithm = GraphMaskAlgorithm(method)
    with pytest.raises(GraphMaskError, match="explanation_type='model', got 'phenomenon'"):
        Explainer(model, algorithm, "phenomenon", config, edge_mask_type="object")
    with pytest.raises(GraphMaskError, match="node_mask_type='attributes'"):
        Explainer(model, algorithm, "model", config, edge_mask_type="object", node_mask_type="attributes")
    with pytest.raises(GraphMaskError, match="edge_mask_type='object'"):
        Explainer(model, algorithm, "model", config, node_mask_type="object")
    with pytest.raises(ValueError, match="must be provided"):  # PyG's own
        Explainer(model, algorithm, "model", config)
    for mode, divergence in ((REGRESSION, "kl"), (REGRESSION, "auto"), (BINARY, "kl"), (MULTICLASS, "mse")):
        with pytest.raises(GraphMaskError, match=f"mode='{mode}'.*got '{divergence}'"):
            explainer_of(methods.get("occlusion")(model, divergence=divergence), mode)
    custom = methods.get("occlusion")(model, divergence=lambda a, b: (a - b).abs().sum(1))
    for mode in (MULTICLASS, BINARY, REGRESSION):
        assert explainer_of(custom, mode).algorithm.supports()
    with pytest.raises(GraphMaskError, match="another graphmask method, got GCN"):
        GraphMaskAlgorithm(model)  # type: ignore[arg-type]


def test_calls_that_do_not_fit(fitted: GraphMask) -> None:
    data, other = graph(), made(GCN, 4, 8, num_layers=2, out_channels=3)
    explainer = explainer_of(fitted, allow_infeasible=True)
    config = ModelConfig(mode=MULTICLASS, task_level="node", return_type="raw")
    wrong = Explainer(other, explainer.algorithm, "model", config, edge_mask_type="object")
    with pytest.raises(GraphMaskError, match="model that the method was made for"):
        wrong(data.x, data.edge_index)
    with pytest.raises(GraphMaskError, match="edge_index to be a tensor"):
        explainer.algorithm(fitted.model, data.x, None, target=None)
    with pytest.raises(GraphMaskError, match="output rows 0 to 11, got 12"):
        explainer(data.x, data.edge_index, index=12)
    with pytest.raises(GraphMaskError, match="int64 of shape"):
        explainer.algorithm(fitted.model, data.x, data.edge_index.t(), target=None)
    with pytest.raises(GraphMaskError, match="NaN or infinite"):
        explainer(data.x * float("nan"), data.edge_index)
    assert fitted.explain(data, index=1, allow_infeasible=True).index == (1,)


def test_dictionaries(fitted: GraphMask) -> None:
    data, algorithm = graph(), explainer_of(fitted, allow_infeasible=True).algorithm
    with pytest.raises(GraphMaskError, match="both dictionaries"):
        algorithm(fitted.model, {"a": data.x}, data.edge_index, target=None)
