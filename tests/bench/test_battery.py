"""The battery: names and halves are fixed, and what is known of its models is true."""

from __future__ import annotations

import random

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import graphmask
from graphmask.analysis.scoring import studied
from graphmask.errors import GraphMaskError
from graphmask.experiments import data as places
from graphmask.experiments.bench.battery import (
    entry,
    frozen,
    hetero,
    learning,
    molecules,
    nodes,
    others,
    reasoning,
    run,
    white_boxes,
)
from graphmask.experiments.bench.battery.models import ENTRIES
from graphmask.files import fingerprint
from graphmask.store.identity import content_of

DESIGN = [
    "frozen_ba_shapes",
    "frozen_tree_grid",
    "nodes_gcn",
    "mutagenicity_gin",
    "ba2motifs_gcn",
    "reasoning_rgcn",
    "regression",
    "six_layers",
    "star",
    "white_count",
    "hetero",
    "reasoning_gated",
]
CHECK = [
    "frozen_tree_cycles",
    "frozen_ba_2motifs",
    "frozen_mutagenicity",
    "nodes_gat",
    "nodes_sage",
    "mutagenicity_gcn",
    "ba2motifs_gin",
    "reasoning_rgcn_deep",
    "links",
    "jumping_knowledge",
    "relay",
    "white_two_hops",
    "white_relations",
]


def test_names_and_halves_are_fixed() -> None:
    assert run.choose(half="design") == DESIGN
    assert run.choose(half="check") == CHECK
    assert list(ENTRIES) == DESIGN + CHECK
    assert run.choose(["star", "relay"], "check") == ["relay"]
    with pytest.raises(GraphMaskError, match="Expected models among frozen_ba_shapes"):
        run.choose(["mnist"])
    with pytest.raises(GraphMaskError, match="Expected the half design or check"):
        run.choose(half="both")


# What is known of the models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", white_boxes.BOXES)
def test_of_a_white_box_the_gold_is_sufficient_and_every_message_of_it_necessary(name: str) -> None:
    model = white_boxes.BOXES[name][0]().eval()
    (batch,) = learning.loader(white_boxes.draw(name, 12, seed=5), 12)
    gold = batch.gold.t()
    per_site = gold.sum(1) / batch.num_graphs
    assert float(per_site.min()) >= 1  # several are needed, most are not
    assert float(gold.float().mean()) <= 0.25
    graph = batch.batch[batch.edge_index[0]]
    method = graphmask.methods.get("random")(model, divergence="mse")
    with studied(method, [batch]) as cases, torch.no_grad():
        ((case, _),) = cases
        assert torch.equal(case.trace.output, white_boxes.right_answers(name, batch))
        assert torch.equal(case.run(gold, case.zeros()), case.trace.output)
        for site, edge in gold.nonzero().tolist():
            gates = torch.ones_like(gold)
            gates[site, edge] = False
            moved = (case.run(gates, case.zeros()) - case.trace.output).abs()
            assert float(moved[graph[edge]]) >= 1
            assert float(moved.sum()) == float(moved[graph[edge]])


@pytest.mark.parametrize("name", ["ba_shapes", "tree_grid", "tree_cycles"])
def test_frozen_node_models_are_as_accurate_as_published(name: str) -> None:
    try:
        places.find("frozen-models")
    except GraphMaskError as error:
        pytest.skip(f"needs real data: {error}")
    found = frozen.of_nodes(name, 0)
    assert found.judge()["accuracy"] == pytest.approx(float(frozen.read(name)["test_accuracy"]), abs=1e-9)


def test_padded_molecules_are_what_adding_empty_nodes_gives() -> None:
    torch.manual_seed(0)
    model = frozen.FrozenMolecules(14, 2).eval()
    for conv in (model.conv1, model.conv2, model.conv3):
        nn.init.normal_(conv.bias)
    x, edge_index = torch.rand(5, 14), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    padded = torch.cat([x, torch.zeros(frozen.PADDED - 5, 14)])
    with torch.no_grad():
        state = model.states(padded, edge_index)[-1]
        wanted = model.lin(torch.cat([state.amax(0), state.mean(0)]))[None]
        torch.testing.assert_close(model(x, edge_index, torch.zeros(5, dtype=torch.long)), wanted)


@pytest.mark.parametrize("task", [reasoning.Task(), reasoning.DEEP])
def test_the_gold_path_of_a_question_gives_its_answer(task: reasoning.Task) -> None:
    rng = torch.Generator().manual_seed(3)
    answers = set()
    for _ in range(20):
        data = reasoning.graph(task, rng)
        rule = task.rule(int(data.x[0, reasoning.COLOURS + 1 :].argmax())).tolist()
        node, path = 0, []
        for relation in rule:
            into = ((data.edge_index[1] == node) & (data.edge_type == relation)).nonzero().view(-1).tolist()
            assert len(into) == 1  # one way on, never two
            path.append(into[0])
            node = int(data.edge_index[0, into[0]])
        assert int(data.x[node, : reasoning.COLOURS].argmax()) == int(data.y)
        assert sorted(data.gold.nonzero().tolist()) == sorted([e, task.hops - 1 - hop] for hop, e in enumerate(path))
        answers.add(int(data.y))
    assert answers == set(range(reasoning.COLOURS))


