"""Gradient x message, Grad-CAM and LRP against differences and against relevance that is divided by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv

from graphmask import GraphMaskError, methods
from graphmask.methods.grad_cam import GradCAM
from graphmask.methods.gradient_message import GradientMessage
from graphmask.methods.relevance import Relevance, gamma_rule
from laws.cases import BY_NAME
from reference import methods as literal
from reference.small import WIDTH, Small, answer, constant, graph, messages, pairs

from .common import case_of

GRAPHS = [graph(seed, nodes=4 + seed % 2, edges=5 + seed % 3) for seed in range(4)]


def column(model: Small, data: Data) -> int:
    return int(answer(model, data, constant(data, 1.0)).argmax())


def scores(method: type, model: nn.Module) -> list[Tensor]:
    """Of the graphs in one batch."""
    return [e.scores for e in method(model).explain_all([Batch.from_data_list(GRAPHS)], repair=False)]


def test_the_slope_of_every_message_s_scale() -> None:
    model = Small()
    for data, found in zip(GRAPHS, scores(GradientMessage, model), strict=True):
        expected = literal.gradient_message(
            lambda z, d=data: answer(model, d, z), column(model, data), 2, data.num_edges
        ).abs()
        assert torch.allclose(found, expected / expected.max(), atol=1e-6)
        assert float(expected.max()) > 0.1


def moved(model: Small, data: Data, by: dict[tuple[int, int, int], float]) -> Tensor:
    """The output where something is added to a channel of a message."""
    h = list(data.x)
    for site, (send, keep) in enumerate(zip(model.sends, model.keeps, strict=True)):
        inbox = [torch.zeros(WIDTH, dtype=torch.double) for _ in h]
        for edge, (u, v) in enumerate(pairs(data)):
            message = (send.weight @ h[u]).clone()
            for channel in range(WIDTH):
                message[channel] += by.get((site, edge, channel), 0.0)
            inbox[v] = inbox[v] + message
        h = [torch.tanh(total + keep @ own) for total, own in zip(inbox, h, strict=True)]
    return model.read @ (sum(h) / len(h))


def test_grad_cam_by_differences() -> None:
    model, silent = Small(), 0
    for data, found in zip(GRAPHS, scores(GradCAM, model), strict=True):
        expected = literal.grad_cam(lambda by, d=data: moved(model, d, by), messages(model, data), column(model, data))
        assert torch.allclose(found, expected / expected.max(), atol=1e-6)
        silent += int((expected == 0).sum())
    assert silent > 0  # the ReLU is at work


def test_grad_cam_says_where_it_does_not_apply() -> None:
    case = BY_NAME["AdjacencyTap dense"]
    model, batch = case.model(), case.loader(1)[0]
    assert "got an adjacency matrix" in str(GradCAM.why_not(model, batch))
    with pytest.raises(GraphMaskError, match="got an adjacency matrix"):
        GradCAM(model).explain(batch)
    assert GradCAM.why_not(Small(), Batch.from_data_list(GRAPHS)) is None


# Relevance -------------------------------------------------------------------------------------------------


class Linears(nn.Module):
    """Per layer ReLU(A sum of h_u + B h_v + a); the first node is read out by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.convs = nn.ModuleList(GraphConv(WIDTH, WIDTH, aggr="add") for _ in range(2))
        self.out = nn.Linear(WIDTH, 2)
        self.double().requires_grad_(False).eval()
        for parameter in self.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.double))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.out(x[:1])


def divided(weight: Tensor, bias: Tensor | None, h: Tensor, relevance: list[float], gamma: float) -> list[float]:
    """What each input of a linear layer is given of the relevance of its outputs."""
    found = [0.0] * len(h)
    for k, share in enumerate(relevance):
        parts = [float(h[j]) * float(weight[k, j] + gamma * max(float(weight[k, j]), 0.0)) for j in range(len(h))]
        total = sum(parts)
        if bias is not None:
            total += float(bias[k]) + gamma * max(float(bias[k]), 0.0)
        for j, part in enumerate(parts):
            found[j] += part / total * share
    return found


