"""The information bottleneck: its price against torch.distributions, its statistics and noise against the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from graphmask.methods.information_bottleneck import InformationBottleneck
from laws.cases import BY_NAME
from laws.support import discover
from reference import toy
from reference.small import Small, answer, constant, graph, messages

from .common import training

GRAPHS = [graph(seed, nodes=4, edges=5 + seed % 3) for seed in range(6)]
LOADER = [Batch.from_data_list(GRAPHS[:2]), Batch.from_data_list(GRAPHS[2:])]


def fitted(model: nn.Module, loader: list[Batch] = LOADER, **options: float) -> InformationBottleneck:
    method = InformationBottleneck(model, **options)
    method.fit(loader, progress=False)
    return method


def test_information_is_the_kl_divergence_of_two_normals() -> None:
    method = InformationBottleneck(Small())
    generator = torch.Generator().manual_seed(0)
    share = 0.02 + 0.96 * torch.rand(40, generator=generator, dtype=torch.double)
    message = 2 * torch.randn(40, 5, generator=generator, dtype=torch.double)
    mean = torch.randn(5, generator=generator, dtype=torch.double)
    deviation = 0.1 + torch.rand(5, generator=generator, dtype=torch.double)
    method.means, method.deviations = [mean], [deviation]
    rest = (1 - share)[:, None]
    kept = Normal(share[:, None] * message + rest * mean, rest * deviation)
    expected = kl_divergence(kept, Normal(mean.expand(40, -1), deviation.expand(40, -1))).mean(1)
    assert torch.allclose(method.information(share, message, 0), expected)


def test_a_component_that_never_varies_tells_nothing_by_its_value() -> None:
    method = InformationBottleneck(Small())
    method.means, method.deviations = [torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]
    near, far = torch.tensor([[1.0, 0.5]]), torch.tensor([[1.0 + 1e-7, 0.5]])
    share = torch.tensor([0.5])
    assert method.information(share, near, 0).tolist() == method.information(share, far, 0).tolist()


def test_statistics_are_those_of_all_messages() -> None:
    model = Small()
    method = fitted(model, steps=1)
    for site in range(2):
        rows = torch.stack([message for data in GRAPHS for message in messages(model, data)[site]])
        assert torch.allclose(method.means[site].double(), rows.mean(0), atol=1e-6)
        assert torch.allclose(method.deviations[site].double(), rows.std(0, unbiased=False), atol=1e-6)


@pytest.mark.parametrize("name", ["GAT", "RGCN"])
def test_statistics_of_heads_and_of_relations(name: str) -> None:
    case = BY_NAME[name]
    method, loader = InformationBottleneck(case.model(), steps=1), case.loader()
    method.fit(loader, progress=False)
    seen = [m for batch in loader for m in discover(case.model(), batch)[1]]
    for site in range(2):
        rows = torch.cat([m.flat() for m in seen if m.site == site]).double()
        assert torch.allclose(method.means[site].double(), rows.mean(0), atol=1e-5)
        assert torch.allclose(method.deviations[site].double(), rows.std(0, unbiased=False), atol=1e-5)


class Echo(nn.Module):
    """A node's output is what it received."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x, edge_index)


def ring(nodes: int) -> Data:
    """One message for every node."""
    at = torch.arange(nodes)
    x = torch.randn(nodes, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5]) + 1
    return Data(x=x, edge_index=torch.stack([at, at.roll(-1)]))