@pytest.mark.parametrize("task", [reasoning.Task(), reasoning.DEEP])
def test_no_walk_leads_from_noise_to_the_query_node(task: reasoning.Task) -> None:
    data = reasoning.graph(task, torch.Generator().manual_seed(4))
    graph = nx.DiGraph(data.edge_index.flip(0).t().tolist())
    away = nx.single_source_shortest_path_length(graph, 0)
    for edge, target in enumerate(data.edge_index[1].tolist()):
        for layer in range(task.hops):
            assert bool(data.noise[edge, layer]) == (away.get(target, 99) > task.hops - 1 - layer)
    assert not bool((data.noise & data.gold).any())
    assert float(data.noise.float().mean()) > 0.3


def test_distances_of_the_six_layer_task() -> None:
    for data in others.distances(5, seed=1):
        graph = nx.Graph(data.edge_index.t().tolist())
        sources = (data.y == 0).nonzero().view(-1).tolist()
        away = nx.multi_source_dijkstra_path_length(graph, set(sources))
        assert data.y.tolist() == [min(away[node], others.FARTHEST) for node in range(data.num_nodes)]
        for (source, target), gold in zip(data.edge_index.t().tolist(), data.gold.tolist(), strict=True):
            assert gold == (away[target] == away[source] + 1 and away[target] < others.FARTHEST)


@pytest.mark.parametrize("name", ["links", "nodes_gcn", "regression", "six_layers", "hetero", "reasoning_rgcn"])
def test_data_follow_from_the_seed_alone(name: str) -> None:
    """Fits of one model may run in different processes: they must see the same graphs."""
    made = []
    for state in (1, 2):
        random.seed(state)
        np.random.seed(state)  # noqa: NPY002 - the state that some libraries draw from
        torch.manual_seed(state)
        found = ENTRIES[name].make(0)
        parts = [content_of(batch) for batch in (*found.fit, *found.validation, *found.test)]
        made.append((parts, fingerprint(found.model)))
    assert made[0] == made[1]


def test_predicted_links_carry_no_messages() -> None:
    train, validation, test = others.link_split(0)
    everything = nodes.citations(7, others.LINK_NODES, others.LINK_WORDS, typical=0.5, homophily=0.9)
    known = set(map(tuple, everything.edge_index.t().tolist()))
    sent = set(map(tuple, train.edge_index.t().tolist()))
    for part in (train, validation, test):
        pairs = list(map(tuple, part.edge_label_index.t().tolist()))
        right = int(part.edge_label.sum())
        assert [pair in known for pair in pairs] == part.edge_label.bool().tolist()
        assert right * 2 == len(pairs)
        assert torch.equal(part.edge_index, train.edge_index)
        assert [pair in sent for pair in pairs[:right]] == [part is train] * right


def test_bonds_are_counted() -> None:
    data = others.bonds(30, seed=0)
    counts = []
    for graph in data:
        kinds = graph.x.argmax(1)[graph.edge_index]
        counts.append(float(((kinds[0] == 0) & (kinds[1] == 1)).sum()))  # each edge lies both ways
    wanted = torch.tensor(counts)
    torch.testing.assert_close(torch.cat([graph.y for graph in data]), (wanted - wanted.mean()) / wanted.std())


def test_gold_of_the_heterogeneous_graphs_is_what_the_label_counts() -> None:
    data = hetero.papers(2)
    gold = hetero.wrote(data)
    assert len(gold) == sum(data[kind].num_edges for kind in data.edge_types)
    author, paper = data[hetero.WRITES].edge_index[:, gold[: data[hetero.WRITES].num_edges]]
    colour = data["author"].x[author].argmax(1)
    for number, label in enumerate(data["paper"].y.tolist()):
        mine = colour[paper == number]
        assert label == (int((mine == hetero.RED).sum()) > int((mine == hetero.BLUE).sum()))


def test_gold_counts_for_mutagens_that_have_it() -> None:
    some = torch.tensor([True, False])
    found = entry.Prepared(
        nn.Linear(1, 1), [], [], [Data(y=torch.tensor([0, 1, 0]))], dict, gold=[some, some, ~some & some]
    )
    assert frozen.only_mutagens(found).gold is not None
    assert [gold is not None for gold in found.gold or []] == [True, False, False]


def test_training_of_graph_classifiers_learns() -> None:
    torch.manual_seed(0)
    graphs = []
    for number in range(80):
        x = torch.zeros(4, 2)
        x[:, number % 2] = 1
        edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([number % 2]), gold=torch.ones(4, dtype=torch.bool)))
    network = molecules.network("gin", 2, 2)
    state = torch.random.get_rng_state()
    found = molecules.classifier(network, graphs, 0, epochs=10, rate=1e-2)
    assert found.learn is not None
    found.learn()
    assert found.judge() == {"accuracy": 1.0}
    assert len(found.gold or []) == 8
    assert torch.equal(torch.random.get_rng_state(), state)
