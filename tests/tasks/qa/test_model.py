"""Entity-GCN in two forms, against a literal one."""

from __future__ import annotations

import pytest
import torch

from graphmask import GraphMask, masked
from graphmask.errors import GraphMaskError
from graphmask.experiments.bench import matrix
from graphmask.experiments.qa.model import NEVER, Sizes, forward, make
from graphmask.fitting.training import Recipe

SIZES = Sizes(query=5, hidden=8, first=9, scorer=(7, 6), layers=3, dropout=0.2)


@pytest.fixture(scope="module")
def vectors():
    return torch.randn(60, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def pair(examples, vectors):
    """Both forms with the same parameters; words beyond the table do not occur."""
    table = vectors[: int(examples.query.max()) + 1]
    matrix, edges = (make(form, table, SIZES, 6, seed=0).eval() for form in ("matrix", "edges"))
    edges.load_state_dict(matrix.state_dict())
    return matrix, edges


def _literal(model, examples, number):
    """One question at a time, one mention at a time, straight from the formulas."""
    model = model.double()
    lengths = examples.lengths[number : number + 1]
    query = model.read(examples.query[number : number + 1, : int(lengths)], lengths)[0]
    question = examples.questions[number]
    first, size = int(examples.first[number]), len(question.mentions)
    h = [model.join(torch.cat([query, examples.x[first + node].double()])) for node in range(size)]
    where = examples.edges_of(number)
    edges = list(zip(*examples.edge_index[:, where].tolist(), examples.edge_type[where].tolist(), strict=True))
    weights = model.relations.weight.view(4, 8, 8)
    for _ in range(3):
        after = []
        for node in range(size):
            u = model.own(h[node])
            for relation in range(4):
                neighbours = [sender for sender, receiver, kind in edges if receiver == node and kind == relation]
                for other in neighbours:
                    u = u + weights[relation] @ h[other] / len(neighbours)
            gate = torch.sigmoid(model.update(torch.cat([u, h[node]])))
            after.append(gate * torch.tanh(u) + (1 - gate) * h[node])
        h = after
    scores = [NEVER] * 6
    for node, mention in enumerate(question.mentions):
        if mention.entity >= 0:
            value = float(model.score(torch.cat([query, h[node]])))
            scores[mention.entity] = max(scores[mention.entity], value)
    return torch.tensor(scores, dtype=torch.double)


@torch.no_grad()
def test_both_forms_are_the_literal_model(pair, examples):
    numbers = list(range(12))
    outputs = [
        forward(model, examples.batch(numbers, form)) for model, form in zip(pair, ("matrix", "edges"), strict=True)
    ]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5
    expected = torch.stack([_literal(pair[0], examples, number) for number in numbers])
    assert (outputs[0] - expected).abs().max() < 1e-5
    assert outputs[0].std() > 0.01


@torch.no_grad()
def test_padding_and_neighbours_in_a_batch_change_nothing(pair, examples):
    largest = int(examples.sizes.argmax())
    for model, form in zip(pair, ("matrix", "edges"), strict=True):
        together = forward(model, examples.batch([largest, 0, 1], form))
        alone = torch.cat([forward(model, examples.batch([number], form)) for number in (largest, 0, 1)])
        assert (together - alone).abs().max() < 1e-6


@torch.no_grad()
def test_scores_and_candidates_have_the_same_numbers(pair, examples):
    """The score in column c is that of the mentions of candidate c, whatever the others are called."""
    batch = examples.batch([0])
    scores = forward(pair[0], batch)[0]
    count = len(examples.questions[0].candidates)
    order = torch.tensor([*torch.randperm(count, generator=torch.Generator().manual_seed(3)).tolist()])
    entity = batch["entity"].clone()
    named = entity >= 0
    entity[named] = order[entity[named]]
    renamed = forward(pair[0], {**batch, "entity": entity})[0]
    assert torch.allclose(renamed[order], scores[:count], atol=1e-6)
    assert (scores[count:] == NEVER).all()
    # One without a mention can never be the answer, and takes nothing from the others.
    gone = batch["entity"].masked_fill(batch["entity"] == 1, -1)
    without = forward(pair[0], {**batch, "entity": gone})[0]
    assert without[1] == NEVER
    assert torch.equal(without[[0, *range(2, count)]], scores[[0, *range(2, count)]])
    assert float(without.softmax(0)[1]) == 0


def test_what_is_trained(pair):
    assert {name for name, p in pair[0].named_parameters() if not p.requires_grad} == {"words.weight"}
    assert pair[0].state_dict().keys() == pair[1].state_dict().keys()
    with pytest.raises(GraphMaskError, match="a form among matrix, edges"):
        make("dense", torch.zeros(3, 2), SIZES, 6, seed=0)


def test_sites_and_edges_of_both_forms_are_the_same(pair, examples):
    """Three sites each; the explained edges of a question lie in the order in which it lists them."""
    found = []
    for model, form in zip(pair, ("matrix", "edges"), strict=True):
        batches = [examples.batch(range(low, low + 10), form) for low in (0, 10, 20)]
        explainer = GraphMask(model, forward, "kl", 0.05, recipe=Recipe(steps=20))
        explainer.fit(batches, progress=False, epochs=5)
        found.append(list(explainer.explain_all(batches, allow_infeasible=True)))
        explanation = found[-1][4]
        with torch.no_grad(), masked(model, explanation):
            again = forward(model, examples.batch([4], form))
        assert (again - explanation.masked).abs().max() < 1e-5
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        where = examples.edges_of(number)
        for explanation in (one, other):
            assert torch.equal(explanation.edge_index, examples.edge_index[:, where])
            assert explanation.kept.shape == (3, int(examples.edge_sizes[number]))
        assert torch.equal(one.edge_type, examples.edge_type[where])
        assert (one.original - other.original).abs().max() < 1e-5


@torch.no_grad()
def test_the_same_masks_do_the_same_to_both_forms(pair, examples):
    """Masks and zero baselines from one form, run through the other."""
    numbers = range(20)
    batches = [[examples.batch(numbers, form)] for form in ("matrix", "edges")]
    generator = torch.Generator().manual_seed(0)
    outputs = []
    for model, loader in zip(pair, batches, strict=True):
        explainer = GraphMask(model, forward, "kl", 0.05, recipe=Recipe(steps=1))
        with torch.enable_grad():
            explainer.fit(loader, progress=False, epochs=1)
        generator.manual_seed(0)
        outputs.append([])
        for number, explanation in enumerate(explainer.explain_all(loader, allow_infeasible=True)):
            explanation.kept = torch.rand(explanation.kept.shape, generator=generator) < 0.5
            # The matrix form weighs a baseline by the entry of the matrix, the edge form replaces the weighed message.
            explanation.baselines = tuple(torch.zeros_like(baseline) for baseline in explanation.baselines)
            form = "edges" if model is pair[1] else "matrix"
            with masked(model, explanation):
                outputs[-1].append(forward(model, examples.batch([number], form)))
    one, other = (torch.cat(found) for found in outputs)
    assert (one - other).abs().max() < 1e-5
    assert (one - forward(pair[0], batches[0][0])).abs().max() > 1e-3


def test_bilinear_gates_never_make_a_message_per_entry():
    """O(B R N^2 + B N R D): a constant times what is there, however many nodes."""
    found = [matrix.cost(nodes) for nodes in (20, 40, 160)]
    for row in found:
        assert row["over_bound"] < 8
        assert row["step_over_bound"] < 16
    assert found[2]["over_bound"] < 1.5 * found[1]["over_bound"]
    assert found[2]["over_naive"] < 0.25


def test_upper_layers_lose_more_messages_while_the_model_learns() -> None:
    """A tenth, two tenths, three tenths; what is left is scaled, and nothing is lost once it has learnt."""
    model = make("matrix", torch.randn(9, 5), Sizes(dropout=0.0), 4, seed=0)
    h = torch.randn(50, 100, model.sizes.hidden)
    whole = model.eval().messages(h, 2)
    model.message_dropout = 0.3
    assert torch.equal(model.messages(h, 2), whole)
    model.train()
    for layer, rate in enumerate((0.1, 0.2, 0.3)):
        found = model.messages(h, layer)
        gone = (found == 0).all(-1)
        assert float(gone.float().mean()) == pytest.approx(rate, abs=0.02)
        assert torch.allclose(found[~gone], whole[~gone] / (1 - rate), rtol=1e-5, atol=1e-6)
