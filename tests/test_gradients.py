"""Models that gradients cannot pass: said before anybody wonders about a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv

from graphmask import GraphMask, GraphMaskError
from methods.common import quick


class Model(nn.Module):
    def __init__(self, obstacle: str) -> None:
        super().__init__()
        self.first, self.second, self.obstacle = GraphConv(4, 8), GraphConv(8, 3), obstacle

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).sigmoid()
        if self.obstacle == "in place":
            h += 1
        output = self.second(h, edge_index)
        if self.obstacle == "detach":
            return output.detach()
        if self.obstacle == "numpy":
            return torch.from_numpy(output.numpy())
        if self.obstacle == "inference":
            with torch.inference_mode():
                return 2 * output
        if self.obstacle == "argmax":
            return nn.functional.one_hot(output.argmax(1), 3).float()
        return output


OBSTACLES = {
    "in place": "overwrites in place",
    "detach": "whose output has none",
    "numpy": "leaves PyTorch",
    "inference": "whose output has none",
    "argmax": "whose output has none",
}
FOLLOWERS = ("integrated_gradients", "gnn_explainer", "unamortised", "pg_explainer", "information_bottleneck")


def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(x=torch.randn(8, 4, generator=generator), edge_index=torch.randint(8, (2, 20), generator=generator))


def model_with(obstacle: str) -> Model:
    torch.manual_seed(0)
    return Model(obstacle).eval()


def run(method: Any, **options: Any) -> None:
    graph = data()
    method.fit([graph], progress=False, **options)
    method.explain(graph, allow_infeasible=True)


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", ["graphmask", *FOLLOWERS])
def test_obstacle(name: str, obstacle: str) -> None:
    model = model_with(obstacle)
    before = [parameter.requires_grad for parameter in model.parameters()]
    divergence = "mse" if obstacle == "argmax" else "kl"
    ours = name == "graphmask"
    method = GraphMask(model, divergence=divergence) if ours else quick(name, model, divergence=divergence)
    with pytest.raises(GraphMaskError, match=OBSTACLES[obstacle]):
        # A choice moves only once gates have closed some way.
        run(method, **({"epochs": 100 if obstacle == "argmax" else 3} if ours else {}))
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["occlusion", "erasure_search", "random"])
def test_methods_without_gradients_do_not_mind(name: str) -> None:
    for obstacle in ("in place", "detach", "numpy"):
        run(quick(name, model_with(obstacle)))


def test_another_error_of_the_model_is_left_as_it_is() -> None:
    class Broken(Model):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise RuntimeError("out of paper")
            return super().forward(x, edge_index)

    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="out of paper") as caught:
        run(quick("integrated_gradients", Broken("none").eval()))
    assert not isinstance(caught.value, GraphMaskError)


@pytest.mark.parametrize("name", ["integrated_gradients", "gnn_explainer", "unamortised"])
def test_a_model_that_makes_no_use_of_its_messages(name: str) -> None:
    class Idle(Model):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            super().forward(x, edge_index)
            return x

    torch.manual_seed(0)
    explanation = quick(name, Idle("none").eval()).explain(data())
    assert explanation.divergence == 0
    if name == "integrated_gradients":
        assert not bool(explanation.scores.any())
