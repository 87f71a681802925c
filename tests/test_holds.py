"""Every explanation that is returned holds: by default, for many rows, at no cost where it does; else it says why."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, SAGEConv

import graphmask
from graphmask import Explanation, GraphMaskError, methods
from graphmask.explaining.case import Case, Choice
from graphmask.explaining.method import Method
from reference import toy

GRAPHS = [toy.graph(seed, nodes=5 + seed % 4, edges=12) for seed in range(200, 208)]


class Nodes(nn.Module):
    """Three logits per node, from two layers."""

    def __init__(self, conv: type[nn.Module] = SAGEConv) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.first, self.second = conv(4, 16), conv(16, 3)
        for layer in (self.first, self.second):
            for weight in layer.parameters():
                weight.data *= 2

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x, edge_index)), edge_index)


def large(nodes: int = 300, edges: int = 1500, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
    )


class Most(Method):
    """Keeps most messages, by chance."""

    name = "most"
    share = 0.97

    def choose(self, case: Case) -> Choice:
        return case.cut(1 - case.uniform(0), 1 - self.share)


def holds(explanation: Explanation) -> bool:
    return explanation.faithful and explanation.same_prediction and explanation.unrepaired is None


# The default ------------------------------------------------------------------------------------------------------


def test_it_is_the_default_everywhere(tmp_path: Path) -> None:
    method, batch = methods.get("random")(toy.Toy(), tolerance=1e-3), Batch.from_data_list(GRAPHS)
    bare = list(method.explain_all([batch], repair=False))
    assert sum(not holds(explanation) for explanation in bare) >= 5
    assert sum(explanation.reopened for explanation in bare) == 0
    asked = list(method.explain_all([batch], repair=True))
    by_default = {
        "explain": [method.explain(graph) for graph in GRAPHS],
        "explain_all": list(method.explain_all([batch])),
        "store": list(method.explain_all([batch], out=tmp_path / "store", progress=False)),
    }
    for found in by_default.values():
        for one, other in zip(found, asked, strict=True):
            assert holds(one)
            assert torch.equal(one.kept, other.kept)
            assert one.reopened == other.reopened
    with pytest.raises(GraphMaskError, match="another repair"):
        method.explain_all([batch], out=tmp_path / "store", repair=False, progress=False)


@pytest.mark.parametrize("name", ["random", "occlusion", "integrated_gradients", "erasure_search"])
def test_other_methods_choose_as_before_where_they_are_asked_to(name: str) -> None:
    """Repair adds to the choice; nothing that was chosen is lost, and scores stay."""
    method = methods.get(name)(toy.Toy(), tolerance=1e-3)
    for graph in GRAPHS:
        bare, repaired = method.explain(graph, repair=False), method.explain(graph)
        assert holds(repaired)
        assert torch.equal(bare.scores, repaired.scores)
        assert bool((repaired.kept | ~bare.kept).all())
        assert repaired.reopened == int(repaired.kept.sum() - bare.kept.sum())


def test_no_further_run_where_nothing_needs_repair() -> None:
    """The original run and the masked run that verifies."""
    calls = [0]

    def forward(model: nn.Module, batch: Any) -> Tensor:
        calls[0] += 1
        return model(batch.x, batch.edge_index, batch.batch)

    # A regression has no prediction that could change.
    method, batch = methods.get("random")(toy.Toy(), forward, "mse", tolerance=1e3), Batch.from_data_list(GRAPHS)
    for repair in (False, True):
        calls[0] = 0
        found = list(method.explain_all([batch, batch], repair=repair))
        assert len(found) == 16
        assert calls[0] == 4
        assert all(holds(explanation) for explanation in found)
    method.tolerance = 1e-6
    calls[0] = 0
    list(method.explain_all([batch]))
    assert 4 < calls[0] < 150


def test_with_an_index_and_counterfactuals() -> None:
    data, method = large(), Most(Nodes(), tolerance=1e-3)
    method.share = 0.6
    reopened = overturned = 0
    for index in (5, 6, 7, 8, [5, 6, 7], [20, 30]):
        explanation = method.explain(data, index=index, counterfactual=True)
        assert holds(explanation)
        rows = [index] if isinstance(index, int) else index
        with graphmask.masked(method.model, explanation), torch.no_grad():
            assert torch.equal(method.model(data.x, data.edge_index)[rows], explanation.masked)
        reopened += explanation.reopened > 0
        if explanation.counterfactual is not None:
            assert bool((explanation.kept | ~explanation.counterfactual).all())
            overturned += 1
    assert reopened >= 4
    assert overturned >= 1


# Many rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conv", [SAGEConv, GATConv])
def test_for_a_few_wrong_rows_few_messages_are_reopened(conv: type[nn.Module]) -> None:
    """By scores alone nearly all of them would be."""
    data, method = large(), Most(Nodes(conv), tolerance=0.1)
    bare, repaired = method.explain(data, repair=False), method.explain(data)
    wrong = int((bare.original.argmax(1) != bare.masked.argmax(1)).sum())
    assert wrong >= 5
    assert bare.faithful
    assert holds(repaired)
    assert repaired.reopened <= 2 * wrong
    dropped = int((bare.carried & ~bare.kept).sum())
    assert repaired.reopened <= 0.5 * dropped


def test_graphs_with_many_rows_are_repaired_as_if_alone() -> None:
    graphs = [large(20 + 10 * seed, 60 + 30 * seed, seed) for seed in range(6)]
    method = Most(Nodes(), tolerance=0.05)
    method.share = 0.8
    alone = [method.explain(graph) for graph in graphs]
    assert sum(explanation.reopened > 0 for explanation in alone) >= 4
    for size in (2, 3, 6):
        loader = [Batch.from_data_list(graphs[start : start + size]) for start in range(0, 6, size)]
        for one, other in zip(alone, method.explain_all(loader), strict=True):
            assert holds(other)
            assert torch.equal(one.kept, other.kept)


# What stands in the way -------------------------------------------------------------------------------------------


class Noisy(toy.Toy):
    """Its output is another every time; one of 20 classes is not the same twice by chance."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        found = super().forward(x, edge_index, batch)
        return torch.cat([found, 3 * torch.randn(len(found), 18)], 1)