def relevance_by_hand(model: Linears, data: Data, gamma: float, choice: int) -> list[list[float]]:
    """[L][E] relevance from the output down, node by node."""
    states, inboxes = [list(data.x)], []
    for conv in model.convs:
        inbox = [torch.zeros(WIDTH, dtype=torch.double) for _ in data.x]
        for u, v in pairs(data):
            inbox[v] = inbox[v] + states[-1][u]
        made = [
            torch.relu(conv.lin_rel(total) + conv.lin_root(own)) for total, own in zip(inbox, states[-1], strict=True)
        ]
        inboxes.append(inbox)
        states.append(made)
    output = model.out(states[-1][0])
    top = [float(output[k]) if k == choice else 0.0 for k in range(2)]
    relevance = {node: [0.0] * WIDTH for node in range(data.num_nodes)}
    relevance[0] = divided(model.out.weight, model.out.bias, states[-1][0], top, gamma)
    found: list[list[float]] = [[], []]
    for layer in (1, 0):
        conv, below = model.convs[layer], {node: [0.0] * WIDTH for node in relevance}
        inbox_share = {}
        for node, shares in relevance.items():
            total, own = inboxes[layer][node], states[layer][node]
            rel, root = conv.lin_rel(total), conv.lin_root(own)
            # The sum of the two parts divides its relevance by their values, as a sum does.
            both = [float(a + b) for a, b in zip(rel, root, strict=True)]
            of_rel = [s * float(a) / c if s else 0.0 for s, a, c in zip(shares, rel, both, strict=True)]
            of_root = [s * float(b) / c if s else 0.0 for s, b, c in zip(shares, root, both, strict=True)]
            inbox_share[node] = divided(conv.lin_rel.weight, conv.lin_rel.bias, total, of_rel, gamma)
            for j, part in enumerate(divided(conv.lin_root.weight, None, own, of_root, gamma)):
                below[node][j] += part
        for u, v in pairs(data):
            total = inboxes[layer][v]
            parts = [
                inbox_share[v][j] * float(states[layer][u][j]) / float(total[j]) if float(total[j]) else 0.0
                for j in range(WIDTH)
            ]
            found[layer].append(sum(parts))
            for j, part in enumerate(parts):
                below[u][j] += part
        relevance = below
    return found


@pytest.mark.parametrize("gamma", [0.0, 0.25, 2.0])
def test_relevance_is_divided_as_by_hand(gamma: float) -> None:
    model, reached = Linears(), 0
    for data in GRAPHS:
        choice = int(model(data.x, data.edge_index).argmax())
        expected = torch.tensor(relevance_by_hand(model, data, gamma, choice), dtype=torch.double)
        case = case_of(model, data)
        method = Relevance(model, gamma=gamma)
        method.subject = case.subject
        found = method.attributions(case)
        assert torch.allclose(found, expected, atol=1e-6, rtol=1e-6)
        reached += int((expected.abs() > 0.01).sum())
    assert reached > 5


def test_without_gamma_relevance_is_gradient_x_message() -> None:
    model, data = Linears(), GRAPHS[1]
    kinds = (Relevance, {"gamma": 0.0}), (GradientMessage, {})
    pair = [kind(model, **more).explain(data, repair=False) for kind, more in kinds]
    assert torch.allclose(pair[0].scores, pair[1].scores, atol=1e-6)
    other = Relevance(model, gamma=2.0).explain(data, repair=False)
    assert float((other.scores - pair[1].scores).abs().max()) > 0.05


def test_the_rule_leaves_outputs_and_the_model_as_they_are() -> None:
    model, data = Linears(), GRAPHS[0]
    before = model(data.x, data.edge_index)
    with gamma_rule(model, 3.0):
        assert torch.equal(model(data.x, data.edge_index), before)
    with pytest.raises(ValueError, match="inside"), gamma_rule(model, 3.0):
        raise ValueError("inside")
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["gradient_message", "grad_cam", "lrp"])
def test_a_model_that_makes_no_use_of_its_messages(name: str) -> None:
    class Deaf(Small):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            super().forward(x, edge_index, batch)
            return x[:1, :2]

    explanation = methods.get(name)(Deaf()).explain(GRAPHS[0], repair=False)
    assert float(explanation.scores.abs().max()) == 0
    assert explanation.divergence == 0
