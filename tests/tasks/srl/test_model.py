"""The labeller against its formulas, written out token by token in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphmask import GraphMask
from graphmask.experiments.srl import learning
from graphmask.experiments.srl.examples import Examples, Vocabularies
from graphmask.experiments.srl.model import Labeller, Sizes, SyntacticConv, make
from graphmask.experiments.vectors import Vectors
from graphmask.fitting.training import Recipe

from .test_examples import ALL

TINY = {"tag": 3, "lemma": 4, "flag": 2, "frame": 5, "role": 4, "hidden": 6, "width": 7}
SIZES = Sizes(lstm=0, layers=2, **TINY, dropout=0.0, edge_dropout=0.0)


def small(lstm: int) -> tuple[Labeller, Examples]:
    vocabularies = Vocabularies.of(ALL, minimum=1)
    counts = {name: len(getattr(vocabularies, name)) for name in ("lemmas", "tags", "frames", "roles")}
    counts["edge_types"] = vocabularies.edge_types
    sizes = Sizes(**{**SIZES.__dict__, "lstm": lstm, "layers": 1 if lstm else 2})
    model = make(sizes, Vectors.open(None, 8).for_words(list(vocabularies.words.words)), counts, seed=0)
    with torch.no_grad():
        for conv in model.convs:
            conv.labels.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model.double().eval(), Examples(ALL, vocabularies)


def test_a_syntactic_layer_is_its_formula():
    torch.manual_seed(0)
    conv = SyntacticConv(5, 4, 6).double()
    torch.nn.init.normal_(conv.labels.weight)
    x, edge_index = torch.randn(3, 5, dtype=torch.double), torch.tensor([[0, 1, 2, 0], [1, 0, 1, 2]])
    edge_type = torch.tensor([0, 1, 4, 3])
    forward_, backward = conv.directions.weight.view(2, 5, 5)
    for v in range(3):
        own = conv.own(x[v])
        total = torch.sigmoid(own[-1]) * own[:-1]
        for u, w, kind in zip(*edge_index.tolist(), edge_type.tolist(), strict=True):
            if w == v:
                sent = (backward if kind % 2 else forward_) @ x[u] + conv.labels.weight[kind]
                total = total + torch.sigmoid(sent[-1]) * sent[:-1]
        assert torch.allclose(conv(x, edge_index, edge_type)[v], total.relu(), atol=1e-12)


@pytest.mark.parametrize("lstm", [0, 1, 2])
def test_batching_changes_nothing(lstm):
    model, examples = small(lstm)
    together = learning.forward(model, examples.batch([0, 1, 2]))
    alone = torch.cat([learning.forward(model, examples.batch([number])) for number in range(3)])
    assert torch.allclose(together, alone, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("lstm", [0, 1])
def test_the_classifier_is_made_for_lemma_and_role(lstm):
    model, examples = small(lstm)
    batch = examples.batch([1])
    states: list[Tensor] = []
    model.convs[-1].register_forward_hook(lambda *found: states.append(found[-1]))
    scores = learning.forward(model, batch)
    state = states[0]
    for token in range(5):
        for role in range(len(examples.vocabularies.roles)):
            weight = (model.by_frame(model.frame(batch.frame[0])) + model.by_role(model.role.weight[role])).relu()
            expected = weight @ torch.cat([state[token], state[int(batch.predicate[0])]])
            assert float(scores[token, role]) == pytest.approx(float(expected), abs=1e-12)


def test_only_the_predicate_is_told_apart():
    model, examples = small(0)
    first, second = examples.batch([0]), examples.batch([1])  # one sentence, two predicates
    assert torch.equal(first.x[:, :3], second.x[:, :3])
    assert not torch.allclose(learning.forward(model, first), learning.forward(model, second))


@pytest.mark.parametrize(("lstm", "sites"), [(1, 1), (0, 2)])
def test_graphmask_sees_every_layer_its_labels_and_its_gates(lstm, sites):
    model, examples = small(lstm)
    model = model.float()
    batches = [examples.batch([0, 1, 2])]
    explainer = GraphMask(model, learning.forward, recipe=Recipe(steps=2))
    explainer.fit(batches, progress=False)
    found = list(explainer.explain_all(batches, allow_infeasible=True))
    assert [len(e.sites) for e in found] == [sites] * 3
    assert [e.edge_index.shape[1] for e in found] == [8, 8, 2]
    assert all(bool(e.carried.all()) for e in found)
    assert explainer.probe.specs[0].categories.keys() == {"edge_type"}
    assert "alpha" in "".join(explainer.probe.specs[0].features)


def test_whole_edges_drop_out_while_training_and_never_else():
    torch.manual_seed(0)
    conv = SyntacticConv(5, 4, 6, edge_dropout=0.5)
    x, edge_index, edge_type = torch.randn(2, 5), torch.tensor([[0] * 4000, [1] * 4000]), torch.zeros(4000).long()
    seen = []
    conv.register_message_forward_hook(lambda _, inputs, out: seen.append(out))
    conv.train()(x, edge_index, edge_type)
    conv.eval()(x, edge_index, edge_type)
    trained, whole = seen
    dropped = (trained == 0).all(1)
    assert 0.46 < float(dropped.float().mean()) < 0.54
    assert torch.allclose(trained[~dropped], 2 * whole[~dropped])
    assert not bool((whole == 0).all(1).any())