class Mixes(toy.Toy):
    """What a graph gets depends on the others of its batch."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        found = super().forward(x, edge_index, batch)
        return found - found.mean(0) + found.flip(0)


def test_a_model_that_is_not_deterministic(tmp_path: Path) -> None:
    method = methods.get("random")(Noisy())
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="Could not make 1 of 1 explanations hold.* not deterministic: run again"):
        explanation = method.explain(GRAPHS[0])
    assert explanation.unrepaired is not None
    assert not (explanation.faithful and explanation.same_prediction)
    assert bool(explanation.kept.all())
    assert f"could not be repaired: {explanation.unrepaired}; kept" in repr(explanation)
    assert "Could not be repaired: not deterministic" in explanation.to_html(tmp_path / "page.html").read_text()
    explanation.save(tmp_path / "explanation")
    assert Explanation.load(tmp_path / "explanation").unrepaired == explanation.unrepaired
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert method.explain(GRAPHS[0], repair=False).unrepaired is None


def test_a_store_keeps_the_reason(tmp_path: Path) -> None:
    method, batch = methods.get("random")(Noisy()), Batch.from_data_list(GRAPHS)
    with pytest.warns(UserWarning, match="of 8 explanations hold"):
        written = method.explain_all(
            [batch], out=tmp_path, metadata=lambda b: [{"number": n} for n in range(b.num_graphs)], progress=False
        )
    told = [explanation.unrepaired for explanation in written]
    assert sum(why is not None for why in told) >= 4
    for number, explanation in enumerate(written):
        assert explanation.info["number"] == number
        assert holds(explanation) == (explanation.faithful and explanation.same_prediction)
        assert (explanation.unrepaired is None) == (explanation.faithful and explanation.same_prediction)


def test_a_divergence_that_is_not_zero_for_the_same_output() -> None:
    def shifted(original: Tensor, masked: Tensor) -> Tensor:
        return graphmask.divergence.mse(original, masked) + 0.5

    method = methods.get("random")(toy.Toy(), divergence=shifted, tolerance=0.1)
    with pytest.warns(UserWarning, match=r"the model's output to be 0\.5 away from itself \(tolerance 0\.1\)"):
        explanation = method.explain(GRAPHS[0])
    assert explanation.divergence == pytest.approx(0.5)
    assert not explanation.faithful


def test_a_masked_run_that_differs_even_with_all_gates_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rounding would for a smaller tolerance."""
    run = Case.run
    monkeypatch.setattr(Case, "run", lambda case, *given, **options: run(case, *given, **options) - 50)
    method, batch = methods.get("random")(toy.Toy(), divergence="mse", tolerance=0.1), Batch.from_data_list(GRAPHS[:2])
    expected = r"2 of 2 .* with every message open the model's output is 2\.5e\+03 away .*tolerance 0\.1"
    with pytest.warns(UserWarning, match=expected):
        found = list(method.explain_all([batch]))
    assert all(bool(explanation.kept.all()) for explanation in found)
    assert all(explanation.unrepaired is not None for explanation in found)
    method.tolerance = 3e3
    assert all(holds(explanation) for explanation in method.explain_all([batch]))


def test_a_model_that_mixes_the_graphs_of_a_batch() -> None:
    """What is found for one may not do when others have changed; then more is opened."""
    method, batch = methods.get("random")(Mixes(), tolerance=1e-3), Batch.from_data_list(GRAPHS)
    bare = list(method.explain_all([batch], repair=False))
    assert sum(not holds(explanation) for explanation in bare) >= 5
    repaired = list(method.explain_all([batch]))
    assert all(holds(explanation) for explanation in repaired)
    for before, after in zip(bare, repaired, strict=True):
        assert after.reopened == int(after.kept.sum() - before.kept.sum())


def test_a_batch_that_cannot_be_taken_apart() -> None:
    """What its forward needs is there for the whole batch only."""

    def forward(model: nn.Module, batch: Any) -> Tensor:
        return model(batch.x, batch.edge_index, batch.batch) * batch.told

    graphs = [*GRAPHS, toy.graph(0, edges=0)]  # the last needs no repair
    batch = Batch.from_data_list(graphs)
    batch.told = torch.tensor(2.0)
    found = list(methods.get("random")(toy.Toy(), forward, tolerance=1e-3).explain_all([batch]))
    assert all(holds(explanation) for explanation in found)
    assert sum(explanation.reopened for explanation in found) > 0


def test_a_model_that_gradients_cannot_pass() -> None:
    class Blocked(toy.Toy):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(x, edge_index, batch)

    method = methods.get("random")(Blocked(), tolerance=1e-3)
    found = [method.explain(graph) for graph in GRAPHS]
    assert all(holds(explanation) for explanation in found)
    assert sum(explanation.reopened for explanation in found) > 0


def test_one_logit_per_row() -> None:
    class Single(Nodes):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x, edge_index)[:, 0]

    data, method = large(60, 240), Most(Single(), divergence="bernoulli", tolerance=0.05)
    method.share = 0.7
    bare, repaired = method.explain(data, repair=False), method.explain(data)
    assert bare.flips > 0
    assert holds(repaired)
    assert 0 < repaired.reopened < 0.5 * int((bare.carried & ~bare.kept).sum())