@contextmanager
def watched(method: InformationBottleneck, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Pairs of outputs whose loss is taken, of a method whose gates all stand at ``share`` one half."""
    assert method.probe is not None
    with torch.no_grad():
        for site in range(len(method.probe.sites)):
            method.probe.gate(site).out.zero_()
            method.probe.gate(site).out_bias.zero_()
    pairs: list[tuple[Tensor, Tensor]] = []
    own_loss = method.divergence.own_loss

    def spy(original: Tensor, masked: Tensor) -> Tensor:
        pairs.append((original.detach(), masked.detach()))
        return own_loss(original, masked)

    with monkeypatch.context() as patch, training(method):
        patch.setattr(method.divergence, "own_loss", spy)
        yield pairs


def test_messages_are_mixed_with_noise_of_their_own_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ring(4000)
    method = fitted(Echo(toy.Add(torch.eye(3))), [data], steps=1)
    with watched(method, monkeypatch) as pairs:
        assert method.probe is not None
        method.loss(method.probe, method.subject, data, 0.0)
        method.loss(method.probe, method.subject, data, 0.0)
    (original, first), (_, second) = pairs
    assert torch.allclose(original, data.x.roll(1, 0))
    noise = 2 * first - original  # of m / 2 + noise / 2
    assert torch.allclose(noise.mean(0), data.x.mean(0), atol=0.1)
    assert torch.allclose(noise.std(0), data.x.std(0), rtol=0.05)
    correlation = torch.corrcoef(torch.cat([noise, original, 2 * second - original], 1).t()) - torch.eye(9)
    assert float(correlation.abs().max()) < 0.08  # with each other, with the message, and with the next step's


def test_a_layers_own_loops_are_neither_mixed_nor_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without edges hears only itself."""
    data = ring(20)
    data.x = torch.cat([data.x, torch.full((1, 3), 3.0)])
    method = fitted(Echo(GCNConv(3, 3)), [data], steps=1)
    with watched(method, monkeypatch) as pairs:
        assert method.probe is not None
        method.loss(method.probe, method.subject, data, 0.0)
        loss = method.loss(method.probe, method.subject, Data(x=data.x, edge_index=data.edge_index[:, :0]), 0.0)
    (original, masked), (alone, untouched) = pairs
    assert float(loss.detach()) == float(method.divergence.own_loss(alone, alone).mean())
    assert torch.equal(original[-1], masked[-1])
    assert float((original - masked)[:-1].abs().min(0).values.max()) > 0
    assert torch.equal(alone, untouched)


def test_the_loss_is_the_answers_and_the_price_of_information() -> None:
    model = Small()
    method = fitted(model, steps=1)
    assert method.probe is not None
    probe, batch = method.probe, LOADER[1]
    losses = []
    with training(method):
        for method.beta in (0.0, 0.4):
            method.generator.manual_seed(5)
            losses.append(float(method.loss(probe, method.subject, batch, 0.0).detach()))
    price = []
    seen = discover(model, batch)[1]
    for site in range(2):
        share = torch.sigmoid(probe.gate(site)(seen[site])).detach().double()
        price.append(float(method.information(share, seen[site].flat(), site).mean()))
    assert losses[1] - losses[0] == pytest.approx(0.4 * sum(price) / 2, rel=1e-4)


def test_training_lowers_the_loss() -> None:
    loader = toy.loader(2, 16)

    def loss(steps: int) -> float:
        method = fitted(toy.Toy(), loader, steps=steps, learning_rate=1e-2, beta=0.3)
        assert method.probe is not None
        method.generator.manual_seed(9)
        with training(method), torch.no_grad():
            return sum(float(method.loss(method.probe, method.subject, batch, 1.0)) for batch in loader * 10) / 20

    before, halfway, after = loss(0), loss(40), loss(150)
    assert before > 1.2 * halfway
    assert halfway > 1.03 * after


def test_after_training_what_has_no_weight_is_dropped() -> None:
    """Messages of colours 2 and 3 are zero, and so is what follows from them."""
    method = fitted(toy.Toy(), toy.loader(2, 16), steps=200, learning_rate=1e-2, beta=0.3)
    heard, unheard = [], []
    for seed in range(500, 512):
        data = toy.graph(seed)
        scores = method.explain(data, repair=False).scores[0]
        coloured = data.x[data.edge_index[0]].argmax(1) < 2
        heard += scores[coloured].tolist()
        unheard += scores[~coloured].tolist()
    assert sum(heard) / len(heard) > 0.2 + sum(unheard) / len(unheard)


def test_a_dropped_message_is_replaced_by_the_mean() -> None:
    model = Small()
    method = fitted(model, steps=1)
    method.threshold = 0.88  # about half of the shares, which start at sigmoid(2)
    means = [mean.double() for mean in method.means]
    dropped = 0
    for data, found in zip(GRAPHS, method.explain_all(LOADER, repair=False), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found.baselines, method.means, strict=True))
        expected = answer(model, data, found.kept.double(), means)
        assert torch.allclose(found.masked[0], expected)
        assert torch.allclose(found.original[0], answer(model, data, constant(data, 1.0)))
        dropped += int((~found.kept).sum())
    assert dropped > 5


class Forgetful(nn.Module):
    """Dropout after messages have been sent."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = toy.Add(torch.eye(3)), nn.Dropout(0.5)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        kept = self.dropout(torch.ones_like(x))
        later = self.dropout(torch.ones_like(self.layer(x, edge_index)))
        self.seen.append(torch.cat([kept, later]).detach())
        return x * kept * later


def test_both_passes_draw_the_same_dropout() -> None:
    model = Forgetful()
    method = fitted(model, [ring(30)], steps=1)
    assert method.probe is not None
    with training(method):
        model.seen = []
        method.loss(method.probe, method.subject, ring(30), 0.0)
        method.loss(method.probe, method.subject, ring(30), 0.0)
        first, second, third, fourth = model.seen
    assert torch.equal(first, second)
    assert torch.equal(third, fourth)
    assert not torch.equal(first, third)
